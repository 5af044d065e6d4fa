"""Words in a window: an encoder for CPUs, whose work is done once per distinct word."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from diffusion_mf.config import EncoderConfig
from diffusion_mf.data.batching import Batch
from diffusion_mf.data.vocabulary import Vocabulary
from diffusion_mf.encoders.known_words import WordRows
from diffusion_mf.encoders.words import WordEncoder
from diffusion_mf.layouts import Layout
from diffusion_mf.ops.backends import CPU_LANES
from diffusion_mf.ops.chain_scores import unit_mask
from diffusion_mf.ops.gelu import gelu


class WindowEncoder(WordEncoder):
    """State i = GELU(Σ_{o = −r…r} W_o·e(word_{i+o}) + b), with e the word's embedding and its character LSTM's states.

    Beyond a sentence's ends e is 0. All W_o·e(word) are known as soon as the word is (`word_vectors`): what is left for
    tagging is to add up 2r + 1 rows of a table (`known_words`). Ours; the paper has no such encoder.
    """

    def __init__(self, config: EncoderConfig, vocabulary: Vocabulary) -> None:
        super().__init__(config, vocabulary)
        self.radius = config.window
        self.dropout = nn.Dropout(config.dropout)
        # One matrix for all places of the window; the bias counts once.
        self.places = nn.Linear(self.embedding_width, self.num_places * config.width, bias=False)
        self.bias = nn.Parameter(torch.zeros(config.width))

    @property
    def num_places(self) -> int:
        """Words that a state sees."""
        return 2 * self.radius + 1

    @property
    def vector_width(self) -> int:
        """Of a word's parts for all places."""
        return self.num_places * self.width

    def word_vectors(self, form_ids: Int[Tensor, "W"], spellings: Float[Tensor, "W S"]) -> Float[Tensor, "W E"]:
        """W_o·e(word) for every place o, one after the other, and the bias at the place of the word itself."""
        of_words, of_spellings = self.places.weight.split([self.words.embedding_dim, self.characters.width], dim=1)
        bias = F.pad(self.bias, (self.radius * self.width, self.radius * self.width))
        # Words that training never saw differ in their spelling only.
        if bool((form_ids == form_ids[0]).all()):
            form_ids = form_ids[:CPU_LANES]
        forms = F.linear(self.words(form_ids), of_words, bias)
        return F.linear(spellings, of_spellings).add_(forms if len(forms) == len(spellings) else forms[0])

    def forward(self, batch: Batch, layout: Layout) -> Float[Tensor, "*units D"]:
        """The states of a batch."""
        known = batch.encoder_input
        if isinstance(known, WordRows):
            return gelu(self._sums_of_rows(known, layout))
        embeddings = self.embed_units(batch, batch.form_ids, batch.word_rows)
        is_unit = unit_mask(batch.lengths, batch.form_ids.shape[1])
        sums = self._sums(self.places(embeddings * is_unit[..., None]))
        return layout.pack(self.dropout(gelu(sums + self.bias)))

    def _sums(self, vectors: Float[Tensor, "B N E"]) -> Float[Tensor, "B N D"]:
        """Σ_o of the part of each neighbour's vector that belongs to place o."""
        num_units = vectors.shape[1]
        padded = F.pad(vectors.unflatten(-1, (self.num_places, self.width)), (0, 0, 0, 0, self.radius, self.radius))
        shifted = [padded[:, place : place + num_units, place] for place in range(self.num_places)]
        return torch.stack(shifted).sum(0)

    def _sums_of_rows(self, known: WordRows, layout: Layout) -> Float[Tensor, "*units D"]:
        """The same from the table, with the bias, which has come with the word in the middle.

        Row r has its part for place o at r·(2r + 1) + o, and padding adds nothing.
        """
        rows = F.pad(known.rows, (self.radius, self.radius)).unfold(1, self.num_places, 1)
        parts = layout.pack(rows) * self.num_places + torch.arange(self.num_places)
        table = known.table.view(-1, self.width)
        sums = F.embedding_bag(parts.view(-1, self.num_places), table, mode="sum")
        return sums.view(*parts.shape[:-1], self.width)
