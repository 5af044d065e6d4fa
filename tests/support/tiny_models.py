"""Small models, batches and fixed scores for the tests of the model."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor, nn

from diffusion_mf.batches.batching import Batch, collate
from diffusion_mf.batches.layouts import Layout
from diffusion_mf.batches.vocabulary import Vocabulary
from diffusion_mf.config import Config
from diffusion_mf.data.label_schemes import LabelScheme
from diffusion_mf.data.sentence import Sentence
from diffusion_mf.model import Labeller
from diffusion_mf.structures import Potentials

SENTENCES = [
    Sentence(("Mira", "Oda", "sleeps"), ("B-PER", "E-PER", "O")),
    Sentence(("she", "saw", "the", "Tor", "Lu", "Bay", "again"), ("O", "O", "O", "B-LOC", "M-LOC", "E-LOC", "O")),
    Sentence(("Oda",), ("S-PER",)),
    Sentence(("in", "Bay", "with", "Lu"), ("O", "S-LOC", "O", "S-PER")),
]
VOCABULARY = Vocabulary.build(SENTENCES)
KEYS = torch.tensor([11, 5, 8, 2])

SMALL: dict[str, Any] = {
    "task": "ner",
    "encoder": {
        "word_width": 16,
        "character_width": 8,
        "character_hidden": 8,
        "width": 32,
        "layers": 1,
        "heads": 2,
        "word_dropout": 0.0,
        "embedding_dropout": 0.0,
        "dropout": 0.0,
    },
    "denoiser": {"width": 32, "layers": 2, "heads": 2, "dropout": 0.0, "time_width": 16},
    "structure": {"scorer_width": 32, "scorer_dropout": 0.0},
}


def small_config(system: str, **sections: Any) -> Config:
    """A configuration of a few thousand parameters; sections are merged into `SMALL`."""
    values: dict[str, Any] = {**SMALL, "system": system}
    for name, section in sections.items():
        values[name] = {**values.get(name, {}), **section} if isinstance(section, dict) else section
    return Config.model_validate(values)


def small_labeller(system: str, *, scheme: LabelScheme = LabelScheme.BMES, seed: int = 0, **sections: Any) -> Labeller:
    """A labeller with random weights: modulations that start at zero are shaken, so that every part matters."""
    torch.manual_seed(seed)
    labeller = Labeller(small_config(system, **sections), VOCABULARY, scheme)
    with torch.no_grad():
        for parameter in labeller.parameters():
            if not parameter.any():
                parameter.normal_(std=0.2)
    return labeller


def batch_of(*indices: int, more_padding: int = 0) -> Batch:
    """The sentences of some indices, with as many columns of padding more as asked for."""
    batch = collate([SENTENCES[index] for index in indices], VOCABULARY)
    if not more_padding:
        return batch
    grown = {
        name: nn.functional.pad(getattr(batch, name), (0, more_padding))
        for name in ("form_ids", "word_rows", "label_ids")
    }
    return dataclasses.replace(batch, **grown)


def whole_batch(**options: int) -> Batch:
    return batch_of(*range(len(SENTENCES)), **options)


class FixedScorer(nn.Module):
    """Answers with given potentials, whatever it is shown."""

    def __init__(self, unary: Tensor, transition: Tensor | None) -> None:
        super().__init__()
        self.potentials = Potentials(unary, transition)

    def forward(self, vectors: Tensor, layout: Layout) -> Potentials:
        return self.potentials
