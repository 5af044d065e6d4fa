"""Batches by a token budget: which sentences go together, in which order, and their tensors.

The order is a pure function of lengths, budget, seed and epoch, so a position in the epoch is an index into a list and
training resumes in the middle with ``training_batches(…)[position:]``.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from diffusion_mf.data.documents import grouped
from diffusion_mf.data.occurrences import document_rows, other_places
from diffusion_mf.data.sentence import Sentence
from diffusion_mf.data.vocabulary import PADDING_ID, UNKNOWN_ID, Vocabulary
from diffusion_mf.layouts import CompactLayout, Layout, PackedLayout, PaddedLayout
from diffusion_mf.ops.chain_scores import unit_mask

# Lengths are blurred by this share before sorting, so that epochs group sentences differently at little cost in padding.
LENGTH_JITTER = 0.1


class EvaluationBatches(NamedTuple):
    """Batches from the longest sentences to the shortest, and the way back.

    With the results of all batches in one list, the result of sentence i is ``results[positions[i]]``.
    """

    batches: list[list[int]]
    positions: list[int]


def training_batches(
    lengths: Sequence[int], *, budget: int, seed: int, epoch: int, max_sentences: int | None = None
) -> list[list[int]]:
    """Indices of sentences in batches of at most ``budget`` units, padding counted; a longer sentence stands alone.

    Every sentence comes once an epoch, with others of about its length; the batches come in random order. ``max_sentences``
    limits the sentences of a batch, too.
    """
    # Only random() itself is promised to give the same numbers in every version of Python.
    generator = random.Random(f"batches {seed} {epoch}")
    blurred = [length * (1 + LENGTH_JITTER * (2 * generator.random() - 1)) for length in lengths]
    order = sorted(range(len(lengths)), key=blurred.__getitem__)
    batches = fill_batches([[index] for index in order], lengths, budget, max_sentences=max_sentences)
    keys = [generator.random() for _ in batches]
    return [batches[index] for index in sorted(range(len(batches)), key=keys.__getitem__)]


def evaluation_batches(
    lengths: Sequence[int], *, budget: int, documents: Sequence[int] | None = None
) -> EvaluationBatches:
    """Batches for prediction: the longest first, so that memory is tried at once; equal lengths in the order given.

    With ``documents``, the number of each sentence's, batches hold whole ones; a document beyond the budget stands alone.
    """
    if documents is None:
        groups = [[index] for index in sorted(range(len(lengths)), key=lambda index: -lengths[index])]
    else:
        groups = sorted(grouped(documents), key=lambda group: -max(lengths[index] for index in group))
    batches = fill_batches(groups, lengths, budget)
    positions = [0] * len(lengths)
    for position, index in enumerate(itertools.chain.from_iterable(batches)):
        positions[index] = position
    return EvaluationBatches(batches, positions)


def document_batches(
    lengths: Sequence[int],
    documents: Sequence[int],
    *,
    budget: int,
    seed: int,
    epoch: int,
    max_sentences: int | None = None,
    has_padding: bool = False,
) -> list[list[int]]:
    """Indices of sentences in batches of at most ``budget`` units and whole documents, in random order.

    With ``has_padding``, padding to the longest sentence counts. A document beyond the budget, or with more than
    ``max_sentences``, stands alone. Sentences keep their order in it.
    """
    generator = random.Random(f"document batches {seed} {epoch}")
    groups = grouped(documents)
    keys = [generator.random() for _ in groups]
    order = [groups[index] for index in sorted(range(len(groups)), key=keys.__getitem__)]
    return fill_batches(order, lengths, budget, max_sentences=max_sentences, has_padding=has_padding)


def fill_batches(
    groups: Iterable[Sequence[int]],
    lengths: Sequence[int],
    budget: int,
    *,
    max_sentences: int | None = None,
    has_padding: bool = True,
) -> list[list[int]]:
    """Groups of sentences, in their order and never parted, as batches of at most ``max_sentences`` within the budget.

    What counts against it is size × longest, or, without padding, the sum of lengths. A group beyond either stands alone.
    """
    if budget < 1:
        raise ValueError(f"the token budget must be positive, not {budget}")
    batches: list[list[int]] = []
    longest = total = 0
    for group in groups:
        if len(group) == 1:  # by far the most, and taggers wait for this
            own_longest = own_total = lengths[group[0]]
        else:
            own = [lengths[index] for index in group]
            own_longest, own_total = max(own), sum(own)
        longest, total = max(longest, own_longest), total + own_total
        size = len(batches[-1]) + len(group) if batches else 0
        is_within = (size * longest if has_padding else total) <= budget
        if batches and is_within and (max_sentences is None or size <= max_sentences):
            batches[-1] += group
        else:
            batches.append([*group])
            longest, total = own_longest, own_total
    return batches


@runtime_checkable
class EncoderInput(Protocol):
    """What an encoder wants to know of a batch beside its ids, such as subwords; made when the batch is."""

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> EncoderInput:
        """The same on another device."""
        ...


PrepareInput = Callable[[Sequence[Sentence]], EncoderInput]


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Sentences as tensors; positions past a sentence's length hold 0.

    Characters are kept once per distinct form: ``character_ids[word_rows]`` are those of every position. Row 0 is padding.
    """

    form_ids: Int64[Tensor, "B N"]
    word_rows: Int64[Tensor, "B N"]
    character_ids: Int64[Tensor, "W C"]
    character_lengths: Int64[Tensor, "W"]
    lengths: Int64[Tensor, "B"]
    label_ids: Int64[Tensor, "B N"] | None
    encoder_input: EncoderInput | None = None
    others: Int64[Tensor, "B N M"] | None = None
    """for models with recall: where else a unit's form stands in its document (`data.occurrences.other_places`)"""
    document_rows: Int64[Tensor, "B"] | None = None
    """beside ``others``: the first sentence of each one's document; packed batches do without"""
    packing: PackedLayout | None = None
    """how the networks are to lay the units out; None is the rectangle, or its units"""
    is_compact: bool = False
    """whether the networks leave out padding, as they should where CPUs predict, or train on documents"""

    @property
    def layout(self) -> Layout:
        """The layout of the units inside the networks."""
        if self.packing is not None:
            return self.packing
        is_unit = unit_mask(self.lengths, self.form_ids.shape[1])
        return CompactLayout.of_units(is_unit) if self.is_compact else PaddedLayout(is_unit)

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> Batch:
        """The same batch on another device."""

        def move(tensor: Tensor) -> Tensor:
            return tensor.to(device, non_blocking=non_blocking)

        return Batch(
            form_ids=move(self.form_ids),
            word_rows=move(self.word_rows),
            character_ids=move(self.character_ids),
            character_lengths=move(self.character_lengths),
            lengths=move(self.lengths),
            label_ids=None if self.label_ids is None else move(self.label_ids),
            encoder_input=(
                None if self.encoder_input is None else self.encoder_input.to(device, non_blocking=non_blocking)
            ),
            others=None if self.others is None else move(self.others),
            document_rows=None if self.document_rows is None else move(self.document_rows),
            packing=None if self.packing is None else self.packing.to(device, non_blocking=non_blocking),
            is_compact=self.is_compact,
        )


