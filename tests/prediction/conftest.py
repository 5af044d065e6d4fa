"""A small model that was trained, and what it is to label; made once."""

from __future__ import annotations

from pathlib import Path

import pytest
import small_runs

from diffusion_mf.data.corpus import Task
from diffusion_mf.data.formats import read_task
from diffusion_mf.data.sentence import Sentence
from diffusion_mf.lab.synthetic import write_corpus
from diffusion_mf.tagger import StoredModel, load_model
from diffusion_mf.training.loop import train


@pytest.fixture(scope="session")
def pos_corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    write_corpus(folder, flavours=["pos"], sizes={"train": 200, "dev": 100, "test": 1}, seed=3)
    return folder / "pos"


@pytest.fixture(scope="session")
def model(pos_corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> StoredModel:
    """Diffusion-MF that has learnt something."""
    config = small_runs.small_config(
        pos_corpus,
        small_runs.NO_DROPOUT,
        {
            "task": "pos",
            "data": {split: str(pos_corpus / f"{split}.conllu") for split in ("train", "dev")},
            "encoder": {"width": 32, "pair_width": 0},
            "denoiser": {"width": 32},
            "training": {
                "epochs": 6,
                "evaluate_every": 6,
                "budget": 300,
                "accumulation": 1,
                "learning_rate": 1e-2,
                "warmup_steps": 10,
            },
            "inference": {"num_calls": 10, "budget": 2000},
        },
    )
    folder = tmp_path_factory.mktemp("trained") / "run"
    train(config, output=folder, device="cpu")
    return load_model(folder / "model")


@pytest.fixture(scope="session")
def dev(pos_corpus: Path) -> tuple[Sentence, ...]:
    return tuple(read_task(str(pos_corpus / "dev.conllu"), Task.POS))
