"""Entities: precision, recall and F1 over complete spans, altogether and by type."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping

from diffusion_mf.data.label_schemes import Span
from diffusion_mf.evaluation.counts import Counts, total


@dataclasses.dataclass(frozen=True)
class SpanResult:
    """Counts of spans by type; a predicted span is right if a gold one has the same start, end and type."""

    types: Mapping[str, Counts]

    @property
    def counts(self) -> Counts:
        """All types together (micro-average), as the paper reports."""
        return total(self.types.values())


class SpanScorer:
    """Counts spans sentence by sentence; malformed fragments never reach it."""

    def __init__(self) -> None:
        self._correct: Counter[str] = Counter()
        self._predicted: Counter[str] = Counter()
        self._gold: Counter[str] = Counter()

    def update(self, gold: Iterable[Span], predicted: Iterable[Span]) -> None:
        """Add the spans of one sentence."""
        gold_spans, predicted_spans = set(gold), set(predicted)
        self._gold.update(span.label for span in gold_spans)
        self._predicted.update(span.label for span in predicted_spans)
        self._correct.update(span.label for span in gold_spans & predicted_spans)

    def result(self) -> SpanResult:
        """What was counted so far."""
        return SpanResult(
            {
                kind: Counts(self._correct[kind], self._predicted[kind], self._gold[kind])
                for kind in sorted(self._gold.keys() | self._predicted.keys())
            }
        )
