"""Documents: cut and numbered, kept together in batches, and where else their words stand."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from diffusion_mf.batches.batching import (
    EncodedSentences,
    collate,
    document_batches,
    document_rows,
    evaluation_batches,
    other_places,
)
from diffusion_mf.batches.packing import pack, shape_for
from diffusion_mf.batches.vocabulary import Vocabulary
from diffusion_mf.data.sentence import MAX_DOCUMENT_UNITS, Sentence, cut_documents, grouped, with_first_document


def numbers(documents: list[int], lengths: list[int]) -> list[int]:
    sentences = [Sentence(("x",) * length, document=number) for number, length in zip(documents, lengths, strict=True)]
    return [sentence.document for sentence in cut_documents(sentences)]


def test_documents_are_numbered_anew_and_sentences_without_one_keep_none() -> None:
    assert numbers([0, 0, 7, 7, 0, 3, 3], [1] * 7) == [0, 0, 1, 1, 0, 2, 2]


def test_long_documents_are_cut_at_sentences() -> None:
    half = MAX_DOCUMENT_UNITS // 2
    assert numbers([1] * 5, [half, half, 1, MAX_DOCUMENT_UNITS + 1, 1]) == [1, 1, 2, 3, 4]


def test_cutting_keeps_everything_else() -> None:
    sentence = Sentence(("a", "b"), ("X", "Y"), 12, 4)
    assert list(cut_documents([sentence])) == [sentence._replace(document=1)]


def test_batches_of_training_hold_whole_documents_within_the_budget() -> None:
    lengths = [3, 4, 2, 9, 1, 1, 6, 20, 2]
    documents = [1, 1, 2, 3, 3, 4, 5, 6, 6]
    batches = document_batches(lengths, documents, budget=12, seed=1, epoch=0)
    assert sorted(itertools.chain.from_iterable(batches)) == list(range(9))
    for batch in batches:
        inside = {documents[index] for index in batch}
        assert [index for index in range(9) if documents[index] in inside] == sorted(batch)
        assert sum(lengths[index] for index in batch) <= 12 or inside == {6}
    assert batches != document_batches(lengths, documents, budget=12, seed=1, epoch=1)
    assert batches == document_batches(lengths, documents, budget=12, seed=1, epoch=0)
    limited = document_batches(lengths, documents, budget=100, seed=1, epoch=0, max_sentences=3)
    assert max(map(len, limited)) <= 3


def test_padding_counts_where_there_is_some() -> None:
    lengths, documents = [1, 1, 8, 1, 1, 1], [1, 1, 2, 3, 3, 3]
    assert len(document_batches(lengths, documents, budget=16, seed=1, epoch=0)) == 1
    for batch in document_batches(lengths, documents, budget=16, seed=1, epoch=0, has_padding=True):
        assert len(batch) * max(lengths[index] for index in batch) <= 24
        assert len({documents[index] for index in batch}) < 3


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ([0, 0, 1, 2], [1, 1, 2, 3]),
        ([1, 1, 2], [1, 1, 2]),
        ([0, 0, 0], [0, 0, 0]),
        ([], []),
        ([0, 1, 0], [1, 2, 0]),
    ],
)
def test_what_comes_before_the_first_mark_is_a_document(before: list[int], after: list[int]) -> None:
    sentences = [Sentence(("x",), document=number) for number in before]
    assert [sentence.document for sentence in with_first_document(sentences)] == after


def test_no_mark_is_looked_for_beyond_the_size_of_a_document() -> None:
    def sentences() -> Iterator[Sentence]:
        for _ in range(3):
            yield Sentence(("x",) * (MAX_DOCUMENT_UNITS // 2 + 1))
        raise AssertionError("nobody should come here")

    found = with_first_document(sentences())
    assert [next(found).document for _ in range(3)] == [0, 0, 0]
    later = [Sentence(("x",) * (MAX_DOCUMENT_UNITS + 1)), Sentence(("y",), document=1)]
    assert [sentence.document for sentence in with_first_document(later)] == [0, 1]


def test_rows_of_documents() -> None:
    assert document_rows(np.array([3, 3, 0, 1, 0, 1])).tolist() == [0, 0, 2, 3, 4, 3]


def test_batches_of_evaluation_hold_whole_documents_and_the_way_back() -> None:
    lengths, documents = [3, 4, 2, 9, 1, 1], [1, 1, 2, 3, 3, 4]
    batches, positions = evaluation_batches(lengths, budget=18, documents=documents)
    assert batches == [[3, 4], [0, 1, 2, 5]]
    flat = list(itertools.chain.from_iterable(batches))
    assert [flat[position] for position in positions] == list(range(6))


def test_documents_as_groups() -> None:
    assert grouped([4, 4, 1, 2, 2]) == [[0, 1], [2], [3, 4]]
    assert grouped([0, 0, 1, 0]) == [[0], [1], [2], [3]]


def test_sentences_of_no_document_have_their_own_units_only() -> None:
    words, lengths = np.array([1, 1, 1, 1]), np.array([2, 1, 1])
    found = other_places(words, np.array([0, 0, 0]), lengths, most=2)
    assert found.tolist() == [[[1, -1], [0, -1]], [[-1, -1]] * 2, [[-1, -1]] * 2]


@pytest.mark.parametrize("most", [1, 2, 3, 8])
def test_other_places_are_the_nearest_of_the_same_word_and_document(most: int) -> None:
    generator = np.random.default_rng(most)
    lengths = generator.integers(1, 9, size=12)
    documents = np.repeat([5, 2, 9], 4)
    words = generator.integers(0, 6, size=int(lengths.sum()))
    found = other_places(words, documents, lengths, most=most)
    width = int(lengths.max())
    assert found.shape == (12, width, most)
    units = [(row, column) for row, length in enumerate(lengths) for column in range(length)]
    for index, (row, column) in enumerate(units):
        same = [
            other
            for other, (other_row, _) in enumerate(units)
            if words[other] == words[index] and documents[other_row] == documents[row]
        ]
        others = [other for other in same if other != index]
        chosen = [place for place in found[row, column].tolist() if place >= 0]
        assert len(chosen) == len(set(chosen)) == min(most, len(others))
        indices = [units.index(divmod(place, width)) for place in chosen]
        assert set(indices) <= set(others)
        # A stretch of the text: nobody between two chosen ones is left out, and the unit is at its edge or inside.
        ranks = sorted({*map(same.index, indices), same.index(index)})
        assert ranks == list(range(ranks[0], ranks[-1] + 1))
    is_padding = torch.arange(width) >= torch.from_numpy(lengths)[:, None]
    assert bool((found[is_padding] == -1).all())


def test_all_ways_to_make_a_batch_agree_on_others() -> None:
    sentences = [
        Sentence(("a", "b", "a"), ("X", "Y", "X"), document=1),
        Sentence(("b", "c"), ("Y", "X"), document=1),
        Sentence(("a", "a", "c", "b"), ("X", "X", "Y", "Y"), document=2),
    ]
    vocabulary = Vocabulary.build(sentences, min_count=1)
    collated = collate(sentences, vocabulary, recall=2).others
    assert collated is not None
    assert collated[0].tolist() == [[2, -1], [4, -1], [0, -1], [-1, -1]]
    assert collated[1, 0].tolist() == [1, -1]
    assert collated[2, :2].tolist() == [[9, -1], [8, -1]]
    encoded = EncodedSentences(sentences, vocabulary, recall=2).batch([0, 1, 2])
    assert encoded.others is not None
    torch.testing.assert_close(encoded.others, collated, rtol=0, atol=0)
    assert encoded.document_rows is not None
    assert (
        encoded.document_rows.tolist() == collate(sentences, vocabulary, recall=2).document_rows.tolist() == [0, 0, 2]
    )
    assert collate(sentences, vocabulary).others is None
    packed = pack(encoded, shape_for(encoded, budget=64, max_characters=4))
    assert packed.others is not None
    width = packed.form_ids.shape[1]
    assert packed.others.shape[:2] == packed.form_ids.shape
    assert packed.others[1, 0].tolist() == [1, -1]
    assert packed.others[0, 1].tolist() == [width, -1]
    assert bool((packed.others[3:] == -1).all())
