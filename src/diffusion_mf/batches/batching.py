"""Group sentences into batches, and build the tensors of a batch."""

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
    """For every position of a batch, the positions b·N + i of other units with the same word in the same document, or −1.

    A sentence without a document (0) only sees its own units. If there are more than ``most`` others, the nearest ones in
    text order are taken. ``words`` numbers all units, sentence after sentence. N is the longest length unless given.
    """
    num_units = int(lengths.max(initial=0)) if num_places is None else num_places
    is_unit = np.arange(num_units) < lengths[:, None]
    places = np.flatnonzero(is_unit)
    # Sentences without a document do not form a document together.
    of_units = np.repeat(np.where(documents > 0, documents, -np.arange(len(documents)) - 1), lengths)
    # In this order units with the same word and document are adjacent, and otherwise in text order.
    order = np.lexsort((words, of_units))
    is_first = np.ones(len(order), dtype=bool)
    is_first[1:] = (np.diff(words[order]) != 0) | (np.diff(of_units[order]) != 0)
    starts = np.flatnonzero(is_first)
    group = np.cumsum(is_first) - 1
    sizes = np.diff(np.append(starts, len(order)))[group]
    rank = np.arange(len(order)) - starts[group]
    # A window of `most` ranks around the unit itself, which is left out.
    first = np.clip(rank - most // 2, 0, np.maximum(sizes - 1 - most, 0))
    chosen = first[:, None] + np.arange(most)
    is_there = chosen < (sizes - 1)[:, None]
    chosen += chosen >= rank[:, None]
    found = np.full((len(lengths) * num_units, most), -1, dtype=np.int64)
    at = np.where(is_there, starts[group][:, None] + chosen, 0)
    found[places[order]] = np.where(is_there, places[order[at]], -1)
    return torch.from_numpy(found.reshape(len(lengths), num_units, most))


def document_rows(documents: Int64[np.ndarray, " B"]) -> Int64[Tensor, " B"]:
    """For every sentence of a batch, the row of the first sentence of its document; its own row if it has no document."""
    rows = np.arange(len(documents))
    _, first, inverse = np.unique(documents, return_index=True, return_inverse=True)
    return torch.from_numpy(np.where(documents > 0, first[inverse], rows))


def shorten(
    character_ids: Int[Tensor, "W C"], lengths: Int[Tensor, " W"], most: int
) -> tuple[Int[Tensor, "W c"], Int[Tensor, " W"]]:
    """At most ``most`` characters of each word: the first ⌈half⌉ and the last ⌊half⌋ of a longer one.

    Otherwise one long URL would make all other words of the batch as expensive.
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


# Lengths are jittered by this share before sorting, so that epochs group sentences differently with little extra padding.
LENGTH_JITTER = 0.1


class EvaluationBatches(NamedTuple):
    """Batches from the longest sentences to the shortest, and how to restore the original order.

    With the results of all batches in one list, the result of sentence i is ``results[positions[i]]``.
    """

    batches: list[list[int]]
    positions: list[int]


def training_batches(
    lengths: Sequence[int], *, budget: int, seed: int, epoch: int, max_sentences: int | None = None
) -> list[list[int]]:
    """Batches as lists of sentence indices, at most ``budget`` units each, padding included; longer sentences are alone.

    Every sentence occurs once per epoch, with others of about the same length; the order of batches is random.
    ``max_sentences`` also limits the number of sentences per batch.
    """
    generator = keyed_generator(f"batches {seed} {epoch}")
    sizes = np.asarray(lengths, dtype=np.int64)
    blurred = sizes * (1 + LENGTH_JITTER * (2 * generator.random_sample(len(sizes)) - 1))
    order = np.argsort(blurred, kind="stable")
    return shuffled(fill_with_sentences(order, sizes, budget, max_sentences=max_sentences), generator)


def keyed_generator(key: str) -> np.random.RandomState:
    """The generator of ``random.Random(key)``: `random_sample` draws the numbers of its ``random()``, many at a time.

    Only these are guaranteed to be the same in every version of Python and NumPy.
    """
    _, state, _ = random.Random(key).getstate()
    generator = np.random.RandomState()
    generator.set_state(("MT19937", np.array(state[:-1], dtype=np.uint32), int(state[-1]), 0, 0.0))
    return generator


def shuffled(batches: Sequence[list[int]], generator: np.random.RandomState) -> list[list[int]]:
    """The batches in random order."""
    return [batches[index] for index in np.argsort(generator.random_sample(len(batches)), kind="stable")]


def evaluation_batches(
    lengths: Sequence[int], *, budget: int, documents: Sequence[int] | None = None
) -> EvaluationBatches:
    """Batches for prediction: longest first, so that a lack of memory shows at once; equal lengths in the given order.

    With ``documents``, a number per sentence, batches hold whole documents; a document beyond the budget is a batch alone.
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
    """Batches of whole documents as lists of sentence indices, at most ``budget`` units each, in random order.

    With ``has_padding``, padding to the longest sentence counts. A document beyond the budget, or with more than
    ``max_sentences`` sentences, is a separate batch. Sentences keep their order in the document.
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
    """Batches of whole groups of sentences, in order, within the budget and with at most ``max_sentences`` sentences.

    The size of a batch is its number of sentences × the longest length or, without padding, the sum of lengths. A group beyond
    either limit is a separate batch.
    """
    if budget < 1:
        raise ValueError(f"the token budget must be positive, not {budget}")
    batches: list[list[int]] = []
    longest = total = 0
    for group in groups:
        if len(group) == 1:  # by far the most frequent case, and time-critical for taggers
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


def fill_with_sentences(
    order: Int64[np.ndarray, " n"],
    lengths: Int64[np.ndarray, " T"],
    budget: int,
    *,
    max_sentences: int | None = None,
    has_padding: bool = True,
) -> list[list[int]]:
    """`fill_batches` where every sentence is a group, with time per batch and not per sentence: an epoch may have millions."""
    if budget < 1:
        raise ValueError(f"the token budget must be positive, not {budget}")
    own = lengths[order]
    totals = np.cumsum(own)
    batches: list[list[int]] = []
    start = 0
    while start < len(order):
        if has_padding:
            # The first sentence already bounds how many there may be.
            most = budget // int(own[start]) if own[start] else len(order)
            longest = np.maximum.accumulate(own[start : start + max(1, most)])
            count = int(np.searchsorted(longest * np.arange(1, len(longest) + 1), budget, side="right"))
        else:
            count = int(np.searchsorted(totals, totals[start] - own[start] + budget, side="right")) - start
        if max_sentences is not None:
            count = min(count, max_sentences)
        end = start + max(1, count)
        batches.append(order[start:end].tolist())
        start = end
    return batches


@runtime_checkable
class EncoderInput(Protocol):
    """What an encoder needs from a batch besides the ids, such as subwords; built together with the batch."""

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> EncoderInput:
        """The same on another device."""
        ...


PrepareInput = Callable[[Sequence[Sentence]], EncoderInput]


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Sentences as tensors; positions past a sentence's length hold 0.

    Characters are stored once per distinct form: ``character_ids[word_rows]`` are those of every position. Row 0 is padding.
    """

    form_ids: Int64[Tensor, "B N"]
    word_rows: Int64[Tensor, "B N"]
    character_ids: Int64[Tensor, "W C"]
    character_lengths: Int64[Tensor, " W"]
    lengths: Int64[Tensor, " B"]
    label_ids: Int64[Tensor, "B N"] | None
    encoder_input: EncoderInput | None = None
    others: Int64[Tensor, "B N M"] | None = None
    """for models with recall: the other occurrences of a unit's form in its document (`batches.batching.other_places`)"""
    document_rows: Int64[Tensor, " B"] | None = None
    """together with ``others``: the first sentence of each sentence's document"""
    packing: PackedLayout | None = None
    """the packed layout; None: padded or compact"""
    is_compact: bool = False
    """whether the networks skip padding: for prediction on a CPU, and for training on documents there"""

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
    """Tensors of ``sentences``; with labels if all of them have labels, `KeyError` for a label not in the vocabulary.

    ``prepare_input`` comes from the encoder, if it has one (`networks.words.Encoder.prepare_input`), ``recall`` from the model.
    """
    num_labelled = sum(sentence.labels is not None for sentence in sentences)
    if num_labelled not in (0, len(sentences)):
        raise ValueError("either all sentences of a batch must have labels, or none")
    encoded = EncodedSentences(sentences, vocabulary, has_labels=num_labelled > 0, recall=recall)
    return encoded.batch(range(len(sentences)), None if prepare_input is None else prepare_input(sentences))


class Spellings(NamedTuple):
    """The characters of every row of a word table; row 0 is padding and has none."""

    character_ids: Int64[np.ndarray, "R C"]
    lengths: Int64[np.ndarray, " R"]


class SentenceRows:
    """Sentences whose units are rows of a word table, from which batches are built.

    ``rows`` are those of all units, sentence after sentence; row 0 is padding. With ``spellings``, a batch has its own table
    of the words that occur in it; without, it refers to rows of the full table. ``recall`` is the model's. A batch is as
    long as its longest sentence, rounded up to a multiple of ``multiple``.
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
            # Row 0, padding, always comes first.
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
    """Sentences looked up in a vocabulary once; `batch` equals `collate` of some of them, except for the order of words.

    With ``has_labels`` off, labels are left out: those of a test file need not be in the vocabulary.
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
