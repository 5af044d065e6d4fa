"""A run without a configuration: inspect the corpus, hold out dev data if needed, and take settings from the recipe."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from diffusion_mf.config import Config, load_with_sources, validated, with_overrides
from diffusion_mf.config.errors import Key, override
from diffusion_mf.config.files import SettingSource, layered_settings, nested, nested_overrides
from diffusion_mf.data.conllu import ConlluColumn
from diffusion_mf.data.corpus import Task
from diffusion_mf.data.detection import detect
from diffusion_mf.data.files import StrPath
from diffusion_mf.data.label_schemes import LabelScheme
from diffusion_mf.errors import InputError, quoted
from diffusion_mf.model.storage import read_config
from diffusion_mf.prediction.devices import choose_device
from diffusion_mf.training.corpora import Corpora, prepared_sentences, read_corpora
from diffusion_mf.training.loop import fit_to_time
from diffusion_mf.training.recipe import RECALL, CorpusSize, corpus_size, recipe_settings
from diffusion_mf.training.resumption import begun_run

DEFAULT_SYSTEM = "diffusion-mf"

MOST_HELD_OUT = 2000
"""sentences: enough for selection, leaving the rest for training"""
_MODEL_SECTIONS = ("encoder", "denoiser", "structure", "diffusion", "bits", "inference")
"""the settings that a run takes from the model whose weights it starts from"""


LEAST_MINUTES = 0.1


class ChosenConfig(NamedTuple):
    """A configuration for a corpus, the sources of its settings, and messages for the user."""

    config: Config
    sources: dict[Key, SettingSource]
    lines: list[str]
    most_epochs: int
    """the recipe's number of epochs without a time limit"""
    corpora: Corpora
    """the files, which need not be read again"""


