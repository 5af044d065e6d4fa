"""Mistakes of a tagger on labelled sentences: what is confused with what, where, and how sure it was; and two taggers compared.

Two taggers are compared by a paired test over sentences (`compare_counts`), since units of one sentence are right or wrong together.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import heapq
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from diffusion_mf.data.corpus import Task
from diffusion_mf.data.label_schemes import LabelledSpan
from diffusion_mf.evaluation.metrics import TokenScorer
from diffusion_mf.evaluation.reconstruction import Reconstruction

CONTEXT_UNITS = 5
"""shown on both sides of a mistake"""


@dataclasses.dataclass(frozen=True)
class CheckedSentence:
    """A sentence with the right labels and those that a tagger gave it, in one scheme."""

    units: Sequence[str]
    gold: Sequence[str]
    predicted: Sequence[str]
    scores: Sequence[float]
    """of the predicted labels"""
    second_best: Sequence[tuple[str, float]]
    """of every unit the most probable other label, and its probability"""
    lines: Sequence[int]
    """of the file"""
    separator: str = " "

    def context(self, start: int, end: int | None = None) -> str:
        """Some units in brackets, between their neighbours."""
        end = start + 1 if end is None else end
        join = self.separator.join
        before, after = self.units[max(0, start - CONTEXT_UNITS) : start], self.units[end : end + CONTEXT_UNITS]
        parts = ["…"] * (start > CONTEXT_UNITS) + [join(before)] * bool(before) + [f"[{join(self.units[start:end])}]"]
        parts += [join(after)] * bool(after) + ["…"] * (end + CONTEXT_UNITS < len(self.units))
        return join(parts)

    def unit(self, index: int) -> CheckedUnit:
        """All that is known of a unit."""
        return CheckedUnit(
            self.lines[index],
            self.context(index),
            self.gold[index],
            self.predicted[index],
            self.scores[index],
            *self.second_best[index],
        )

    def wrong_units(self) -> list[CheckedUnit]:
        """The units with a wrong label."""
        pairs = enumerate(zip(self.gold, self.predicted, strict=True))
        return [self.unit(index) for index, (gold, predicted) in pairs if gold != predicted]


class CheckedUnit(NamedTuple):
    """A unit in its context, with its gold label, the predicted one, and the most probable other one."""

    line: int
    context: str
    gold: str
    predicted: str
    score: float
    second: str
    second_score: float


def confusions(units: Iterable[CheckedUnit]) -> list[tuple[tuple[str, str], list[CheckedUnit]]]:
    """Wrong units by (gold label, predicted label): the most frequent pair first, and in each the most confident mistakes first."""
    groups: dict[tuple[str, str], list[CheckedUnit]] = defaultdict(list)
    for unit in units:
        groups[unit.gold, unit.predicted].append(unit)
    ordered = sorted(groups.items(), key=lambda item: (-len(item[1]), item[0]))
    return [(pair, sorted(members, key=lambda unit: -unit.score)) for pair, members in ordered]


def confusion_matrix(sentences: Iterable[CheckedSentence]) -> tuple[list[str], list[list[int]]]:
    """Labels, those with the most mistakes first, and how often each gold label (row) was predicted as each other (column)."""
    scorer = TokenScorer()
    for sentence in sentences:
        scorer.update(sentence.gold, sentence.predicted)
    weights = Counter(dict.fromkeys((label for pair in scorer.confusion for label in pair), 0))
    for gold, predicted, count in scorer.top_confusions():
        weights.update({gold: count, predicted: count})
    labels = sorted(weights, key=lambda label: (-weights[label], label))
    return labels, [[scorer.confusion[gold, predicted] for predicted in labels] for gold in labels]


def least_certain(sentences: Sequence[CheckedSentence], number: int) -> list[CheckedUnit]:
    """The units whose labels have the lowest scores, right or wrong: the first to look at in unchecked data."""
    places = (
        (score, place, index) for place, sentence in enumerate(sentences) for index, score in enumerate(sentence.scores)
    )
    return [sentences[place].unit(index) for _, place, index in heapq.nsmallest(number, places)]


class SpanMistake(enum.StrEnum):
    """How a span is wrong."""

    MISSED = "missed"
    """no predicted span shares a unit with it"""
    TYPE = "wrong type"
    BOUNDARIES = "wrong boundaries"
    BOTH = "wrong boundaries and type"
    INVENTED = "invented"
    """no gold span shares a unit with it"""


def span_mistakes(
    gold: Sequence[LabelledSpan], predicted: Sequence[LabelledSpan]
) -> list[tuple[SpanMistake, LabelledSpan]]:
    """Gold spans that were not found, and predicted spans that are not gold."""

    def overlaps(one: LabelledSpan, other: LabelledSpan) -> bool:
        return one.start < other.end and other.start < one.end

    found: list[tuple[SpanMistake, LabelledSpan]] = []
    for span in gold:
        rivals = [other for other in predicted if overlaps(span, other)]
        if span in rivals:
            continue
        if any(other[:2] == span[:2] for other in rivals):
            kind = SpanMistake.TYPE
        elif any(other.label == span.label for other in rivals):
            kind = SpanMistake.BOUNDARIES
        else:
            kind = SpanMistake.BOTH if rivals else SpanMistake.MISSED
        found.append((kind, span))
    invented = (span for span in predicted if not any(overlaps(span, other) for other in gold))
    return found + [(SpanMistake.INVENTED, span) for span in invented]


def sentence_counts(task: Task, sentence: Reconstruction) -> tuple[int, int, int]:
    """(right, predicted, gold): units for pos, else spans. 2·right / (predicted + gold) is the task's primary metric."""
    if task is Task.POS:
        right = sum(map(str.__eq__, sentence.gold, sentence.predicted))
        return right, len(sentence.gold), len(sentence.gold)
    right = len(set(sentence.gold_spans) & set(sentence.predicted_spans))
    return right, len(sentence.predicted_spans), len(sentence.gold_spans)


