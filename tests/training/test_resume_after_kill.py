"""SIGKILL at random moments, then resume: nothing of it can be seen in the end."""

from __future__ import annotations

import random
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import small_runs

from diffusion_mf.training.loop import train


def _num_steps(folder: Path) -> int:
    """Steps in the log as it is at this moment, perhaps with half a line at its end."""
    try:
        return (folder / "log.jsonl").read_bytes().count(b'"event": "step"')
    except FileNotFoundError:
        return 0


def _train_and_kill(config: Path, output: Path, generator: random.Random) -> bool:
    """Let a process train some steps more and kill it at a random moment; False if it was faster."""
    process = small_runs.start_training(config, output, "--resume", "--checkpoint-every", "0")
    target = _num_steps(output) + generator.randint(1, 8)
    try:
        while _num_steps(output) < target and process.poll() is None:
            time.sleep(0.002)
        # Long enough to fall into any part of a step: forward, backward, writing tensors, renaming.
        time.sleep(generator.uniform(0, 0.1))
        process.kill()
        process.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    return process.returncode == -signal.SIGKILL


def _check(corpus: Path, folder: Path, changes: dict[str, Any], *, num_kills: int) -> None:
    values = small_runs.settings(corpus, {"training": {"threads": 2}}, changes)
    config = small_runs.write_config(folder / "config.toml", values)
    generator = random.Random()
    was_killed = [_train_and_kill(config, folder / "killed", generator) for _ in range(num_kills)]
    assert was_killed[0], "the first kill must hit a run in progress"
    train(small_runs.small_config(corpus, {"training": {"threads": 2}}, changes), output=folder / "whole", device="cpu")
    train(
        small_runs.small_config(corpus, {"training": {"threads": 2}}, changes),
        output=folder / "killed",
        device="cpu",
        resume=True,
    )
    small_runs.assert_same_outcome(folder / "whole", folder / "killed")


def test_a_killed_run_ends_as_if_nothing_had_happened(corpus: Path, tmp_path: Path) -> None:
    _check(corpus, tmp_path, {"training": {"epochs": 3}}, num_kills=2)


@pytest.mark.slow
def test_a_killed_run_of_realistic_size_ends_as_if_nothing_had_happened(corpus: Path, tmp_path: Path) -> None:
    changes = {
        "encoder": {"word_width": 256, "character_hidden": 64, "width": 256, "layers": 2, "heads": 8},
        "denoiser": {"width": 256, "layers": 2, "heads": 8, "time_width": 64},
        "structure": {"scorer_width": 128, "transitions": "local"},
        "training": {"epochs": 6, "budget": 400},
    }
    _check(corpus, tmp_path, changes, num_kills=5)
