from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diffusion_mf.data.corpus import Task
from diffusion_mf.data.label_schemes import LabelError, LabelledSpan, LabelScheme, check_sequence, encode_spans
from diffusion_mf.evaluation import NO_LABEL
from diffusion_mf.evaluation.reconstruction import Reconstruction, Reconstructor, majority
from oracles.brute_force_spans import complete_spans, malformed_fragments, open_spans
from oracles.ud_word_evaluation import projected_tag

DAMAGED_LABELS = ["O", *(f"{letter}-{kind}" for letter in "BMES" for kind in ("X", "Y")), "I-X", NO_LABEL, "B-", "?"]


def reconstruct(
    predicted: list[str],
    *,
    task: Task = Task.NER,
    scheme: LabelScheme = LabelScheme.BMES,
    gold: list[str] | None = None,
) -> Reconstruction:
    gold = ["O"] * len(predicted) if gold is None else gold
    reconstructor = Reconstructor(task, task.scheme, predicted_scheme=scheme)
    return reconstructor(gold, predicted, [f"u{index}" for index in range(len(predicted))])


def test_the_two_malformed_sequences_of_the_paper() -> None:
    entity = reconstruct(["B-PER", "M-PER", "O"])
    assert entity.predicted_spans == []
    assert entity.malformed == 1
    words = reconstruct(["B-NN", "E-VV", "S-NN"], task=Task.SEG_POS, gold=["B-NN", "E-NN", "S-NN"])
    assert words.predicted_spans == [LabelledSpan(2, 3, "NN")]
    assert [span[:2] for span in words.segments] == [(0, 2), (2, 3)]
    assert words.malformed == 1
    assert words.votes == ["NN", "NN"]


@given(labels=st.lists(st.sampled_from(DAMAGED_LABELS), min_size=1, max_size=12))
def test_spans_and_fragments_of_damaged_labels(labels: list[str]) -> None:
    sentence = reconstruct(labels)
    assert set(sentence.predicted_spans) == complete_spans(labels, "bmes")
    assert sentence.malformed == malformed_fragments(labels, "bmes")
    words = reconstruct(labels, task=Task.SEG_POS, gold=["S-X"] * len(labels))
    assert set(words.predicted_spans) == complete_spans(labels, "bmes")
    assert set(words.segments) == complete_spans(labels, "bmes", match_types=False)
    # A character has to be in a word, so O is as malformed as anything.
    assert words.malformed == malformed_fragments(labels, "bmes", outside="none")


@pytest.mark.parametrize("scheme", [scheme for scheme in LabelScheme if scheme is not LabelScheme.PLAIN])
def test_a_sentence_has_malformed_fragments_if_and_only_if_its_labels_are_illegal(scheme: LabelScheme) -> None:
    letters = {"bmes": "BMES", "iobes": "BIES", "bilou": "BILU"}.get(scheme.value, "BI")
    alphabet = ["O", *(f"{letter}-{kind}" for letter in letters for kind in "XY")]
    for labels in itertools.product(alphabet, repeat=3):
        try:
            check_sequence(labels, scheme)
            is_legal = True
        except LabelError:
            is_legal = False
        assert (reconstruct(list(labels), scheme=scheme).malformed == 0) == is_legal, labels


@pytest.mark.parametrize(("scheme", "labels", "expected"), [
    ("bmes", "B-X I-X M-X E-X S-Y O", "B-X M-X M-X E-X S-Y O"),
    ("iobes", "B-X I-X E-X S-Y O E-X", "B-X M-X E-X S-Y O E-X"),
    ("bilou", "B-X I-X L-X U-Y O L-X", "B-X M-X E-X S-Y O E-X"),
    ("bilou", "B-X O I-Y U-X E-X", "B-X O M-Y S-X _"),
    ("bio2", "B-X I-X B-X I-Y O I-X", "B-X E-X S-X S-Y O S-X"),
    ("iob1", "I-X I-X B-X I-Y O B-X", "B-X E-X S-X S-Y O S-X"),
    ("bio2", "B-X _ I-X S-X I-X I-X", "S-X _ S-X _ B-X E-X"),
])  # fmt: skip
def test_predictions_of_every_scheme_become_bmes(scheme: str, labels: str, expected: str) -> None:
    assert reconstruct(labels.split(), scheme=LabelScheme(scheme)).predicted == expected.split()


@given(labels=st.lists(st.sampled_from(["O", "B-X", "I-X", "B-Y", "I-Y", NO_LABEL, "S-X"]), min_size=1, max_size=10))
def test_spans_of_open_schemes_survive_the_new_encoding(labels: list[str]) -> None:
    sentence = reconstruct(labels, scheme=LabelScheme.BIO2)
    assert set(sentence.predicted_spans) == open_spans(labels, "bio2")
    for label, raw in zip(sentence.predicted, labels, strict=True):
        assert (label == NO_LABEL) == (raw in (NO_LABEL, "S-X"))
        assert (label == "O") == (raw == "O")


