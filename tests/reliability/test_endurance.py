"""Memory does not grow with calls, and results do not depend on how work is split; `make torture` makes 10,000 calls."""

from __future__ import annotations

import mmap
import random
from pathlib import Path

import endurance
import pytest


def test_ways_to_tag(tmp_path: Path) -> None:
    outcomes = list(endurance.ways_to_tag(tmp_path, random.Random(1), 2))
    assert len(outcomes) == 2 * 5 * len(endurance.SYSTEMS)
    assert [way for way, same in outcomes if not same] == []


def test_growth_is_noticed() -> None:
    kept: list[mmap.mmap] = []

    def leak(number: int) -> None:
        # Memory of its own: what the process has freed before would serve a smaller allocation.
        kept.append(mmap.mmap(-1, 20 * mmap.PAGESIZE))
        kept[-1].write(b"x" * len(kept[-1]))

    assert endurance._repeated(leak, 500) == pytest.approx(20 * mmap.PAGESIZE, rel=0.5)


def test_tagging_needs_no_more_memory_with_every_call(tmp_path: Path) -> None:
    assert endurance.growth_of_tagging(tmp_path, random.Random(1), 150) < 20_000, "a batch that is kept takes more"
