"""How many were right: the counts behind every precision, recall and F1."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable


def percentage(part: float, whole: float) -> float:
    """``100 · part / whole``, and 0.0 where there is nothing to divide by."""
    return 100.0 * part / whole if whole else 0.0


@dataclasses.dataclass(frozen=True)
class Counts:
    """Objects (labels, spans, words) that are right, predicted and in the gold file.

    precision = correct ÷ predicted, recall = correct ÷ gold, F1 = 2 · correct ÷ (predicted + gold), their harmonic mean,
    from 0 to 100. Without any prediction precision is 0.0, without any gold object recall is 0.0, without either F1 is.
    """

    correct: int = 0
    predicted: int = 0
    gold: int = 0

    @property
    def precision(self) -> float:
        """The share of the predicted objects that are right."""
        return percentage(self.correct, self.predicted)

    @property
    def recall(self) -> float:
        """The share of the gold objects that were found."""
        return percentage(self.correct, self.gold)

    @property
    def f1(self) -> float:
        """The harmonic mean of precision and recall."""
        return percentage(2 * self.correct, self.predicted + self.gold)

    def __add__(self, other: Counts) -> Counts:
        return Counts(self.correct + other.correct, self.predicted + other.predicted, self.gold + other.gold)


def total(counts: Iterable[Counts]) -> Counts:
    """The counts of all groups together (micro-average)."""
    return sum(counts, Counts())
