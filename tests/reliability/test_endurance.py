"""Memory does not grow with calls, and results do not depend on how work is split; `make torture` makes 10,000 calls."""

from __future__ import annotations

import random
from pathlib import Path

import endurance
import pytest


def test_ways_to_tag(tmp_path: Path) -> None:
    outcomes = list(endurance.ways_to_tag(tmp_path, random.Random(1), 2))
    assert len(outcomes) == 2 * 5 * len(endurance.SYSTEMS)
    assert all(outcomes)


def test_growth_is_noticed() -> None:
    kept: list[bytearray] = []
    growth = endurance._repeated(lambda number: kept.append(bytearray(b"x") * 20_000), 2000)
    assert growth == pytest.approx(20_000, rel=0.5)


def test_tagging_needs_no_more_memory_with_every_call(tmp_path: Path) -> None:
    assert endurance.growth_of_tagging(tmp_path, random.Random(1), 150) < 20_000, "a batch that is kept takes more"
