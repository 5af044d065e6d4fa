"""The settings of a run without a configuration, derived from the corpus and the device, the same for all systems.

The settings for large corpora are in ``configs/ours.toml`` and, for pretrained encoders, ``configs/pretrained/ours.toml``;
`recipe_settings` starts from them and changes what less data or a CPU requires. docs/training.md has the measurements.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from diffusion_mf.config.files import flat, read_settings
from diffusion_mf.data.corpus import Task
from diffusion_mf.data.sentence import Sentence
from diffusion_mf.systems import SYSTEMS

FULL_UNITS = 140_000
"""from this number on, the settings on a GPU are those of the configurations: the size of the smallest corpus they were tuned on"""
SMALL_UNITS = 100_000
"""below this number, a window of words is better than a Transformer: F1 71.9 against 67.2 on 78,000 characters with names, 83.0
against 80.3 on 29,000 words of CoNLL-2003; the configurations cover 150,000 and more"""
ENCODER_LEARNING_RATE = 5e-5
"""for a pretrained encoder without a configuration: as for two of the four in ``configs/pretrained/ours.toml``"""
CHARACTERS = 1.2
"""units of a lower mean length are taken to be characters"""


@dataclass(frozen=True, kw_only=True)
class CorpusSize:
    """The properties of a corpus that the settings depend on."""

    num_sentences: int
    num_units: int
    mean_form_length: float
    """in characters; 1 if units are characters"""
    has_documents: bool = False
    """whether sentences come in documents, enough of them to learn from, and in dev, too"""

    @property
    def is_small(self) -> bool:
        """Whether there are too few units to train a Transformer."""
        return self.num_units < SMALL_UNITS

    @property
    def is_of_characters(self) -> bool:
        """Whether units are characters, or nearly all of them."""
        return self.mean_form_length < CHARACTERS


DENOISER_OF_LABELS = {
    "denoiser.state_scores": True,
    "denoiser.state_input": False,
    # Two calls in training and, while dev has not chosen a number, on dev; more changed nothing, and take time.
    "inference.base": 32.0,
    "diffusion.own_trajectory_calls": 1,
}
"""a denoiser that sees no states cannot learn the training sentences by heart, nor can the encoder through it

Where there are features: Diffusion-MF on 500 sentences of EWT, dev, one core: 89.1 instead of 88.2 (Unigram and LCRF 89.2). Without
them, on 500 sentences of Chinese characters, 61.0 instead of 63.5 after 10 epochs. With the networks for GPUs, dev, one seed: Tamil
85.0 instead of 84.9, Danish names 77.0 instead of 77.3, SEC 93.9 instead of 94.7; it takes two thirds of the time."""


RECALL = {"encoder.recall": 8, "encoder.recall_dropout": 0.25}
"""where documents are marked, the state of a word has seen its other occurrences: names recur, and some are easier to label

