"""Labels compared one by one: accuracy, a table per label, confusions, exact match."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence

from diffusion_mf.evaluation.counts import Counts, percentage
from diffusion_mf.evaluation.reconstruction import NO_LABEL


@dataclasses.dataclass(frozen=True)
class TokenResult:
    """The labels of all units, right and wrong.

    ``accuracy`` = right ÷ units, punctuation included (paper: “Metrics and Output Reconstruction”); `NO_LABEL` is never right.
    ``counts`` sees every unit as an object of its own: its recall is the accuracy, and its precision leaves out the units
    that were predicted no label. ``exact_match`` is the share of sentences whose labels are all right.
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
    """Counts labels sentence by sentence, in memory that grows with the label pairs seen and not with the file."""

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
        """What was counted so far."""
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
