"""The settings of a run that nobody configured: what follows from the corpus and the device, the same for all systems.

What large corpora have taught stands in ``configs/ours.toml`` and, for pretrained encoders, ``configs/pretrained/ours.toml``;
`recipe_settings` begins with that and changes what less data or a CPU asks for. docs/training.md has the measurements.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from diffusion_mf.config.files import read_settings
from diffusion_mf.data.corpus import Task
from diffusion_mf.data.sentence import Sentence
from diffusion_mf.systems import SYSTEMS

FULL_UNITS = 140_000
"""from so many on, the settings on a GPU are those of the configurations: the smallest corpus they were made with has so many"""
SMALL_UNITS = 100_000
"""below so many a window of words does better than a Transformer: 78,000 characters with names F1 71.9 against 67.2, 29,000 words
of CoNLL-2003 83.0 against 80.3; what 150,000 and more say stands in the configurations"""
ENCODER_LEARNING_RATE = 5e-5
"""of a pretrained encoder without a configuration: that of two of the four in ``configs/pretrained/ours.toml``"""
CHARACTERS = 1.2
"""where units are shorter on average, they are characters"""


@dataclass(frozen=True, kw_only=True)
class CorpusSize:
    """What the settings depend on."""

    num_sentences: int
    num_units: int
    mean_form_length: float
    """characters of a unit; 1 where units are characters"""


def corpus_size(sentences: Iterable[Sentence]) -> CorpusSize:
    """Count training sentences; `ValueError` if there are none."""
    num_sentences = num_units = num_characters = 0
    for sentence in sentences:
        num_sentences += 1
        num_units += len(sentence.units)
        num_characters += sum(map(len, sentence.units))
    if not num_units:
        raise ValueError("there are no units to count")
    return CorpusSize(num_sentences=num_sentences, num_units=num_units, mean_form_length=num_characters / num_units)


def recipe_settings(
    size: CorpusSize,
    *,
    task: Task,
    system: str,
    device_type: str,
    is_pretrained: bool = False,
    minutes: float | None = None,
) -> dict[str, object]:
    """Settings such as ``training.epochs`` for a corpus like this, to be laid over the defaults of `Config`.

    ``device_type`` is PyTorch's, "cpu" or "cuda". With ``is_pretrained`` the encoder's model is yet to be named. ``minutes`` is
    about how long training may take: epochs are as many as fit, and never more than without it.
    """
    name = f"{'pretrained/ours' if is_pretrained else 'ours'}/{task}/{system}"
    values = read_settings(name).values
    settings = _flat({key: value for key, value in values.items() if key not in ("data", "task", "system")})
    if is_pretrained:
        settings.setdefault("training.encoder_learning_rate", ENCODER_LEARNING_RATE)
    is_cpu = device_type == "cpu"
    if not is_pretrained and (is_cpu or size.num_units < SMALL_UNITS):
        settings |= _window(size)
        if is_cpu:
            settings |= _small_networks(settings, system)
    settings |= _updates(size, settings, system, is_cpu=is_cpu, is_pretrained=is_pretrained, minutes=minutes)
    return settings


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, object]:
    found: dict[str, object] = {}
    for key, value in values.items():
        found |= _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return found


def _window(size: CorpusSize) -> dict[str, object]:
    """A state sees its word and two on either side: little data cannot teach a Transformer where to look."""
    settings: dict[str, object] = {"encoder.kind": "window", "encoder.dropout": 0.5}
    if size.mean_form_length < CHARACTERS:
        # An LSTM over one character is no spelling. (Where word dropout hides units from a Transformer, it shows them, and
        # configurations for large corpora keep it.) Pairs of neighbours are to characters what words are.
        return {
            **settings,
            "encoder.character_hidden": 0,
            "encoder.pair_width": 128,
            "encoder.min_pair_count": 1,
        }
    return {**settings, "encoder.affix_width": 128}


def _small_networks(settings: Mapping[str, Any], system: str) -> dict[str, object]:
    """Networks that one core trains in minutes."""
    found: dict[str, object] = {
        "encoder.word_width": 128,
        "encoder.width": 256,
        # It would take half of the time, and affixes say as much.
        "encoder.character_hidden": 0,
        "structure.transitions": "global",
        "structure.scorer_width": 128,
        "training.epochs": settings["training.epochs"] * 2 // 3,
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
            "inference.num_calls": 5,
        }
    return found


MIN_BATCHES = 30
"""of an epoch, where batches of `MIN_BUDGET` units allow it, and else epochs are more; the large corpora have 31 to 75"""
MIN_BUDGET = 500
CPU_BUDGET = 750
WARMUP_SHARE, WINDOW_WARMUP_SHARE = 0.4, 0.1
"""of the updates, at most: Transformers need it long (500 sentences of CoNLL-2003: 67.9 against 64.5 with 0.1)"""
AVERAGE_SHARE = 0.2
"""of the updates, the horizon of the moving average at most"""
EVALUATIONS, CPU_EVALUATIONS = 30, 10
"""of dev in a run: where dev is of another kind than the training data, the best model comes early (tweets: after 250 of 1,900
updates, 58 F1, and 33 at the end); a CPU has no time for it"""


def _updates(
    size: CorpusSize,
    settings: Mapping[str, Any],
    system: str,
    *,
    is_cpu: bool,
    is_pretrained: bool,
    minutes: float | None,
) -> dict[str, object]:
    """Batches, epochs, and what is counted in steps: warm-up and the horizon of the moving average."""
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
        "training.evaluate_every": max(1, epochs // (CPU_EVALUATIONS if is_cpu else EVALUATIONS)),
    }


COMPILED_SECONDS = 240.0
"""of a run without compilation: with it the same takes three quarters of that (19,000 sentences a second become 25,700), and
a minute to compile"""


def _seconds_per_update(budget: int, system: str, *, is_cpu: bool, is_pretrained: bool) -> float:
    """About how long a step takes on an H200 or on one core, with its share of the evaluations."""
    is_diffusion = SYSTEMS[system].is_diffusion
    if is_pretrained:  # a base-size Transformer
        return budget / ((80 if is_diffusion else 100) if is_cpu else (7_500 if is_diffusion else 15_000))
    if is_cpu:
        return budget / (5_000 if is_diffusion else 14_000)
    # Small batches leave the card idle between kernels.
    return 0.01 + budget / (110_000 if is_diffusion else 175_000)
