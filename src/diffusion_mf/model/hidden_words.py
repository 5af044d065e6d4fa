"""Guessing words from their context: some units of a training sentence are hidden, and the encoder's states must tell them."""

from __future__ import annotations

import dataclasses
import math

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from diffusion_mf.data.batching import Batch
from diffusion_mf.data.vocabulary import NUM_SPECIAL_IDS
from diffusion_mf.encoders.words import WordEncoder
from diffusion_mf.layouts import Layout
from diffusion_mf.ops.chain_scores import unit_mask

MOST_WORDS = 8192
"""that are guessed: the most frequent ones, which context can tell"""
ROOM = 1.25
"""guesses per hidden unit expected: how many are hidden is left to chance, how many guesses are made is not"""


def hide_units(batch: Batch, share: float) -> Batch:
    """The batch with about this share of its units hidden; draws from torch's generator, as dropout does."""
    is_unit = unit_mask(batch.lengths, batch.form_ids.shape[1])
    is_hidden = torch.rand(batch.form_ids.shape, device=batch.form_ids.device) < share
    return dataclasses.replace(batch, is_hidden=is_hidden & is_unit)


class HiddenWords(nn.Module):
    """−Σ log P(word | state) over hidden units, with the encoder's own word embeddings as output weights.

    After Rei (2017), who predicts the next and the previous word; ours are hidden, as attention sees both sides.
    """

    def __init__(self, encoder: WordEncoder, share: float) -> None:
        super().__init__()
        num_words, word_width = encoder.words.weight.shape
        self.num_words = min(num_words, NUM_SPECIAL_IDS + MOST_WORDS)
        self.share = share
        self.projection = nn.Linear(encoder.width, word_width)
        self.norm = nn.LayerNorm(word_width)
        self.bias = nn.Parameter(torch.zeros(self.num_words))

    def forward(
        self, states: Float[Tensor, "*units D"], words: Float[Tensor, "V E"], batch: Batch, layout: Layout
    ) -> Float[Tensor, ""]:
        """The sum over the hidden units whose word is among the frequent ones."""
        assert batch.is_hidden is not None
        is_hidden, forms = layout.pack(batch.is_hidden).flatten(), layout.pack(batch.form_ids).flatten()
        is_guessed = is_hidden & (forms >= NUM_SPECIAL_IDS) & (forms < self.num_words)
        # As many rows in every batch of a shape, hidden ones first; sorting is stable, so the same in every run.
        num_rows = min(len(forms), math.ceil(ROOM * self.share * len(forms)))
        rows = torch.sort(is_guessed.to(torch.uint8), descending=True, stable=True).indices[:num_rows]
        guesses = self.norm(self.projection(states.flatten(0, -2).index_select(0, rows)))
        scores = F.linear(guesses, words[: self.num_words], self.bias).float()
        targets = torch.where(is_guessed, forms, -1).index_select(0, rows)
        return F.cross_entropy(scores, targets, ignore_index=-1, reduction="sum")
