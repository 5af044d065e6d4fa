"""Plans of the staged search: the stages and their candidate values, the same number of trials for every system.

Stages follow the paper (“Hyperparameter search”): capacity, optimisation and denoiser size, transitions, Mean-Field iterations or
loss weights. The decoder needs no trials, since every run is scored on dev with all of them. The settings chosen by a stage are
fixed in later stages. If a stage has nothing to vary for a system (a linear chain has no iterations), its trials go to the last
earlier stage that has, so that every system gets the same number.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pydantic
from pydantic import NonNegativeInt, PositiveInt

from diffusion_mf.config import Config
from diffusion_mf.config.files import flat
from diffusion_mf.data.files import StrPath
from diffusion_mf.errors import InputError
from diffusion_mf.lab.experiments.folders import without_test
from diffusion_mf.lab.experiments.plan import (
    CommonFile,
    CorpusEntry,
    PlanFile,
    Section,
    check_names,
    chosen_corpora,
    known_corpora,
    make_run,
    read_plan_file,
)
from diffusion_mf.lab.experiments.same_data import FileDigests
from diffusion_mf.systems import SYSTEMS

MOST_COMBINATIONS = 100
"""the number of combinations of a stage up to which none is tried twice"""


class StageEntry(Section):
    """A stage: candidate values by setting, as lists, or ranges ``{low, high, log}``."""

    name: str
    trials: PositiveInt
    space: dict[str, Any] = pydantic.Field({})
    """for all systems"""
    system: dict[str, dict[str, Any]] = pydantic.Field({})
    """additions to ``space``, or replacements, for the systems named"""
    only: list[str] | None = None
    """the systems that ``space`` applies to; None for all"""


class PrunerEntry(Section):
    """Prunes trials that fall behind the median of the others at the same epoch."""

    startup_trials: NonNegativeInt = 3
    warmup_epochs: NonNegativeInt = 5


class SearchFile(CommonFile):
    """The contents of a search's file."""

    seeds: list[NonNegativeInt] = pydantic.Field([1])
    """a trial's score is the mean over them"""
    stages: list[StageEntry]
    pruner: PrunerEntry = PrunerEntry()


@dataclass(frozen=True)
class Range:
    """Numbers from ``low`` to ``high``."""

    low: float
    high: float
    is_log: bool


Space = Mapping[str, "list[Any] | Range"]


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A stage of one system's search."""

    name: str
    trials: int
    space: Space

    def combinations(self) -> list[dict[str, Any]] | None:
        """All combinations of values, if they are few enough to be drawn without replacement; otherwise None."""
        lists = [values for values in self.space.values() if isinstance(values, list)]
        if len(lists) < len(self.space) or math.prod(map(len, lists)) > MOST_COMBINATIONS:
            return None
        return [dict(zip(self.space, values, strict=True)) for values in itertools.product(*lists)]


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What is tuned: a system on a corpus with an encoder."""

    corpus: str
    system: str
    encoder: str
    stages: Sequence[Stage]

    @property
    def name(self) -> str:
        """A unique name."""
        return ".".join(self.coordinates().values())

    def coordinates(self) -> dict[str, str]:
        """The subject's coordinates in the plan."""
        return {"corpus": self.corpus, "system": self.system, "encoder": self.encoder}


class SearchPlan:
    """A search: its subjects, and the configuration of any trial."""

    def __init__(
        self, path: Path, plan: SearchFile, corpora: Mapping[str, CorpusEntry], overrides: Sequence[str]
    ) -> None:
        self.name = plan.name or path.stem
        self.file = plan
        self.digests = FileDigests()
        self._path, self._corpora, self._overrides = path, corpora, overrides
        self._as_plan = PlanFile(**{name: getattr(plan, name) for name in CommonFile.model_fields})
        self.subjects = [
            Subject(corpus=corpus, system=system, encoder=encoder, stages=_stages(plan, system, path))
            for corpus in corpora
            for encoder in plan.encoders
            for system in plan.systems
        ]

    def config(self, subject: Subject, settings: Mapping[str, Any], seed: int) -> tuple[Config, str]:
        """A trial's configuration, without test data, and where it comes from."""
        place = {**subject.coordinates(), "variant": "search", "seed": seed}
        run = make_run(self._as_plan, self._path, place, self._corpora[subject.corpus], settings, self._overrides)
        assert run is not None
        return without_test(run.config), run.source


