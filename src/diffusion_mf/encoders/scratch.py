"""The paper's scratch encoder: word embeddings, a character LSTM, and a Transformer over both."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from diffusion_mf.config import EncoderConfig
from diffusion_mf.data.batching import Batch
from diffusion_mf.data.vocabulary import PADDING_ID, UNKNOWN_ID, Vocabulary
from diffusion_mf.encoders.attention import FeedForward, SelfAttention
from diffusion_mf.encoders.character_lstm import CharacterLSTM
from diffusion_mf.encoders.encoder import Encoder
from diffusion_mf.encoders.known_words import WordRows
from diffusion_mf.layouts import Layout, Rotation

WORD_DEVIATION = 0.1
"""of word embeddings at the start: about as large as a fresh LSTM's states"""


class ScratchEncoder(Encoder):
    """States e₁…eₙ from units s₁…sₙ (paper: “Neural Architecture”).

    Positions are rotary and layers normalise their input (pre-norm): ours, the paper does not say.
    """

    def __init__(self, config: EncoderConfig, vocabulary: Vocabulary) -> None:
        super().__init__()
        self.width = config.width
        self.head_width = config.width // config.heads
        self.word_dropout = config.word_dropout
        self.words = nn.Embedding(vocabulary.num_form_ids, config.word_width, padding_idx=PADDING_ID)
        nn.init.normal_(self.words.weight, std=WORD_DEVIATION)
        self.characters = CharacterLSTM(
            vocabulary.num_character_ids,
            width=config.character_width,
            hidden=config.character_hidden,
            max_characters=config.max_characters,
        )
        self.embedding_dropout = nn.Dropout(config.embedding_dropout)
        self.projection = nn.Linear(config.word_width + self.characters.width, config.width)
        self.layers = nn.ModuleList(EncoderLayer(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width)

    def forward(self, batch: Batch, layout: Layout) -> Float[Tensor, "*units D"]:
        """The states of a batch, once per sentence."""
        known = batch.encoder_input
        if isinstance(known, WordRows):
            return self._transform(layout.pack(known.vectors()), layout)
        return self.contextualise(self.embed(batch, layout), layout)

    def embed(self, batch: Batch, layout: Layout) -> Float[Tensor, "*units E"]:
        """Words and their spellings, without context; an LSTM is in here, which does not compile."""
        words = self.words(self._with_unknown_words(layout.pack(batch.form_ids)))
        spellings = self.characters(batch.character_ids, batch.character_lengths)
        # An embedding, not an index: its gradient is summed in a fixed order.
        spellings = nn.functional.embedding(layout.pack(batch.word_rows), spellings)
        return self.embedding_dropout(torch.cat([words.to(spellings.dtype), spellings], dim=-1))

    def contextualise(self, embeddings: Float[Tensor, "*units E"], layout: Layout) -> Float[Tensor, "*units D"]:
        """The Transformer; it compiles to one graph."""
        return self._transform(self.projection(embeddings), layout)

    @property
    def has_word_vectors(self) -> bool:
        """Words and their spellings have no context."""
        return True

    def word_vectors(
        self, form_ids: Int[Tensor, "W"], character_ids: Int[Tensor, "W C"], character_lengths: Int[Tensor, "W"]
    ) -> Float[Tensor, "W E"]:
        """Their projection."""
        spellings = self.characters(character_ids, character_lengths)
        return self.projection(torch.cat([self.words(form_ids).to(spellings.dtype), spellings], dim=-1))

    def _transform(self, states: Float[Tensor, "*units D"], layout: Layout) -> Float[Tensor, "*units D"]:
        rotation = layout.rotation(self.head_width)
        for layer in self.layers:
            states = layer(states, layout, rotation)
        return self.norm(states)

    def _with_unknown_words(self, form_ids: Int[Tensor, "*units"]) -> Int[Tensor, "*units"]:
        if not self.training or self.word_dropout == 0:
            return form_ids
        is_hidden = torch.rand(form_ids.shape, device=form_ids.device) < self.word_dropout
        return torch.where(is_hidden, UNKNOWN_ID, form_ids)


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
