"""The file of a plan: its sections, the corpora it names, and settings as TOML writes them."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import pydantic
from pydantic import NonNegativeInt, PositiveFloat, PositiveInt

from diffusion_mf.config import Config
from diffusion_mf.config_errors import explained, line_of, read_toml
from diffusion_mf.config_files import locate_config
from diffusion_mf.data.corpus import Task
from diffusion_mf.errors import InputError
from diffusion_mf.files import StrPath
from diffusion_mf.systems import SYSTEMS

TableKind = Literal[
    "main", "denoiser", "objective", "calls", "ner", "seg-pos", "scaling", "depth", "iterations", "base", "readings"
]


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
    optional: bool = False
    """plans leave it out where there is no such training file"""

    @property
    def is_missing(self) -> bool:
        """Whether plans leave it out."""
        return self.optional and not os.path.exists(os.path.expandvars(self.files()["train"]))

    def files(self) -> dict[str, str]:
        """The splits' files."""
        found = {}
        for split, names in (("train", self.train), ("dev", self.dev), ("test", self.test)):
            candidates = [names] if isinstance(names, str) else names or []
            if candidates:
                existing = (name for name in candidates if os.path.exists(os.path.expandvars(name)))
                found[split] = next(existing, candidates[0])
        return found


def check_files(config: Config) -> None:
    """`InputError` if a corpus is not where the plan says: better now than in every single run."""
    for path in (config.data.train, config.data.dev, config.data.test):
        if path is not None and not os.path.exists(path):
            unset = re.match(r"\$\{?(\w+)", path)
            if unset:
                raise InputError(
                    f"the environment variable {unset[1]} is not set",
                    path=path,
                    remedy=f"write export {unset[1]}=FOLDER, or say where the file lies with --corpora FILE",
                )
            raise InputError(
                "no such file", path=path, remedy="say where it lies in the plan's corpora.toml, or with --corpora FILE"
            )


class ExceptionEntry(_Section):
    """Settings for the runs that ``where`` describes, or none of them at all."""

    where: dict[Literal["corpus", "system", "encoder", "variant", "task", "seed"], str | int | list[str] | list[int]]
    set: dict[str, Any] = {}
    skip: bool = False


class EvaluationEntry(_Section):
    """What a finished model is scored with beside its own schedule: one checkpoint, several ways to use it."""

    calls: list[PositiveInt] = []
    bases: list[PositiveFloat] = []
    readings: list[Literal["product", "mixture", "sampled"]] = []
    """of the reverse posterior, each with all calls and bases, or the model's own schedule; bits have none"""
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
    record: str | None = None
    """the result file that its rows belong to"""
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

    @pydantic.field_validator("systems", "corpora", "seeds")
    @classmethod
    def _each_once(cls, values: Any) -> Any:
        return without_repetitions(values)

    @pydantic.field_validator("systems")
    @classmethod
    def _systems_exist(cls, names: list[str]) -> list[str]:
        for name in names:
            if name not in SYSTEMS:
                raise ValueError(f"must be some of {', '.join(SYSTEMS)}")
        return names


def without_repetitions(values: Any) -> Any:
    """The list itself: a seed that is named twice would be counted twice."""
    if isinstance(values, list):
        for value in values:
            if values.count(value) > 1:
                raise ValueError(f"must name {value!r} once")
    return values


class _CorporaFile(pydantic.RootModel[dict[str, CorpusEntry]]):
    pass


def known_corpora(
    wanted: list[str] | dict[str, CorpusEntry], default: Path, given: StrPath | None = None
) -> dict[str, CorpusEntry]:
    """The corpora that a plan may name: its own entries, or those of the file ``default``; those in ``given`` win."""
    own = wanted if isinstance(wanted, dict) else {}
    if own and given is None:
        return own
    source = default if given is None else Path(given)
    values, text = read_toml(source)
    try:
        return own | _CorporaFile.model_validate(values).root
    except pydantic.ValidationError as error:
        raise explained(error, _CorporaFile, path=source, text=text) from None


def chosen_corpora(
    wanted: Iterable[str], known: Mapping[str, CorpusEntry], path: Path, text: str
) -> dict[str, CorpusEntry]:
    """The corpora that the plan in ``path`` names."""
    for name in wanted:
        if name not in known:
            line = line_of(("corpora",), text)
            raise InputError(
                f"there is no corpus {name!r}", path=path, line=line, remedy=f"known are {', '.join(known)}"
            )
    return {name: known[name] for name in wanted}


def config_path(plan: PlanFile, path: Path, names: Mapping[str, str]) -> Path:
    """The configuration of a run, ``{task}``, ``{system}``, ``{corpus}`` and ``{encoder}`` filled in.

    A file, from the plan's folder on, or else the name of a configuration that comes with the package.
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
