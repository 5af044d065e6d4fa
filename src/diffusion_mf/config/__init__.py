"""Configurations: TOML files that describe a run completely; unknown keys are refused, naming the nearest valid one.

Settings have the names of `Config`'s fields, in sections (``[encoder]`` …); `load_config` reads them.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import os
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Self

import pydantic
from pydantic import Field

from diffusion_mf import __version__
from diffusion_mf.config.errors import Key, explained
from diffusion_mf.config.files import Settings, SettingSource, import_listed, nested_overrides, read_settings
from diffusion_mf.config.sections import (
    AUTO,
    REMOVED,
    SIZES,
    BitsConfig,
    CardConfig,
    DataConfig,
    DenoiserConfig,
    DiffusionConfig,
    EncoderConfig,
    InferenceConfig,
    ObjectiveConfig,
    Section,
    Seed,
    Size,
    StructureConfig,
    TrainingConfig,
    preset,
)
from diffusion_mf.data.corpus import Task
from diffusion_mf.data.files import StrPath, first_existing
from diffusion_mf.data.label_schemes import LabelScheme
from diffusion_mf.errors import InputError
from diffusion_mf.plugins import check_imported, import_named, owners, short_name
from diffusion_mf.systems import SYSTEMS, ObjectiveWeights, System

__all__ = [
    "BitsConfig",
    "CardConfig",
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
    "saved_config",
    "validated",
    "with_overrides",
]


class Config(Section):
    """All settings of a run; ``size`` fills in the dimensions of its preset, except for those that are given."""

    task: Annotated[Task, Field(strict=False)]
    """what is labelled"""
    system: str
    """a row of the table of systems (`systems.SYSTEMS`)"""
    seed: Seed = 1
    """of weights, order of sentences, noise and dropout"""
    size: Size | None = None
    """a preset of about 20, 40, 60, 80 or 650 million parameters, which fills in the dimensions"""
    plugins: Annotated[tuple[str, ...], Field(strict=False)] = ()
    """the modules that add the system, structure, encoder or decoders; imported before, and named here by themselves"""
    data: DataConfig = DataConfig()
    encoder: EncoderConfig = EncoderConfig()
    denoiser: DenoiserConfig = DenoiserConfig()
    structure: StructureConfig = StructureConfig()
    diffusion: DiffusionConfig = DiffusionConfig()
    bits: BitsConfig = BitsConfig()
    objective: ObjectiveConfig = ObjectiveConfig()
    training: TrainingConfig = TrainingConfig()
    inference: InferenceConfig = InferenceConfig()
    card: CardConfig = CardConfig()

    @pydantic.field_validator("plugins")
    @classmethod
    def _plugins_are_imported(cls, plugins: tuple[str, ...]) -> tuple[str, ...]:
        check_imported(plugins)
        return tuple(dict.fromkeys(map(short_name, plugins)))

    @pydantic.field_validator("system")
    @classmethod
    def _system_exists(cls, name: str) -> str:
        if name not in SYSTEMS:
            raise ValueError(f"must be one of {', '.join(SYSTEMS)}")
        return name

    @pydantic.model_validator(mode="after")
    def _scheme_fits(self) -> Self:
        scheme = self.data.scheme
        if scheme is not None and (scheme is LabelScheme.PLAIN) != (self.task is Task.POS):
            fitting = "only plain does" if self.task is Task.POS else "a scheme of spans does, such as bio2"
            raise ValueError(f"data.scheme = {scheme} does not fit the task {self.task}: {fitting}")
        return self

    @pydantic.model_validator(mode="after")
    def _recall_fits(self) -> Self:
        if self.encoder.recall and self.denoiser.recall not in (0, self.encoder.recall):
            raise ValueError("encoder.recall and denoiser.recall must be equal if both are set")
        return self

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

    @pydantic.model_validator(mode="before")
    @classmethod
    def _name_plugins(cls, values: Any) -> Any:
        if not isinstance(values, Mapping):
            return values
        given, system = values.get("plugins", ()), values.get("system")
        entry = SYSTEMS.get(system) if isinstance(system, str) else None
        if entry is None or not isinstance(given, (list, tuple)):
            return values
        encoder = values.get("encoder", {})
        kind = encoder.get("kind") if isinstance(encoder, Mapping) else getattr(encoder, "kind", None)
        parts = [("system", entry.name), ("structure", entry.structure), ("encoder", kind)]
        parts += [("decoder", name) for name in (*entry.plain_decoders, *entry.constrained_decoders)]
        added = [plugin for plugin in owners(parts) if plugin not in map(short_name, given)]
        return {**values, "plugins": [*given, *added]}

    @property
    def system_entry(self) -> System:
        """The system's row of the table."""
        return SYSTEMS[self.system]

    @property
    def recall(self) -> int:
        """How many other occurrences of a unit's form the model sees; with recall, batches hold whole documents.

        `encoder.recall`, or `denoiser.recall` if the system's denoiser supports it.
        """
        return self.encoder.recall or (self.denoiser.recall if self.system_entry.process == "categorical" else 0)

    @property
    def has_state_scores(self) -> bool:
        """`denoiser.state_scores` if the system's denoiser supports it."""
        return self.denoiser.state_scores and self.system_entry.process == "categorical"

    def with_calls(self, num_calls: int | None) -> Config:
        """The configuration with a number of calls instead of one to be chosen; None: those of the base."""
        if self.inference.num_calls != AUTO:
            return self
        return self.model_copy(update={"inference": self.inference.model_copy(update={"num_calls": num_calls})})

    @property
    def weights(self) -> ObjectiveWeights:
        """The weights of the loss terms: those configured or, by default, the system's."""
        given = self.objective.model_dump(include={"denoising", "sequence", "marginal", "posterior"}, exclude_none=True)
        return dataclasses.replace(
            self.system_entry.weights,
            **given,
            auxiliary=self.objective.encoder_auxiliary,
            teacher=self.objective.teacher,
        )


