"""Where else in its document a word stands: what batches tell a model with recall."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor


def other_places(
    words: Int64[np.ndarray, "T"],
    documents: Int64[np.ndarray, "B"],
    lengths: Int64[np.ndarray, "B"],
    *,
    most: int,
    num_places: int | None = None,
) -> Int64[Tensor, "B N M"]:
    """For every place of a batch, the places b·N + i of other units with the same word in the same document; −1 for none.

    A sentence of no document (0) has its own units only. Of more than ``most`` others, those nearest in the order of
    occurrences. ``words`` are numbers of all units, sentence after sentence. N is that of the longest one unless given.
    """
    num_units = int(lengths.max(initial=0)) if num_places is None else num_places
    is_unit = np.arange(num_units) < lengths[:, None]
    places = np.flatnonzero(is_unit)
    # Sentences of no document are not one.
    of_units = np.repeat(np.where(documents > 0, documents, -np.arange(len(documents)) - 1), lengths)
    # Units of the same word and document lie side by side in this order, and those among each other as in the text.
    order = np.lexsort((words, of_units))
    is_first = np.ones(len(order), dtype=bool)
    is_first[1:] = (np.diff(words[order]) != 0) | (np.diff(of_units[order]) != 0)
    starts = np.flatnonzero(is_first)
    group = np.cumsum(is_first) - 1
    sizes = np.diff(np.append(starts, len(order)))[group]
    rank = np.arange(len(order)) - starts[group]
    # A stretch of `most` ranks around the unit's own, which is left out.
    first = np.clip(rank - most // 2, 0, np.maximum(sizes - 1 - most, 0))
    chosen = first[:, None] + np.arange(most)
    is_there = chosen < (sizes - 1)[:, None]
    chosen += chosen >= rank[:, None]
    found = np.full((len(lengths) * num_units, most), -1, dtype=np.int64)
    at = np.where(is_there, starts[group][:, None] + chosen, 0)
    found[places[order]] = np.where(is_there, places[order[at]], -1)
    return torch.from_numpy(found.reshape(len(lengths), num_units, most))


def document_rows(documents: Int64[np.ndarray, "B"]) -> Int64[Tensor, "B"]:
    """For every sentence of a batch the row of the first one of its document; its own where it has none."""
    rows = np.arange(len(documents))
    _, first, inverse = np.unique(documents, return_index=True, return_inverse=True)
    return torch.from_numpy(np.where(documents > 0, first[inverse], rows))