def held_out_size(num_sentences: int) -> int:
    """How many sentences of a corpus to hold out: a tenth, up to a fifth of a small corpus, and never more than needed.

    >>> [held_out_size(number) for number in (3, 20, 200, 2_000, 200_000)]
    [0, 4, 40, 200, 2000]
    """
    return min(MOST_HELD_OUT, max(num_sentences // 10, min(100, num_sentences // 5)))


def choose_config(
    train: StrPath, overrides: Sequence[str] = (), *, device_type: str, minutes: float | None = None
) -> ChosenConfig:
    """The configuration for training on the labelled file ``train``, by detection and the recipe except for ``overrides``.

    These are written as for `load_config`, and may set the task, the system, files and how they are read.
    """
    given = nested_overrides(overrides)
    given.get("data", {}).pop("train", None)
    # Any task that fits serves to validate the settings given.
    has_spans = given.get("data", {}).get("scheme") not in (None, LabelScheme.PLAIN)
    defaults = {"task": "ner" if has_spans else "pos", "system": DEFAULT_SYSTEM, **_BEFORE_THE_RECIPE}
    asked, _ = validated(layered_settings([(_SET, defaults), (_SET, given)]))
    settings = asked.data
    found = detect(
        train,
        task=asked.task if "task" in given else None,
        column=settings.column,
        scheme=settings.scheme,
        file_format=settings.format,
        fields=settings.fields,
        strict=settings.strict,
    )
    corpus: dict[str, Any] = {"task": found.task.value, "data": {"train": os.fspath(train)}}
    if found.task is Task.POS and found.column is ConlluColumn.XPOS:
        corpus["data"]["column"] = "xpos"
    begun = {}
    if settings.start is not None:
        start = read_config(settings.start).model_dump(mode="json")
        begun = {"system": start["system"], **{name: start[name] for name in _MODEL_SECTIONS}}

    def configured(recipe: Mapping[str, Any]) -> tuple[Config, dict[Key, SettingSource]]:
        return validated(
            layered_settings(
                [
                    (SettingSource(None, option="recipe"), {"system": DEFAULT_SYSTEM, **recipe}),
                    (SettingSource(None, option="corpus"), corpus),
                    (SettingSource(None, option="--from"), begun),
                    (_SET, given),
                ]
            )
        )

    if settings.dev is None:
        corpus["data"]["held_out"] = held_out_size(found.num_sentences)
    config, _ = configured(_BEFORE_THE_RECIPE)
    corpora = read_corpora(config)
    train_sentences = prepared_sentences(corpora.train, config)
    size = corpus_size(train_sentences, None if corpora.dev is None else corpora.dev.sentences)
    task, system, is_pretrained = config.task, config.system, config.encoder.kind == "pretrained"

    def by_recipe(minutes: float | None) -> tuple[Config, dict[Key, SettingSource]]:
        recipe = recipe_settings(
            size, task=task, system=system, device_type=device_type, is_pretrained=is_pretrained, minutes=minutes
        )
        if asked.denoiser.recall:  # of beliefs, and therefore not of states
            recipe = {key: value for key, value in recipe.items() if key not in RECALL}
        return configured(nested((tuple(key.split(".")), value) for key, value in recipe.items()))

    config, sources = by_recipe(minutes)
    lines = [*found.lines(), *_described(config, corpora, size, is_timed=minutes is not None)]
    return ChosenConfig(config, sources, lines, by_recipe(None)[0].training.epochs, corpora)


_SET = SettingSource(None, option="--set")
_BEFORE_THE_RECIPE = {"encoder": {"kind": "window"}}
"""while the recipe has not chosen an encoder: the one that takes all settings that others take"""


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' * (number != 1)}"


def _described(config: Config, corpora: Corpora, size: CorpusSize, *, is_timed: bool) -> list[str]:
    units = "character" if size.mean_form_length == 1 else "word"
    documents = len({sentence.document for sentence in corpora.train} - {0})
    marked = _counted(documents, "document") if documents else "no documents marked"
    lines = [f"train: {_counted(size.num_sentences, 'sentence')}, {_counted(size.num_units, units)}, {marked}"]
    if config.data.dev is not None:
        lines.append(f"dev: {_counted(len(corpora.dev or ()), 'sentence')} of {config.data.dev}")
    elif corpora.dev:
        apart = {sentence.document for sentence in corpora.dev} - {sentence.document for sentence in corpora.train}
        whole = " in whole documents" if apart else ""
        shared = ""
        if documents and not apart:
            shared = (
                ", and parts of documents, which are too few or too long to be held out whole: new ones will be harder"
            )
        lines.append(
            f"dev: {_counted(len(corpora.dev), 'sentence')}{whole} held out from the training file, drawn with seed {config.seed}{shared} "
            "(--dev FILE, --set data.held_out=NUMBER)"
        )
    else:
        few = f", for {_counted(size.num_sentences, 'sentence')} cannot be divided" if size.num_sentences < 5 else ""
        lines.append(f"dev: none{few}: the last model is kept, and how good it is will not be known (--dev FILE)")
    if config.encoder.recall:
        lines.append(
            "documents: a word is labelled with its other occurrences in the document in view (--set encoder.recall=0)"
        )
    if config.data.test is not None:
        lines.append(f"test: {_counted(len(corpora.test or ()), 'sentence')} of {config.data.test}")
    encoder, training = config.encoder, config.training
    network = encoder.title if encoder.kind == "pretrained" else f"an encoder of width {encoder.width} from scratch"
    lines.append(f"system: {config.system} on {network} (--system, --encoder)")
    lines.append(
        f"training: {'about ' * is_timed}{_counted(training.epochs, 'epoch')}, batches of {training.budget:,} units, learning rate {training.learning_rate:g}, "
        f"warm-up of {training.warmup_steps:,} steps (--minutes, --set; --print-config shows everything)"
    )
    return lines


class PlannedRun(NamedTuple):
    """What a run trains."""

    config: Config
    overrides: list[str]
    """every override that ``config`` contains"""
    sources: dict[Key, SettingSource]
    planned_steps: int | None = None
    """the number of steps if time does not limit them"""
    corpora: Corpora | None = None
    """the files, if they have been read"""


def plan_run(
    *,
    corpus: StrPath | None = None,
    configuration: Config | StrPath | None = None,
    overrides: Sequence[str] = (),
    begun_in: Path | None = None,
    minutes: float | None = None,
    device: str = "auto",
    tell: Callable[[str], None] = lambda message: None,
) -> PlannedRun:
    """What to train: a configuration (an object, file or name), or what `choose_config` chooses for ``corpus``.

    A run that was begun in the folder ``begun_in`` keeps its own settings and overrides, but new overrides take precedence, and its
    time is what it was. `tell` is called with what was found and chosen.
    """
    if minutes is not None and not (isinstance(minutes, int | float) and minutes >= LEAST_MINUTES):
        raise InputError(
            f"minutes must be a number of at least {LEAST_MINUTES}, found {quoted(repr(minutes))}",
            remedy="allow more time",
        )
    begun = None if begun_in is None else begun_run(begun_in)
    if begun is not None and corpus is not None:
        overrides = [*overrides, override("data.train", os.fspath(corpus))]
    everything = [*(begun.overrides if begun is not None else ()), *overrides]
    sources: dict[Key, SettingSource] = {}
    if isinstance(configuration, Config):
        planned = PlannedRun(with_overrides(configuration, everything), everything, sources)
    elif configuration is not None:
        config, sources = load_with_sources(configuration, everything)
        planned = PlannedRun(config, everything, sources)
    elif begun is not None:
        planned = PlannedRun(with_overrides(begun.config, overrides), everything, sources)
    elif corpus is not None:
        chosen = choose_config(corpus, everything, device_type=choose_device(device).type, minutes=minutes)
        for line in chosen.lines:
            tell(line)
        planned = PlannedRun(chosen.config, everything, chosen.sources, corpora=chosen.corpora)
    else:
        raise InputError(
            "there is nothing to train on", remedy="name a labelled file, or a configuration such as ner/diffusion-mf"
        )
    if minutes is None or begun is not None:
        return planned
    changes, line, planned_steps = fit_to_time(
        planned.config,
        minutes,
        most_epochs=None if configuration is not None else chosen.most_epochs,
        device=device,
        corpora=planned.corpora,
    )
    tell(line)
    # As overrides, so that resuming and recording the run work as usual.
    added = [override(key, value) for key, value in changes.items()]
    made = {tuple(key.split(".")): SettingSource(None, option="--minutes") for key in changes}
    return planned._replace(
        config=with_overrides(planned.config, added),
        overrides=[*planned.overrides, *added],
        sources={**planned.sources, **made},
        planned_steps=planned_steps,
    )
