from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest

from diffusion_mf.data.corpus import Task
from diffusion_mf.data.label_schemes import LabelledSpan, LabelScheme
from diffusion_mf.evaluation.mistakes import (
    CheckedSentence,
    SpanMistake,
    compare_counts,
    confusion_matrix,
    confusions,
    disagreements,
    least_certain,
    sentence_counts,
    span_mistakes,
)
from diffusion_mf.evaluation.reconstruction import Reconstructor
from diffusion_mf.evaluation.report import score_sentences


def checked(gold: str, predicted: str, *, scores: list[float] | None = None, line: int = 1) -> CheckedSentence:
    """Units a, b, c, … with labels given by words."""
    size = len(gold.split())
    units = [chr(97 + index) for index in range(size)]
    return CheckedSentence(
        units,
        gold.split(),
        predicted.split(),
        scores or [0.9] * size,
        [("Z", 0.05)] * size,
        list(range(line, line + size)),
    )


def test_a_mistake_stands_in_its_context() -> None:
    sentence = checked("N " * 13, "N " * 13)
    assert sentence.context(0) == "[a] b c d e f …"
    assert sentence.context(6) == "… b c d e f [g] h i j k l …"
    assert sentence.context(10, 13) == "… f g h i j [k l m]"
    characters = CheckedSentence("abc", "NNN", "NNN", [1.0] * 3, [("Z", 0.0)] * 3, [1] * 3, separator="")
    assert characters.context(1) == "a[b]c"


def test_confusions_are_grouped_and_the_surest_come_first() -> None:
    sentences = [
        checked("N V N", "V V V", scores=[0.6, 0.9, 0.8]),
        checked("V D", "D D", scores=[0.5, 0.7], line=5),
    ]
    groups = confusions(unit for sentence in sentences for unit in sentence.wrong_units())
    assert [(pair, [unit.score for unit in units]) for pair, units in groups] == [
        (("N", "V"), [0.8, 0.6]),
        (("V", "D"), [0.5]),
    ]
    assert groups[0][1][0] == (3, "a b [c]", "N", "V", 0.8, "Z", 0.05)
    labels, counts = confusion_matrix(sentences)
    assert labels == ["V", "N", "D"]
    assert counts == [[1, 0, 1], [2, 0, 0], [0, 0, 1]]
    assert [(unit.line, unit.score) for unit in least_certain(sentences, 3)] == [(5, 0.5), (1, 0.6), (6, 0.7)]
    assert not checked("N V", "N V").wrong_units()


def test_units_are_parted_by_who_is_right() -> None:
    found = disagreements([checked("N N N N", "N N V V")], [checked("N N N N", "N V N D")])
    assert [one.line for one, _ in found[True, False]] == [2]
    assert [(one.predicted, other.predicted) for one, other in found[False, True]] == [("V", "N")]
    assert [(one.predicted, other.predicted) for one, other in found[False, False]] == [("V", "D")]


@pytest.mark.parametrize(
    ("gold", "predicted", "expected"),
    [
        (["0-2 PER"], ["0-2 PER"], []),
        (["0-2 PER"], [], [SpanMistake.MISSED]),
        (["0-2 PER"], ["2-3 PER"], [SpanMistake.MISSED, SpanMistake.INVENTED]),
        (["0-2 PER"], ["0-2 LOC"], [SpanMistake.TYPE]),
        (["0-2 PER"], ["1-3 PER"], [SpanMistake.BOUNDARIES]),
        (["0-2 PER"], ["1-3 LOC"], [SpanMistake.BOTH]),
        (["0-3 PER"], ["0-1 LOC", "1-2 PER"], [SpanMistake.BOUNDARIES]),
        ([], ["0-1 LOC"], [SpanMistake.INVENTED]),
    ],
)
def test_spans_are_wrong_in_five_ways(gold: list[str], predicted: list[str], expected: list[SpanMistake]) -> None:
    def spans(texts: list[str]) -> list[LabelledSpan]:
        return [LabelledSpan(int(text[0]), int(text[2]), text[4:]) for text in texts]

    assert [kind for kind, _ in span_mistakes(spans(gold), spans(predicted))] == expected


