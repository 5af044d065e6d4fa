"""Configurations: one TOML file says everything about a run; what it does not know is refused with the nearest name.

Settings have the names of `Config`'s fields, in sections (``[encoder]`` …); `load_config` reads them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Self

import pydantic
from pydantic import Field, NonNegativeInt

from diffusion_mf.config_errors import explained, parse_override, read_toml
from diffusion_mf.config_sections import (
    BitsConfig,
    DataConfig,
    DenoiserConfig,
    DiffusionConfig,
    EncoderConfig,
    InferenceConfig,
    ObjectiveConfig,
    Section,
    StructureConfig,
    TrainingConfig,
)
from diffusion_mf.data.corpus import Task
from diffusion_mf.files import StrPath
from diffusion_mf.presets import SIZES, Size, preset
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
]


class Config(Section):
    """Everything about a run. ``size`` fills in what `presets` says of it, except for settings that are given."""

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
                "a teacher takes two settings: data.teacher, its folder, and objective.teacher, its weight"
            )
        if self.objective.teacher and self.system_entry.is_diffusion:
            raise ValueError(f"only direct systems learn from a teacher, and {self.system} is none")
        return self

    @pydantic.model_validator(mode="before")
    @classmethod
    def _fill_in_size(cls, values: Any) -> Any:
        if not isinstance(values, Mapping):
            return values
        system, size = values.get("system"), values.get("size")
        if not isinstance(system, str) or system not in SYSTEMS or size not in SIZES:
            return values  # the fields' own validation says what is wrong
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
        """`denoiser.recall` where the system has such a denoiser; if it is not 0, batches hold whole documents."""
        return self.denoiser.recall if self.system_entry.process == "categorical" else 0

    @property
    def weights(self) -> ObjectiveWeights:
        """The weights of the loss terms: those given, else the system's own."""
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


def load_config(path: StrPath, overrides: Sequence[str] = ()) -> Config:
    """Read a configuration file; ``overrides`` such as ``training.epochs=3`` win over it.

    Values are written as in TOML, but a string needs no quotes. A ``size`` among the overrides replaces what the file says of
    the dimensions it sets. Everything wrong is an `InputError` that names file, line and key.
    """
    values, text = read_toml(path)
    given = [parse_override(override) for override in overrides]
    for key, value in given:
        if key == ("size",) and value in SIZES:
            # Any system will do: both kinds of preset speak of sections that the other kind may set, too.
            for is_diffusion in (False, True):
                for section, settings in preset(value, is_diffusion=is_diffusion).items():
                    for name in settings:
                        _section(values, section).pop(name, None)
    for key, value in given:
        place = values
        for name in key[:-1]:
            place = _section(place, name)
        place[key[-1]] = value
    _expand_paths(values)
    try:
        return Config.model_validate(values)
    except pydantic.ValidationError as error:
        raise explained(error, Config, path=path, text=text, overridden={key for key, _ in given}) from None


def _section(values: dict[str, Any], name: str) -> dict[str, Any]:
    found = values.setdefault(name, {})
    if not isinstance(found, dict):
        found = values[name] = {}
    return found


def _expand_paths(values: dict[str, Any]) -> None:
    data = values.get("data")
    if isinstance(data, dict):
        for split in ("train", "dev", "test", "teacher"):
            if isinstance(data.get(split), str):
                # A variable that is not set stays visible in the message that there is no such file.
                data[split] = os.path.expandvars(data[split])
    encoder = values.get("encoder")
    if isinstance(encoder, dict):
        for name in ("model", "cache"):
            if isinstance(encoder.get(name), str):
                encoder[name] = os.path.expanduser(os.path.expandvars(encoder[name]))
