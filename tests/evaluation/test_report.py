from __future__ import annotations

import itertools
import tracemalloc
from collections import Counter

import pytest
from damage import damaged, random_corpus
from hypothesis import given
from hypothesis import strategies as st

from diffusion_mf.data.corpus import Task
from diffusion_mf.data.label_schemes import LabelScheme
from diffusion_mf.evaluation import NO_LABEL, PRIMARY_METRICS, Counts, Report, TaskScorer, score_sentences
from diffusion_mf.evaluation.report import length_bin_names
from oracles.brute_force_spans import boundary_and_type, complete_spans, malformed_fragments, scores
from oracles.ud_word_evaluation import projected_tag

METRICS = {
    Task.POS: ["accuracy", "precision", "recall", "f1", "exact_match"],
    Task.NER: ["accuracy", "precision", "recall", "f1", "exact_match"],
    Task.SEG_POS: ["accuracy", "seg_f1", "gold_xpos", "aligned_xpos", "joint_f1", "exact_match"],
}
SEEDS_AND_RATES = [(seed, rate) for seed, rate in enumerate([0.0, 0.02, 0.1, 0.3, 0.6, 1.0])]


class Everything(frozenset):
    def __contains__(self, item: object) -> bool:
        return True


def report(task: Task, gold: list, predicted: list, units: list | None = None, **options: object) -> Report:
    scorer = TaskScorer(task, task.scheme, **options)
    for one, other, forms in zip(gold, predicted, units or gold, strict=True):
        scorer.update(one, other, forms)
    return scorer.result()


def corpus_spans(corpus: list[list[str]], **options: bool) -> set:
    return {
        (number, *span) for number, labels in enumerate(corpus) for span in complete_spans(labels, "bmes", **options)
    }


def test_counts_are_the_textbook_formulas() -> None:
    counts = Counts(correct=3, predicted=4, gold=6)
    assert (counts.precision, counts.recall, counts.f1) == (75.0, 50.0, 60.0)
    assert (Counts(0, 0, 5).precision, Counts(0, 5, 0).recall, Counts().f1) == (0.0, 0.0, 0.0)
    assert counts + Counts(1, 1, 1) == Counts(4, 5, 7)


@given(correct=st.integers(0, 50), wrong=st.integers(0, 50), missed=st.integers(0, 50))
def test_f1_is_the_harmonic_mean(correct: int, wrong: int, missed: int) -> None:
    counts = Counts(correct, correct + wrong, correct + missed)
    assert counts.f1 == pytest.approx(scores(set(range(correct + missed)), {*range(correct), *range(-wrong, 0)})[2])


def test_a_worked_example_of_entities() -> None:
    gold = [["B-PER", "E-PER", "O", "S-LOC"], ["O", "S-ORG"]]
    predicted = [["B-PER", "E-PER", "O", "S-ORG"], ["B-ORG", "M-ORG"]]
    result = report(Task.NER, gold, predicted)
    assert result.metrics == pytest.approx(
        {"accuracy": 50.0, "precision": 50.0, "recall": 100 / 3, "f1": 40.0, "exact_match": 0.0}
    )
    assert result.types == {"LOC": Counts(0, 0, 1), "ORG": Counts(0, 1, 1), "PER": Counts(1, 1, 1)}
    assert (result.exact_match, result.invalid_rate, result.malformed_fragments) == (0.0, 50.0, 1)
    assert result.primary == result.metrics["f1"]


def test_a_worked_example_of_words() -> None:
    #                a       b       c       d       e
    gold = [["B-NN", "E-NN", "S-VV", "B-NN", "E-NN"]]
    predicted = [["B-NN", "E-VV", "S-VV", "B-VV", "E-VV"]]
    result = report(Task.SEG_POS, gold, predicted)
    # Boundaries are all right; b changes the tag inside the first word, which is therefore none for joint F1.
    assert result.metrics["seg_f1"] == 100.0
    assert result.metrics["joint_f1"] == pytest.approx(100 * 2 * 1 / (2 + 3))
    assert result.metrics["aligned_xpos"] == 50.0
    assert result.metrics["gold_xpos"] == pytest.approx(200 / 3)
    assert result.metrics["accuracy"] == 40.0