@pytest.mark.parametrize(
    ("task", "scheme", "gold", "predicted"),
    [
        (Task.POS, LabelScheme.PLAIN, ["N V", "N N D"], ["N N", "N V D"]),
        (Task.NER, LabelScheme.BMES, ["S-A O", "B-A E-A S-B"], ["S-A S-A", "B-A E-A O"]),
        (Task.SEG_POS, LabelScheme.BMES, ["S-A S-B", "B-A E-A"], ["S-A S-A", "B-A E-B"]),
    ],
)
def test_counts_give_the_primary_metric(task: Task, scheme: LabelScheme, gold: list[str], predicted: list[str]) -> None:
    pairs = [(one.split(), other.split()) for one, other in zip(gold, predicted, strict=True)]
    reconstruct = Reconstructor(task, scheme)
    counts = np.array([sentence_counts(task, reconstruct(one, other, one)) for one, other in pairs])
    metrics = score_sentences(task, scheme, *zip(*pairs, strict=True))
    expected = metrics["joint_f1" if task is Task.SEG_POS else "f1" if task is Task.NER else "accuracy"]
    assert compare_counts(counts, counts).first == pytest.approx(expected)


def f1(counts: np.ndarray) -> float:
    right, predicted, gold = counts.sum(0)
    return 200 * right / (predicted + gold)


def random_counts(generator: np.random.Generator, size: int, chance: float) -> np.ndarray:
    gold = np.arange(size) % 5 + 1
    return np.stack([generator.binomial(gold, chance), gold, gold], 1)


def test_the_p_value_is_that_of_all_permutations() -> None:
    generator = np.random.default_rng(1)
    first, second = random_counts(generator, 9, 0.5), random_counts(generator, 9, 0.75)
    found = compare_counts(first, second)
    assert (found.first, found.second) == pytest.approx((f1(first), f1(second)))
    observed = abs(found.difference)
    extreme = []
    for swaps in itertools.product([False, True], repeat=9):
        swap = np.array(swaps)[:, None]
        extreme.append(abs(f1(np.where(swap, first, second)) - f1(np.where(swap, second, first))) >= observed - 1e-9)
    assert found.p_value == pytest.approx(np.mean(extreme), abs=0.015)
    assert found.low < found.difference < found.high


def test_equal_taggers_do_not_differ_and_better_ones_do() -> None:
    generator = np.random.default_rng(2)
    counts = random_counts(generator, 300, 0.5)
    same = compare_counts(counts, counts)
    assert (same.difference, same.p_value, same.low, same.high) == (0.0, 1.0, 0.0, 0.0)
    better = compare_counts(counts, random_counts(generator, 300, 0.7))
    assert better.p_value < 0.001
    assert better.low > 0
    # The bootstrap's interval is about that of the normal distribution.
    units = counts[:, 2].sum()
    error = 100 * np.sqrt((0.25 + 0.21) / units)
    assert better.high - better.low == pytest.approx(2 * 1.96 * error, rel=0.2)
    again = compare_counts(random_counts(generator, 300, 0.7), counts)
    assert again.difference < 0
    assert again.high < 0


def test_no_difference_is_found_where_there_is_none() -> None:
    generator = np.random.default_rng(3)
    values = [
        compare_counts(
            *(random_counts(generator, 60, 0.6) for _ in range(2)), num_permutations=400, num_resamples=50
        ).p_value
        for _ in range(200)
    ]
    assert 0.01 <= np.mean(np.array(values) < 0.05) <= 0.1


def test_counts_of_a_sentence() -> None:
    def counts(task: Task, scheme: LabelScheme, gold: Sequence[str], predicted: Sequence[str]) -> tuple[int, int, int]:
        return sentence_counts(task, Reconstructor(task, scheme)(gold, predicted, ("a", "b", "c")))

    assert counts(Task.POS, LabelScheme.PLAIN, ("X", "Y", "X"), ["X", "X", "X"]) == (2, 3, 3)
    ner = ("B-PER", "E-PER", "S-LOC")
    assert counts(Task.NER, LabelScheme.BMES, ner, ["B-PER", "E-PER", "O"]) == (1, 1, 2)
    assert counts(Task.NER, LabelScheme.BMES, ner, ["S-PER", "S-PER", "S-LOC"]) == (1, 3, 2)
