"""Configurations: TOML files that describe a run completely; unknown keys are refused, naming the nearest valid one.

Settings have the names of `Config`'s fields, in sections (``[encoder]`` …); `load_config` reads them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Self

import pydantic
from pydantic import Field, NonNegativeInt

from diffusion_mf.config.errors import Key, explained
from diffusion_mf.config.files import SettingSource, nested_overrides, read_settings
from diffusion_mf.config.sections import (
    SIZES,
    BitsConfig,
    DataConfig,
    DenoiserConfig,
    DiffusionConfig,
    EncoderConfig,
    InferenceConfig,
    ObjectiveConfig,
    Section,
    Size,
    StructureConfig,
    TrainingConfig,
    preset,
)
from diffusion_mf.data.corpus import Task
from diffusion_mf.data.files import StrPath
from diffusion_mf.systems import SYSTEMS, ObjectiveWeights, System

__all__ = [
    "BitsConfig",
    "Config",
    "DataConfig",
    "DenoiserConfig",
    "DiffusionConfig",
    "EncoderConfig",
    "InferenceConfig",
    "ObjectiveConfig",
    "StructureConfig",
    "TrainingConfig",
    "load_config",
    "load_with_sources",
    "with_overrides",
]


class Config(Section):
    """All settings of a run; ``size`` fills in the dimensions of its preset, except for those that are given."""

    task: Annotated[Task, Field(strict=False)]
    system: str
    seed: NonNegativeInt = 1
    size: Size | None = None
    data: DataConfig = DataConfig()
    encoder: EncoderConfig = EncoderConfig()
    denoiser: DenoiserConfig = DenoiserConfig()
    structure: StructureConfig = StructureConfig()
    diffusion: DiffusionConfig = DiffusionConfig()
    bits: BitsConfig = BitsConfig()
    objective: ObjectiveConfig = ObjectiveConfig()
    training: TrainingConfig = TrainingConfig()
    inference: InferenceConfig = InferenceConfig()

    @pydantic.field_validator("system")
    @classmethod
    def _system_exists(cls, name: str) -> str:
        if name not in SYSTEMS:
            raise ValueError(f"must be one of {', '.join(SYSTEMS)}")
        return name

    @pydantic.model_validator(mode="after")
    def _teacher_fits(self) -> Self:
        if bool(self.objective.teacher) != (self.data.teacher is not None):
            raise ValueError(
                "a teacher needs two settings: data.teacher, its folder, and objective.teacher, its weight"
            )
        if self.objective.teacher and self.system_entry.is_diffusion:
            raise ValueError(f"only direct systems can learn from a teacher, and {self.system} is a diffusion system")
        return self

    @pydantic.model_validator(mode="before")
    @classmethod
    def _fill_in_size(cls, values: Any) -> Any:
        if not isinstance(values, Mapping):
            return values
        system, size = values.get("system"), values.get("size")
        if not isinstance(system, str) or system not in SYSTEMS or size not in SIZES:
            return values  # the validation of the fields reports what is wrong
        filled = dict(values)
        for section, settings in preset(size, is_diffusion=SYSTEMS[system].is_diffusion).items():
            given = filled.get(section, {})
            if isinstance(given, Mapping):
                filled[section] = {**settings, **given}
        return filled

    @property
    def system_entry(self) -> System:
        """The system's row of the table."""
        return SYSTEMS[self.system]

    @property
    def recall(self) -> int:
        """`denoiser.recall` if the system's denoiser supports it, else 0; with recall, batches hold whole documents."""
        return self.denoiser.recall if self.system_entry.process == "categorical" else 0

    @property
    def weights(self) -> ObjectiveWeights:
        """The weights of the loss terms: those configured or, by default, the system's."""
        own, given = self.system_entry.weights, self.objective

        def chosen(weight: float | None, default: float) -> float:
            return default if weight is None else weight

        return ObjectiveWeights(
            denoising=chosen(given.denoising, own.denoising),
            sequence=chosen(given.sequence, own.sequence),
            marginal=chosen(given.marginal, own.marginal),
            posterior=chosen(given.posterior, own.posterior),
            bits=own.bits,
            auxiliary=given.encoder_auxiliary,
            teacher=given.teacher,
        )


def load_config(name: StrPath, overrides: Sequence[str] = ()) -> Config:
    """Read a configuration: a file, or one that comes with the package, by a name such as ``ner/diffusion-mf``.

    Files that it ``extends`` are read first, and ``overrides`` such as ``training.epochs=3`` win over all files; values are
    written as in TOML, but strings need no quotes. A ``size`` replaces dimensions that come from extended files or, given as
    an override, from any file. Every mistake is an `InputError` that names file, line and key.
    """
    return load_with_sources(name, overrides)[0]


def load_with_sources(name: StrPath, overrides: Sequence[str] = ()) -> tuple[Config, dict[Key, SettingSource]]:
    """The configuration, and the source of every setting that is neither a default nor part of a size preset."""
    settings = read_settings(name, overrides)
    _expand_paths(settings.values)
    places = {key: (source.path, source.line) for key, source in settings.sources.items()}
    try:
        return Config.model_validate(settings.values), settings.sources
    except pydantic.ValidationError as error:
        raise explained(error, Config, path=settings.path, places=places) from None


def with_overrides(config: Config, overrides: Sequence[str]) -> Config:
    """``config`` with some settings changed, written as for `load_config`."""
    values = config.model_dump(mode="json")
    given = nested_overrides(overrides)
    _expand_paths(given)
    for name, value in given.items():
        values[name] = {**values.get(name, {}), **value} if isinstance(value, dict) else value
    try:
        return Config.model_validate(values)
    except pydantic.ValidationError as error:
        raise explained(error, Config, path="--set") from None


def _expand_paths(values: dict[str, Any]) -> None:
    data = values.get("data")
    if isinstance(data, dict):
        for split in ("train", "dev", "test", "teacher", "start"):
            if isinstance(data.get(split), str):
                # An unset variable stays visible in the message that there is no such file.
                data[split] = os.path.expandvars(data[split])
    encoder = values.get("encoder")
    if isinstance(encoder, dict):
        for name in ("model", "cache"):
            if isinstance(encoder.get(name), str):
                encoder[name] = os.path.expanduser(os.path.expandvars(encoder[name]))
