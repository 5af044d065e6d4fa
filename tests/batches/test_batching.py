"""Batches: a partition within the budget, the same for a seed, resumable; tensors that mean what the sentences do."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

from diffusion_mf.batches.batching import collate, evaluation_batches, training_batches
from diffusion_mf.batches.vocabulary import UNKNOWN_ID, Vocabulary
from diffusion_mf.data.sentence import Sentence

LENGTHS = st.lists(st.integers(1, 40), max_size=60)


def check_partition(batches: list[list[int]], lengths: list[int], budget: int) -> None:
    assert sorted(index for batch in batches for index in batch) == list(range(len(lengths)))
    for batch in batches:
        assert len(batch) == 1 or len(batch) * max(lengths[index] for index in batch) <= budget


@given(lengths=LENGTHS, budget=st.integers(1, 200), seed=st.integers(0, 5), epoch=st.integers(0, 5))
def test_training_batches_partition_the_data_and_are_a_function(
    lengths: list[int], budget: int, seed: int, epoch: int
) -> None:
    batches = training_batches(lengths, budget=budget, seed=seed, epoch=epoch)
    check_partition(batches, lengths, budget)
    assert training_batches(lengths, budget=budget, seed=seed, epoch=epoch) == batches


@given(lengths=LENGTHS, budget=st.integers(1, 200))
def test_evaluation_batches_partition_the_data_and_know_the_way_back(lengths: list[int], budget: int) -> None:
    batches, positions = evaluation_batches(lengths, budget=budget)
    check_partition(batches, lengths, budget)
    results = [f"result of {index}" for batch in batches for index in batch]
    assert [results[position] for position in positions] == [f"result of {index}" for index in range(len(lengths))]
    order = [lengths[index] for batch in batches for index in batch]
    assert order == sorted(lengths, reverse=True)


def test_resuming_in_the_middle_sees_exactly_the_rest() -> None:
    lengths = [1 + (7 * index) % 40 for index in range(500)]
    batches = training_batches(lengths, budget=256, seed=3, epoch=2)
    position = 17
    seen = {index for batch in batches[:position] for index in batch}
    rest = training_batches(lengths, budget=256, seed=3, epoch=2)[position:]
    assert {index for batch in rest for index in batch} == set(range(500)) - seen


def test_epochs_and_seeds_differ_and_batches_are_of_one_length() -> None:
    lengths = [1 + (7 * index) % 40 for index in range(2000)]
    first = training_batches(lengths, budget=512, seed=0, epoch=0)
    for other in (
        training_batches(lengths, budget=512, seed=0, epoch=1),
        training_batches(lengths, budget=512, seed=1, epoch=0),
    ):
        assert {frozenset(batch) for batch in first} != {frozenset(batch) for batch in other}
    padded = sum(len(batch) * max(lengths[index] for index in batch) for batch in first)
    assert padded < 1.2 * sum(lengths)
    longest = [max(lengths[index] for index in batch) for batch in first]
    assert longest != sorted(longest)


def test_the_numbers_themselves_do_not_change() -> None:
    """Runs recorded once must be repeatable by any later version."""
    assert training_batches([5, 1, 4, 2, 3, 5, 1], budget=6, seed=1, epoch=1) == [[2], [5], [4], [0], [1, 6, 3]]


def test_a_budget_must_be_positive() -> None:
    with pytest.raises(ValueError, match="positive"):
        training_batches([1], budget=0, seed=0, epoch=0)


SENTENCES = [Sentence(("ab", "c", "ab"), ("Y", "X", "Y")), Sentence(("cab",), ("X",))]


def test_tensors_spell_the_sentences() -> None:
    vocabulary = Vocabulary.build(SENTENCES)
    batch = collate(SENTENCES, vocabulary)
    forms = {index: form for form, index in vocabulary.form_ids.items()}
    characters = {index: character for character, index in vocabulary.character_ids.items()}
    assert batch.lengths.tolist() == [3, 1]
    assert batch.label_ids is not None
    assert len(batch.character_ids) == 1 + 3  # padding, and each form once
    for b, sentence in enumerate(SENTENCES):
        for n, unit in enumerate(sentence.units):
            assert forms[batch.form_ids[b, n].item()] == unit
            row = batch.word_rows[b, n]
            spelled = batch.character_ids[row][: batch.character_lengths[row]].tolist()
            assert "".join(characters[index] for index in spelled) == unit
            assert vocabulary.labels[batch.label_ids[b, n]] == sentence.labels[n]
    assert (
        batch.form_ids[1, 1:].tolist() == batch.word_rows[1, 1:].tolist() == batch.label_ids[1, 1:].tolist() == [0, 0]
    )
    assert batch.character_lengths[0] == 0
    assert all(
        tensor.dtype == torch.int64
        for tensor in (batch.form_ids, batch.word_rows, batch.character_ids, batch.character_lengths, batch.lengths)
    )


def test_unknown_text_labels_and_the_lack_of_them() -> None:
    vocabulary = Vocabulary.build(SENTENCES)
    batch = collate([Sentence(("cz", "c"))], vocabulary)
    assert batch.label_ids is None
    assert batch.form_ids.tolist() == [[UNKNOWN_ID, vocabulary.form_ids["c"]]]
    assert batch.character_ids[1].tolist() == [vocabulary.character_ids["c"], UNKNOWN_ID]
    with pytest.raises(KeyError):
        collate([Sentence(("c",), ("Z",))], vocabulary)
    with pytest.raises(ValueError, match="all sentences"):
        collate([SENTENCES[0], Sentence(("c",))], vocabulary)


def test_moving_a_batch_keeps_its_content() -> None:
    batch = collate(SENTENCES, Vocabulary.build(SENTENCES))
    moved = batch.to("meta")
    assert moved.form_ids.device.type == "meta"
    assert moved.label_ids is not None
    assert moved.label_ids.shape == (2, 3)
    assert torch.equal(batch.to("cpu").word_rows, batch.word_rows)
