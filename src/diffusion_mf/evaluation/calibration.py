"""Calibration of scores: a temperature fitted on held-out data, and the calibration error.

A score is calibrated if, of all labels with a score near .8, about 80 % are right. The marginals ρ of a trained network are
usually overconfident; dividing their logarithms by one number T, fitted on development data, corrects most of that (Guo et al.,
2017) and never changes which label is the most probable.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from diffusion_mf.data.label_schemes import UNFITTED, SpanCalibration

LOWEST_TEMPERATURE = 0.1
HIGHEST_TEMPERATURE = 10.0

# A probability of zero is usually an underflow; its logarithm must not decide alone.
_SMALLEST_PROBABILITY = 1e-12
# Where the logarithms of a unit's probabilities differ by no more than rounding, every temperature is as good.
_SMALLEST_SPREAD = 1e-5
_MOST_PASSES = 60
_RELATIVE_ACCURACY = 1e-6


def calibrated(marginals: Float[Tensor, "*batch K"], temperature: float) -> Float[Tensor, "*batch K"]:
    """ρ_T(k) ∝ ρ(k)^(1/T); probabilities of zero stay zero.

    ``temperature`` above 1 makes scores less confident, below 1 more confident.
    """
    if temperature == 1:
        return marginals / marginals.sum(-1, keepdim=True)
    log_scores = marginals.log() / temperature
    return log_scores.softmax(-1)


def negative_log_likelihood(
    marginals: Float[Tensor, "M K"], labels: Int[Tensor, " M"], *, temperature: float = 1.0
) -> float:
    """−(1/M) Σ log ρ_T(y), in nats per unit."""
    return _loss_slope_curvature(*_log_scores(marginals, labels), 1 / temperature)[0]


def fit_temperature(marginals: Float[Tensor, "M K"], labels: Int[Tensor, " M"]) -> float:
    """The T in [0.1, 10] with the least negative log-likelihood; 1 if there is nothing to fit on, or NaN.

    With β = 1/T, −Σ log softmax(β log ρ)(y) is convex in β; its slope is Σ (E_β[log ρ] − log ρ(y)), its curvature
    Σ Var_β[log ρ]. So Newton's method finds the minimum in a few steps; where a step would leave the interval in which the
    slope changes sign, the interval is halved instead.
    """
    if len(labels) == 0:
        return 1.0
    scores, of_labels = _log_scores(marginals, labels)
    # NaN, too, is not above a number.
    if not bool((scores.amax(1) - scores.amin(1)).max() > _SMALLEST_SPREAD):
        return 1.0
    low, high = 1 / HIGHEST_TEMPERATURE, 1 / LOWEST_TEMPERATURE
    inverse = 1.0
    for _ in range(_MOST_PASSES):
        _, slope, curvature = _loss_slope_curvature(scores, of_labels, inverse)
        low, high = (low, inverse) if slope > 0 else (inverse, high)
        step = inverse - slope / curvature if curvature > 0 else low
        before, inverse = inverse, step if low < step < high else (low + high) / 2
        if abs(inverse - before) <= _RELATIVE_ACCURACY * before:
            break
    return 1 / inverse


FEWEST_SPANS = 50
"""needed for a fit; with fewer, the lowest score is used unchanged"""


def fit_span_calibration(lowest: Float[Tensor, " S"], is_right: Bool[Tensor, " S"]) -> SpanCalibration:
    """The slope (in [0.1, 10]) and offset with the least negative log-likelihood, by Newton's method.

    As Platt proposes, the targets are (n₁ + 1)/(n₁ + 2) and 1/(n₀ + 2) instead of 1 and 0, for n₁ right and n₀ wrong spans, so that
    the minimum is finite.
    """
    if len(lowest) < FEWEST_SPANS:
        return UNFITTED
    logits = torch.logit(lowest.double(), eps=1e-6)
    num_right = int(is_right.sum())
    high, low = (num_right + 1) / (num_right + 2), 1 / (len(lowest) - num_right + 2)
    targets = torch.where(is_right, high, low).double()
    slope, offset = _logistic_fit(torch.stack([logits, torch.ones_like(logits)], 1), targets, torch.zeros_like(logits))
    bounded = min(max(slope, LOWEST_TEMPERATURE), HIGHEST_TEMPERATURE)
    if bounded != slope:
        (offset,) = _logistic_fit(torch.ones_like(logits)[:, None], targets, bounded * logits)
    return SpanCalibration(bounded, offset)


def _logistic_fit(
    inputs: Float[Tensor, "S D"], targets: Float[Tensor, " S"], constant: Float[Tensor, " S"]
) -> list[float]:
    """The weights w with the least cross-entropy between ``targets`` and σ(inputs·w + constant), by Newton's method.

    The last column of ``inputs`` is 1. The start is the best weight of that column alone for small constants: where scores are far
    too high or low the curvature vanishes, and steps lead nowhere.
    """
    weights = torch.zeros(inputs.shape[1], dtype=torch.float64)
    weights[-1] = torch.logit(targets.mean()) - constant.mean()

    def loss(weights: Tensor) -> Tensor:
        scores = inputs @ weights + constant
        return (torch.nn.functional.softplus(scores) - targets * scores).sum()

    for _ in range(_MOST_PASSES):
        probabilities = torch.sigmoid(inputs @ weights + constant)
        slopes = inputs.T @ (probabilities - targets)
        curvature = (inputs.T * (probabilities * (1 - probabilities))) @ inputs
        step = torch.linalg.solve(curvature + 1e-9 * torch.eye(len(weights), dtype=torch.float64), slopes)
        # A full step may overshoot where the curvature is small.
        while loss(weights - step) > loss(weights) and step.abs().max() > _RELATIVE_ACCURACY:
            step = step / 2
        weights = weights - step
        if step.abs().max() <= _RELATIVE_ACCURACY:
            break
    return weights.tolist()


def expected_calibration_error(
    scores: Float[Tensor, " M"], is_right: Bool[Tensor, " M"], *, num_bins: int = 15
) -> float:
    """Σ_bins (units in bin / M) · |share of right labels − mean score|, over bins of equal width; 0 for no units.

    0 is perfect; 0.05 means that scores are off by five points of a hundred on average.
    """
    if len(scores) == 0:
        return 0.0
    bins = (scores * num_bins).long().clamp(0, num_bins - 1)
    gaps = torch.zeros(num_bins, dtype=torch.float64, device=scores.device)
    gaps.index_add_(0, bins, is_right.double() - scores.double())
    return float(gaps.abs().sum() / len(scores))


def _log_scores(marginals: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    scores = marginals.double().clamp(min=_SMALLEST_PROBABILITY).log()
    return scores, scores.gather(1, labels[:, None].long())[:, 0]


def _loss_slope_curvature(scores: Tensor, of_labels: Tensor, inverse: float) -> tuple[float, float, float]:
    sharpened = scores * inverse
    log_total = sharpened.logsumexp(1)
    weighted = (sharpened - log_total[:, None]).exp_().mul_(scores)
    expected = weighted.sum(1)
    variance = weighted.mul_(scores).sum(1) - expected.square()
    figures = torch.stack([log_total - inverse * of_labels, expected - of_labels, variance]).mean(1)
    loss, slope, curvature = figures.tolist()
    return loss, slope, curvature
