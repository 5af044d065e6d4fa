"""Sentences as tensors: which of them make a batch, and how one is built."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Sequence
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
    words: Int64[np.ndarray, " T"],
    documents: Int64[np.ndarray, " B"],
    lengths: Int64[np.ndarray, " B"],
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


def document_rows(documents: Int64[np.ndarray, " B"]) -> Int64[Tensor, " B"]:
    """For every sentence of a batch the row of the first one of its document; its own where it has none."""
    rows = np.arange(len(documents))
    _, first, inverse = np.unique(documents, return_index=True, return_inverse=True)
    return torch.from_numpy(np.where(documents > 0, first[inverse], rows))


def shorten(
    character_ids: Int[Tensor, "W C"], lengths: Int[Tensor, " W"], most: int
) -> tuple[Int[Tensor, "W c"], Int[Tensor, " W"]]:
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
    character_lengths: Int64[Tensor, " W"]
    lengths: Int64[Tensor, " B"]
    label_ids: Int64[Tensor, "B N"] | None
    encoder_input: EncoderInput | None = None
    others: Int64[Tensor, "B N M"] | None = None
    """for models with recall: where else a unit's form stands in its document (`batches.batching.other_places`)"""
    document_rows: Int64[Tensor, " B"] | None = None
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

    ``prepare_input`` is the encoder's, where it has one (`networks.words.Encoder.prepare_input`), ``recall`` the model's.
    """
    num_labelled = sum(sentence.labels is not None for sentence in sentences)
    if num_labelled not in (0, len(sentences)):
        raise ValueError("either all sentences of a batch have labels or none")
    encoded = EncodedSentences(sentences, vocabulary, has_labels=num_labelled > 0, recall=recall)
    return encoded.batch(range(len(sentences)), None if prepare_input is None else prepare_input(sentences))


class Spellings(NamedTuple):
    """The characters of every row of a table of words; row 0 is padding and has none."""

    character_ids: Int64[np.ndarray, "R C"]
    lengths: Int64[np.ndarray, " R"]


class SentenceRows:
    """Sentences whose units are rows of a table of words, for batches of some of them at a time.

    ``rows`` are those of all units, sentence after sentence; row 0 is padding. A batch names the words that occur in it by
    rows of its own, with their spellings; without ``spellings`` by those of the table. ``recall`` is the model's. Batches are as
    long as their longest sentence, filled up to a multiple of ``multiple`` places.
    """

    def __init__(
        self,
        sentences: Sequence[Sentence],
        rows: Int64[np.ndarray, " T"],
        form_ids: Int64[np.ndarray, " R"],
        *,
        spellings: Spellings | None = None,
        label_ids: Int64[np.ndarray, " T"] | None = None,
        recall: int = 0,
        multiple: int = 1,
    ) -> None:
        self.lengths = np.array([len(sentence.units) for sentence in sentences], dtype=np.int64)
        self._starts = np.cumsum(self.lengths) - self.lengths
        self._documents = np.array([sentence.document for sentence in sentences], dtype=np.int64)
        self._rows, self._form_ids, self._spellings, self._label_ids = rows, form_ids, spellings, label_ids
        self._recall, self._multiple = recall, multiple

    def __len__(self) -> int:
        return len(self.lengths)

    def batch(self, indices: Sequence[int], encoder_input: EncoderInput | None = None) -> Batch:
        """The tensors of some sentences."""
        lengths, documents = self.lengths[indices], self._documents[indices]
        longest = int(lengths.max(initial=0))
        positions = np.arange(longest + -longest % self._multiple)
        is_unit = positions < lengths[:, None]
        places = np.minimum(self._starts[indices][:, None] + positions, len(self._rows) - 1)
        rows = word_rows = np.where(is_unit, self._rows[places], 0)
        spellings = Spellings(np.zeros((1, 1), dtype=np.int64), np.zeros(1, dtype=np.int64))
        if self._spellings is not None:
            # Padding is always there, and first.
            distinct, found = np.unique(np.append(0, rows[is_unit]), return_inverse=True)
            word_rows = np.zeros_like(rows)
            word_rows[is_unit] = found[1:]
            character_lengths = self._spellings.lengths[distinct]
            spellings = Spellings(self._spellings.character_ids[distinct, : character_lengths.max()], character_lengths)
        return Batch(
            form_ids=torch.from_numpy(self._form_ids[rows]),
            word_rows=torch.from_numpy(word_rows),
            character_ids=torch.from_numpy(spellings.character_ids),
            character_lengths=torch.from_numpy(spellings.lengths),
            lengths=torch.from_numpy(lengths),
            label_ids=(
                None if self._label_ids is None else torch.from_numpy(np.where(is_unit, self._label_ids[places], 0))
            ),
            encoder_input=encoder_input,
            others=(
                other_places(rows[is_unit], documents, lengths, most=self._recall, num_places=len(positions))
                if self._recall
                else None
            ),
            document_rows=document_rows(documents) if self._recall else None,
        )


class EncodedSentences(SentenceRows):
    """Sentences looked up in a vocabulary once; `batch` is `collate` of some of them, up to the order of distinct words.

    With ``has_labels`` off, labels (those of a test file need not be in the vocabulary) are left out.
    """

    def __init__(
        self, sentences: Sequence[Sentence], vocabulary: Vocabulary, *, has_labels: bool = True, recall: int = 0
    ) -> None:
        words: dict[str, int] = {}
        rows = [words.setdefault(unit, len(words) + 1) for sentence in sentences for unit in sentence.units]
        form_ids = [PADDING_ID, *(vocabulary.form_ids.get(word, UNKNOWN_ID) for word in words)]
        lengths = np.array([0, *map(len, words)], dtype=np.int64)
        character_ids = np.zeros((len(lengths), lengths.max()), dtype=np.int64)
        character_ids[np.arange(character_ids.shape[1]) < lengths[:, None]] = [
            vocabulary.character_ids.get(character, UNKNOWN_ID) for word in words for character in word
        ]
        label_ids = None
        if has_labels:
            label_ids = [vocabulary.label_ids[label] for sentence in sentences for label in sentence.labels or ()]
            if len(label_ids) != len(rows):
                raise ValueError("every sentence must have labels")
        super().__init__(
            sentences,
            np.array(rows, dtype=np.int64),
            np.array(form_ids, dtype=np.int64),
            spellings=Spellings(character_ids, lengths),
            label_ids=None if label_ids is None else np.array(label_ids, dtype=np.int64),
            recall=recall,
        )
