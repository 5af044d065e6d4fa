"""A small corpus and a small finished run, made once."""

from __future__ import annotations

from pathlib import Path

import pytest
import small_runs
from small_runs import corpus as corpus

from diffusion_mf.training.loop import train


@pytest.fixture(scope="session")
def finished_run(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output folder of an uninterrupted run with two threads, test data included; not to be changed."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    config = small_runs.small_config(corpus, {"training": {"threads": 2}, "data": {"test": str(corpus / "test.txt")}})
    train(config, output=folder, device="cpu")
    return folder
