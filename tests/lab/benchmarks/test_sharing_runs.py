"""What follows from the throughput of runs that share a device, and what happens if one of them fails."""

from __future__ import annotations

import multiprocessing
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import small_runs

from diffusion_mf.config import Config
from diffusion_mf.errors import DiffusionMFError, InputError
from diffusion_mf.lab.benchmarks.load import _train, best_count, has_multi_process_service, run_together


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


def test_a_run_that_fails_lets_the_others_go(tmp_path: Path) -> None:
    config = Config(task="ner", system="diffusion-mf", data={"train": str(tmp_path / "gone.txt")})
    barrier = threading.Barrier(2)
    with pytest.raises(InputError, match=r"gone\.txt"):
        _train(config, {}, "cpu", 0.1, barrier)
    assert barrier.broken


def test_a_process_that_ends_is_an_error(tmp_path: Path) -> None:
    """As when memory runs out; the other one does not wait for it."""
    corpus = small_runs.write_small_corpus(tmp_path)
    config = small_runs.small_config(corpus, {"system": "diffusion-mf"})
    killer = threading.Thread(target=_kill_a_child)
    killer.start()
    with pytest.raises(DiffusionMFError, match="a run that shares the device has failed"):
        run_together(2, config, device="cpu", seconds=60)
    killer.join()


def _kill_a_child() -> None:
    """Kill one of the two processes as soon as there are two."""
    while True:
        # A third one holds what they wait for.
        children = [child for child in multiprocessing.active_children() if child.name.startswith("SpawnProcess")]
        if len(children) == 2:
            children[0].kill()
            return
        time.sleep(0.05)


def test_the_multi_process_service_is_found_by_its_pipe(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    assert not has_multi_process_service()
    (tmp_path / "control").touch()
    assert has_multi_process_service()
