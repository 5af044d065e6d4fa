"""What an encoder makes of a word by itself, computed once and looked up ever after: for tagging on a CPU.

The vector of a word (embedding, spelling, first projection) does not depend on its sentence, and most words of a text have been
seen before. Weights must not change while a table is in use.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from diffusion_mf.data.batching import Batch
from diffusion_mf.data.sentence import Sentence
from diffusion_mf.data.vocabulary import UNKNOWN_ID, Vocabulary

if TYPE_CHECKING:
    from diffusion_mf.encoders.encoder import Encoder

MAX_OTHER_WORDS = 50_000
"""beside those kept for good: memory must be bounded, whatever is tagged"""
_WORDS_AT_ONCE = 4096


class WordRows(NamedTuple):
    """The words of a batch as rows of a table of vectors; row 0, of padding, is zero."""

    rows: Int[Tensor, "B N"]
    table: Float[Tensor, "R E"]

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> WordRows:
        """The same: tables are used on the CPU, where they are made."""
        return self

    def vectors(self) -> Float[Tensor, "B N E"]:
        """The vector of every unit."""
        return torch.nn.functional.embedding(self.rows, self.table)


class KnownWords:
    """A growing table of word vectors, and batches that refer to it."""

    def __init__(self, encoder: Encoder, vocabulary: Vocabulary) -> None:
        self._encoder = encoder
        self._vocabulary = vocabulary
        self._rows: dict[str, int] = {}
        self._num_kept = 0
        self._table = torch.zeros(1, 0)
        self._form_ids = np.zeros(1, dtype=np.int64)

    def __len__(self) -> int:
        return len(self._rows)

    def keep_vocabulary(self) -> None:
        """Compute the vectors of all training words now, and keep them for good."""
        self.forget()
        self._learn(word for word in self._vocabulary.form_counts if word not in self._rows)
        self._num_kept = len(self._rows)

    def forget(self) -> None:
        """Forget all words but those kept for good."""
        self._rows = dict(list(self._rows.items())[: self._num_kept])

    def meet(self, sentences: Iterable[Sentence]) -> None:
        """Compute what is missing for ``sentences``: at once, rather than batch by batch, for the sake of the LSTM."""
        words = set(chain.from_iterable([sentence.units for sentence in sentences]))
        if len(self._rows) - self._num_kept > MAX_OTHER_WORDS:
            self.forget()
        self._learn(words.difference(self._rows))

    def batch(self, sentences: Sequence[Sentence]) -> Batch:
        """The tensors of ``sentences``, without labels and spellings."""
        lengths = np.array([len(sentence.units) for sentence in sentences], dtype=np.int64)
        units = list(chain.from_iterable([sentence.units for sentence in sentences]))
        found = list(map(self._rows.get, units))
        if None in found:
            self.meet(sentences)
            found = list(map(self._rows.__getitem__, units))
        rows = np.zeros((len(sentences), lengths.max(initial=0)), dtype=np.int64)
        rows[np.arange(rows.shape[1]) < lengths[:, None]] = found
        word_rows = torch.from_numpy(rows)
        return Batch(
            form_ids=torch.from_numpy(self._form_ids[rows]),
            word_rows=word_rows,
            character_ids=torch.zeros(1, 1, dtype=torch.int64),
            character_lengths=torch.zeros(1, dtype=torch.int64),
            lengths=torch.from_numpy(lengths),
            label_ids=None,
            encoder_input=WordRows(word_rows, self._table),
        )

    @torch.no_grad()
    def _learn(self, words: Iterable[str]) -> None:
        # Words of like length share a piece, so that none is padded much; the order must not depend on that of a set.
        new = sorted(words, key=lambda word: (len(word), word))
        for start in range(0, len(new), _WORDS_AT_ONCE):
            piece = new[start : start + _WORDS_AT_ONCE]
            forms, characters = self._vocabulary.form_ids, self._vocabulary.character_ids
            form_ids = np.array([forms.get(word, UNKNOWN_ID) for word in piece], dtype=np.int64)
            spellings = np.zeros((len(piece), max(map(len, piece))), dtype=np.int64)
            for row, word in enumerate(piece):
                spellings[row, : len(word)] = [characters.get(character, UNKNOWN_ID) for character in word]
            vectors = self._encoder.word_vectors(
                torch.from_numpy(form_ids), torch.from_numpy(spellings), torch.tensor([len(word) for word in piece])
            )
            self._append(piece, form_ids, vectors.float())

    def _append(self, words: list[str], form_ids: np.ndarray, vectors: Tensor) -> None:
        size = len(self._rows) + 1
        needed = size + len(words)
        if needed > len(self._table) or self._table.shape[1] != vectors.shape[1]:
            # Room for half as many again: growing word by word would copy the table each time.
            table = vectors.new_zeros(needed + needed // 2, vectors.shape[1])
            table[:size, : self._table.shape[1]] = self._table[:size]
            self._table = table
            self._form_ids = np.concatenate([self._form_ids[:size], np.zeros(len(table) - size, dtype=np.int64)])
        self._table[size:needed] = vectors
        self._form_ids[size:needed] = form_ids
        self._rows.update(zip(words, range(size, needed), strict=True))
