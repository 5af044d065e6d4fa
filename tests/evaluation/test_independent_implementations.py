"""Scores against seqeval and against the definitions of the CoNLL 2018 shared task, on valid sequences."""

from __future__ import annotations

import random

import pytest
import seqeval.metrics
import seqeval.scheme
from damage import damaged, random_corpus, random_spans

from diffusion_mf.data.corpus import Task
from diffusion_mf.data.label_schemes import LabelledSpan, LabelScheme, characters_of_words, convert_labels, encode_spans
from diffusion_mf.evaluation import TaskScorer, score_sentences
from oracles.brute_force_spans import complete_spans
from oracles.ud_word_evaluation import evaluate, evaluate_at


def differently_spanned(corpus: list[list[str]], seed: int, *, has_gaps: bool) -> list[list[str]]:
    """Valid predictions: half of the sentences as they are, the others with spans of their own or with one relabelled."""
    generator = random.Random(seed)
    predictions = []
    for labels in corpus:
        spans = sorted(complete_spans(labels, "bmes"))
        choice = generator.choice(["same", "same", "other", "relabelled"])
        if choice == "other":
            spans = random_spans(generator, len(labels), ["NN", "VV"], has_gaps=has_gaps)
        elif choice == "relabelled" and spans:
            index = generator.randrange(len(spans))
            spans[index] = (*spans[index][:2], "VV")
        predictions.append(encode_spans([LabelledSpan(*span) for span in spans], len(labels), LabelScheme.BMES))
    return predictions


@pytest.mark.parametrize("seed", range(5))
def test_entities_agree_with_seqeval(seed: int) -> None:
    gold = random_corpus(seed, has_gaps=True)
    predicted = differently_spanned(gold, seed, has_gaps=True)
    one, other = (
        [convert_labels(labels, LabelScheme.BMES, LabelScheme.IOBES) for labels in corpus]
        for corpus in (gold, predicted)
    )
    metrics = score_sentences(Task.NER, LabelScheme.IOBES, one, other)
    options = {"mode": "strict", "scheme": seqeval.scheme.IOBES, "zero_division": 0}
    assert 0 < metrics["f1"] < 100
    assert metrics["precision"] == pytest.approx(100 * seqeval.metrics.precision_score(one, other, **options))
    assert metrics["recall"] == pytest.approx(100 * seqeval.metrics.recall_score(one, other, **options))
    assert metrics["f1"] == pytest.approx(100 * seqeval.metrics.f1_score(one, other, **options))
    assert metrics["accuracy"] == pytest.approx(100 * seqeval.metrics.accuracy_score(one, other))

    scorer = TaskScorer(Task.NER, LabelScheme.IOBES)
    for labels, predicted_labels in zip(one, other, strict=True):
        scorer.update(labels, predicted_labels, labels)
    table = seqeval.metrics.classification_report(one, other, output_dict=True, **options)
    for kind, counts in scorer.result().types.items():
        expected = [100 * table[kind]["precision"], 100 * table[kind]["recall"], 100 * table[kind]["f1-score"]]
        assert [counts.precision, counts.recall, counts.f1] == pytest.approx(expected)
        assert counts.gold == table[kind]["support"]


def test_the_textbook_case_of_the_shared_task() -> None:
    # One text, cut twice: ab|c|de against ab|cd|e. One word of three is aligned, and its tag is right.
    gold = [("ab", "NN"), ("c", "VV"), ("de", "NN")]
    system = [("ab", "NN"), ("cd", "VV"), ("e", "NN")]
    assert evaluate(gold, system) == pytest.approx({"words_f1": 100 / 3, "xpos_f1": 100 / 3, "xpos_aligned": 100.0})
    assert word_scores([gold], [system]) == pytest.approx(evaluate(gold, system))


def word_scores(gold: list[list[tuple[str, str]]], system: list[list[tuple[str, str]]]) -> dict[str, float]:
    sides = []
    for side in (gold, system):
        sides.append([characters_of_words(*zip(*words, strict=True))[1] for words in side])
    metrics = score_sentences(Task.SEG_POS, LabelScheme.BMES, *sides)
    return {"words_f1": metrics["seg_f1"], "xpos_f1": metrics["joint_f1"], "xpos_aligned": metrics["aligned_xpos"]}


@pytest.mark.parametrize("seed", range(5))
def test_words_agree_with_the_definitions_of_the_shared_task(seed: int) -> None:
    generator = random.Random(seed)
    gold, system = [], []
    for _ in range(30):
        text = "".join(generator.choice("abc") for _ in range(generator.randint(1, 20)))
        gold.append([(text[a:b], tag) for a, b, tag in random_spans(generator, len(text), ["N", "V"], has_gaps=False)])
        system.append(
            [(text[a:b], tag) for a, b, tag in random_spans(generator, len(text), ["N", "V"], has_gaps=False)]
        )
        if generator.random() < 0.5:
            system[-1] = gold[-1]
    expected = evaluate([word for words in gold for word in words], [word for words in system for word in words])
    assert 0 < expected["xpos_f1"] < expected["words_f1"] < 100
    assert word_scores(gold, system) == pytest.approx(expected)


@pytest.mark.parametrize("seed", range(5))
def test_words_of_malformed_predictions_agree_with_the_same_definitions(seed: int) -> None:
    gold = random_corpus(seed, has_gaps=False)
    predicted = damaged(gold, seed, rate=0.15)
    metrics = score_sentences(Task.SEG_POS, LabelScheme.BMES, gold, predicted)

    def words_at(corpus: list[list[str]], **options: bool) -> list[tuple[tuple[int, int], str]]:
        words, offset = [], 0
        for labels in corpus:
            found = sorted(complete_spans(labels, "bmes", **options))
            words += [((offset + start, offset + end), tag) for start, end, tag in found]
            offset += len(labels)
        return words

    joint = evaluate_at(words_at(gold), words_at(predicted))
    assert metrics["joint_f1"] == pytest.approx(joint["xpos_f1"])
    assert metrics["aligned_xpos"] == pytest.approx(joint["xpos_aligned"])
    segmented = evaluate_at(words_at(gold), words_at(predicted, match_types=False))
    assert metrics["seg_f1"] == pytest.approx(segmented["words_f1"])
    assert segmented["words_f1"] != joint["words_f1"], "tags must matter to the words extracted here"