@pytest.mark.parametrize(("seed", "rate"), SEEDS_AND_RATES)
def test_entity_scores_of_damaged_predictions(seed: int, rate: float) -> None:
    gold = random_corpus(seed, has_gaps=True)
    predicted = damaged(gold, seed, rate=rate, extra=(NO_LABEL, "nonsense", "I-NN"))
    result = report(Task.NER, gold, predicted)
    gold_spans, predicted_spans = corpus_spans(gold), corpus_spans(predicted)
    assert (result.metrics["precision"], result.metrics["recall"], result.metrics["f1"]) == pytest.approx(
        scores(gold_spans, predicted_spans)
    )
    for kind, counts in result.types.items():
        one, other = ({span for span in spans if span[3] == kind} for spans in (gold_spans, predicted_spans))
        assert (counts.precision, counts.recall, counts.f1) == pytest.approx(scores(one, other))
        assert (counts.correct, counts.predicted, counts.gold) == (len(one & other), len(other), len(one))
    assert sum(counts.gold for counts in result.types.values()) == len(gold_spans)
    fragments = [malformed_fragments(labels, "bmes") for labels in predicted]
    assert result.malformed_fragments == sum(fragments)
    assert result.invalid_rate == pytest.approx(100 * sum(map(bool, fragments)) / len(fragments))
    if rate == 0:
        assert set(result.metrics.values()) == {100.0}
    else:
        assert 0 < len(gold_spans & predicted_spans) < len(gold_spans) or rate == 1.0


@pytest.mark.parametrize(("seed", "rate"), SEEDS_AND_RATES)
def test_word_scores_of_damaged_predictions(seed: int, rate: float) -> None:
    gold = random_corpus(seed, has_gaps=False)
    predicted = damaged(gold, seed, rate=rate, extra=(NO_LABEL, "O", "I-VV"))
    metrics = report(Task.SEG_POS, gold, predicted).metrics
    gold_words, words = corpus_spans(gold), corpus_spans(predicted)
    places = {word[:3] for word in gold_words}
    segments = {word[:3] for word in corpus_spans(predicted, match_types=False)}
    assert metrics["seg_f1"] == pytest.approx(scores(places, segments)[2])
    assert metrics["joint_f1"] == pytest.approx(scores(gold_words, words)[2])
    aligned = [word for word in words if word[:3] in places]
    right = sum(word in gold_words for word in aligned)
    assert metrics["aligned_xpos"] == pytest.approx(100 * right / len(aligned) if aligned else 0.0)
    votes = [
        projected_tag([boundary_and_type(label)[1] or None for label in predicted[number][start:end]]) == tag
        for number, start, end, tag in gold_words
    ]
    assert metrics["gold_xpos"] == pytest.approx(100 * sum(votes) / len(votes))


@pytest.mark.parametrize("task", list(Task))
@pytest.mark.parametrize("seed", range(3))
def test_labels_and_confusions_are_counted_one_by_one(task: Task, seed: int) -> None:
    gold = random_corpus(seed, has_gaps=task is Task.NER)
    predicted = damaged(gold, seed, rate=0.2, extra=(NO_LABEL,))
    result = report(task, gold, predicted)
    pairs = [pair for one, other in zip(gold, predicted, strict=True) for pair in zip(one, other, strict=True)]
    assert result.units == len(pairs)
    assert result.metrics["accuracy"] == pytest.approx(100 * sum(one == other for one, other in pairs) / len(pairs))
    assert result.tokens.confusion == Counter(pairs)
    for label in {label for pair in pairs for label in pair} - {NO_LABEL}:
        one, other = ({i for i, pair in enumerate(pairs) if pair[side] == label} for side in (0, 1))
        counts = result.tokens.labels[label]
        assert (counts.precision, counts.recall, counts.f1) == pytest.approx(scores(one, other))
        assert counts.gold == len(one)
    assert NO_LABEL not in result.tokens.labels
    top = result.tokens.top_confusions()
    assert sum(count for _, _, count in top) == sum(one != other for one, other in pairs)
    assert [count for _, _, count in top] == sorted((count for _, _, count in top), reverse=True)
    assert result.tokens.top_confusions(3) == top[:3]
    right_sentences = sum(one == other for one, other in zip(gold, predicted, strict=True))
    assert 0 < right_sentences < len(gold)
    assert result.exact_match == pytest.approx(100 * right_sentences / len(gold))
    assert score_sentences(task, task.scheme, gold, predicted)["exact_match"] == result.exact_match


