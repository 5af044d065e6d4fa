"""The paper's scratch encoder: word embeddings, a character LSTM, and a Transformer over both; pairs of words if asked for."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from diffusion_mf.config import EncoderConfig
from diffusion_mf.data.batching import Batch
from diffusion_mf.data.vocabulary import Vocabulary
from diffusion_mf.encoders.attention import FeedForward, SelfAttention
from diffusion_mf.encoders.known_words import WordRows
from diffusion_mf.encoders.neighbour_pairs import NeighbourPairs
from diffusion_mf.encoders.words import WordEncoder
from diffusion_mf.layouts import Layout, Rotation


class ScratchEncoder(WordEncoder):
    """States e₁…eₙ from units s₁…sₙ (paper: “Neural Architecture”).

    Positions are rotary and layers normalise their input (pre-norm): ours, the paper does not say.
    """

    def __init__(self, config: EncoderConfig, vocabulary: Vocabulary) -> None:
        super().__init__(config, vocabulary)
        self.unit_dropout = config.unit_dropout
        self.head_width = config.width // config.heads
        self.pairs = (
            NeighbourPairs(vocabulary, width=config.pair_width, dropout=config.word_dropout)
            if config.pair_width
            else None
        )
        pairs_width = self.pairs.width if self.pairs else 0
        self.projection = nn.Linear(self.embedding_width + pairs_width, config.width)
        self.layers = nn.ModuleList(EncoderLayer(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width)

    def forward(self, batch: Batch, layout: Layout) -> Float[Tensor, "*units D"]:
        """The states of a batch, once per sentence."""
        known = batch.encoder_input
        if isinstance(known, WordRows):
            states = layout.pack(known.vectors())
            if self.pairs:
                weight = self.projection.weight[:, self.embedding_width :]
                states = states + F.linear(self.pairs.embed(batch, layout), weight)
            return self._transform(states, layout)
        return self.contextualise(self.embed(batch, layout), layout)

    def embed(self, batch: Batch, layout: Layout) -> Float[Tensor, "*units E"]:
        """Words and their spellings, without context; an LSTM is in here, which does not compile."""
        is_hidden = self._hidden_units(batch)
        words = self.embed_units(batch, layout.pack(batch.form_ids), layout.pack(batch.word_rows))
        if is_hidden is not None:
            words = words.masked_fill(layout.pack(is_hidden)[..., None], 0)
        if not self.pairs:
            return words
        pairs = self.embedding_dropout(self.pairs.embed(batch, layout, is_hidden))
        return torch.cat([words, pairs.to(words.dtype)], dim=-1)

    def _hidden_units(self, batch: Batch) -> Bool[Tensor, "B N"] | None:
        """Units of which nothing is seen, in training."""
        if not self.training or self.unit_dropout == 0:
            return None
        return torch.rand(batch.form_ids.shape, device=batch.form_ids.device) < self.unit_dropout

    def contextualise(self, embeddings: Float[Tensor, "*units E"], layout: Layout) -> Float[Tensor, "*units D"]:
        """The Transformer; it compiles to one graph."""
        return self._transform(self.projection(embeddings), layout)

    @property
    def vector_width(self) -> int:
        """Of projected words."""
        return self.width

    def word_vectors(self, form_ids: Int[Tensor, "W"], spellings: Float[Tensor, "W S"]) -> Float[Tensor, "W E"]:
        """Their projection; what pairs add to it is not known from one word."""
        weight = self.projection.weight[:, : self.embedding_width]
        return F.linear(torch.cat([self.words(form_ids), spellings], dim=-1), weight, self.projection.bias)

    def _transform(self, states: Float[Tensor, "*units D"], layout: Layout) -> Float[Tensor, "*units D"]:
        rotation = layout.rotation(self.head_width)
        for layer in self.layers:
            states = layer(states, layout, rotation)
        return self.norm(states)


class EncoderLayer(nn.Module):
    """x + attention(norm(x)), then x + feed-forward(norm(x))."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(config.width)
        self.attention = SelfAttention(config.width, config.heads)
        self.feed_forward_norm = nn.LayerNorm(config.width)
        self.feed_forward = FeedForward(config.width)
        self.dropout = nn.Dropout(config.dropout)

    def forward(
        self, states: Float[Tensor, "*units D"], layout: Layout, rotation: Rotation
    ) -> Float[Tensor, "*units D"]:
        """The next layer's states."""
        states = states + self.dropout(self.attention(self.attention_norm(states), layout, rotation))
        return states + self.dropout(self.feed_forward(self.feed_forward_norm(states)))
