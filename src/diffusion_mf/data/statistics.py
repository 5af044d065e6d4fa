"""The paper's dataset tables: sizes and lengths, vocabulary and entropy, label distribution.

Paper: “Tasks, Label Schemes, and Dataset Statistics” (appendix A.1) and its three tables.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from diffusion_mf.data.sentence import Sentence

# Percentages of all labels, lower bounds included: the paper's columns “≥10”, “1–10”, “.1–1”, “<.1”.
FREQUENCY_BINS: dict[str, tuple[float, float]] = {
    ">=10": (10.0, math.inf),
    "1-10": (1.0, 10.0),
    "0.1-1": (0.1, 1.0),
    "<0.1": (0.0, 0.1),
}


@dataclass(frozen=True, kw_only=True)
class CorpusStatistics:
    """The statistics that the paper reports for a split.

    ``p95`` is nearest-rank; ``duplicates`` counts repeats of a unit sequence beyond the first, ignoring labels. ``label_counts``
    are in descending order, ties in alphabetical order.
    """

    sentences: int
    units: int
    mean: float
    median: float
    p95: int
    max: int
    duplicates: int
    vocabulary: frozenset[str]
    label_counts: dict[str, int]
    documents: int = 0
    """as marked"""

    @property
    def label_entropy(self) -> float:
        """Normalised to 0…1: −Σ p(ℓ) log p(ℓ) / log |L|, and 0 if there is only one label."""
        if len(self.label_counts) < 2:
            return 0.0
        frequencies = [count / self.units for count in self.label_counts.values()]
        return -sum(p * math.log(p) for p in frequencies) / math.log(len(frequencies))

    def top_labels(self, num_labels: int) -> list[tuple[str, float]]:
        """The most frequent labels with their percentages."""
        return [(label, 100 * count / self.units) for label, count in list(self.label_counts.items())[:num_labels]]

    def top_mass(self, num_labels: int) -> float:
        """The percentage of units with one of the most frequent labels."""
        return 100 * sum(list(self.label_counts.values())[:num_labels]) / self.units

    def label_bins(self) -> dict[str, int]:
        """How many labels fall into each of `FREQUENCY_BINS`."""
        percentages = [100 * count / self.units for count in self.label_counts.values()]
        return {name: sum(low <= p < high for p in percentages) for name, (low, high) in FREQUENCY_BINS.items()}


def corpus_statistics(sentences: Iterable[Sentence]) -> CorpusStatistics:
    """Count labelled sentences; `ValueError` if there are none."""
    lengths: list[int] = []
    forms: set[str] = set()
    labels: Counter[str] = Counter()
    sequences: set[tuple[str, ...]] = set()
    documents: set[int] = set()
    for sentence in sentences:
        if sentence.labels is None:
            raise ValueError("statistics need labelled sentences")
        lengths.append(len(sentence.units))
        forms.update(sentence.units)
        labels.update(sentence.labels)
        sequences.add(sentence.units)
        documents.add(sentence.document)
    if not lengths:
        raise ValueError("statistics need at least one sentence")
    lengths.sort()
    return CorpusStatistics(
        sentences=len(lengths),
        units=sum(lengths),
        mean=sum(lengths) / len(lengths),
        median=statistics.median(lengths),
        p95=nearest_rank(lengths, 95),
        max=lengths[-1],
        duplicates=len(lengths) - len(sequences),
        vocabulary=frozenset(forms),
        label_counts=dict(sorted(labels.items(), key=lambda item: (-item[1], item[0]))),
        documents=len(documents - {0}),
    )


def nearest_rank(ordered: Sequence[int], percent: int) -> int:
    """The smallest value with at least ``percent`` per cent of the ascending values at or below it.

    >>> nearest_rank([1, 2, 3, 4], 95), nearest_rank([1, 2, 3, 4], 50)
    (4, 2)
    """
    return ordered[max(-(-percent * len(ordered) // 100), 1) - 1]


def out_of_vocabulary(sentences: Iterable[Sentence], vocabulary: frozenset[str]) -> int:
    """How many units of ``sentences`` are not in the training vocabulary."""
    return sum(unit not in vocabulary for sentence in sentences for unit in sentence.units)
