"""What a character LSTM makes of words, beginning by beginning: for tagging on a CPU.

The state after the first letters of a word is that of all words beginning alike, so it is computed once for all words at hand;
from the right the same holds for endings. Those of the training words can be kept: few words are new from their first
character on. Weights must not change in between.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from diffusion_mf.data.spellings import shortened
from diffusion_mf.data.vocabulary import UNKNOWN_ID
from diffusion_mf.encoders.growing_table import GrowingTable
from diffusion_mf.ops.backends import CPU_LANES

if TYPE_CHECKING:
    from diffusion_mf.encoders.character_lstm import CharacterLSTM

KEPT_CHARACTERS = 5
"""of beginnings and endings to be kept: longer ones would take twice the memory and spare little"""


class KnownSpellings:
    """The vectors that a `CharacterLSTM` gives to words, save for rounding."""

    def __init__(self, lstm: CharacterLSTM, character_ids: Mapping[str, int]) -> None:
        self._max_characters = lstm.max_characters
        self._character_ids = character_ids
        self._from_left = _Beginnings(lstm.from_left, lstm.embedding)
        self._from_right = _Beginnings(lstm.from_right, lstm.embedding)

    def vectors(self, words: Sequence[str], *, keep: bool = False) -> Float[Tensor, "W D"]:
        """One vector per word; with ``keep``, beginnings and endings are remembered."""
        spellings = [shortened(word, self._max_characters) for word in words]
        lengths = np.array([*map(len, spellings)], dtype=np.int64)
        # The longest first: the words that have a character i are then the first so many.
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
        """Give back most of the memory that nothing is kept in."""
        self._from_left.release()
        self._from_right.release()


class _Beginnings:
    """The states of one LSTM after beginnings of words, as rows; row 0, of nothing yet, is zero.

    A beginning is known by the row of the one before its last character, and that character: row·C + character.
    """

    def __init__(self, lstm: nn.LSTM, embedding: nn.Embedding) -> None:
        self._num_characters = embedding.num_embeddings
        input_weight, recurrent_weight, input_bias, recurrent_bias = lstm.all_weights[0]
        # tanh(x) = 2σ(2x) − 1: with the third gate's scores doubled, all four are one logistic function, which PyTorch
        # computes more than twice as fast as tanh.
        factors = torch.tensor([1.0, 1.0, 2.0, 1.0]).repeat_interleave(lstm.hidden_size)
        with torch.no_grad():
            self._inputs = (embedding.weight @ input_weight.T + input_bias + recurrent_bias) * factors
            self._recurrence = (recurrent_weight.T * factors).contiguous()
        self._hidden, self._cells = GrowingTable(lstm.hidden_size), GrowingTable(lstm.hidden_size)
        self._kept_keys, self._kept_rows = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)

    def last_states(self, ids: Int64[np.ndarray, "W C"], counts: list[int], *, keep: bool) -> Float[Tensor, "W H"]:
        """The states after words, the longest of which come first; ``counts[i]`` of them have a character i."""
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
        # The shortest were first, so those to be kept are.
        self._hidden.cut(num_kept)
        self._cells.cut(num_kept)
        return states

    def release(self) -> None:
        self._hidden.release()
        self._cells.release()

    def _rows_of(self, keys: Int64[np.ndarray, "M"]) -> Int64[np.ndarray, "M"]:
        """The rows of beginnings that are kept, and 0 for others."""
        if not len(self._kept_keys):
            return np.zeros_like(keys)
        places = np.minimum(np.searchsorted(self._kept_keys, keys), len(self._kept_keys) - 1)
        return np.where(self._kept_keys[places] == keys, self._kept_rows[places], 0)

    def _keep(self, keys: Int64[np.ndarray, "M"], rows: Int64[np.ndarray, "M"]) -> None:
        keys, rows = np.concatenate([self._kept_keys, keys]), np.concatenate([self._kept_rows, rows])
        order = np.argsort(keys)
        self._kept_keys, self._kept_rows = keys[order], rows[order]

    def _step(self, keys: Int64[np.ndarray, "M"]) -> None:
        """New rows: c = f·c′ + i·tanh(g), h = o·tanh(c), the gates from the character and h′.

        Filled up to a multiple of `CPU_LANES`: a word's vector must not depend on which others are new together with it.
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
