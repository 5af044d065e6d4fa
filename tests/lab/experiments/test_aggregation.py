from __future__ import annotations

import importlib
import math
import sys

import pytest

from diffusion_mf.errors import InputError
from diffusion_mf.lab.experiments.selection import paired_difference, summarise


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


@pytest.mark.parametrize("library", ["pandas", "scipy"])
def test_without_the_extra_one_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch, library: str) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    monkeypatch.delitem(sys.modules, paired_difference.__module__)
    with pytest.raises(InputError, match=r"need pandas and scipy; pip install 'diffusion-mf\[experiments\]'"):
        importlib.import_module(paired_difference.__module__)
