"""Settings that follow from a corpus: its size decides about the number of updates, the batches and the warm-up."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from diffusion_mf.data.corpus import Task
from diffusion_mf.data.sentence import Sentence
from diffusion_mf.systems import SYSTEMS

LARGE_CORPUS = 100_000
"""units"""


@dataclass(frozen=True, kw_only=True)
class CorpusStatistics:
    """What a recipe looks at."""

    num_sentences: int
    num_units: int
    num_labels: int
    num_forms: int
    mean_length: float
    longest: int
    mean_form_length: float
    """characters; 1.0: units are characters"""
    has_documents: bool


def corpus_statistics(sentences: Iterable[Sentence]) -> CorpusStatistics:
    """Count the training sentences, which must be some."""
    lengths: list[int] = []
    forms: set[str] = set()
    labels: set[str] = set()
    num_characters = 0
    has_documents = False
    for sentence in sentences:
        lengths.append(len(sentence.units))
        forms.update(sentence.units)
        labels.update(sentence.labels or ())
        num_characters += sum(map(len, sentence.units))
        has_documents = has_documents or sentence.document > 0
    return CorpusStatistics(
        num_sentences=len(lengths),
        num_units=sum(lengths),
        num_labels=len(labels),
        num_forms=len(forms),
        mean_length=sum(lengths) / len(lengths),
        longest=max(lengths),
        mean_form_length=num_characters / sum(lengths),
        has_documents=has_documents,
    )


def recipe_settings(
    statistics: CorpusStatistics,
    *,
    task: Task,
    system: str,
    device_type: str,
    is_pretrained: bool = False,
    minutes: float | None = None,
) -> dict[str, object]:
    """Settings by their dotted names, on top of the defaults of `Config`."""
    is_large = statistics.num_units >= LARGE_CORPUS
    settings: dict[str, object] = {
        "structure.num_iterations": 3 if task is Task.SEG_POS else 5,
        "training.learning_rate": 1e-3,
        "training.budget": 5000 if is_large else 1000,
        "training.epochs": {Task.POS: 30, Task.NER: 60, Task.SEG_POS: 50}[task] if is_large else 100,
        "training.warmup_steps": 500 if is_large else 100,
        "training.evaluate_every": 2 if is_large else 5,
        "training.ema_decay": 0.999 if is_large else 0.99,
    }
    if is_pretrained:
        settings |= {
            "encoder.pooling": "mean",
            "encoder.mix_layers": 0,
            "encoder.dropout": 0.1,
            "training.epochs": 10 if is_large else 20,
            "training.learning_rate": 5e-4,
            "training.encoder_learning_rate": 5e-5,
            "training.encoder_layer_decay": 0.9,
            "training.budget": 2000 if is_large else 1000,
            "training.decay": "linear",
            "training.evaluate_every": 1,
        }
    else:
        settings["encoder.unit_dropout"] = 0.2 if task is Task.NER else 0.1
        if task is not Task.NER:
            settings["encoder.pair_width"] = 64 if task is Task.POS else 128
        if device_type == "cpu":
            settings |= {"encoder.width": 128, "encoder.word_width": 128, "encoder.layers": 2, "encoder.heads": 4}
            settings |= {"encoder.character_width": 32, "encoder.character_hidden": 64}
    if SYSTEMS[system].is_diffusion:
        settings |= {"denoiser.layers": 2, "denoiser.state_input": True, "objective.encoder_auxiliary": 0.5}
        if device_type == "cpu":
            settings |= {"denoiser.width": 128, "denoiser.heads": 4, "denoiser.time_width": 64}
    if SYSTEMS[system].process == "categorical":
        settings |= {
            "diffusion.cosine_power": 2.0,
            "diffusion.own_trajectory_share": 0.9,
            "inference.scores_from": "first",
        }
    return settings
