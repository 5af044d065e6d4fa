"""Plans of experiments: reading the file, its corpora, and the runs it describes."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

import pydantic
from pydantic import NonNegativeInt, PositiveFloat, PositiveInt

from diffusion_mf.config import Config, load_config
from diffusion_mf.config.errors import explained, line_of, override, read_toml
from diffusion_mf.config.files import flat, import_listed, locate_config
from diffusion_mf.data.corpus import Task
from diffusion_mf.data.files import StrPath, first_existing
from diffusion_mf.errors import InputError
from diffusion_mf.lab.experiments.same_data import FileDigests, data_files
from diffusion_mf.plugins import import_named
from diffusion_mf.systems import SYSTEMS

TableKind = Literal[
    "main",
    "denoiser",
    "objective",
    "variants",
    "calls",
    "ner",
    "seg-pos",
    "scaling",
    "depth",
    "iterations",
    "base",
    "readings",
]


class Section(pydantic.BaseModel):
    """A part of a plan's file; unknown keys and values of the wrong type are errors."""

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid", strict=True)


class CorpusEntry(Section):
    """A corpus: its task and its files, in which ``$NAME`` stands for an environment variable.

    If several paths are given for a file, the first that exists is used.
    """

    task: Task = pydantic.Field(strict=False)
    train: str | list[str]
    dev: str | list[str] | None = None
    """required except for learning curves over sizes, which can hold out training sentences"""
    test: str | list[str] | None = None
    set: dict[str, Any] = {}
    optional: bool = False
    """whether plans leave the corpus out if its training file is missing"""

    @property
    def is_missing(self) -> bool:
        """Whether plans leave the corpus out."""
        return self.optional and not os.path.exists(self.files()["train"])

    def files(self) -> dict[str, str]:
        """The splits' files, with variables replaced; one that is not set stays visible in the message about it."""
        found = {}
        for split, names in (("train", self.train), ("dev", self.dev), ("test", self.test)):
            candidates = [names] if isinstance(names, str) else names or []
            if candidates:
                found[split] = os.path.expandvars(first_existing(candidates))
        return found


def check_files(*paths: str | None) -> None:
    """Raise `InputError` if a file of a corpus is missing, before any run starts."""
    for path in paths:
        if path is not None and not os.path.exists(path):
            unset = re.match(r"\$\{?(\w+)", path)
            if unset:
                raise InputError(
                    f"the environment variable {unset[1]} is not set",
                    path=path,
                    remedy=f"write export {unset[1]}=FOLDER, or give the path of the file with --corpora FILE",
                )
            raise InputError(
                "no such file", path=path, remedy="give its path in the plan's corpora.toml, or with --corpora FILE"
            )


class ExceptionEntry(Section):
    """Settings for the runs that match ``where``, or the instruction to skip them."""

    where: dict[Literal["corpus", "system", "encoder", "variant", "task", "seed"], str | int | list[str] | list[int]]
    set: dict[str, Any] = {}
    skip: bool = False


class EvaluationEntry(Section):
    """Further ways to score a finished model besides its own schedule, with the same checkpoint."""

    calls: list[PositiveInt] = []
    bases: list[PositiveFloat] = []
    readings: list[Literal["product", "mixture", "sampled"]] = []
    """forms of the reverse posterior, each with all calls and bases or the model's own schedule; not for bit diffusion"""
    analysis: bool = True
    """also analyse errors on dev"""


class RunEntry(Section):
    """How runs are executed."""

    workers: PositiveInt = 1
    keep: Literal["scores", "model"] = "model"
    """what is kept of a finished run besides its log: only the scores, or also the model"""


class AnyFile(Section):
    """The part common to the files of all plans and searches."""

    peers: ClassVar[tuple[str, ...]] = ()
    """what else may be among the systems"""
    name: str | None = None
    systems: list[str]
    corpora_file: str = "corpora.toml"
    seeds: list[NonNegativeInt]
    set: dict[str, Any] = {}

    @pydantic.field_validator("systems", "corpora", "seeds", "sizes", "whole_corpora", check_fields=False)
    @classmethod
    def _each_once(cls, values: Any) -> Any:
        """Reject duplicates: a seed named twice would be counted twice."""
        if isinstance(values, list):
            for value in values:
                if values.count(value) > 1:
                    raise ValueError(f"must contain {value!r} only once")
        return values

    @pydantic.field_validator("systems")
    @classmethod
    def _systems_exist(cls, names: list[str]) -> list[str]:
        known = [*SYSTEMS, *cls.peers]
        if any(name not in known for name in names):
            raise ValueError(f"must be chosen from {', '.join(known)}")
        return names


