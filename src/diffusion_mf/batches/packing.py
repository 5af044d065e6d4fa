"""Batches in a few fixed shapes: units packed one after the other; rows, words and characters padded to fixed sizes.

A GPU then computes nothing for padding, and the work on one batch can be recorded and replayed for others. Sentences are
grouped by length into classes, each twice as long as the one before, so that the rectangles of structures stay small.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Int64
from torch import Tensor

from diffusion_mf.batches import layouts
from diffusion_mf.batches.batching import Batch, fill_with_sentences, keyed_generator, shorten, shuffled
from diffusion_mf.batches.layouts import PackedLayout

SHORTEST_CLASS = 16
TOKENS_STEP = 64
FEWEST_ROWS, FEWEST_PLACES, WORDS_STEP = 64, 8192, 384
"""the least number of rows of a rectangle unless they are long, the limit on unused positions then, and the step of words"""
SHORT_WORD = 4


class PackedShape(NamedTuple):
    """The sizes to which the tensors of a packed batch are padded."""

    num_tokens: int
    """T, the length of the packed sequence"""
    num_sentences: int
    """B, more than there are sentences: at least one row is needed for the filler"""
    num_units: int
    """N, the width of the rectangle"""
    num_words: int
    num_characters: int


def length_class(length: int) -> int:
    """The number of positions for a sentence of this length: a power of two."""
    return max(SHORTEST_CLASS, 1 << (length - 1).bit_length())


def packed_batches(
    lengths: Sequence[int], *, budget: int, seed: int, epoch: int, max_sentences: int | None = None
) -> list[list[int]]:
    """Batches as lists of sentence indices, at most ``budget`` units each, in random order; longer sentences are alone."""
    generator = keyed_generator(f"packed batches {seed} {epoch}")
    order = np.argsort(generator.random_sample(len(lengths)), kind="stable")
    return shuffled(_batches_by_class(order, lengths, budget, max_sentences=max_sentences), generator)


def packed_evaluation_batches(lengths: Sequence[int], *, budget: int) -> list[list[int]]:
    """As `packed_batches`, for prediction: the longest class first, so that memory is tried at once; a class in the order given."""
    return _batches_by_class(np.arange(len(lengths)), lengths, budget)[::-1]


def _batches_by_class(
    order: Int64[np.ndarray, " n"], lengths: Sequence[int], budget: int, *, max_sentences: int | None = None
) -> list[list[int]]:
    """Batches from the shortest class to the longest, each filled in this ``order``.

    A batch holds sentences of one length class; what is left of a class when no batch can be filled goes with the next one,
    unless that is too long to be packed: all would be padded to its length.
    """
    sizes = np.asarray(lengths, dtype=np.int64)
    # A length's class is the first power of two that holds it.
    classes = np.searchsorted(SHORTEST_CLASS << np.arange(40), sizes[order])
    batches: list[list[int]] = []
    remainder: list[int] = []
    for number in np.unique(classes):
        if remainder and SHORTEST_CLASS << int(number) > layouts.LONGEST_WHOLE:
            batches.append(remainder)
            remainder = []
        members = np.append(np.array(remainder, dtype=np.int64), order[classes == number])
        *full, remainder = fill_with_sentences(members, sizes, budget, max_sentences=max_sentences, has_padding=False)
        batches.extend(full)
    if remainder:
        batches.append(remainder)
    return batches


def shape_for(batch: Batch, *, budget: int, max_characters: int) -> PackedShape:
    """The smallest of the fixed shapes that holds a batch."""
    num_units, num_real = length_class(int(batch.lengths.max())), int(batch.lengths.sum())
    # The budget, half of it, a quarter …: a small batch should not cost as much as a large one.
    num_tokens = max(budget, num_real)
    while num_tokens // 2 >= max(num_real, TOKENS_STEP):
        num_tokens //= 2
    num_tokens = _stepped(num_tokens, TOKENS_STEP)
    # Rows without units share the filler, and no row can hold more than its width.
    num_rows = len(batch.lengths) + max(1, -(-(num_tokens - num_real) // num_units))
    return PackedShape(
        num_tokens,
        _laddered(num_rows, max(2, min(FEWEST_ROWS, FEWEST_PLACES // num_units))),
        num_units,
        _stepped(len(batch.character_lengths), WORDS_STEP),
        # Either units are little more than single characters, or nearly every batch has a long word.
        min(max_characters, SHORT_WORD) if batch.character_ids.shape[1] <= SHORT_WORD else max_characters,
    )


def _stepped(number: int, step: int) -> int:
    return -(-number // step) * step


def _laddered(number: int, lowest: int) -> int:
    """The next of lowest · 1, 1.5, 2, 3, 4, 6, 8…: few steps, and none leaves more than a third empty."""
    step = lowest
    while step < number:
        step = step * 3 // 2 if step & (step - 1) == 0 else step * 4 // 3
    return step


def pack(batch: Batch, shape: PackedShape) -> Batch:
    """The batch padded to ``shape``, with the packed layout of its units; the added rows have no units."""

    def filled(tensor: Tensor, rows: int, columns: int) -> Tensor:
        return F.pad(tensor, (0, columns - tensor.shape[1], 0, rows - tensor.shape[0]))

    # Longer words are shortened here in the same way as by the encoder.
    character_ids, character_lengths = shorten(batch.character_ids, batch.character_lengths, shape.num_characters)
    lengths = F.pad(batch.lengths, (0, shape.num_sentences - len(batch.lengths)))
    rows, columns = shape.num_sentences, shape.num_units
    return dataclasses.replace(
        batch,
        form_ids=filled(batch.form_ids, rows, columns),
        word_rows=filled(batch.word_rows, rows, columns),
        character_ids=filled(character_ids, shape.num_words, shape.num_characters),
        character_lengths=F.pad(character_lengths, (0, shape.num_words - len(character_lengths))),
        lengths=lengths,
        label_ids=None if batch.label_ids is None else filled(batch.label_ids, rows, columns),
        others=None if batch.others is None else _moved(batch.others, rows, columns),
        document_rows=None if batch.document_rows is None else _extended(batch.document_rows, rows),
        packing=packed_layout(lengths, num_units=columns, num_tokens=shape.num_tokens),
    )


def _extended(document_rows: Int64[Tensor, " b"], num_rows: int) -> Int64[Tensor, " B"]:
    """With more rows, each of which is a document by itself."""
    return torch.cat([document_rows, torch.arange(len(document_rows), num_rows)])


def _moved(others: Int64[Tensor, "b n M"], num_rows: int, num_columns: int) -> Int64[Tensor, "B N M"]:
    """Positions in a rectangle as positions in a larger one."""
    row, column = others.clamp(min=0) // others.shape[1], others.clamp(min=0) % others.shape[1]
    moved = torch.where(others < 0, -1, row * num_columns + column)
    more = (0, 0, 0, num_columns - others.shape[1], 0, num_rows - others.shape[0])
    return F.pad(moved, more, value=-1)


def packed_layout(lengths: Int64[Tensor, " B"], *, num_units: int, num_tokens: int) -> PackedLayout:
    """The layout of sentences of these lengths, the last of which must be 0, with filler after them."""
    real = lengths.numpy()
    num_sentences, num_real = len(real), int(real.sum())
    if real[-1] != 0 or num_real > num_tokens:
        raise ValueError("a packed batch needs an empty last row and room for all units")
    # Empty rows share the filler equally.
    is_empty = real == 0
    shares = np.zeros_like(real)
    quotient, remainder = divmod(num_tokens - num_real, int(is_empty.sum()))
    shares[is_empty] = quotient + (np.arange(int(is_empty.sum())) < remainder)
    sizes = real + shares
    if sizes.max() > num_units:
        raise ValueError("a packed batch needs more rows for its filler")
    starts = np.concatenate([[0], np.cumsum(sizes)])
    sentences = np.repeat(np.arange(num_sentences), sizes)
    positions = np.arange(num_tokens) - starts[:-1][sentences]
    padding = (num_sentences - 1) * num_units
    is_filling = is_empty[sentences]
    has_next = positions + 1 < real[sentences]
    pair_padding = (num_sentences - 1) * (num_units - 1)
    is_unit = np.arange(num_units) < real[:, None]
    return PackedLayout(
        places=torch.from_numpy(np.where(is_filling, padding, sentences * num_units + positions)),
        pair_places=torch.from_numpy(np.where(has_next, sentences * (num_units - 1) + positions, pair_padding)),
        units=torch.from_numpy(np.where(is_unit, starts[:-1, None] + np.arange(num_units), 0)),
        sentences=torch.from_numpy(sentences),
        positions=torch.from_numpy(positions),
        boundaries=torch.from_numpy(starts.astype(np.int32)),
        longest=num_units,
    )
