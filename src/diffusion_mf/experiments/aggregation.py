"""Figures over seeds: means, sample deviations, paired differences and their significance."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

FEWEST_SEEDS_FOR_TEST = 4
"""with fewer, a t-test says next to nothing, and none is reported"""

LARGEST_P = 0.05
"""of a difference that tables mark"""


@dataclass(frozen=True)
class Summary:
    """Mean and sample deviation of a score over seeds; one seed has no deviation."""

    mean: float
    deviation: float | None
    seeds: tuple[int, ...]


def summarise(scores: Mapping[int, float]) -> Summary | None:
    """Of scores by seed; None for none."""
    if not scores:
        return None
    values = list(scores.values())
    return Summary(statistics.fmean(values), sample_deviation(values), tuple(sorted(scores)))


def sample_deviation(values: Sequence[float]) -> float | None:
    """√(Σ (x − mean)² / (n − 1)); None for fewer than two values.

    >>> sample_deviation([1.0, 2.0, 3.0])
    1.0
    """
    return statistics.stdev(values) if len(values) > 1 else None


@dataclass(frozen=True)
class PairedDifference:
    """Differences of two settings, seed by seed."""

    mean: float
    deviation: float | None
    seeds: tuple[int, ...]
    p_value: float | None
    """of a two-sided paired t-test; None with too few seeds, or where all differences are equal"""

    @property
    def standard_error(self) -> float | None:
        """deviation / √n."""
        return None if self.deviation is None else self.deviation / math.sqrt(len(self.seeds))

    @property
    def is_significant(self) -> bool:
        """Whether the test has p < .05."""
        return self.p_value is not None and self.p_value < LARGEST_P


def paired_difference(first: Mapping[int, float], second: Mapping[int, float]) -> PairedDifference | None:
    """``first`` − ``second`` over the seeds that both have; None if there are none."""
    seeds = sorted(set(first) & set(second))
    if not seeds:
        return None
    values = [first[seed] - second[seed] for seed in seeds]
    mean, deviation = statistics.fmean(values), sample_deviation(values)
    p_value = None
    if deviation and len(seeds) >= FEWEST_SEEDS_FOR_TEST:
        p_value = two_sided_p(mean / (deviation / math.sqrt(len(seeds))), degrees=len(seeds) - 1)
    return PairedDifference(mean, deviation, tuple(seeds), p_value)


def two_sided_p(t: float, *, degrees: int) -> float:
    """P(|T| ≥ |t|) for Student's distribution with a whole number of degrees of freedom ν.

    With θ = atan(t/√ν), P(|T| < |t|) is a finite sum (Abramowitz and Stegun 26.7.3 and 26.7.4): for even ν
    sin θ · (1 + ½ cos²θ + (1·3)/(2·4) cos⁴θ + …), and for odd ν (2/π) · (θ + sin θ · (cos θ + ⅔ cos³θ + …)).

    >>> round(two_sided_p(12.706, degrees=1), 3), round(two_sided_p(3.182, degrees=3), 3)
    (0.05, 0.05)
    """
    angle = math.atan(abs(t) / math.sqrt(degrees))
    sine, cosine = math.sin(angle), math.cos(angle)
    total, is_odd = 0.0, degrees % 2
    term = cosine if is_odd else 1.0
    for power in range(is_odd, degrees - 1, 2):
        total += term
        term *= cosine**2 * (power + 1) / (power + 2)
    inside = 2 / math.pi * (angle + sine * total) if is_odd else sine * total
    return max(0.0, 1.0 - inside)
