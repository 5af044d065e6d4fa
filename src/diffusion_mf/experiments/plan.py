"""Plans: a TOML file that stands for many runs, corpora × systems × encoders × variants × seeds.

A run is a configuration file, settings that win over it, and a seed. Its name ends in a hash of everything that decides about
its result, so that the same run of two plans is one run, and a changed setting makes another one. Where the corpora lie is
not part of it: they may have moved.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pydantic
from pydantic import NonNegativeInt, PositiveFloat, PositiveInt

from diffusion_mf.config import Config, load_config
from diffusion_mf.config_errors import explained
from diffusion_mf.data.corpus import Task
from diffusion_mf.errors import InputError
from diffusion_mf.files import StrPath, open_input
from diffusion_mf.systems import SYSTEMS

DEFAULT = "default"
"""the variant of a plan that names none"""

TABLE_KINDS = (
    "main",
    "denoiser",
    "objective",
    "calls",
    "ner",
    "seg-pos",
    "scaling",
    "depth",
    "iterations",
    "base",
)
TableKind = Literal[
    "main", "denoiser", "objective", "calls", "ner", "seg-pos", "scaling", "depth", "iterations", "base"
]

# They say where things lie and how fast they go, not what comes out.
_WITHOUT_INFLUENCE = (
    ("data", "train"),
    ("data", "dev"),
    ("data", "test"),
    ("encoder", "cache"),
    ("training", "threads"),
)


class _Section(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(frozen=True, extra="forbid", strict=True)


class CorpusEntry(_Section):
    """A corpus: its task and its files, ``$NAME`` standing for environment variables.

    Of several names for a file, the first that exists counts.
    """

    task: Task = pydantic.Field(strict=False)
    train: str | list[str]
    dev: str | list[str]
    test: str | list[str] | None = None
    set: dict[str, Any] = {}

    def files(self) -> dict[str, str]:
        """The splits' files."""
        found = {}
        for split, names in (("train", self.train), ("dev", self.dev), ("test", self.test)):
            candidates = [names] if isinstance(names, str) else names or []
            if candidates:
                existing = (name for name in candidates if os.path.exists(os.path.expandvars(name)))
                found[split] = next(existing, candidates[0])
        return found


class ExceptionEntry(_Section):
    """Settings for the runs that ``where`` describes, or none of them at all."""

    where: dict[Literal["corpus", "system", "encoder", "variant", "task"], str | list[str]]
    set: dict[str, Any] = {}
    skip: bool = False


class EvaluationEntry(_Section):
    """What a finished model is scored with beside its own schedule: one checkpoint, several ways to use it."""

    calls: list[PositiveInt] = []
    bases: list[PositiveFloat] = []
    analysis: bool = True
    """also count where it errs, on dev"""


class RunEntry(_Section):
    """How runs are run."""

    workers: PositiveInt = 1
    retries: NonNegativeInt = 1
    checkpoint_every: PositiveFloat = 300.0
    keep: Literal["scores", "model", "all"] = "model"
    """of a finished run, beside its log: the scores alone, the model, too, or the checkpoint as well"""


class PlanFile(_Section):
    """The plan's file, as it stands."""

    name: str | None = None
    table: TableKind = "main"
    configs: str = "../{task}/{system}.toml"
    systems: list[str]
    corpora: list[str] | dict[str, CorpusEntry]
    """names of entries of ``corpora_file``, or entries"""
    corpora_file: str = "corpora.toml"
    encoders: dict[str, dict[str, Any]] = {"scratch": {}}
    variants: dict[str, dict[str, Any]] = {}
    grid: dict[str, Any] = {}
    """lists of values of settings; all combinations are variants"""
    seeds: list[NonNegativeInt]
    set: dict[str, Any] = {}
    exceptions: list[ExceptionEntry] = []
    evaluation: EvaluationEntry = EvaluationEntry()
    run: RunEntry = RunEntry()

    @pydantic.field_validator("systems")
    @classmethod
    def _systems_exist(cls, names: list[str]) -> list[str]:
        for name in names:
            if name not in SYSTEMS:
                raise ValueError(f"must be some of {', '.join(SYSTEMS)}")
        return names


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


def read_toml(path: Path) -> tuple[dict[str, Any], str]:
    """A TOML file's values, and its text."""
    with open_input(path) as stream:
        content = stream.read()
    try:
        text = content.decode("utf-8")
        return tomllib.loads(text), text
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError(f"is not TOML ({error})", path=path, remedy="correct it") from None


class _CorporaFile(pydantic.RootModel[dict[str, CorpusEntry]]):
    pass


def read_corpora(
    wanted: list[str] | dict[str, CorpusEntry], default: Path, given: StrPath | None = None
) -> dict[str, CorpusEntry]:
    """The corpora of a plan: its own entries, or those of the file ``default``; those in the file ``given`` win."""
    if isinstance(wanted, dict) and given is None:
        return wanted
    source = default if given is None else Path(given)
    values, _ = read_toml(source)
    try:
        known = _CorporaFile.model_validate(values).root
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(str(part) for part in first["loc"])
        raise InputError(f"{key}: {first['msg']}", path=source, remedy="correct it") from None
    found = {}
    for name in wanted:
        if name in known:
            found[name] = known[name]
        elif isinstance(wanted, dict):
            found[name] = wanted[name]
        else:
            raise InputError(f"there is no corpus {name!r}", path=source, remedy=f"known are {', '.join(known)}")
    return found


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


def flat_settings(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Settings by their dotted names, however they were nested.

    >>> flat_settings({"training": {"epochs": 3}, "denoiser.layers": 2})
    {'training.epochs': 3, 'denoiser.layers': 2}
    """
    return dict(_flattened(values, prefix))


def _flattened(values: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flattened(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def toml_value(value: Any) -> str:
    """A value as TOML writes it."""
    # JSON's strings, numbers, lists and truth values are TOML's, too.
    return json.dumps(value, ensure_ascii=False)