def load_config(name: StrPath, overrides: Sequence[str] = ()) -> Config:
    """Read a configuration: a file, or one that comes with the package, by a name such as ``ner/diffusion-mf``.

    Files that it ``extends`` are read first, and ``overrides`` such as ``training.epochs=3`` win over all files; values are
    written as in TOML, but strings need no quotes. A ``size`` replaces dimensions that come from extended files or, given as
    an override, from any file. Every mistake is an `InputError` that names file, line and key.
    """
    return load_with_sources(name, overrides)[0]


def load_with_sources(name: StrPath, overrides: Sequence[str] = ()) -> tuple[Config, dict[Key, SettingSource]]:
    """The configuration, and where the settings were made that are neither defaults nor dimensions of a size."""
    return validated(read_settings(name, overrides))


def validated(settings: Settings) -> tuple[Config, dict[Key, SettingSource]]:
    """The configuration of ``settings``, and their sources; what is wrong is an `InputError`."""
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
    import_listed(given.get("plugins"))
    encoder = given.get("encoder")
    import_named([given.get("system"), encoder.get("kind") if isinstance(encoder, dict) else None])
    _expand_paths(given)
    for name, value in given.items():
        values[name] = {**values.get(name, {}), **value} if isinstance(value, dict) else value
    inference = given.get("inference")
    if isinstance(inference, dict) and "base" in inference and config.inference.num_calls == AUTO:
        values["inference"]["num_calls"] = inference.get("num_calls")
    try:
        return Config.model_validate(values)
    except pydantic.ValidationError as error:
        raise explained(error, Config, path="--set") from None


def saved_config(values: Mapping[str, Any], *, path: StrPath, is_trained: bool = False) -> Config:
    """The configuration that a model folder, a checkpoint or a run holds in ``path``; what is wrong is an `InputError`.

    Settings that were removed are left out where nothing depends on them any more: for a model that ``is_trained``, on those
    of training. Plugins are not imported: whoever loads it asks for them.
    """
    values = _without_removed(values, path, is_trained=is_trained)
    plugins, system = values.get("plugins"), values.get("system")
    # Anything but a list of names is left to the validation below.
    needed = [plugin for plugin in plugins if isinstance(plugin, str)] if isinstance(plugins, list) else []
    check_imported(needed, path=path)
    if isinstance(system, str) and system not in SYSTEMS:
        if needed:
            problem = f"the system {system!r} is not added by {', '.join(needed)}"
            remedy = "give the version of the plugin that it was trained with"
        else:
            problem, remedy = f"no plugin adds the system {system!r}", "add --plugin MODULE, the module that adds it"
        raise InputError(problem, path=path, remedy=remedy)
    try:
        return Config.model_validate(values)
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False)[0]
        if first["type"] == "extra_forbidden":
            raise InputError(
                f"has the setting {'.'.join(map(str, first['loc']))}, which diffusion-mf {__version__} does not have",
                path=path,
                remedy="use the version that wrote it",
            ) from None
        raise explained(error, Config, path=path) from None


def _without_removed(values: Mapping[str, Any], path: StrPath, *, is_trained: bool) -> dict[str, Any]:
    kept = dict(values)
    for name, removed in REMOVED.items():
        section, _, key = name.rpartition(".")
        place = kept if not section else kept.get(section)
        if not isinstance(place, Mapping) or key not in place:
            continue
        value = place[key]
        if value != removed.default and not (is_trained and removed.is_for_training):
            raise InputError(
                f"was made with {name} = {value}, which was removed: {removed.note}",
                path=path,
                remedy="use the version that wrote it, or train again without that setting",
            )
        rest = {other: setting for other, setting in place.items() if other != key}
        kept = {**kept, section: rest} if section else rest
        _note_once(name, removed.note, is_default=value == removed.default)
    return kept


@functools.cache
def _note_once(name: str, note: str, *, is_default: bool) -> None:
    # A removed setting at its default is harmless, and every model of an earlier version has it.
    level = logging.INFO if is_default else logging.WARNING
    logging.getLogger("diffusion_mf").log(level, "the setting %s is left out; it was removed: %s", name, note)


def _expand_paths(values: dict[str, Any]) -> None:
    data = values.get("data")
    if isinstance(data, dict):
        for split in ("train", "dev", "test", "teacher", "start"):
            names = data.get(split)
            if isinstance(names, list) and names and all(isinstance(name, str) for name in names):
                data[split] = first_existing(names)
            if isinstance(data.get(split), str):
                # An unset variable stays visible in the message that there is no such file.
                data[split] = os.path.expandvars(data[split])
    encoder = values.get("encoder")
    if isinstance(encoder, dict):
        for name in ("model", "cache"):
            if isinstance(encoder.get(name), str):
                encoder[name] = os.path.expanduser(os.path.expandvars(encoder[name]))
