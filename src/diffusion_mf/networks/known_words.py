"""Caches of word vectors on a CPU: tagging looks most words up instead of computing them again."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, repeat
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int, Int64
from torch import Tensor, nn

from diffusion_mf.batches.batching import Batch, EncoderInput, SentenceRows, shortened
from diffusion_mf.batches.vocabulary import UNKNOWN_ID, Vocabulary
from diffusion_mf.data.sentence import Sentence
from diffusion_mf.ops.backends import CPU_LANES, CPU_ROWS

if TYPE_CHECKING:
    from diffusion_mf.networks.words import CharacterLSTM, WordEncoder


class GrowingTable:
    """Rows in one block of memory, with room for more; row 0 is zero and always present."""

    def __init__(self, width: int) -> None:
        self.memory: Float[Tensor, "R D"] = torch.zeros(1, width)
        self.num_rows = 1

    def add(self, number: int) -> Float[Tensor, "number D"]:
        """This many more rows, to be written to; their contents are undefined."""
        start = self.num_rows
        self.num_rows += number
        if self.num_rows > len(self.memory):
            # Room for half as many again: growing row by row would copy the table each time.
            self._move(start, self.num_rows + self.num_rows // 2)
        return self.memory[start : self.num_rows]

    def cut(self, num_rows: int) -> None:
        """Forget all rows but the first ``num_rows``; their memory is kept for new rows."""
        self.num_rows = num_rows

    def release(self) -> None:
        """Release most of the unused memory."""
        if self.num_rows + self.num_rows // 2 < len(self.memory):
            self._move(self.num_rows, self.num_rows + self.num_rows // 2)

    def _move(self, num_rows: int, room: int) -> None:
        # Tensors created in inference mode cannot be written to outside of it.
        with torch.inference_mode(False):
            memory = self.memory.new_empty(room, self.memory.shape[1])
        memory[:num_rows] = self.memory[:num_rows]
        self.memory = memory


KEPT_CHARACTERS = 5
"""limit on the beginnings and endings kept: more would take twice the memory and save little"""


class KnownSpellings:
    """The vectors of words by a `CharacterLSTM`, up to rounding."""

    def __init__(self, lstm: CharacterLSTM, character_ids: Mapping[str, int]) -> None:
        self._max_characters = lstm.max_characters
        self._character_ids = character_ids
        self._from_left = _Beginnings(lstm.from_left, lstm.embedding)
        self._from_right = _Beginnings(lstm.from_right, lstm.embedding)

    def vectors(self, words: Sequence[str], *, keep: bool = False) -> Float[Tensor, "W D"]:
        """One vector per word; with ``keep``, the states of beginnings and endings are cached."""
        spellings = [shortened(word, self._max_characters) for word in words]
        lengths = np.array([*map(len, spellings)], dtype=np.int64)
        # The longest first: the words that have a character i then come first.
        order = np.argsort(-lengths, kind="stable")
        positions = np.arange(lengths.max(initial=0))
        counts = np.count_nonzero(positions[:, None] < lengths, axis=1).tolist()
        ids = np.zeros((len(words), len(positions)), dtype=np.int64)
        ids[positions < lengths[:, None]] = [self._character_ids.get(c, UNKNOWN_ID) for c in "".join(spellings)]
        ids, lengths = ids[order], lengths[order]
        reversed_ids = np.take_along_axis(ids, np.maximum(lengths[:, None] - 1 - positions, 0), axis=1)
        left = self._from_left.last_states(ids, counts, keep=keep)
        right = self._from_right.last_states(reversed_ids, counts, keep=keep)
        return torch.cat([left, right], dim=-1)[torch.from_numpy(np.argsort(order))]

    def release(self) -> None:
        """Release most of the unused memory."""
        self._from_left.release()
        self._from_right.release()


class _Beginnings:
    """The states of one LSTM after beginnings of words, as rows; row 0, the empty beginning, is zero.

    A beginning is identified by the row of its prefix and its last character: row·C + character.
    """

    def __init__(self, lstm: nn.LSTM, embedding: nn.Embedding) -> None:
        self._num_characters = embedding.num_embeddings
        input_weight, recurrent_weight, input_bias, recurrent_bias = lstm.all_weights[0]
        # tanh(x) = 2σ(2x) − 1: with the third gate's scores doubled, all four gates use the logistic function, which PyTorch
        # computes more than twice as fast as tanh.
        factors = torch.tensor([1.0, 1.0, 2.0, 1.0]).repeat_interleave(lstm.hidden_size)
        with torch.no_grad():
            self._inputs = (embedding.weight @ input_weight.T + input_bias + recurrent_bias) * factors
            self._recurrence = (recurrent_weight.T * factors).contiguous()
        self._hidden, self._cells = GrowingTable(lstm.hidden_size), GrowingTable(lstm.hidden_size)
        self._kept_keys, self._kept_rows = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)

    def last_states(self, ids: Int64[np.ndarray, "W C"], counts: list[int], *, keep: bool) -> Float[Tensor, "W H"]:
        """The states after words, longest words first; ``counts[i]`` of them have a character i."""
        rows = np.zeros(len(ids), dtype=np.int64)
        num_kept = self._hidden.num_rows
        for position, count in enumerate(counts):
            keys, words = np.unique(rows[:count] * self._num_characters + ids[:count, position], return_inverse=True)
            found = self._rows_of(keys)
            is_new = found == 0
            new = keys[is_new]
            found[is_new] = self._hidden.num_rows + np.arange(len(new))
            self._step(new)
            if keep and position < KEPT_CHARACTERS:
                self._keep(new, found[is_new])
                num_kept = self._hidden.num_rows
            rows[:count] = found[words]
        states = self._hidden.memory.index_select(0, torch.from_numpy(rows))
        # The shortest beginnings were computed first, so those to keep come first.
        self._hidden.cut(num_kept)
        self._cells.cut(num_kept)
        return states

    def release(self) -> None:
        self._hidden.release()
        self._cells.release()

    def _rows_of(self, keys: Int64[np.ndarray, " M"]) -> Int64[np.ndarray, " M"]:
        """The rows of cached beginnings, 0 for others."""
        if not len(self._kept_keys):
            return np.zeros_like(keys)
        places = np.minimum(np.searchsorted(self._kept_keys, keys), len(self._kept_keys) - 1)
        return np.where(self._kept_keys[places] == keys, self._kept_rows[places], 0)

    def _keep(self, keys: Int64[np.ndarray, " M"], rows: Int64[np.ndarray, " M"]) -> None:
        keys, rows = np.concatenate([self._kept_keys, keys]), np.concatenate([self._kept_rows, rows])
        order = np.argsort(keys)
        self._kept_keys, self._kept_rows = keys[order], rows[order]

    def _step(self, keys: Int64[np.ndarray, " M"]) -> None:
        """New rows: c = f·c′ + i·tanh(g), h = o·tanh(c), with gates from the character and h′.

        Padded to a multiple of `CPU_LANES`: a word's vector must not depend on which other words are new at the same time.
        """
        num_rows = self._hidden.num_rows + len(keys)
        keys = np.pad(keys, (0, -len(keys) % CPU_LANES))
        hidden, cells = self._hidden.add(len(keys)), self._cells.add(len(keys))
        before, characters = (torch.from_numpy(part) for part in np.divmod(keys, self._num_characters))
        scores = self._inputs.index_select(0, characters)
        scores.addmm_(self._hidden.memory.index_select(0, before), self._recurrence)
        entering, staying, candidates, leaving = scores.sigmoid_().chunk(4, dim=1)
        torch.mul(staying, self._cells.memory.index_select(0, before), out=cells)
        cells.addcmul_(entering, candidates.mul_(2).sub_(1))
        torch.mul(cells, 2, out=hidden)
        hidden.sigmoid_().mul_(2).sub_(1).mul_(leaving)
        self._hidden.cut(num_rows)
        self._cells.cut(num_rows)


MAX_OTHER_WORDS = 50_000
"""in addition to those kept permanently: memory must stay bounded, whatever is tagged"""
_WORDS_AT_ONCE = 4096


class WordRows(NamedTuple):
    """The words of a batch as rows of a table of vectors; row 0, padding, is zero."""

    rows: Int[Tensor, "B N"]
    table: Float[Tensor, "R E"]

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> WordRows:
        """The same object: tables are used on the CPU, where they are built."""
        return self

    def vectors(self) -> Float[Tensor, "B N E"]:
        """The vector of every unit."""
        return torch.nn.functional.embedding(self.rows, self.table)


class CachedSentences(SentenceRows):
    """Sentences whose words are all in a table, for batches that refer to it instead of holding spellings."""

    def __init__(
        self,
        sentences: Sequence[Sentence],
        rows: Int64[np.ndarray, " T"],
        form_ids: Int64[np.ndarray, " R"],
        table: Float[Tensor, "room E"],
        *,
        recall: int = 0,
    ) -> None:
        # The number of positions is rounded up as in the layout, for the same reason.
        super().__init__(sentences, rows, form_ids, recall=recall, multiple=CPU_ROWS)
        self._table = table

    def batch(self, indices: Sequence[int], encoder_input: EncoderInput | None = None) -> Batch:
        """The tensors of some sentences, without padding in the networks."""
        batch = super().batch(indices)
        return dataclasses.replace(batch, encoder_input=WordRows(batch.word_rows, self._table), is_compact=True)


class KnownWords:
    """A growing table of word vectors, and batches that refer to it.

    The result of `look_up` is valid until the next call of any other method.
    """

    def __init__(self, encoder: WordEncoder, vocabulary: Vocabulary) -> None:
        self._encoder = encoder
        self._vocabulary = vocabulary
        self._spellings = (
            None if encoder.characters is None else KnownSpellings(encoder.characters, vocabulary.character_ids)
        )
        self._rows: dict[str, int] = {}
        self._num_kept = 0
        self._table = GrowingTable(encoder.vector_width)
        self._form_ids = np.zeros(1, dtype=np.int64)

    def __len__(self) -> int:
        return len(self._rows)

    def keep_vocabulary(self) -> None:
        """Compute the vectors of all training words now, and keep them permanently."""
        self.forget()
        self._learn((word for word in self._vocabulary.form_counts if word not in self._rows), keep=True)
        if self._spellings is not None:
            self._spellings.release()
        self._num_kept = len(self._rows)

    def forget(self) -> None:
        """Forget all words except those kept permanently."""
        self._rows = dict(list(self._rows.items())[: self._num_kept])
        self._table.cut(self._num_kept + 1)

    def look_up(self, sentences: Sequence[Sentence], *, recall: int = 0) -> CachedSentences:
        """Look up ``sentences`` and compute missing words, all at once and not batch by batch, because words share prefixes."""
        if len(self._rows) - self._num_kept > MAX_OTHER_WORDS:
            self.forget()
        units = list(chain.from_iterable([sentence.units for sentence in sentences]))
        rows = np.array(list(map(self._rows.get, units, repeat(0))), dtype=np.int64)
        places = np.flatnonzero(rows == 0).tolist()
        if places:
            missing = [units[place] for place in places]
            self._learn(set(missing))
            rows[places] = [self._rows[unit] for unit in missing]
        return CachedSentences(sentences, rows, self._form_ids, self._table.memory, recall=recall)

    @torch.no_grad()
    def _learn(self, words: Iterable[str], *, keep: bool = False) -> None:
        # The order must not depend on the order of a set.
        new = sorted(words)
        forms = self._vocabulary.form_ids
        for start in range(0, len(new), _WORDS_AT_ONCE):
            piece = new[start : start + _WORDS_AT_ONCE]
            form_ids = np.array([forms.get(word, UNKNOWN_ID) for word in piece], dtype=np.int64)
            spellings = self._spelling_vectors(piece, keep=keep)
            # Padded like the states of characters, for the same reason.
            filled = np.pad(np.arange(len(piece)), (0, -len(piece) % CPU_LANES))
            vectors = self._encoder.word_vectors(
                torch.from_numpy(form_ids[filled]), spellings.index_select(0, torch.from_numpy(filled))
            )[: len(piece)]
            first = self._table.num_rows
            self._table.add(len(piece)).copy_(vectors)
            self._form_ids = np.concatenate([self._form_ids[:first], form_ids])
            self._rows.update(zip(piece, range(first, first + len(piece)), strict=True))

    def _spelling_vectors(self, words: Sequence[str], *, keep: bool) -> Float[Tensor, "W S"]:
        parts = [torch.zeros(len(words), 0)]
        if self._spellings is not None:
            parts.append(self._spellings.vectors(words, keep=keep))
        if self._encoder.affixes is not None:
            parts.append(self._encoder.affixes.vectors_of(words, self._vocabulary.character_ids))
        if self._encoder.features is not None:
            parts.append(self._encoder.features.vectors_of(words, self._vocabulary.character_ids))
        return torch.cat(parts, dim=-1)