@pytest.mark.parametrize(("scheme", "labels", "breaks"), [
    ("bio2", "O I-X I-X O I-X", 2), ("bio2", "I-X B-X I-Y", 2), ("bio2", "B-X _ _ I-X", 2), ("bio2", "B-X I-X O", 0),
    ("iob1", "B-X O B-X", 2), ("iob1", "I-X B-X I-Y", 0), ("bmes", "B-X _ _ O _", 2), ("bmes", "B-X B-X E-X E-X", 2),
])  # fmt: skip
def test_number_of_malformed_fragments(scheme: str, labels: str, breaks: int) -> None:
    assert reconstruct(labels.split(), scheme=LabelScheme(scheme)).malformed == breaks


def test_gold_of_any_scheme_becomes_bmes() -> None:
    spans = [LabelledSpan(0, 1, "X"), LabelledSpan(1, 4, "X"), LabelledSpan(5, 7, "Y")]
    expected = encode_spans(spans, 8, LabelScheme.BMES)
    for scheme in LabelScheme:
        if scheme is not LabelScheme.PLAIN:
            labels = encode_spans(spans, 8, scheme)
            sentence = Reconstructor(Task.NER, scheme)(labels, labels, "abcdefgh")
            assert sentence.gold == sentence.predicted == expected
            assert sentence.gold_spans == sentence.predicted_spans == spans
            assert sentence.malformed == 0
    sentence = Reconstructor(Task.NER, LabelScheme.BMES)(["B-X", "I-X", "E-X"], ["B-X", "M-X", "E-X"], "abc")
    assert sentence.gold == sentence.predicted


def test_words_of_characters_in_an_open_scheme() -> None:
    sentence = Reconstructor(Task.SEG_POS, LabelScheme.BIO2)(["B-X", "I-X", "B-Y"], ["B-X", "B-Y", "O"], "abc")
    assert (sentence.gold, sentence.predicted) == (["B-X", "E-X", "S-Y"], ["S-X", "S-Y", NO_LABEL])
    assert (sentence.votes, sentence.malformed) == (["X", NO_LABEL], 1)


@pytest.mark.parametrize(("task", "scheme", "gold", "index", "message"), [
    (Task.NER, "bmes", "O B-X O", 2, "cannot follow"), (Task.NER, "bio2", "O I-X", 1, "cannot follow"),
    (Task.NER, "bmes", "O Q-X", 1, "not of the scheme"), (Task.NER, "bmes", "O _", 1, "no label"),
    (Task.SEG_POS, "bmes", "S-X O", 1, "found O"), (Task.SEG_POS, "bmes", "S-X S-_", 1, "no label"),
    (Task.SEG_POS, "bio2", "B-X O", 1, "found O"), (Task.SEG_POS, "bio2", "B-X I-Y", 1, "cannot follow"),
    (Task.POS, "plain", "NOUN _", 1, "no label"),
])  # fmt: skip
def test_gold_labels_must_be_legal(task: Task, scheme: str, gold: str, index: int, message: str) -> None:
    labels = gold.split()
    with pytest.raises(LabelError, match=message) as caught:
        Reconstructor(task, LabelScheme(scheme))(labels, labels, labels)
    assert caught.value.index == index


@pytest.mark.parametrize(("task", "scheme"), [(Task.POS, "bmes"), (Task.NER, "plain"), (Task.SEG_POS, "plain")])  # fmt: skip
def test_a_task_has_its_schemes(task: Task, scheme: str) -> None:
    with pytest.raises(ValueError, match=f"the task {task} cannot be scored in the scheme {scheme}"):
        Reconstructor(task, LabelScheme(scheme))
    with pytest.raises(ValueError, match=f"the task {task} cannot be scored in the scheme {scheme}"):
        Reconstructor(task, task.scheme, predicted_scheme=LabelScheme(scheme))


@pytest.mark.parametrize("lengths", [(2, 1, 2), (1, 2, 2), (2, 2, 1)])
def test_lengths_must_agree(lengths: tuple[int, int, int]) -> None:
    gold, predicted, units = (["X"] * length for length in lengths)
    with pytest.raises(ValueError, match=f"{lengths[2]} units has {lengths[0]} gold and {lengths[1]} predicted"):
        Reconstructor(Task.POS, LabelScheme.PLAIN)(gold, predicted, units)


@given(tags=st.lists(st.sampled_from(["NN", "VV", "AD", NO_LABEL]), min_size=1, max_size=7))
def test_majority(tags: list[str]) -> None:
    assert majority(tags) == projected_tag(list(tags))


@pytest.mark.parametrize(("predicted", "vote"), [
    ("B-NN E-VV", "NN"), ("B-VV E-NN", "VV"), ("S-VV S-NN M-NN", "NN"), ("_ B-NN E-NN", "NN"),
    # A character without label votes for no tag: it may outvote the right one, and be the earliest of equals.
    ("_ _ E-NN", NO_LABEL), ("_ E-NN", NO_LABEL), ("O E-NN", NO_LABEL), ("E-NN _", "NN"), ("?-VV ?-VV E-NN", NO_LABEL),
])  # fmt: skip
def test_votes_of_a_gold_word(predicted: str, vote: str) -> None:
    labels = predicted.split()
    gold = encode_spans([LabelledSpan(0, len(labels), "NN")], len(labels), LabelScheme.BMES)
    assert reconstruct(labels, task=Task.SEG_POS, gold=gold).votes == [vote]
