"""Plans: a TOML file that stands for many runs, corpora × systems × encoders × variants × seeds.

A run is a configuration file, settings that win over it, and a seed. Its name ends in a hash of everything that decides about
its result, so that the same run of two plans is one run, and a changed setting makes another one. Where the corpora lie is
not part of it: they may have moved.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pydantic

from diffusion_mf.config import Config, load_config
from diffusion_mf.config_errors import explained
from diffusion_mf.errors import InputError
from diffusion_mf.experiments.plan_file import (
    CorpusEntry,
    EvaluationEntry,
    ExceptionEntry,
    PlanFile,
    RunEntry,
    TableKind,
    flat_settings,
    read_corpora,
    read_toml,
    toml_value,
)
from diffusion_mf.files import StrPath

DEFAULT = "default"
"""the variant of a plan that names none"""

# They say where things lie and how fast they go, not what comes out.
_WITHOUT_INFLUENCE = (
    ("data", "train"),
    ("data", "dev"),
    ("data", "test"),
    ("encoder", "cache"),
    ("training", "threads"),
)


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run of a plan."""

    corpus: str
    system: str
    encoder: str
    variant: str
    seed: int
    config: Config
    source: str
    """the configuration file and the settings that won over it"""

    @property
    def name(self) -> str:
        """A readable name that no other run has: its folder's."""
        return f"{self.corpus}.{self.system}.{self.encoder}.seed{self.seed}.{fingerprint(self.config)}"

    def coordinates(self) -> dict[str, Any]:
        """Where in the plan the run stands."""
        return {
            "corpus": self.corpus,
            "system": self.system,
            "encoder": self.encoder,
            "variant": self.variant,
            "seed": self.seed,
        }


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A plan and its runs: the first seed of everything comes before the second seed of anything."""

    name: str
    table: TableKind
    runs: Sequence[Run]
    evaluation: EvaluationEntry
    settings: RunEntry

    def record(self) -> dict[str, Any]:
        """What tables must know of the plan, for JSON."""
        return {
            "name": self.name,
            "table": self.table,
            "runs": [{"name": run.name, **run.coordinates()} for run in self.runs],
            "evaluation": self.evaluation.model_dump(mode="json"),
        }


def fingerprint(config: Config) -> str:
    """A short hash of the settings that decide about a result.

    Settings at their defaults are left out: a new one that changes nothing does not make old runs other runs.
    """
    values = config.model_dump(mode="json", exclude_defaults=True)
    for section, key in _WITHOUT_INFLUENCE:
        values.get(section, {}).pop(key, None)
    if config.encoder.model is not None:
        # The folder's name, wherever it lies.
        values["encoder"]["model"] = config.encoder.title
    values = {key: value for key, value in values.items() if value != {}}
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:10]


def load_plan(path: StrPath, *, overrides: Sequence[str] = (), corpora_file: StrPath | None = None) -> Plan:
    """Read a plan and all configurations it names; everything wrong with them is an `InputError`.

    ``overrides`` are settings for all runs, such as ``training.epochs=3``; ``corpora_file`` replaces the plan's.
    """
    path = Path(path)
    values, text = read_toml(path)
    try:
        plan = PlanFile.model_validate(values)
    except pydantic.ValidationError as error:
        raise explained(error, PlanFile, path=path, text=text) from None
    for name in ("systems", "corpora", "encoders", "seeds"):
        if not getattr(plan, name):
            raise InputError(f"{name} is empty: there is nothing to run", path=path, remedy="name at least one")
    corpora = read_corpora(plan.corpora, path.parent / plan.corpora_file, corpora_file)
    check_names([*corpora, *plan.encoders, plan.name or path.stem], path)
    variants = _variants(plan, path)
    places = itertools.product(plan.seeds, corpora, plan.encoders, variants, plan.systems)
    runs = [
        run
        for seed, corpus, encoder, variant, system in places
        if (
            run := make_run(
                plan,
                path,
                {"corpus": corpus, "system": system, "encoder": encoder, "variant": variant, "seed": seed},
                corpora[corpus],
                variants[variant],
                overrides,
            )
        )
        is not None
    ]
    if not runs:
        raise InputError("all runs are skipped", path=path, remedy="check the exceptions")
    return Plan(name=plan.name or path.stem, table=plan.table, runs=runs, evaluation=plan.evaluation, settings=plan.run)


def check_names(names: Sequence[str], path: Path) -> None:
    """`InputError` for names that cannot be part of a file's."""
    for name in names:
        if not re.fullmatch(r"[\w][\w.+-]*", name):
            raise InputError(
                f"{name!r} cannot be part of a file's name", path=path, remedy="use letters, digits, dots and hyphens"
            )


def _variants(plan: PlanFile, path: Path) -> dict[str, dict[str, Any]]:
    named = {name: flat_settings(settings) for name, settings in plan.variants.items()} or {DEFAULT: {}}
    grid = flat_settings(plan.grid)
    for key, values in grid.items():
        if not isinstance(values, list) or not values:
            raise InputError(f"grid.{key} is no list of values", path=path, remedy=f"write {key} = [1, 2]")
    found = {}
    for (name, settings), values in itertools.product(named.items(), itertools.product(*grid.values())):
        chosen = dict(zip(grid, values, strict=True))
        parts = [name] if name != DEFAULT or not chosen else []
        parts += [f"{key.rpartition('.')[2]}={value}" for key, value in chosen.items()]
        found[" ".join(parts)] = {**settings, **chosen}
    return found


def make_run(
    plan: PlanFile,
    path: Path,
    place: dict[str, Any],
    corpus: CorpusEntry,
    variant: Mapping[str, Any],
    overrides: Sequence[str],
) -> Run | None:
    """The run at a place of the plan, with the settings of its variant; None where an exception skips it."""
    settings: dict[str, Any] = {
        **flat_settings(plan.set),
        **flat_settings(corpus.set),
        **flat_settings(plan.encoders[place["encoder"]]),
        **variant,
    }
    for exception in plan.exceptions:
        if _applies(exception, {**place, "task": corpus.task.value}):
            if exception.skip:
                return None
            settings |= flat_settings(exception.set)
    settings |= {f"data.{split}": name for split, name in corpus.files().items()}
    settings["seed"] = place["seed"]
    given = [*(f"{key}={toml_value(value)}" for key, value in settings.items()), *overrides]
    base = path.parent / plan.configs.format(
        task=corpus.task.value, **{key: place[key] for key in ("system", "corpus", "encoder")}
    )
    config = load_config(base, [*given, f"system={place['system']}", f"task={corpus.task.value}"])
    shown = [each for each in given if not each.startswith(("data.", "seed="))]
    source = " ".join([_short_path(base), *(f"--set {each}" for each in shown)])
    return Run(**place, config=config, source=source)


def _applies(exception: ExceptionEntry, place: Mapping[str, Any]) -> bool:
    return all(
        place[key] in ([wanted] if isinstance(wanted, str) else wanted) for key, wanted in exception.where.items()
    )


def _short_path(path: Path) -> str:
    """The path from the configurations' folder on, where it is known by that name."""
    parts = path.resolve().parts
    return str(Path(*parts[parts.index("configs") :])) if "configs" in parts else path.name
