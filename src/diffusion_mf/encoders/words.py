"""Words without context: an embedding of the form, and a character LSTM over its spelling."""

from __future__ import annotations

import abc

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from diffusion_mf.config import EncoderConfig
from diffusion_mf.data.batching import Batch
from diffusion_mf.data.vocabulary import PADDING_ID, UNKNOWN_ID, Vocabulary
from diffusion_mf.encoders.character_lstm import CharacterLSTM
from diffusion_mf.encoders.encoder import Encoder

WORD_DEVIATION = 0.1
"""of word embeddings at the start: about as large as a fresh LSTM's states"""


class WordEncoder(Encoder):
    """What encoders that learn their own words share; a subclass adds context.

    There is a part that sees one word at a time, `word_vectors`; `forward` also takes its results (`known_words.WordRows`).
    """

    def __init__(self, config: EncoderConfig, vocabulary: Vocabulary) -> None:
        super().__init__()
        self.width = config.width
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
        self.embedding_width = config.word_width + self.characters.width

    @property
    @abc.abstractmethod
    def vector_width(self) -> int:
        """Of what `word_vectors` gives."""

    @abc.abstractmethod
    def word_vectors(self, form_ids: Int[Tensor, "W"], spellings: Float[Tensor, "W S"]) -> Float[Tensor, "W E"]:
        """What the encoder makes of words by themselves, without dropout; ``spellings`` are from its character LSTM."""

    def embed_units(
        self, batch: Batch, form_ids: Int[Tensor, "*units"], word_rows: Int[Tensor, "*units"]
    ) -> Float[Tensor, "*units E"]:
        """Words and their spellings, some of them hidden in training; ``word_rows`` are rows of the batch's characters."""
        words = self.words(self._with_unknown_words(form_ids))
        spellings = self.characters(batch.character_ids, batch.character_lengths)
        # An embedding, not an index: its gradient is summed in a fixed order.
        spellings = nn.functional.embedding(word_rows, spellings)
        return self.embedding_dropout(torch.cat([words.to(spellings.dtype), spellings], dim=-1))

    def _with_unknown_words(self, form_ids: Int[Tensor, "*units"]) -> Int[Tensor, "*units"]:
        if not self.training or self.word_dropout == 0:
            return form_ids
        is_hidden = torch.rand(form_ids.shape, device=form_ids.device) < self.word_dropout
        return torch.where(is_hidden, UNKNOWN_ID, form_ids)
