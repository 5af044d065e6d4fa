"""Packed batches: which sentences go together, the layout's indices, and batches cut out of encoded sentences."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from diffusion_mf.batches import layouts
from diffusion_mf.batches.batching import EncodedSentences, collate
from diffusion_mf.batches.packing import (
    length_class,
    pack,
    packed_batches,
    packed_evaluation_batches,
    packed_layout,
    shape_for,
)
from diffusion_mf.batches.vocabulary import Vocabulary
from diffusion_mf.data.sentence import Sentence

SENTENCES = [
    Sentence(("birds", "sing"), ("NOUN", "VERB")),
    Sentence(("a", "bird", "sings", "a", "song"), ("DET", "NOUN", "VERB", "DET", "NOUN")),
    Sentence(("sing",), ("VERB",)),
]
VOCABULARY = Vocabulary.build(SENTENCES[:2])


@given(st.lists(st.integers(1, 200), min_size=1, max_size=80), st.integers(20, 300), st.integers(0, 3))
def test_batches_hold_every_sentence_once_within_the_budget(lengths: list[int], budget: int, epoch: int) -> None:
    batches = packed_batches(lengths, budget=budget, seed=1, epoch=epoch)
    assert sorted(index for batch in batches for index in batch) == list(range(len(lengths)))
    assert all(len(batch) == 1 or sum(lengths[index] for index in batch) <= budget for batch in batches)
    assert batches == packed_batches(lengths, budget=budget, seed=1, epoch=epoch)


def test_batches_are_full_and_hold_sentences_of_one_class() -> None:
    lengths = [1 + index * 7 % 60 for index in range(2000)]
    batches = packed_batches(lengths, budget=1000, seed=1, epoch=0)
    sizes = [sum(lengths[index] for index in batch) for batch in batches]
    classes = [{length_class(lengths[index]) for index in batch} for batch in batches]
    assert sum(sizes) / len(sizes) > 930
    assert sum(len(each) == 1 for each in classes) >= len(classes) - 3
    assert batches != packed_batches(lengths, budget=1000, seed=1, epoch=1)


@given(st.lists(st.integers(1, 200), min_size=1, max_size=80), st.integers(20, 300))
def test_batches_for_prediction_come_from_the_longest_class_to_the_shortest(lengths: list[int], budget: int) -> None:
    batches = packed_evaluation_batches(lengths, budget=budget)
    assert sorted(index for batch in batches for index in batch) == list(range(len(lengths)))
    assert all(len(batch) == 1 or sum(lengths[index] for index in batch) <= budget for batch in batches)
    longest = [length_class(max(lengths[index] for index in batch)) for batch in batches]
    assert longest == sorted(longest, reverse=True)


def test_sentences_too_long_to_be_packed_are_among_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layouts, "LONGEST_WHOLE", 64)
    lengths = [3, 60, 64, 65, 3, 200]
    batches = packed_evaluation_batches(lengths, budget=1000)
    assert sorted(map(sorted, batches)) == [[0, 1, 2, 4], [3], [5]]


def test_a_limit_of_sentences() -> None:
    batches = packed_batches([3] * 50, budget=1000, seed=1, epoch=0, max_sentences=8)
    assert max(map(len, batches)) == 8


@pytest.mark.parametrize(("length", "expected"), [(1, 16), (16, 16), (17, 32), (64, 64), (65, 128)])
def test_length_classes(length: int, expected: int) -> None:
    assert length_class(length) == expected


def test_the_layout_of_two_sentences_by_hand() -> None:
    layout = packed_layout(torch.tensor([2, 3, 0, 0]), num_units=4, num_tokens=8)
    assert layout.boundaries.tolist() == [0, 2, 5, 7, 8]
    assert layout.sentences.tolist() == [0, 0, 1, 1, 1, 2, 2, 3]
    assert layout.positions.tolist() == [0, 1, 0, 1, 2, 0, 1, 0]
    assert layout.places.tolist() == [0, 1, 4, 5, 6, 12, 12, 12]
    assert layout.pair_places.tolist() == [0, 9, 3, 4, 9, 9, 9, 9]
    assert layout.units.tolist() == [[0, 1, 0, 0], [2, 3, 4, 0], [0, 0, 0, 0], [0, 0, 0, 0]]
    assert layout.boundaries.dtype == torch.int32


@pytest.mark.parametrize(
    ("lengths", "message"), [([2, 3], "empty last row"), ([9, 0], "room for all"), ([1, 0], "more rows")]
)
def test_layouts_that_cannot_be(lengths: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        packed_layout(torch.tensor(lengths), num_units=4, num_tokens=8)


def test_values_go_there_and_back() -> None:
    layout = packed_layout(torch.tensor([2, 3, 0]), num_units=3, num_tokens=7)
    values = torch.arange(9.0).view(3, 3, 1)
    is_unit = torch.tensor([[1, 1, 0], [1, 1, 1], [0, 0, 0]]).bool()
    assert torch.equal(layout.unpack(layout.pack(values))[is_unit], values[is_unit])


@pytest.mark.parametrize("budget", [5, 100])
def test_packed_batches_are_filled_up_and_hold_what_they_held(budget: int) -> None:
    batch = collate(SENTENCES, VOCABULARY)
    shape = shape_for(batch, budget=budget, max_characters=32)
    packed = pack(batch, shape)
    assert packed.packing is not None
    assert packed.packing.places.shape == (shape.num_tokens,)
    assert packed.form_ids.shape == (shape.num_sentences, shape.num_units)
    assert packed.character_ids.shape == (shape.num_words, shape.num_characters)
    assert torch.equal(packed.form_ids[:3, :5], batch.form_ids)
    assert packed.form_ids.sum() == batch.form_ids.sum()
    assert packed.lengths.tolist()[:4] == [2, 5, 1, 0]


def test_encoded_sentences_give_the_batches_that_collating_gives() -> None:
    encoded = EncodedSentences(SENTENCES, VOCABULARY)
    for members in ([0], [2, 0], [0, 1, 2]):
        found, expected = encoded.batch(members), collate([SENTENCES[index] for index in members], VOCABULARY)
        for name in ("form_ids", "lengths", "label_ids"):
            assert torch.equal(getattr(found, name), getattr(expected, name)), name
        # The distinct words may come in another order; what each unit is spelt like may not differ.
        for name in ("character_ids", "character_lengths"):
            assert torch.equal(getattr(found, name)[found.word_rows], getattr(expected, name)[expected.word_rows]), name
    assert EncodedSentences(SENTENCES, VOCABULARY, has_labels=False).batch([0]).label_ids is None
