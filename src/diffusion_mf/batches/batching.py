"""Where else in its document a word stands: what batches tell a model with recall."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Int, Int64
from torch import Tensor

from diffusion_mf.batches.layouts import CompactLayout, Layout, PackedLayout, PaddedLayout
from diffusion_mf.batches.vocabulary import PADDING_ID, UNKNOWN_ID, Vocabulary
from diffusion_mf.data.sentence import Sentence, grouped
from diffusion_mf.ops.chain_scores import unit_mask


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


def shorten(
    character_ids: Int[Tensor, "W C"], lengths: Int[Tensor, "W"], most: int
) -> tuple[Int[Tensor, "W c"], Int[Tensor, "W"]]:
    """At most ``most`` characters of each word: of a longer one the first ⌈half⌉ and the last ⌊half⌋.

    Addresses and the like would make all other words of a batch pay for their length.
    """
    if character_ids.shape[1] <= most:
        return character_ids, lengths
    positions = torch.arange(most, device=character_ids.device)
    num_left_out = (lengths - most).clamp(min=0)[:, None]
    source = torch.where(positions < most - most // 2, positions, positions + num_left_out)
    return character_ids.gather(1, source), lengths.clamp(max=most)


def shortened(word: str, most: int) -> str:
    """`shorten` for one word."""
    return word if len(word) <= most else word[: most - most // 2] + word[len(word) - most // 2 :]


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
    """for models with recall: where else a unit's form stands in its document (`batches.batching.other_places`)"""
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


class EncodedSentences:
    """Sentences looked up in a vocabulary once; `batch` is `collate` of some of them, up to the order of distinct words.

    With ``has_labels`` off, labels (those of a test file need not be in the vocabulary) are left out. ``recall`` is the model's.
    """

    def __init__(
        self, sentences: Sequence[Sentence], vocabulary: Vocabulary, *, has_labels: bool = True, recall: int = 0
    ) -> None:
        words: dict[str, int] = {}
        flat = [words.setdefault(unit, len(words)) for sentence in sentences for unit in sentence.units]
        self.lengths = np.array([len(sentence.units) for sentence in sentences], dtype=np.int64)
        self._starts = np.concatenate([[0], np.cumsum(self.lengths)])
        self._recall = recall
        self._documents = np.array([sentence.document for sentence in sentences], dtype=np.int64)
        self._words = np.array(flat, dtype=np.int64)
        self._forms = np.array([vocabulary.form_ids.get(word, UNKNOWN_ID) for word in words], dtype=np.int64)
        self._spelling_lengths = np.array([len(word) for word in words], dtype=np.int64)
        spelling = [vocabulary.character_ids.get(character, UNKNOWN_ID) for word in words for character in word]
        self._spellings = np.zeros((len(words), max(map(len, words), default=1)), dtype=np.int64)
        self._spellings[_mask(self._spelling_lengths, self._spellings.shape[1])] = spelling
        self._labels: np.ndarray | None = None
        if has_labels:
            labels = [vocabulary.label_ids[label] for sentence in sentences for label in sentence.labels or ()]
            if len(labels) != len(flat):
                raise ValueError("every sentence must have labels")
            self._labels = np.array(labels, dtype=np.int64)

    def __len__(self) -> int:
        return len(self.lengths)

    def batch(self, indices: Sequence[int]) -> Batch:
        """The tensors of some sentences."""
        lengths = self.lengths[indices]
        mask = _mask(lengths, int(lengths.max()))
        units = np.concatenate([np.arange(self._starts[index], self._starts[index + 1]) for index in indices])
        words = self._words[units]
        distinct, rows = np.unique(words, return_inverse=True)
        spelling_lengths = np.concatenate([[0], self._spelling_lengths[distinct]])
        spellings = np.zeros((len(distinct) + 1, spelling_lengths.max()), dtype=np.int64)
        spellings[1:] = self._spellings[distinct, : spellings.shape[1]]
        return Batch(
            form_ids=_filled(mask, self._forms[words]),
            word_rows=_filled(mask, rows + 1),
            character_ids=torch.from_numpy(spellings),
            character_lengths=torch.from_numpy(spelling_lengths),
            lengths=torch.from_numpy(lengths),
            label_ids=None if self._labels is None else _filled(mask, self._labels[units]),
            others=other_places(words, self._documents[indices], lengths, most=self._recall) if self._recall else None,
            document_rows=document_rows(self._documents[indices]) if self._recall else None,
        )


def _mask(lengths: np.ndarray, width: int) -> np.ndarray:
    return np.arange(width) < lengths[:, None]


def _filled(mask: np.ndarray, values: np.ndarray) -> torch.Tensor:
    """A rectangle of zeros with ``values`` in reading order where ``mask`` is set."""
    filled = np.zeros(mask.shape, dtype=np.int64)
    filled[mask] = values
    return torch.from_numpy(filled)
