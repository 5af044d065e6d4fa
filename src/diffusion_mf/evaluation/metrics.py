"""Counts of correct labels, spans and words, and the metrics computed from them."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from decimal import ROUND_HALF_UP, Decimal

from diffusion_mf.data.label_schemes import LabelledSpan
from diffusion_mf.evaluation.reconstruction import NO_LABEL, Reconstruction


def half_up(value: float, digits: int) -> str:
    """``value`` to ``digits`` decimals, ties away from zero, as the paper's tables round.

    The shortest decimal representation is rounded, so that 0.35 becomes 0.4 although the nearest binary number lies
    below it.

    >>> half_up(0.35, 1), half_up(16.25, 1), half_up(14.0, 0)
    ('0.4', '16.3', '14')
    """
    return str(Decimal(repr(float(value))).quantize(Decimal(1).scaleb(-digits), rounding=ROUND_HALF_UP))


def percentage(part: float, whole: float) -> float:
    """``100 · part / whole``; 0.0 if ``whole`` is 0."""
    return 100.0 * part / whole if whole else 0.0


@dataclasses.dataclass(frozen=True)
class Counts:
    """Numbers of correct, predicted and gold objects (labels, spans or words).

    precision = correct ÷ predicted, recall = correct ÷ gold, F1 = 2 · correct ÷ (predicted + gold), their harmonic mean,
    from 0 to 100. Each is 0.0 if its denominator is 0.
    """

    correct: int = 0
    predicted: int = 0
    gold: int = 0

    @property
    def precision(self) -> float:
        """The share of predicted objects that are correct."""
        return percentage(self.correct, self.predicted)

    @property
    def recall(self) -> float:
        """The share of gold objects that were found."""
        return percentage(self.correct, self.gold)

    @property
    def f1(self) -> float:
        """The harmonic mean of precision and recall."""
        return percentage(2 * self.correct, self.predicted + self.gold)

    def __add__(self, other: Counts) -> Counts:
        return Counts(self.correct + other.correct, self.predicted + other.predicted, self.gold + other.gold)


def total(counts: Iterable[Counts]) -> Counts:
    """The sum over all groups (micro-average)."""
    return sum(counts, Counts())


@dataclasses.dataclass(frozen=True)
class TokenResult:
    """Correct and wrong labels of all units.

    ``accuracy`` = right ÷ units, punctuation included (paper: “Metrics and Output Reconstruction”); `NO_LABEL` is never right.
    ``counts`` treats every unit as an object: its recall is the accuracy, and its precision leaves out units that were
    predicted no label. ``exact_match`` is the share of sentences whose labels are all right.
    ``confusion`` counts (gold, predicted) pairs, the diagonal included.
    """

    sentences: int
    exact: int
    counts: Counts
    labels: Mapping[str, Counts]
    confusion: Mapping[tuple[str, str], int]

    @property
    def accuracy(self) -> float:
        """The share of units whose label is right."""
        return self.counts.recall

    @property
    def exact_match(self) -> float:
        """The share of sentences whose labels are all right."""
        return percentage(self.exact, self.sentences)

    def top_confusions(self, limit: int | None = None) -> list[tuple[str, str, int]]:
        """The wrong (gold, predicted, count) triples, most frequent first."""
        wrong = [(gold, predicted, count) for (gold, predicted), count in self.confusion.items() if gold != predicted]
        return sorted(wrong, key=lambda row: (-row[2], row[0], row[1]))[:limit]


class TokenScorer:
    """Counts labels sentence by sentence; memory grows with the number of label pairs, not with the file."""

    def __init__(self) -> None:
        self._confusion: Counter[tuple[str, str]] = Counter()
        self._sentences = 0
        self._exact = 0

    def update(self, gold: Sequence[str], predicted: Sequence[str]) -> None:
        """Add one sentence."""
        self._confusion.update(zip(gold, predicted, strict=True))
        self._sentences += 1
        self._exact += all(map(str.__eq__, gold, predicted))

    def result(self) -> TokenResult:
        """The result so far."""
        correct: Counter[str] = Counter()
        predicted: Counter[str] = Counter()
        gold: Counter[str] = Counter()
        for (gold_label, predicted_label), count in self._confusion.items():
            gold[gold_label] += count
            if predicted_label != NO_LABEL:
                predicted[predicted_label] += count
                correct[gold_label] += count if gold_label == predicted_label else 0
        return TokenResult(
            sentences=self._sentences,
            exact=self._exact,
            counts=Counts(correct.total(), predicted.total(), gold.total()),
            labels={
                label: Counts(correct[label], predicted[label], gold[label])
                for label in sorted(gold.keys() | predicted.keys())
            },
            confusion=dict(self._confusion),
        )


@dataclasses.dataclass(frozen=True)
class SpanResult:
    """Counts of spans by type; a predicted span is correct if a gold span has the same start, end and type."""

    types: Mapping[str, Counts]

    @property
    def counts(self) -> Counts:
        """All types together (micro-average), as the paper reports."""
        return total(self.types.values())


class SpanScorer:
    """Counts spans sentence by sentence; malformed fragments are not spans."""

    def __init__(self) -> None:
        self._correct: Counter[str] = Counter()
        self._predicted: Counter[str] = Counter()
        self._gold: Counter[str] = Counter()

    def update(self, gold: Iterable[LabelledSpan], predicted: Iterable[LabelledSpan]) -> None:
        """Add the spans of one sentence."""
        gold_spans, predicted_spans = set(gold), set(predicted)
        self._gold.update(span.label for span in gold_spans)
        self._predicted.update(span.label for span in predicted_spans)
        self._correct.update(span.label for span in gold_spans & predicted_spans)

    def result(self) -> SpanResult:
        """The result so far."""
        return SpanResult(
            {
                kind: Counts(self._correct[kind], self._predicted[kind], self._gold[kind])
                for kind in sorted(self._gold.keys() | self._predicted.keys())
            }
        )


@dataclasses.dataclass(frozen=True)
class WordResult:
    """The paper's four metrics for Chinese, and their counts (“Metrics and Output Reconstruction”).

    ``segmentation``: words from boundaries alone. ``joint``: words whose characters have one tag; correct if position and tag
    are. ``aligned``: words of ``joint`` at the position of a gold word, of which ``joint.correct`` have its tag.
    ``gold_words_right``: gold words whose tag wins the majority vote of their characters, independent of segmentation.
    """

    segmentation: Counts
    joint: SpanResult
    aligned: int
    gold_words_right: int

    @property
    def seg_f1(self) -> float:
        """Segmentation F1."""
        return self.segmentation.f1

    @property
    def joint_f1(self) -> float:
        """F1 of words with their tags."""
        return self.joint.counts.f1

    @property
    def gold_xpos(self) -> float:
        """The share of gold words whose tag is the majority of their characters' tags."""
        return percentage(self.gold_words_right, self.joint.counts.gold)

    @property
    def aligned_xpos(self) -> float:
        """The share of aligned words whose tag is right."""
        return percentage(self.joint.counts.correct, self.aligned)


class WordScorer:
    """Counts words sentence by sentence."""

    def __init__(self) -> None:
        self._segmentation = Counts()
        self._joint = SpanScorer()
        self._aligned = 0
        self._gold_words_right = 0

    def update(self, sentence: Reconstruction) -> None:
        """Add one sentence."""
        gold = {span[:2] for span in sentence.gold_spans}
        segments = {span[:2] for span in sentence.segments}
        self._segmentation += Counts(len(gold & segments), len(segments), len(gold))
        self._aligned += len(gold & {span[:2] for span in sentence.predicted_spans})
        self._joint.update(sentence.gold_spans, sentence.predicted_spans)
        self._gold_words_right += sum(
            span.label == vote for span, vote in zip(sentence.gold_spans, sentence.votes, strict=True)
        )

    def result(self) -> WordResult:
        """The result so far."""
        return WordResult(self._segmentation, self._joint.result(), self._aligned, self._gold_words_right)