def load_search(path: StrPath, *, overrides: Sequence[str] = (), corpora_file: StrPath | None = None) -> SearchPlan:
    """Read a search; any mistake in it, or in the first configuration of a subject, is an `InputError`."""
    path = Path(path)
    plan, text = read_plan_file(SearchFile, path)
    for system in [name for stage in plan.stages for name in (*stage.system, *(stage.only or ()))]:
        if system not in SYSTEMS:
            raise InputError(f"there is no system {system!r}", path=path, remedy=f"choose from {', '.join(SYSTEMS)}")
    corpora = chosen_corpora(plan.corpora, known_corpora(plan, path, corpora_file), path, text)
    check_names([stage.name for stage in plan.stages], path)
    search = SearchPlan(path, plan, corpora, overrides)
    for subject in search.subjects:
        search.config(subject, {}, plan.seeds[0])
        _check_spaces(search, subject, path)
    return search


def _check_spaces(search: SearchPlan, subject: Subject, path: Path) -> None:
    """Raise `InputError` for a setting that does not exist, since every trial of its stage would fail.

    Values are left to the trials, because they may be valid only in some combinations.
    """
    for stage in subject.stages:
        for key, values in stage.space.items():
            value = values[0] if isinstance(values, list) else values.low
            try:
                search.config(subject, {key: value}, search.file.seeds[0])
            except InputError as error:
                if error.problem.startswith("unknown key"):
                    raise InputError(f"stage {stage.name}: {error.problem}", path=path, remedy=error.remedy) from None


def _stages(plan: SearchFile, system: str, path: Path) -> list[Stage]:
    stages: list[Stage] = []
    for entry in plan.stages:
        space = {} if entry.only is not None and system not in entry.only else flat_space(entry.space)
        space |= flat_space(entry.system.get(system, {}))
        if space:
            stages.append(Stage(name=entry.name, trials=entry.trials, space=space))
        elif stages:
            last = stages[-1]
            stages[-1] = dataclasses.replace(last, trials=last.trials + entry.trials)
        else:
            raise InputError(
                f"the first stage has nothing to vary for {system}",
                path=path,
                remedy="begin with a stage for all systems",
            )
    return _shared_out(stages)


def _shared_out(stages: Sequence[Stage]) -> list[Stage]:
    """Move trials beyond the number of combinations of a small stage to the last stage with room for them."""
    sizes = [math.inf if (found := stage.combinations()) is None else len(found) for stage in stages]
    trials = [min(stage.trials, size) for stage, size in zip(stages, sizes, strict=True)]
    surplus = sum(stage.trials for stage in stages) - sum(trials)
    for place in reversed(range(len(stages))):
        moved = min(surplus, sizes[place] - trials[place])
        trials[place] += moved
        surplus -= moved
    return [dataclasses.replace(stage, trials=int(number)) for stage, number in zip(stages, trials, strict=True)]


def flat_space(values: Mapping[str, Any]) -> dict[str, list[Any] | Range]:
    """Candidate values by dotted name.

    >>> flat_space({"training": {"learning_rate": {"low": 1e-4, "high": 1e-3, "log": True}}})
    {'training.learning_rate': Range(low=0.0001, high=0.001, is_log=True)}
    """
    found: dict[str, list[Any] | Range] = {}
    ranges: dict[str, dict[str, Any]] = {}
    for name, value in flat(values).items():
        key, _, last = name.rpartition(".")
        if last in ("low", "high", "log") and not isinstance(value, list):
            ranges.setdefault(key, {})[last] = value
        elif isinstance(value, list) and value:
            found[name] = value
        else:
            raise InputError(f"{name} in a stage's space is not a list of values", remedy=f"write {name} = [1, 2]")
    for name, bounds in ranges.items():
        if not {"low", "high"} <= set(bounds) or bounds["low"] >= bounds["high"]:
            raise InputError(
                f"{name} in a stage's space is not a range", remedy="write { low = 1e-4, high = 1e-3, log = true }"
            )
        found[name] = Range(float(bounds["low"]), float(bounds["high"]), bool(bounds.get("log")))
    return found