Dev on one core: LCRF on all of CoNLL-2003 91.9 instead of 90.5, on 139 of its documents 79.2 instead of 77.1. Thanks to dropout it is no
worse without documents: 90.7 and 77.5. Parts of speech do not gain (EWT 94.9 instead of 95.0)."""


MIN_DOCUMENTS = 100
"""with 34 documents of CoNLL-2003, recall gains nothing (LCRF 52.5 instead of 51.8, Diffusion-MF 53.7 instead of 55.2), with four of SEC
neither (47.4 instead of 48.9); with 139 it does"""


def corpus_size(sentences: Sequence[Sentence], dev: Sequence[Sentence] | None = None) -> CorpusSize:
    """Count training sentences; `ValueError` if there are none."""
    num_sentences = num_units = num_characters = 0
    for sentence in sentences:
        num_sentences += 1
        num_units += len(sentence.units)
        num_characters += sum(map(len, sentence.units))
    if not num_units:
        raise ValueError("there are no units to count")
    return CorpusSize(
        num_sentences=num_sentences,
        num_units=num_units,
        mean_form_length=num_characters / num_units,
        has_documents=_has_documents(sentences, MIN_DOCUMENTS) and (dev is None or _has_documents(dev, 1)),
    )


def _has_documents(sentences: Sequence[Sentence], number: int) -> bool:
    """Whether at least this many documents are marked, of two sentences or more on average."""
    found = len({sentence.document for sentence in sentences} - {0})
    return number <= found <= len(sentences) / 2


def recipe_settings(
    size: CorpusSize,
    *,
    task: Task,
    system: str,
    device_type: str,
    is_pretrained: bool = False,
    minutes: float | None = None,
) -> dict[str, object]:
    """Settings such as ``training.epochs`` for a corpus of this size, which override the defaults of `Config`.

    ``device_type`` is "cpu" or "cuda". With ``is_pretrained``, the caller still has to set the encoder's model. ``minutes`` limits
    the training time approximately, by fewer epochs.
    """
    name = f"{'pretrained/ours' if is_pretrained else 'ours'}/{task}/{system}"
    values = read_settings(name).values
    settings = flat({key: value for key, value in values.items() if key not in ("data", "task", "system")})
    if is_pretrained:
        settings.setdefault("training.encoder_learning_rate", ENCODER_LEARNING_RATE)
    is_cpu = device_type == "cpu"
    if not is_pretrained and (is_cpu or size.is_small):
        settings |= _window(size)
        settings["training.epochs"] = settings["training.epochs"] * _thirds_of_epochs(size) // 3
        if is_cpu:
            settings |= _small_networks(system)
        if settings.get("encoder.features") and SYSTEMS[system].process == "categorical":
            settings |= DENOISER_OF_LABELS
    if task is Task.NER and size.has_documents and not is_pretrained:
        settings |= RECALL
    settings |= _updates(size, settings, system, is_cpu=is_cpu, is_pretrained=is_pretrained, minutes=minutes)
    return settings


def _window(size: CorpusSize) -> dict[str, object]:
    """Settings of a window encoder, which sees two words on either side; there are too few data to train a Transformer.

    With the features of feature-based taggers beside its embeddings it is no worse than they are (dev, 500 sentences of EWT: 88.9
    instead of 88.4, python-crfsuite 89.1; of CoNLL-2003: 69.5 instead of 68.4, python-crfsuite 68.4). For characters they
    are of no use: 53.5 instead of 55.3, 500 sentences with names. Small corpora of characters get three on either side (dev, joint F1 on 500
    sentences of Chinese: Unigram 76.7 instead of 75.7, LCRF 77.5 instead of 76.9, python-crfsuite 77.3).
    """
    settings: dict[str, object] = {"encoder.kind": "window", "encoder.dropout": 0.5}
    if size.is_of_characters:
        # An LSTM over a single character is useless. (For a Transformer it shows units hidden by word dropout, so the
        # configurations for large corpora keep it.) For characters, pairs of neighbours play the role of words.
        settings |= {"encoder.character_hidden": 0, "encoder.pair_width": 128, "encoder.min_pair_count": 1}
        if size.is_small:
            settings |= {"encoder.window": 3, "encoder.dropout": 0.6}
        return settings
    settings["encoder.affix_width"] = 128
    if size.is_small:
        # Without dropout: what is seen once is all there is. On more data they would fill the memory.
        settings |= {"encoder.features": True, "encoder.min_pair_count": 1}
    return settings


def _small_networks(system: str) -> dict[str, object]:
    """Settings of networks that one core can train in minutes."""
    found: dict[str, object] = {
        "encoder.word_width": 128,
        "encoder.width": 256,
        # It would take half of the time, and affixes are as informative.
        "encoder.character_hidden": 0,
        "structure.transitions": "global",
        "structure.scorer_width": 128,
        "structure.scorer_dropout": 0.5,
        "training.learning_rate": 2e-3,
        "training.precision": "float32",
        "inference.budget": 5000,
    }
    if SYSTEMS[system].is_diffusion:
        found |= {
            "denoiser.width": 128,
            "denoiser.layers": 1,
            "denoiser.heads": 4,
            "denoiser.dropout": 0.1,
            "denoiser.time_width": 64,
            # While dev has not chosen a number of calls: five.
            "inference.base": 4.0,
        }
    return found


def _thirds_of_epochs(size: CorpusSize) -> int:
    """How much of the training of a Transformer a window needs; for large corpora, what is worth its time on a CPU."""
    if not size.is_small:
        return 2
    # With features, Diffusion-MF has 89.0 on 500 sentences of EWT after 240 updates, 88.9 after 760; on GPUs, the best of 60 epochs
    # was between the 6th and the 32nd on three small corpora. A wide window with much dropout takes longer.
    return 3 if size.is_of_characters else 1


MIN_BATCHES = 30
"""updates per epoch, if batches of `MIN_BUDGET` units allow it; otherwise there are more epochs; large corpora have 31 to 75"""
MIN_BUDGET = 500
CPU_BUDGET = 750
WARMUP_SHARE, WINDOW_WARMUP_SHARE = 0.4, 0.1
"""maximum share of the updates: Transformers need a long warm-up (500 sentences of CoNLL-2003: 67.9 against 64.5 with 0.1)"""
AVERAGE_SHARE = 0.2
"""maximum horizon of the moving average as a share of the updates"""
EVALUATIONS, CPU_EVALUATIONS = 30, 10
"""most evaluations on dev per run: if dev differs in kind from the training data, the best model comes early (tweets: F1 58 after 250
of 1,900 updates, 33 at the end); on a CPU they would take too much time"""


def _updates(
    size: CorpusSize,
    settings: Mapping[str, Any],
    system: str,
    *,
    is_cpu: bool,
    is_pretrained: bool,
    minutes: float | None,
) -> dict[str, object]:
    """Settings of batches, epochs, warm-up and the horizon of the moving average."""
    planned: int = settings["training.epochs"]
    largest = min(settings["training.budget"], CPU_BUDGET) if is_cpu else settings["training.budget"]
    budget = max(min(size.num_units // MIN_BATCHES, largest), MIN_BUDGET)
    if not is_cpu and size.num_units >= FULL_UNITS:
        budget = largest
    batches = max(1, round(size.num_units / budget))
    epochs = math.ceil(planned * max(1.0, MIN_BATCHES / batches))
    seconds = batches * _seconds_per_update(budget, system, is_cpu=is_cpu, is_pretrained=is_pretrained)
    if minutes is not None:
        epochs = max(1, min(epochs, int(60 * minutes / seconds)))
    found: dict[str, object] = {}
    if epochs * seconds >= COMPILED_SECONDS and not is_cpu and not is_pretrained:
        found["training.compile"] = True
    if not is_cpu and size.num_units >= FULL_UNITS and epochs == planned:
        return found
    updates = epochs * batches
    share = WINDOW_WARMUP_SHARE if settings.get("encoder.kind") == "window" else WARMUP_SHARE
    return {
        **found,
        "training.budget": budget,
        "training.epochs": epochs,
        "training.warmup_steps": min(settings["training.warmup_steps"], round(share * updates)),
        "training.ema_decay": max(
            0.9, min(settings["training.ema_decay"], round(1 - 1 / (AVERAGE_SHARE * updates), 4))
        ),
        "training.evaluate_every": math.ceil(epochs / (CPU_EVALUATIONS if is_cpu else EVALUATIONS)),
    }


COMPILED_SECONDS = 240.0
"""without compilation; with it, the same work takes three quarters of the time (25,700 instead of 19,000 sentences per second) and
a minute to compile"""


def _seconds_per_update(budget: int, system: str, *, is_cpu: bool, is_pretrained: bool) -> float:
    """The approximate time of a step on an H200 or on one core, with its share of the evaluations."""
    is_diffusion = SYSTEMS[system].is_diffusion
    if is_pretrained:  # a base-size Transformer
        return budget / ((80 if is_diffusion else 100) if is_cpu else (7_500 if is_diffusion else 15_000))
    if is_cpu:
        return budget / (5_000 if is_diffusion else 14_000)
    # Small batches leave the card idle between kernels.
    return 0.01 + budget / (110_000 if is_diffusion else 175_000)