def test_exact_match_reads_labels_as_accuracy_does() -> None:
    # I and M are one; an unclosed fragment is a wrong label though no span; a sentence counts once, whatever its length.
    gold = [["B-NN", "M-NN", "E-NN"], ["S-VV"], ["S-NN", "S-VV"]]
    predicted = [["B-NN", "I-NN", "E-NN"], ["B-VV"], ["S-NN", NO_LABEL]]
    assert score_sentences("seg-pos", LabelScheme.BMES, gold, predicted)["exact_match"] == pytest.approx(100 / 3)
    # In BIO2, where a lost I changes the letter of its neighbour, spans are what is compared.
    gold = [["B-P", "I-P"], ["O", "B-P"], ["O", "O"]]
    predicted = [["B-P", "O"], ["O", "I-P"], ["O", "O"]]
    assert score_sentences("ner", LabelScheme.BIO2, gold, predicted)["exact_match"] == pytest.approx(200 / 3)


def test_a_prediction_without_label_is_wrong_and_lowers_recall_only() -> None:
    result = report(Task.POS, [["NOUN", "VERB", "NOUN", "ADV"]], [["NOUN", NO_LABEL, "NOUN", "ADJ"]])
    assert result.metrics == pytest.approx(
        {"accuracy": 50.0, "precision": 200 / 3, "recall": 50.0, "f1": 400 / 7, "exact_match": 0.0}
    )
    assert (result.invalid_rate, result.malformed_fragments) == (100.0, 1)


def test_nothing_predicted_and_nothing_to_find() -> None:
    assert report(Task.NER, [["O", "O"]], [["O", "O"]]).metrics == {
        "accuracy": 100.0, "precision": 0.0, "recall": 0.0, "f1": 0.0, "exact_match": 100.0,
    }  # fmt: skip
    for task in Task:
        empty = report(task, [], [])
        assert (empty.sentences, empty.exact_match, empty.invalid_rate) == (0, 0.0, 0.0)
        assert empty.metrics == dict.fromkeys(METRICS[task], 0.0)


@pytest.mark.parametrize("task", list(Task))
def test_score_sentences_gives_the_metrics_of_the_task(task: Task) -> None:
    gold = random_corpus(5, has_gaps=task is Task.NER)
    predicted = damaged(gold, 5, rate=0.2)
    whole = report(task, gold, predicted)
    # Names as plain strings are as good, and units change nothing.
    assert score_sentences(task.value, task.scheme, gold, predicted) == whole.metrics
    assert score_sentences(task, task.scheme, iter(gold), iter(predicted)) == whole.metrics
    assert list(whole.metrics) == METRICS[task]
    assert whole.primary == whole.metrics[PRIMARY_METRICS[task]]
    assert 0 < whole.primary < 100
    with pytest.raises(ValueError, match="zip"):
        score_sentences(task, task.scheme, gold, predicted[:-1])


def test_the_primary_metrics_are_the_papers() -> None:
    assert PRIMARY_METRICS == {"pos": "accuracy", "ner": "f1", "seg-pos": "joint_f1"}


@pytest.mark.parametrize("scheme", [LabelScheme.IOBES, LabelScheme.BILOU])
def test_malformed_predictions_score_alike_in_every_closed_scheme(scheme: LabelScheme) -> None:
    gold = random_corpus(8, has_gaps=True)
    predicted = damaged(gold, 8, rate=0.3)
    letters = str.maketrans("M", "I") if scheme is LabelScheme.IOBES else str.maketrans("MES", "ILU")

    def translated(corpus: list[list[str]]) -> list[list[str]]:
        return [[label[0].translate(letters) + label[1:] for label in labels] for labels in corpus]

    expected = score_sentences(Task.NER, LabelScheme.BMES, gold, predicted)
    assert score_sentences(Task.NER, scheme, translated(gold), translated(predicted)) == expected
    mixed = TaskScorer(Task.NER, scheme, predicted_scheme=LabelScheme.BMES)
    for one, other in zip(translated(gold), predicted, strict=True):
        mixed.update(one, other, one)
    assert mixed.result().metrics == expected


