from __future__ import annotations

import math

import pytest

from diffusion_mf.lab.experiments.selection import paired_difference, summarise, two_sided_p


def test_mean_and_sample_deviation_by_hand() -> None:
    found = summarise({1: 90.0, 2: 91.0, 3: 92.0, 4: 95.0})
    assert found is not None
    assert found.mean == 92.0
    assert found.deviation == pytest.approx(math.sqrt((4 + 1 + 0 + 9) / 3))
    assert found.seeds == (1, 2, 3, 4)
    assert summarise({}) is None
    single = summarise({7: 1.0})
    assert single is not None
    assert single.deviation is None


def test_paired_difference_uses_common_seeds_only() -> None:
    found = paired_difference({1: 2.0, 2: 4.0, 3: 7.0, 4: 9.0, 5: 0.0}, {4: 5.0, 3: 4.0, 2: 2.0, 1: 1.0, 9: 3.0})
    assert found is not None
    assert found.seeds == (1, 2, 3, 4)
    assert found.mean == 2.5  # of 1, 2, 3, 4
    assert found.deviation == pytest.approx(math.sqrt(5 / 3))
    assert found.standard_error == pytest.approx(math.sqrt(5 / 3) / 2)
    assert found.is_significant
    # t = 2.5 / 0.6455 = 3.873 with three degrees of freedom.
    assert found.p_value == pytest.approx(0.03047, abs=1e-4)
    assert paired_difference({1: 1.0}, {2: 1.0}) is None


def test_too_few_seeds_have_no_test() -> None:
    found = paired_difference({1: 1.0, 2: 2.0, 3: 3.0}, {1: 0.0, 2: 1.5, 3: 1.0})
    assert found is not None
    assert found.p_value is None
    assert not found.is_significant
    # 0, 2, 3, 4 is more than two standard errors, and p = .078 all the same.
    found = paired_difference({1: 0.0, 2: 2.0, 3: 3.0, 4: 4.0}, dict.fromkeys((1, 2, 3, 4), 0.0))
    assert found is not None
    assert found.mean > 2 * (found.standard_error or 0)
    assert not found.is_significant


@pytest.mark.parametrize("degrees", range(1, 12))
@pytest.mark.parametrize("t", [0.0, 0.3, -1.0, 2.5, 10.0])
def test_t_distribution_agrees_with_scipy(t: float, degrees: int) -> None:
    stats = pytest.importorskip("scipy.stats")
    assert two_sided_p(t, degrees=degrees) == pytest.approx(2 * stats.t.sf(abs(t), degrees), abs=1e-10)
