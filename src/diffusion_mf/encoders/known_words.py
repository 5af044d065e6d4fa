"""What an encoder makes of a word by itself, computed once and looked up ever after: for tagging on a CPU.

The vector of a word (embedding, spelling, first projection) does not depend on its sentence, and most words of a text have been
seen before. Weights must not change while a table is in use.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain, repeat
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int, Int64
from torch import Tensor

from diffusion_mf.data.batching import Batch
from diffusion_mf.data.occurrences import document_rows, other_places
from diffusion_mf.data.sentence import Sentence
from diffusion_mf.data.vocabulary import UNKNOWN_ID, Vocabulary
from diffusion_mf.encoders.growing_table import GrowingTable
from diffusion_mf.encoders.known_spellings import KnownSpellings
from diffusion_mf.ops.backends import CPU_LANES, CPU_ROWS

if TYPE_CHECKING:
    from diffusion_mf.encoders.words import WordEncoder

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


class MetSentences:
    """Sentences whose words are known, for batches of some of them at a time."""

    def __init__(
        self,
        rows: Int64[np.ndarray, "T"],
        lengths: Int64[np.ndarray, "S"],
        form_ids: Int64[np.ndarray, "F"],
        table: Float[Tensor, "R E"],
        documents: Int64[np.ndarray, "S"],
    ) -> None:
        self._rows, self._lengths, self._form_ids, self._table = rows, lengths, form_ids, table
        self._documents = documents
        self._starts = np.cumsum(lengths) - lengths

    def batch(self, indices: Sequence[int], *, recall: int = 0) -> Batch:
        """The tensors of the sentences with these numbers, without labels and spellings."""
        lengths = self._lengths[indices]
        # A multiple of so many places, filled up like the layout and for its reason.
        num_places = int(lengths.max(initial=0))
        positions = np.arange(num_places + -num_places % CPU_ROWS)
        places = np.minimum(self._starts[indices][:, None] + positions, len(self._rows) - 1)
        is_unit = positions < lengths[:, None]
        rows = np.where(is_unit, self._rows[places], 0)
        word_rows = torch.from_numpy(rows)
        return Batch(
            form_ids=torch.from_numpy(self._form_ids[rows]),
            word_rows=word_rows,
            character_ids=torch.zeros(1, 1, dtype=torch.int64),
            character_lengths=torch.zeros(1, dtype=torch.int64),
            lengths=torch.from_numpy(lengths),
            label_ids=None,
            encoder_input=WordRows(word_rows, self._table),
            others=other_places(
                rows[is_unit], self._documents[indices], lengths, most=recall, num_places=len(positions)
            )
            if recall
            else None,
            document_rows=document_rows(self._documents[indices]) if recall else None,
            is_compact=True,
        )


class KnownWords:
    """A growing table of word vectors, and batches that refer to it.

    What `meet` gives is of use until the next call of anything else here.
    """

    def __init__(self, encoder: WordEncoder, vocabulary: Vocabulary) -> None:
        self._encoder = encoder
        self._vocabulary = vocabulary
        self._spellings = KnownSpellings(encoder.characters, vocabulary.character_ids)
        self._rows: dict[str, int] = {}
        self._num_kept = 0
        self._table = GrowingTable(encoder.vector_width)
        self._form_ids = np.zeros(1, dtype=np.int64)

    def __len__(self) -> int:
        return len(self._rows)

    def keep_vocabulary(self) -> None:
        """Compute the vectors of all training words now, and keep them for good."""
        self.forget()
        self._learn((word for word in self._vocabulary.form_counts if word not in self._rows), keep=True)
        self._spellings.release()
        self._num_kept = len(self._rows)

    def forget(self) -> None:
        """Forget all words but those kept for good."""
        self._rows = dict(list(self._rows.items())[: self._num_kept])
        self._table.cut(self._num_kept + 1)

    def meet(self, sentences: Sequence[Sentence]) -> MetSentences:
        """Look up ``sentences`` and compute what is missing: at once, rather than batch by batch, for words share beginnings."""
        if len(self._rows) - self._num_kept > MAX_OTHER_WORDS:
            self.forget()
        units = list(chain.from_iterable([sentence.units for sentence in sentences]))
        rows = np.array(list(map(self._rows.get, units, repeat(0))), dtype=np.int64)
        places = np.flatnonzero(rows == 0).tolist()
        if places:
            missing = [units[place] for place in places]
            self._learn(set(missing))
            rows[places] = [self._rows[unit] for unit in missing]
        lengths = np.array([len(sentence.units) for sentence in sentences], dtype=np.int64)
        documents = np.array([sentence.document for sentence in sentences], dtype=np.int64)
        return MetSentences(rows, lengths, self._form_ids, self._table.memory, documents)

    @torch.no_grad()
    def _learn(self, words: Iterable[str], *, keep: bool = False) -> None:
        # The order must not depend on that of a set.
        new = sorted(words)
        forms = self._vocabulary.form_ids
        for start in range(0, len(new), _WORDS_AT_ONCE):
            piece = new[start : start + _WORDS_AT_ONCE]
            form_ids = np.array([forms.get(word, UNKNOWN_ID) for word in piece], dtype=np.int64)
            spellings = self._spellings.vectors(piece, keep=keep)
            # Filled up like the characters' states, for the same reason.
            filled = np.pad(np.arange(len(piece)), (0, -len(piece) % CPU_LANES))
            vectors = self._encoder.word_vectors(
                torch.from_numpy(form_ids[filled]), spellings.index_select(0, torch.from_numpy(filled))
            )[: len(piece)]
            first = self._table.num_rows
            self._table.add(len(piece)).copy_(vectors)
            self._form_ids = np.concatenate([self._form_ids[:first], form_ids])
            self._rows.update(zip(piece, range(first, first + len(piece)), strict=True))
