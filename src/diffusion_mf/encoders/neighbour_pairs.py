"""Embeddings of pairs of neighbouring words: in Chinese, where units are characters, most words are one or two of them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from diffusion_mf.data.batching import Batch
from diffusion_mf.data.vocabulary import PADDING_ID, UNKNOWN_ID, Vocabulary
from diffusion_mf.encoders.words import WORD_DEVIATION
from diffusion_mf.layouts import Layout
from diffusion_mf.ops.chain_scores import unit_mask


class NeighbourPairs(nn.Module):
    """For every unit the embeddings of (the unit before, itself) and (itself, the unit after); ours, not the paper's.

    Padding stands for a sentence's ends. Pairs that the vocabulary does not know share row 0, which is zero.
    """

    keys: Int[Tensor, "P"]

    def __init__(self, vocabulary: Vocabulary, *, width: int, dropout: float) -> None:
        super().__init__()
        self.num_forms = vocabulary.num_form_ids
        keys = sorted(first * self.num_forms + second for first, second in vocabulary.pairs)
        # What the vocabulary says need not be saved twice.
        self.register_buffer("keys", torch.tensor(keys, dtype=torch.int64), persistent=False)
        self.embeddings = nn.Embedding(len(keys) + 1, width, padding_idx=0)
        nn.init.normal_(self.embeddings.weight, std=WORD_DEVIATION)
        with torch.no_grad():
            self.embeddings.weight[0] = 0
        self.dropout = dropout
        self.width = 2 * width

    def embed(
        self, batch: Batch, layout: Layout, is_hidden: Bool[Tensor, "B N"] | None = None
    ) -> Float[Tensor, "*units E"]:
        """Both embeddings of every unit of a batch; hidden units are in no pair."""
        return self(layout.pack(self.rows(batch, is_hidden)))

    def rows(self, batch: Batch, is_hidden: Bool[Tensor, "B N"] | None = None) -> Int[Tensor, "B N 2"]:
        """Rows of the table: of the pair that ends at each unit, and of the one that begins there."""
        num_units = batch.form_ids.shape[1]
        forms = torch.where(unit_mask(batch.lengths, num_units), batch.form_ids, PADDING_ID)
        if is_hidden is not None:
            forms = torch.where(is_hidden, UNKNOWN_ID, forms)
        bordered = F.pad(forms, (1, 1), value=PADDING_ID)
        pairs = self._look_up(bordered[:, :-1] * self.num_forms + bordered[:, 1:])
        return torch.stack([pairs[:, :-1], pairs[:, 1:]], dim=-1)

    def forward(self, rows: Int[Tensor, "*units 2"]) -> Float[Tensor, "*units E"]:
        """Both embeddings side by side; in training some pairs are hidden."""
        if self.training and self.dropout:
            rows = torch.where(torch.rand(rows.shape, device=rows.device) < self.dropout, 0, rows)
        return self.embeddings(rows).flatten(-2)

    def _look_up(self, wanted: Int[Tensor, "B M"]) -> Int[Tensor, "B M"]:
        if not len(self.keys):
            return torch.zeros_like(wanted)
        places = torch.searchsorted(self.keys, wanted).clamp(max=len(self.keys) - 1)
        return torch.where(self.keys[places] == wanted, places + 1, 0)