def test_known_and_unknown_units() -> None:
    units = [["a", "b", "x"], ["x", "a"]]
    gold = [["B-P", "E-P", "S-Q"], ["B-P", "E-P"]]
    predicted = [["B-P", "E-P", "O"], ["S-P", "S-P"]]
    rows = report(Task.NER, gold, predicted, units, vocabulary={"a", "b"}).vocabulary
    assert [(row.name, row.size) for row in rows] == [("in vocabulary", 3), ("out of vocabulary", 2)]
    # Known: B-P E-P right, the a of the second sentence wrong; entities ab (right) and the predicted a.
    assert rows[0].metrics == pytest.approx({"accuracy": 200 / 3, "precision": 50.0, "recall": 100.0, "f1": 200 / 3})
    # Unknown: x twice, both wrong; entities x and xa are missed, the predicted x is wrong.
    assert rows[1].metrics == {"accuracy": 0.0, "precision": 0.0, "recall": 0.0, "f1": 0.0}
    assert report(Task.NER, gold, predicted, units).vocabulary == []


def test_known_and_unknown_words() -> None:
    units = [list("abcde")]
    gold = [["B-N", "E-N", "S-V", "B-N", "E-N"]]
    predicted = [["B-N", "E-N", "S-V", "S-N", "S-N"]]
    known, unknown = report(Task.SEG_POS, gold, predicted, units, vocabulary={"ab", "c", "d"}).vocabulary
    assert (known.size, unknown.size) == (2, 1)
    # Known words: ab and c are right, d is predicted but not there.
    assert known.metrics == pytest.approx(
        {"accuracy": 100.0, "seg_f1": 80.0, "gold_xpos": 100.0, "aligned_xpos": 100.0, "joint_f1": 80.0}
    )
    # Unknown words: de is missed (its characters vote right), e is predicted but not there.
    assert unknown.metrics == {"accuracy": 0.0, "seg_f1": 0.0, "gold_xpos": 100.0, "aligned_xpos": 0.0, "joint_f1": 0.0}


@pytest.mark.parametrize("task", list(Task))
def test_parts_of_a_file_are_files_of_their_own(task: Task) -> None:
    gold = random_corpus(11, has_gaps=task is Task.NER, num_sentences=60)
    predicted = damaged(gold, 11, rate=0.2)
    bins = (3, 10, 20)
    rows = report(task, gold, predicted, length_bins=bins).lengths
    assert [row.name for row in rows] == length_bin_names(bins) == ["1-3", "4-10", "11-20", "21+"]
    for row, (low, high) in zip(rows, itertools.pairwise([0, *bins, 10**9]), strict=True):
        chosen = [index for index, labels in enumerate(gold) if low < len(labels) <= high]
        expected = score_sentences(task, task.scheme, [gold[i] for i in chosen], [predicted[i] for i in chosen])
        assert (row.size, row.metrics) == (len(chosen), expected)
    assert report(task, gold, predicted, length_bins=None).lengths == []
    assert [row.name for row in report(task, gold, predicted, length_bins=(3, 100, 200)).lengths] == ["1-3", "4-100"]
    # With every form known, the known part is the whole.
    known, unknown = report(task, gold, predicted, vocabulary=Everything()).vocabulary
    # Exact match is of sentences, not of parts of them.
    whole = report(task, gold, predicted).metrics
    assert known.metrics == {name: value for name, value in whole.items() if name != "exact_match"}
    assert unknown.size == 0


def test_memory_does_not_grow_with_the_file() -> None:
    gold = random_corpus(3, has_gaps=False)
    predicted = damaged(gold, 3, rate=0.3)

    scorer = TaskScorer(Task.SEG_POS, LabelScheme.BMES, vocabulary={"a"})
    tracemalloc.start()
    kept = []
    for repetition in range(24):
        for one, other in zip(gold, predicted, strict=True):
            scorer.update(one, other, one)
        if repetition in (3, 23):
            kept.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    # Twenty repetitions of lists and spans would take megabytes; numbers that outgrow the small ones take some bytes.
    assert kept[1] - kept[0] < 150_000