class CommonFile(AnyFile):
    """The part common to the files of plans and searches."""

    plugins: list[str] = []
    """modules, or paths of .py files, that add systems, structures or encoders"""
    configs: str = "../{task}/{system}.toml"
    corpora: list[str] | dict[str, CorpusEntry]
    """names of entries of ``corpora_file``, or entries"""
    encoders: dict[str, dict[str, Any]] = {"scratch": {}}


def _import_plugins_of(values: Mapping[str, Any], path: Path, text: str) -> None:
    """Import the plugins of a plan or search before it is validated, since validation looks up systems."""
    import_listed(values.get("plugins"), path=str(path), text=text)
    systems = values.get("systems")
    if isinstance(systems, list):
        import_named(name for name in systems if name not in SYSTEMS)


class PlanFile(CommonFile):
    """The contents of a plan's file."""

    table: TableKind = "main"
    record: str | None = None
    """the result file for the plan's rows"""
    variants: dict[str, dict[str, Any]] = {}
    grid: dict[str, Any] = {}
    """lists of values by setting; every combination is a variant"""
    exceptions: list[ExceptionEntry] = []
    evaluation: EvaluationEntry = EvaluationEntry()
    run: RunEntry = RunEntry()


class _CorporaFile(pydantic.RootModel[dict[str, CorpusEntry]]):
    pass


File = TypeVar("File", bound=AnyFile)


def read_plan_file(model: type[File], path: Path) -> tuple[File, str]:
    """The parsed file of a plan or search, and its text; `InputError` if it is invalid."""
    values, text = read_toml(path)
    _import_plugins_of(values, path, text)
    try:
        plan = model.model_validate(values)
    except pydantic.ValidationError as error:
        raise explained(error, model, path=path, text=text) from None
    for name in ("systems", "corpora", "encoders", "seeds", "stages", "sizes"):
        if not getattr(plan, name, True):
            raise InputError(f"{name} is empty: there is nothing to run", path=path, remedy="give at least one")
    check_names([*getattr(plan, "encoders", ()), plan.name or path.stem], path)
    return plan, text


def known_corpora(plan: CommonFile, path: Path, given: StrPath | None = None) -> dict[str, CorpusEntry]:
    """The corpora available to the plan in ``path``: its own entries or those of its corpora file, overridden by ``given``."""
    own = plan.corpora if isinstance(plan.corpora, dict) else {}
    if own and given is None:
        return own
    return own | known_corpora_of(path.parent / plan.corpora_file if given is None else Path(given))


def known_corpora_of(path: Path) -> dict[str, CorpusEntry]:
    """The entries of a corpora file."""
    values, text = read_toml(path)
    try:
        return _CorporaFile.model_validate(values).root
    except pydantic.ValidationError as error:
        raise explained(error, _CorporaFile, path=path, text=text) from None


def chosen_corpora(
    wanted: Iterable[str], known: Mapping[str, CorpusEntry], path: Path, text: str, *, needs_dev: bool = True
) -> dict[str, CorpusEntry]:
    """The corpora that the plan in ``path`` names; without ``needs_dev`` they may lack a dev file."""
    check_names(list(wanted), path)
    for name in wanted:
        if name not in known:
            line = line_of(("corpora",), text)
            raise InputError(
                f"there is no corpus {name!r}", path=path, line=line, remedy=f"choose from {', '.join(known)}"
            )
        if needs_dev and known[name].dev is None:
            raise InputError(
                f"the corpus {name!r} has no dev file",
                path=path,
                line=line_of(("corpora",), text),
                remedy="add dev = FILE to its entry",
            )
    return {name: known[name] for name in wanted}


def config_path(plan: PlanFile, path: Path, names: Mapping[str, str]) -> Path:
    """The configuration of a run, ``{task}``, ``{system}``, ``{corpus}`` and ``{encoder}`` filled in.

    A file, relative to the plan's folder, or the name of a configuration that comes with the package.
    """
    try:
        name = plan.configs.format_map(names)
    except (KeyError, ValueError, IndexError):
        raise InputError(
            f"configs cannot be filled in, found {plan.configs!r}",
            path=path,
            remedy=f"use {', '.join(f'{{{name}}}' for name in names)} and no other braces",
        ) from None
    return locate_config(name, path.parent) or path.parent / name


DEFAULT = "default"
"""the variant of a plan that names none"""

