"""Long sentences in overlapping windows: where windows lie, and from which of them each subword takes its state.

Everything here is a function of the numbers of subwords alone, so that the same sentence is always cut the same way.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]


class Windows(NamedTuple):
    """Subwords ``starts[w]`` … ``ends[w] − 1`` are encoded together; ``owner[j]`` is the window of subword j's state."""

    starts: Integers
    ends: Integers
    owner: Integers


def plan_windows(counts: Integers, *, capacity: int, stride: int) -> Windows:
    """Cut units of ``counts`` subwords into windows of at most ``capacity`` subwords, special ones not counted.

    Windows begin ``stride`` after each other, or a little less, so that they begin with a unit where they can. A unit takes
    its state from the window where it is furthest from an edge (the sentence's own ends are none), the first among equals. One
    that no window holds as a whole takes the state of each subword from that subword's best window.
    """
    total = int(counts.sum())
    if total <= capacity:
        return Windows(np.zeros(1, np.int64), np.array([total]), np.zeros(total, np.int64))
    if not 1 <= stride <= capacity:
        raise ValueError(f"windows of {capacity} subwords need a stride from 1 to {capacity}, not {stride}")
    unit_ends = counts.cumsum()
    unit_starts = unit_ends - counts
    starts = _starts(unit_starts[counts > 0], total, capacity, stride)
    ends = np.minimum(starts + capacity, total)
    owner, nearest = np.zeros(total, np.int64), np.full(total, -1)
    unit_owner, unit_nearest = np.zeros(len(counts), np.int64), np.full(len(counts), -1)
    for window, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):

        def to_edge(firsts: Integers, lasts: Integers, start: int = start, end: int = end) -> Integers:
            left = firsts - start if start > 0 else np.full(len(firsts), total)
            return np.minimum(left, end - 1 - lasts) if end < total else left

        inside = slice(start, end)
        positions = np.arange(start, end)
        _take(owner[inside], nearest[inside], to_edge(positions, positions), window)
        whole = slice(np.searchsorted(unit_starts, start), np.searchsorted(unit_ends, end, side="right"))
        distance = to_edge(unit_starts[whole], unit_ends[whole] - 1)
        _take(unit_owner[whole], unit_nearest[whole], distance, window)
    is_whole = np.repeat(unit_nearest >= 0, counts)
    owner = np.where(is_whole, np.repeat(unit_owner, counts), owner)
    return Windows(starts, ends, owner)


def _starts(unit_starts: Integers, total: int, capacity: int, stride: int) -> Integers:
    starts = [0]
    while starts[-1] + capacity < total:
        aim = starts[-1] + stride
        aligned = int(unit_starts[np.searchsorted(unit_starts, aim, side="right") - 1])
        starts.append(aligned if aligned > starts[-1] else aim)
    return np.array(starts)


def _take(owner: Integers, nearest: Integers, distance: Integers, window: int) -> None:
    """Give ``window`` what lies further from its edges than from those of the windows before it."""
    is_better = distance > nearest
    owner[is_better] = window
    nearest[is_better] = distance[is_better]
