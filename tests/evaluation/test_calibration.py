from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from diffusion_mf.evaluation.calibration import (
    UNFITTED,
    SpanCalibration,
    calibrated,
    expected_calibration_error,
    fit_span_calibration,
    fit_temperature,
    negative_log_likelihood,
)


def two_label_data(score: float, num_right: int, num_wrong: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Units that all have the same score for label 0, which is right for the first of them."""
    marginals = torch.tensor([[score, 1 - score]]).expand(num_right + num_wrong, 2)
    return marginals, torch.tensor([0] * num_right + [1] * num_wrong)


def test_temperature_of_a_case_worked_by_hand() -> None:
    # Always .9, right three times in four: the best T turns .9 into .75, so 9^(1/T) = 3 and T = 2.
    marginals, labels = two_label_data(0.9, 3, 1)
    assert fit_temperature(marginals, labels) == pytest.approx(2.0, rel=1e-5)
    before = -(3 * math.log(0.9) + math.log(0.1)) / 4
    after = -(3 * math.log(0.75) + math.log(0.25)) / 4
    assert negative_log_likelihood(marginals, labels) == pytest.approx(before, rel=1e-6)
    assert negative_log_likelihood(marginals, labels, temperature=2.0) == pytest.approx(after, rel=1e-6)
    assert after < before


def test_scores_that_are_too_modest_are_sharpened() -> None:
    # .6 that is right nine times in ten: 1.5^(1/T) = 9.
    assert fit_temperature(*two_label_data(0.6, 9, 1)) == pytest.approx(math.log(1.5) / math.log(9), rel=1e-5)


def test_temperature_stays_within_bounds() -> None:
    assert fit_temperature(*two_label_data(0.6, 5, 0)) == pytest.approx(0.1)
    assert fit_temperature(*two_label_data(0.6, 0, 5)) == pytest.approx(10.0)
    assert fit_temperature(torch.empty(0, 3), torch.empty(0, dtype=torch.long)) == 1.0


@pytest.mark.parametrize(
    "marginals", [torch.ones(4, 1), torch.full((4, 3), 1 / 3), torch.full((4, 3), math.nan)], ids=["one", "even", "nan"]
)
def test_scores_that_no_temperature_improves_stay(marginals: torch.Tensor) -> None:
    assert fit_temperature(marginals, torch.arange(4) % marginals.shape[1]) == 1.0


def test_a_gold_label_of_probability_zero_is_survived() -> None:
    marginals = torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.9, 0.1]])
    temperature = fit_temperature(marginals, torch.tensor([1, 0, 0]))
    assert 1.0 < temperature <= 10.0


@given(st.integers(0, 10_000))
def test_the_fit_lowers_the_loss_on_other_data_of_the_same_kind(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    truth = (torch.randn(4000, 4, generator=generator) * 1.5).softmax(-1)
    labels = torch.multinomial(truth, 1, generator=generator)[:, 0]
    too_sure = calibrated(truth, 0.5)
    temperature = fit_temperature(too_sure[:2000], labels[:2000])
    assert temperature == pytest.approx(2.0, rel=0.25)
    held_out = too_sure[2000:], labels[2000:]
    assert negative_log_likelihood(*held_out, temperature=temperature) < negative_log_likelihood(*held_out)


def test_calibration_keeps_the_order_of_labels_zeros_and_sums() -> None:
    marginals = torch.tensor([[0.7, 0.2, 0.1, 0.0], [1.0, 0.0, 0.0, 0.0]])
    for temperature in (0.3, 1.0, 4.0):
        result = calibrated(marginals, temperature)
        assert torch.allclose(result.sum(-1), torch.ones(2))
        assert result[0].argsort(descending=True).tolist() == [0, 1, 2, 3]
        assert (result == 0).tolist() == (marginals == 0).tolist()
    assert torch.allclose(calibrated(marginals, 1.0), marginals)


def test_expected_calibration_error_by_hand() -> None:
    scores = torch.tensor([0.95, 0.95, 0.95, 0.95, 0.5, 0.5])
    is_right = torch.tensor([True, True, True, False, True, False])
    # One bin is off by .2 with four of six units, the other by nothing.
    assert expected_calibration_error(scores, is_right, num_bins=10) == pytest.approx(4 / 6 * 0.2, abs=1e-6)
    assert expected_calibration_error(torch.ones(3), torch.ones(3, dtype=torch.bool)) == 0.0
    assert expected_calibration_error(torch.empty(0), torch.empty(0, dtype=torch.bool)) == 0.0


def test_span_calibration_of_a_case_worked_by_hand() -> None:
    # Scores of .5 that are right in a quarter of the cases and .9 in three quarters: the map must meet both, but for the smoothing.
    lowest = torch.tensor([0.5] * 4000 + [0.9] * 4000)
    is_right = torch.tensor([True] * 1000 + [False] * 3000 + [True] * 3000 + [False] * 1000)
    found = fit_span_calibration(lowest, is_right)
    assert found(0.5) == pytest.approx(0.25, abs=1e-3)
    assert found(0.9) == pytest.approx(0.75, abs=1e-3)
    assert (found(0.0), found(1.0)) == (0.0, 1.0)


def test_span_calibration_needs_spans() -> None:
    assert fit_span_calibration(torch.full((49,), 0.9), torch.zeros(49, dtype=torch.bool)) == UNFITTED
    assert UNFITTED(0.3) == 0.3
    # All right, or all wrong, or all with one score: finite, and still in order.
    for is_right in (torch.ones(60, dtype=torch.bool), torch.zeros(60, dtype=torch.bool)):
        for lowest in (torch.full((60,), 0.9), torch.linspace(0, 1, 60)):
            found = fit_span_calibration(lowest, is_right)
            assert math.isfinite(found.offset)
            assert 0.1 <= found.slope <= 10
            assert found(0.2) <= found(0.8)


@given(st.integers(0, 10_000))
def test_the_span_fit_calibrates_other_data_of_the_same_kind(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    lowest = torch.rand(6000, generator=generator, dtype=torch.float64)
    truth = torch.tensor([SpanCalibration(0.6, -0.8)(value) for value in lowest.tolist()], dtype=torch.float64)
    is_right = torch.rand(6000, generator=generator, dtype=torch.float64) < truth
    found = fit_span_calibration(lowest[:3000], is_right[:3000])
    confidences = torch.tensor([found(value) for value in lowest[3000:].tolist()], dtype=torch.float64)
    assert expected_calibration_error(confidences, is_right[3000:]) < 0.05
    assert expected_calibration_error(lowest[3000:], is_right[3000:]) > 0.1


@pytest.mark.parametrize("is_right", [False, True])
@pytest.mark.parametrize("lowest", [1e-9, 1 - 1e-9])
def test_spans_that_are_all_wrong_or_all_right_are_fitted_within_reason(lowest: float, is_right: bool) -> None:
    found = fit_span_calibration(torch.full((200,), lowest, dtype=torch.float64), torch.full((200,), is_right))
    assert found(min(max(lowest, 1e-6), 1 - 1e-6)) == pytest.approx(201 / 202 if is_right else 1 / 202, rel=1e-3)
    assert abs(found.offset) < 200