# These settings affect locations and speed, not results.
_WITHOUT_INFLUENCE = (
    ("data", "train"),
    ("data", "dev"),
    ("data", "test"),
    ("encoder", "cache"),
    ("training", "threads"),
    ("training", "compile"),
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
    """the configuration file and the settings that override it"""

    @property
    def name(self) -> str:
        """A readable unique name, used for the run's folder."""
        return f"{self.corpus}.{self.system}.{self.encoder}.seed{self.seed}.{fingerprint(self.config)}"

    def coordinates(self) -> dict[str, Any]:
        """The run's coordinates in the plan."""
        return {name: getattr(self, name) for name in ("corpus", "system", "encoder", "variant", "seed")}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A plan and its runs: the first seed of everything comes before the second seed of anything."""

    name: str
    table: TableKind
    record_file: str | None
    left_out: Sequence[str]
    """optional corpora that are missing"""
    runs: Sequence[Run]
    evaluation: EvaluationEntry
    settings: RunEntry
    digests: FileDigests = field(default_factory=FileDigests)

    def files(self, *, only: Collection[str] | None = None) -> dict[str, dict[str, str]]:
        """The files of every run, by name; with ``only``, of all runs on the corpora of these, which tables compare."""
        corpora = {run.corpus for run in self.runs if only is None or run.name in only}
        return {run.name: data_files(run.config) for run in self.runs if run.corpus in corpora}

    def record(self) -> dict[str, Any]:
        """What tables need to know about the plan, for JSON."""
        return {
            "name": self.name,
            "table": self.table,
            "record": self.record_file,
            "runs": [{"name": run.name, **run.coordinates()} for run in self.runs],
            "evaluation": self.evaluation.model_dump(mode="json"),
        }


def fingerprint(config: Config) -> str:
    """A short hash of the settings that affect results.

    Settings with default values are left out, so that adding a setting to the package does not change the names of old runs.
    """
    # Plugins determine where a system comes from, not which one it is.
    values = config.model_dump(mode="json", exclude_defaults=True, exclude={"plugins"})
    for section, key in _WITHOUT_INFLUENCE:
        values.get(section, {}).pop(key, None)
    if config.encoder.model is not None:
        # Only the folder's name, since its location does not matter.
        values["encoder"]["model"] = config.encoder.title
    values = {key: value for key, value in values.items() if value != {}}
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:10]


def load_plan(
    path: StrPath,
    *,
    overrides: Sequence[str] = (),
    corpora_file: StrPath | None = None,
    configs: str | None = None,
) -> Plan:
    """Read a plan and all configurations it names; any mistake in them is an `InputError`.

    ``overrides`` are settings for all runs, such as ``training.epochs=3``; ``corpora_file`` and ``configs`` replace the plan's.
    """
    path = Path(path)
    plan, text = read_plan_file(PlanFile, path)
    if configs is not None:
        plan = plan.model_copy(update={"configs": configs})
    known = known_corpora(plan, path, corpora_file)
    named = chosen_corpora(plan.corpora, known, path, text)
    corpora = {name: corpus for name, corpus in named.items() if not corpus.is_missing}
    variants = _variants(plan, path, text)
    _check_exceptions(plan, known, variants, path, text)
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
        raise InputError("all runs are skipped", path=path, remedy="check the exceptions and the paths of the corpora")
    return Plan(
        name=plan.name or path.stem,
        table=plan.table,
        record_file=plan.record,
        left_out=[name for name in named if name not in corpora],
        runs=runs,
        evaluation=plan.evaluation,
        settings=plan.run,
    )


AnyRun = TypeVar("AnyRun", bound=Any)


def chosen_runs(planned: Sequence[AnyRun], conditions: Sequence[str]) -> list[AnyRun]:
    """The planned runs, of any kind of plan, for which all ``conditions`` hold, such as ``seed=1,2`` or ``encoder=scratch``."""
    runs = list(planned)
    keys = list(runs[0].coordinates())
    for condition in conditions:
        key, equals, values = condition.partition("=")
        if not equals or key not in keys:
            raise InputError(
                f"--only {condition} is not a condition", remedy=f"write KEY=VALUE,VALUE; keys are {', '.join(keys)}"
            )
        known = dict.fromkeys(str(run.coordinates()[key]) for run in planned)
        wanted = [value.strip() for value in values.split(",")]
        for value in wanted:
            if value not in known:
                raise InputError(
                    f"--only {condition}: the plan has no {key} {value!r}", remedy=f"choose among {', '.join(known)}"
                )
        runs = [run for run in runs if str(run.coordinates()[key]) in wanted]
    if not runs:
        raise InputError(f"no run of the plan matches --only {' --only '.join(conditions)}", remedy="see --dry-run")
    return runs


def check_names(names: Sequence[str], path: Path) -> None:
    """Raise `InputError` for names that cannot be part of a file name."""
    for name in names:
        if not re.fullmatch(r"[\w][\w.+-]*", name):
            raise InputError(
                f"{name!r} cannot be part of a file name", path=path, remedy="use letters, digits, dots and hyphens"
            )


def _check_exceptions(plan: PlanFile, corpora: Iterable[str], variants: Iterable[str], path: Path, text: str) -> None:
    """Raise `InputError` for an exception that refers to something unknown, which would silently do nothing."""
    known: dict[str, list[str]] = {
        "corpus": list(corpora),
        "system": list(SYSTEMS),
        "encoder": list(plan.encoders),
        "variant": list(variants),
        "task": [task.value for task in Task],
        "seed": [str(seed) for seed in plan.seeds],
    }
    for number, exception in enumerate(plan.exceptions):
        for key, wanted in exception.where.items():
            for name in _names(wanted):
                if name not in known[key]:
                    raise InputError(
                        f"an exception is for the {key} {name!r}, which does not exist",
                        path=path,
                        line=line_of(("exceptions", str(number), "where"), text),
                        remedy=f"choose from {', '.join(known[key])}",
                    )


def _variants(plan: PlanFile, path: Path, text: str) -> dict[str, dict[str, Any]]:
    named = {name: flat(settings) for name, settings in plan.variants.items()} or {DEFAULT: {}}
    grid = flat(plan.grid)
    for key, values in grid.items():
        if not isinstance(values, list) or not values:
            raise InputError(
                f"grid.{key} is not a list of values",
                path=path,
                line=line_of(("grid", *key.split(".")), text),
                remedy=f"write {key} = [1, 2]",
            )
    last_parts = Counter(key.rpartition(".")[2] for key in grid)
    shown = {key: last if last_parts[last := key.rpartition(".")[2]] == 1 else key for key in grid}
    found = {}
    for (name, settings), values in itertools.product(named.items(), itertools.product(*grid.values())):
        chosen = dict(zip(grid, values, strict=True))
        parts = [name] if name != DEFAULT or not chosen else []
        parts += [f"{shown[key]}={value}" for key, value in chosen.items()]
        found[" ".join(parts)] = {**settings, **chosen}
    return found


Layer = tuple[tuple[str, ...], Mapping[str, Any]]
"""where in a plan's file settings are made, and the settings by their dotted names"""


def make_run(
    plan: PlanFile,
    path: Path,
    place: dict[str, Any],
    corpus: CorpusEntry,
    variant: Mapping[str, Any],
    overrides: Sequence[str],
) -> Run | None:
    """The run for one combination of the plan, with the settings of its variant; None if an exception skips it."""
    grid = flat(plan.grid)
    # Later layers win; each has its place in the plan's file, if it is from there.
    layers: list[Layer] = [
        (("set",), flat(plan.set)),
        ((), flat(corpus.set)),
        (("encoders", place["encoder"]), flat(plan.encoders[place["encoder"]])),
        (("variants", place["variant"].partition(" ")[0]), {key: variant[key] for key in variant if key not in grid}),
        (("grid",), {key: variant[key] for key in variant if key in grid}),
    ]
    for number, exception in enumerate(plan.exceptions):
        about = {**place, "task": corpus.task.value}
        if all(str(about[key]) in _names(wanted) for key, wanted in exception.where.items()):
            if exception.skip:
                return None
            layers.append((("exceptions", str(number), "set"), flat(exception.set)))
    settings: dict[str, Any] = {}
    for _, layer in layers:
        settings |= layer
    settings |= {f"data.{split}": name for split, name in corpus.files().items()}
    settings["seed"] = place["seed"]
    given = [*(override(key, value) for key, value in settings.items()), *overrides]
    names = {"task": corpus.task.value, **{key: place[key] for key in ("system", "corpus", "encoder")}}
    base = config_path(plan, path, names)
    try:
        config = load_config(base, [*given, f"system={place['system']}", f"task={corpus.task.value}"])
    except InputError as error:
        raise _located(error, path, layers, overrides) from None
    shown = [each for each in given if not each.startswith(("data.", "seed="))]
    source = " ".join([_short_path(base), *(f"--set {each}" for each in shown)])
    return Run(**place, config=config, source=source)


def _located(error: InputError, path: Path, layers: Sequence[Layer], overrides: Sequence[str]) -> InputError:
    """``error`` with the line of the plan's file that made the setting it is about, if it was made there."""

    def is_named(key: str) -> bool:
        return re.search(rf"(?<![\w.]){re.escape(key)}(?![\w.])", error.problem) is not None

    if error.path is not None or any(is_named(each.partition("=")[0]) for each in overrides):
        return error
    for place, settings in reversed(layers):
        key = next(filter(is_named, settings), None)
        if key is not None:
            line = line_of((*place, *key.split(".")), path.read_text(encoding="utf-8"))
            return error if line is None else InputError(error.problem, path=path, line=line, remedy=error.remedy)
    return error


def _names(wanted: str | int | Sequence[str] | Sequence[int]) -> list[str]:
    """A value of an exception's condition as text, since seeds are numbers."""
    return [str(wanted)] if isinstance(wanted, (str, int)) else [str(name) for name in wanted]


def _short_path(path: Path) -> str:
    """The path relative to the folder of configurations, if it is inside it."""
    _, name, rest = path.resolve().as_posix().rpartition("/configs/")
    return f"configs/{rest}" if name else path.name