def collate(
    sentences: Sequence[Sentence],
    vocabulary: Vocabulary,
    *,
    prepare_input: PrepareInput | None = None,
    recall: int = 0,
) -> Batch:
    """Tensors of ``sentences``; labels where all of them have some, `KeyError` at a label the vocabulary lacks.

    ``prepare_input`` is the encoder's, where it has one (`encoders.Encoder.prepare_input`), ``recall`` the model's.
    """
    form_ids, character_ids = vocabulary.form_ids, vocabulary.character_ids
    rows: dict[str, int] = {}
    for sentence in sentences:
        for unit in sentence.units:
            rows.setdefault(unit, len(rows) + 1)
    labels = [sentence.labels for sentence in sentences if sentence.labels is not None]
    if labels and len(labels) != len(sentences):
        raise ValueError("either all sentences of a batch have labels or none")
    characters = [[], *([character_ids.get(character, UNKNOWN_ID) for character in form] for form in rows)]
    return Batch(
        form_ids=_padded([[form_ids.get(unit, UNKNOWN_ID) for unit in sentence.units] for sentence in sentences]),
        word_rows=_padded([[rows[unit] for unit in sentence.units] for sentence in sentences]),
        character_ids=_padded(characters),
        character_lengths=torch.tensor([len(row) for row in characters]),
        lengths=torch.tensor([len(sentence.units) for sentence in sentences]),
        label_ids=_padded([[vocabulary.label_ids[label] for label in row] for row in labels]) if labels else None,
        encoder_input=None if prepare_input is None else prepare_input(sentences),
        others=_others(sentences, rows, recall) if recall else None,
        document_rows=document_rows(np.array([sentence.document for sentence in sentences])) if recall else None,
    )


def _others(sentences: Sequence[Sentence], rows: Mapping[str, int], recall: int) -> Int64[Tensor, "B N M"]:
    words = np.array([rows[unit] for sentence in sentences for unit in sentence.units])
    documents = np.array([sentence.document for sentence in sentences])
    return other_places(words, documents, np.array([len(sentence.units) for sentence in sentences]), most=recall)


def _padded(rows: Sequence[Sequence[int]]) -> Int64[Tensor, "R C"]:
    array = np.full((len(rows), max(map(len, rows))), PADDING_ID, dtype=np.int64)
    for index, row in enumerate(rows):
        array[index, : len(row)] = row
    return torch.from_numpy(array)
