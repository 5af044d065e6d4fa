"""Where windows lie, against a search over all of them by hand."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diffusion_mf.networks.pretrained.subwords import plan_windows


def furthest_from_an_edge(first: int, last: int, windows: list[tuple[int, int]], total: int) -> int | None:
    """The first window with the largest distance from its inner edges to first…last; None if none holds them all."""
    best, best_distance = None, -1
    for index, (start, end) in enumerate(windows):
        if start <= first and last < end:
            left = total if start == 0 else first - start
            right = total if end == total else end - 1 - last
            if min(left, right) > best_distance:
                best, best_distance = index, min(left, right)
    return best


counts_lists = st.lists(st.integers(0, 9), min_size=1, max_size=30)


@given(counts=counts_lists, capacity=st.integers(2, 12), data=st.data())
def test_every_subword_is_in_its_window_and_units_take_the_best(counts, capacity, data) -> None:
    stride = data.draw(st.integers(1, capacity))
    starts, ends, owner = plan_windows(np.array(counts), capacity=capacity, stride=stride)
    total = sum(counts)
    windows = list(zip(starts.tolist(), ends.tolist(), strict=True))
    assert windows[0][0] == 0
    assert windows[-1][1] == total
    assert all(0 <= end - start <= capacity for start, end in windows)
    assert all(
        previous[0] < following[0] <= previous[0] + stride for previous, following in itertools.pairwise(windows)
    )
    first = 0
    for count in counts:
        last = first + count - 1
        if count:
            whole = furthest_from_an_edge(first, last, windows, total)
            for subword in range(first, last + 1):
                expected = furthest_from_an_edge(subword, subword, windows, total) if whole is None else whole
                assert owner[subword] == expected
        first += count


def test_windows_begin_with_units() -> None:
    starts, ends, owner = plan_windows(np.array([3, 3, 3, 3, 3]), capacity=9, stride=5)
    assert starts.tolist() == [0, 3, 6]
    assert ends.tolist() == [9, 12, 15]
    # The first and the last window have only one edge each.
    assert owner.tolist() == [0] * 6 + [1] * 3 + [2] * 6


def test_a_sentence_that_fits_is_one_window() -> None:
    starts, ends, owner = plan_windows(np.array([2, 0, 3]), capacity=5, stride=1)
    assert (starts.tolist(), ends.tolist(), owner.tolist()) == ([0], [5], [0] * 5)


def test_a_stride_that_would_leave_gaps_is_refused() -> None:
    with pytest.raises(ValueError, match="stride"):
        plan_windows(np.array([10]), capacity=4, stride=5)
