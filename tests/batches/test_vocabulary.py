"""Vocabulary: order, ids, JSON, labels unseen in training."""

from __future__ import annotations

import json
from pathlib import Path

import hypothesis.strategies as st
from hypothesis import given

from diffusion_mf.batches.vocabulary import Vocabulary, describe_unknown_labels
from diffusion_mf.data.corpus import Task
from diffusion_mf.data.formats import read_task
from diffusion_mf.data.sentence import Sentence

TRAIN = [Sentence(("to", "be", "To"), ("B", "A", "B")), Sentence(("be", "é"), ("C", "A"))]


def test_counts_are_case_sensitive_and_ordered() -> None:
    vocabulary = Vocabulary.build(TRAIN)
    assert list(vocabulary.form_counts.items()) == [("be", 2), ("To", 1), ("to", 1), ("é", 1)]
    assert vocabulary.character_counts == {"b": 2, "e": 2, "o": 2, "T": 1, "t": 1, "é": 1}
    assert vocabulary.labels == ("A", "B", "C")
    assert vocabulary.form_ids == {"be": 2, "To": 3, "to": 4, "é": 5}
    assert vocabulary.label_ids == {"A": 0, "B": 1, "C": 2}
    assert (vocabulary.num_form_ids, vocabulary.num_character_ids) == (6, 8)
    assert Vocabulary.build(TRAIN, min_count=2).form_ids == {"be": 2}


@given(
    st.lists(
        st.lists(st.tuples(st.text(min_size=1, max_size=3), st.sampled_from("XYZ")), min_size=1, max_size=4), max_size=4
    )
)
def test_json_keeps_everything_and_the_order_of_sentences_does_not_matter(rows: list) -> None:
    sentences = [Sentence(*zip(*row, strict=True)) for row in rows]
    vocabulary = Vocabulary.build(sentences)
    again = Vocabulary.from_dict(json.loads(json.dumps(vocabulary.to_dict(), sort_keys=True)))
    assert again == vocabulary
    assert again.form_ids == vocabulary.form_ids
    reverse = Vocabulary.build(sentences[::-1])
    assert (reverse.form_ids, reverse.character_ids) == (vocabulary.form_ids, vocabulary.character_ids)


def test_a_label_unseen_in_training_is_named(tmp_path: Path) -> None:
    train, dev = tmp_path / "train.txt", tmp_path / "dev.txt"
    train.write_text("a B-X\nb I-X\nc O\n")
    dev.write_text("a O\n\nb O\nd B-Y\n")
    vocabulary = Vocabulary.build(read_task(train, Task.NER))
    message = describe_unknown_labels(read_task(dev, Task.NER), vocabulary.labels, owner="train does not have")
    assert message == (
        f"{dev}: 1 of 3 units have labels that train does not have (B-Y), first on line 4: they count as wrong"
    )
    assert describe_unknown_labels(read_task(train, Task.NER), vocabulary.labels, owner="train does not have") is None
