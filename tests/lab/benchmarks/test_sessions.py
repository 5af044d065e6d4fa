"""What a session times is what it was asked to time."""

from __future__ import annotations

from pathlib import Path

import small_runs
import torch

from diffusion_mf.lab.benchmarks.sessions import Session
from diffusion_mf.training.corpora import read_training_data


def test_a_base_takes_the_place_of_the_configured_schedule(tmp_path: Path) -> None:
    corpus = small_runs.write_small_corpus(tmp_path)
    config = small_runs.small_config(corpus, {"system": "diffusion-mf", "inference": {"num_calls": 2}})
    data = read_training_data(config)
    assert data.dev is not None
    session = Session(config, data, torch.device("cpu"))
    steps: set[int] = set()
    session.labeller.core.denoiser.register_forward_pre_hook(lambda _, inputs: steps.add(int(inputs[1][0])))
    session.inference_run(data.dev[:4])()
    assert len(steps) == 2
    steps.clear()
    assert session.inference_run(data.dev[:4], base=4.0)() > 0
    assert steps == {1000, 250, 62, 15, 3}