class Comparison(NamedTuple):
    """A metric of two taggers on the same sentences, in per cent."""

    first: float
    second: float
    p_value: float
    """how often a difference as large as theirs comes about if, sentence by sentence, chance decides which output is whose"""
    low: float
    high: float
    """the 95 % interval of second − first, by bootstrap over sentences"""

    @property
    def difference(self) -> float:
        """Second − first."""
        return self.second - self.first


def compare_counts(
    first: Int[np.ndarray, "S 3"],
    second: Int[np.ndarray, "S 3"],
    *,
    num_permutations: int = 10_000,
    num_resamples: int = 2_000,
) -> Comparison:
    """Approximate randomisation and bootstrap over sentences, from their `sentence_counts`.

    p = (1 + number of permutations with |difference| ≥ the observed one) / (1 + number of permutations).
    """
    generator = np.random.default_rng(0)
    totals = first.sum(0), second.sum(0)
    observed = f1_of_counts(totals[1]) - f1_of_counts(totals[0])
    # Swapping equal outputs changes nothing.
    change = (second - first)[(first != second).any(1)]
    num_extreme = 0
    for size in _pieces(num_permutations, len(change)):
        moved = generator.integers(0, 2, size=(size, len(change))) @ change
        differences = f1_of_counts(totals[1] - moved) - f1_of_counts(totals[0] + moved)
        num_extreme += int((np.abs(differences) >= abs(observed) - 1e-12).sum())
    drawn = bootstrap(
        lambda weights: f1_of_counts(weights @ second) - f1_of_counts(weights @ first),
        len(first),
        num_resamples=num_resamples,
    )
    low, high = np.percentile(drawn, [2.5, 97.5])
    return Comparison(
        100 * float(f1_of_counts(totals[0])),
        100 * float(f1_of_counts(totals[1])),
        (1 + num_extreme) / (1 + num_permutations),
        100 * float(low),
        100 * float(high),
    )


def f1_of_counts(counts: np.ndarray) -> np.ndarray:
    """F1, from 0 to 1, of sums of `sentence_counts` in the last axis."""
    return 2 * counts[..., 0] / np.maximum(counts[..., 1] + counts[..., 2], 1)


def bootstrap(statistic: Callable[[np.ndarray], np.ndarray], number: int, *, num_resamples: int) -> np.ndarray:
    """``statistic`` of resamples of ``number`` sentences or documents, drawn with replacement.

    It is called with weights (resamples, number) that say how often each was drawn, and returns a value for every resample. Everything
    that is computed from the same weights is paired.
    """
    # Floating-point numbers are exact for such counts, and fast to multiply.
    return np.concatenate([statistic(each.astype(np.float64)) for each in _draws(number, num_resamples)])


# Drawing takes longer than everything else, and tables compare many systems on the same sentences.
@functools.lru_cache(maxsize=1)
def _draws(number: int, num_resamples: int) -> list[np.ndarray]:
    """How often each was drawn in every resample, in pieces (resamples, number)."""
    generator = np.random.default_rng(0)
    shares = np.full(number, 1 / number)
    return [
        generator.multinomial(number, shares, size=size).astype(np.uint16) for size in _pieces(num_resamples, number)
    ]


def _pieces(total: int, width: int) -> list[int]:
    """``total`` rows of ``width`` numbers in pieces that fit into memory."""
    size = max(1, 4_000_000 // max(width, 1))
    return [min(size, total - start) for start in range(0, total, size)]


def disagreements(
    first: Iterable[CheckedSentence], second: Iterable[CheckedSentence]
) -> Mapping[tuple[bool, bool], list[tuple[CheckedUnit, CheckedUnit]]]:
    """Units that not both taggers have right, by whether the first and whether the second has."""
    found: dict[tuple[bool, bool], list[tuple[CheckedUnit, CheckedUnit]]] = {
        (True, False): [],
        (False, True): [],
        (False, False): [],
    }
    for one, other in zip(first, second, strict=True):
        for index, label in enumerate(one.gold):
            is_right = one.predicted[index] == label, other.predicted[index] == label
            if not all(is_right):
                found[is_right].append((one.unit(index), other.unit(index)))
    return found
