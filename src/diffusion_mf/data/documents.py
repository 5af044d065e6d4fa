"""Documents: sentences that are labelled together, and the other places where a word of one stands.

A model with `denoiser.recall` sees, beside its beliefs about a unit, those about other occurrences of its form in the
document. So the sentences of a document share a batch, whatever else changes about batches.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from diffusion_mf.data.sentence import Sentence

MAX_DOCUMENT_UNITS = 1000
"""a longer document is cut: what is labelled together must fit in a batch of any device"""


def cut_documents(sentences: Iterable[Sentence]) -> Iterator[Sentence]:
    """Stream ``sentences`` with their documents numbered anew from 1, none of more than `MAX_DOCUMENT_UNITS` units.

    Sentences of no document, 0, stay so. One of more units is a document of its own.
    """
    number, size, before = 0, 0, 0
    for sentence in sentences:
        size += len(sentence.units)
        if sentence.document != before or size > MAX_DOCUMENT_UNITS:
            size, before = len(sentence.units), sentence.document
            number += before > 0
        yield sentence._replace(document=number) if before else sentence


def grouped(documents: Sequence[int]) -> list[list[int]]:
    """Indices of sentences, those of a document together, which must stand one after the other; those of none (0) alone."""

    def key(index: int) -> int:
        return documents[index] or -index - 1

    return [[*group] for _, group in itertools.groupby(range(len(documents)), key=key)]


def document_batches(
    lengths: Sequence[int],
    documents: Sequence[int],
    *,
    budget: int,
    seed: int,
    epoch: int,
    max_sentences: int | None = None,
) -> list[list[int]]:
    """Indices of sentences in batches of at most ``budget`` units and whole documents, in random order.

    A document beyond the budget, or with more than ``max_sentences``, stands alone. Sentences keep their order in it.
    """
    # Only random() itself is promised to give the same numbers in every version of Python.
    generator = random.Random(f"document batches {seed} {epoch}")
    groups = grouped(documents)
    keys = [generator.random() for _ in groups]
    batches: list[list[int]] = []
    size = 0
    for key in sorted(range(len(groups)), key=keys.__getitem__):
        group = groups[key]
        units = sum(lengths[index] for index in group)
        has_room = max_sentences is None or not batches or len(batches[-1]) + len(group) <= max_sentences
        if batches and has_room and size + units <= budget:
            batches[-1] += group
            size += units
        else:
            batches.append([*group])
            size = units
    return batches


def other_places(
    words: Int64[np.ndarray, "T"], documents: Int64[np.ndarray, "B"], lengths: Int64[np.ndarray, "B"], *, most: int
) -> Int64[Tensor, "B N M"]:
    """For every place of a batch, the places b·N + i of other units with the same word in the same document; −1 for none.

    A sentence of no document (0) has its own units only. Of more than ``most`` others, those that stand nearest in the order of the text. ``words`` are numbers of all units, sentence
    after sentence.
    """
    num_units = int(lengths.max(initial=0))
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
