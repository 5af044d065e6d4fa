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


class TokenScorer:
    """Correct and wrong labels of all units, counted sentence by sentence; memory grows with the number of label pairs.

    `NO_LABEL` is never right. ``confusion`` counts (gold, predicted) pairs, the diagonal included.
    """

    def __init__(self) -> None:
        self.confusion: Counter[tuple[str, str]] = Counter()
        self.sentences = 0
        self._exact = 0

    def update(self, gold: Sequence[str], predicted: Sequence[str]) -> None:
        """Add one sentence."""
        self.confusion.update(zip(gold, predicted, strict=True))
        self.sentences += 1
        self._exact += all(map(str.__eq__, gold, predicted))

    @property
    def labels(self) -> Mapping[str, Counts]:
        """The counts of every label, in sorted order."""
        correct: Counter[str] = Counter()
        predicted: Counter[str] = Counter()
        gold: Counter[str] = Counter()
        for (gold_label, predicted_label), count in self.confusion.items():
            gold[gold_label] += count
            if predicted_label != NO_LABEL:
                predicted[predicted_label] += count
                correct[gold_label] += count if gold_label == predicted_label else 0
        return _by_name(correct, predicted, gold)

    @property
    def counts(self) -> Counts:
        """Every unit as an object, punctuation included (paper: “Metrics and Output Reconstruction”).

        The recall is the accuracy, and the precision leaves out units that were predicted no label.
        """
        return total(self.labels.values())

    @property
    def exact_match(self) -> float:
        """The share of sentences whose labels are all right."""
        return percentage(self._exact, self.sentences)

    def top_confusions(self, limit: int | None = None) -> list[tuple[str, str, int]]:
        """The wrong (gold, predicted, count) triples, most frequent first."""
        wrong = [(gold, predicted, count) for (gold, predicted), count in self.confusion.items() if gold != predicted]
        return sorted(wrong, key=lambda row: (-row[2], row[0], row[1]))[:limit]


class SpanScorer:
    """Spans counted sentence by sentence; one is correct if a gold span has its start, end and type, fragments are none."""

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

    @property
    def types(self) -> Mapping[str, Counts]:
        """The counts of every type, in sorted order."""
        return _by_name(self._correct, self._predicted, self._gold)

    @property
    def counts(self) -> Counts:
        """All types together (micro-average), as the paper reports."""
        return total(self.types.values())


def _by_name(correct: Counter[str], predicted: Counter[str], gold: Counter[str]) -> dict[str, Counts]:
    names = sorted(gold.keys() | predicted.keys())
    return {name: Counts(correct[name], predicted[name], gold[name]) for name in names}


class WordScorer:
    """The paper's four metrics for Chinese, counted sentence by sentence (“Metrics and Output Reconstruction”).

    Segmentation counts words from boundaries alone. ``joint`` counts words whose characters have one tag; correct if position and
    tag are. Aligned words are those of ``joint`` at the position of a gold word.
    """

    def __init__(self) -> None:
        self.joint = SpanScorer()
        self._segmentation = Counts()
        self._aligned = 0
        self._gold_words_right = 0

    def update(self, sentence: Reconstruction) -> None:
        """Add one sentence."""
        gold = {span[:2] for span in sentence.gold_spans}
        segments = {span[:2] for span in sentence.segments}
        self._segmentation += Counts(len(gold & segments), len(segments), len(gold))
        self._aligned += len(gold & {span[:2] for span in sentence.predicted_spans})
        self.joint.update(sentence.gold_spans, sentence.predicted_spans)
        self._gold_words_right += sum(
            span.label == vote for span, vote in zip(sentence.gold_spans, sentence.votes, strict=True)
        )

    def metrics(self) -> dict[str, float]:
        """Segmentation F1, XPOS of gold words by the majority of their characters' tags, XPOS of aligned words, joint F1."""
        joint = self.joint.counts
        return {
            "seg_f1": self._segmentation.f1,
            "gold_xpos": percentage(self._gold_words_right, joint.gold),
            "aligned_xpos": percentage(joint.correct, self._aligned),
            "joint_f1": joint.f1,
        }
