"""What follows from the throughput of runs that share a device, and what happens if one of them fails."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from diffusion_mf.config import Config
from diffusion_mf.errors import DiffusionMFError
from diffusion_mf.lab.benchmarks.load import best_count, has_multi_process_service, run_together


def _rows(speeds: dict[int, float]) -> list[dict[str, Any]]:
    return [{"setting": count, "sentences_per_second": speed} for count, speed in speeds.items()]


@pytest.mark.parametrize(
    ("speeds", "expected"),
    [
        ({1: 100.0}, 1),
        ({1: 100.0, 2: 180.0, 4: 240.0, 8: 245.0}, 4),
        # What the next number does not gain, the one after may.
        ({1: 100.0, 2: 103.0, 4: 106.0}, 4),
        ({1: 100.0, 2: 90.0, 4: 80.0}, 1),
    ],
)
def test_best_count(speeds: dict[int, float], expected: int) -> None:
    assert best_count(_rows(speeds)) == expected


def test_a_process_that_ends_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "false")
    with pytest.raises(DiffusionMFError, match="a run that shares the device has failed"):
        run_together(2, Config(task="ner", system="diffusion-mf"), device="cpu", seconds=0.1)


def test_the_multi_process_service_is_found_by_its_pipe(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    assert not has_multi_process_service()
    (tmp_path / "control").touch()
    assert has_multi_process_service()
