"""Small corpora and configurations for tests of training: invented sentences, a real model with everything switched on."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from diffusion_mf.config import Config
from diffusion_mf.data.files import checksum_of_entries
from diffusion_mf.lab.synthetic import write_corpus
from diffusion_mf.prediction.predictor import Predictor
from diffusion_mf.tagger import StoredModel
from diffusion_mf.training.corpora import read_training_data
from diffusion_mf.training.evaluation import predict_all
from diffusion_mf.training.processes import Processes
from diffusion_mf.training.progress import Progress

SMALL_MODEL: dict[str, dict[str, Any]] = {
    "encoder": {
        "word_width": 8,
        "character_width": 4,
        "character_hidden": 4,
        "width": 16,
        "layers": 1,
        "heads": 2,
        "pair_width": 4,
        "min_pair_count": 1,
        "word_dropout": 0.2,
        "embedding_dropout": 0.2,
        "dropout": 0.2,
    },
    "denoiser": {"layers": 1, "heads": 2, "width": 16, "dropout": 0.2, "time_width": 8},
    "structure": {"scorer_width": 8, "scorer_dropout": 0.2},
    "training": {
        "epochs": 2,
        "budget": 60,
        "accumulation": 2,
        "learning_rate": 3e-3,
        "warmup_steps": 4,
        "ema_decay": 0.9,
        "log_every": 1,
    },
    "inference": {"num_calls": 2},
}

NO_DROPOUT = {
    "encoder": {"word_dropout": 0.0, "embedding_dropout": 0.0, "dropout": 0.0},
    "denoiser": {"dropout": 0.0},
    "structure": {"scorer_dropout": 0.0},
}


def write_small_corpus(folder: Path) -> Path:
    """Entities over invented words: 48 training, 16 dev and 8 test sentences."""
    write_corpus(folder, flavours=["ner"], sizes={"train": 48, "dev": 16, "test": 8}, seed=3)
    return folder / "ner"


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small corpus; not to be changed."""
    return write_small_corpus(tmp_path_factory.mktemp("corpus"))


def write_small_documents(folder: Path, *, size: int) -> Path:
    """The small corpus in documents of ``size`` sentences."""
    written = write_small_corpus(folder)
    for name in ("train.txt", "dev.txt"):
        sentences = (written / name).read_text().strip().split("\n\n")
        pieces = ["\n\n".join(sentences[start : start + size]) for start in range(0, len(sentences), size)]
        (written / name).write_text("".join(f"-DOCSTART- O\n\n{piece}\n\n" for piece in pieces))
    return written


class RememberingDisplay:
    """A display of a run that remembers what it is told."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.updates: list[Progress] = []
        self.at_once: list[Progress] = []

    def update(self, progress: Progress, *, at_once: bool = False) -> None:
        (self.at_once if at_once else self.updates).append(progress)

    def note(self, message: str) -> None:
        self.notes.append(message)


def settings(corpus: Path, *changes: dict[str, Any]) -> dict[str, Any]:
    """A configuration as nested tables, with ``changes`` to the small model's."""
    values: dict[str, Any] = {
        "task": "ner",
        "system": "diffusion-mf",
        "data": {"train": str(corpus / "train.txt"), "dev": str(corpus / "dev.txt")},
    }
    for change in (SMALL_MODEL, *changes):
        for name, value in change.items():
            values[name] = {**values.get(name, {}), **value} if isinstance(value, dict) else value
    return values


def small_config(corpus: Path, *changes: dict[str, Any]) -> Config:
    return Config.model_validate(settings(corpus, *changes))


def write_config(path: Path, values: dict[str, Any]) -> Path:
    """TOML of ``settings``: plain values, then sections."""
    lines = [f"{name} = {json.dumps(value)}" for name, value in values.items() if not isinstance(value, dict)]
    for name, section in values.items():
        if isinstance(section, dict):
            lines += [f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in section.items())]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def read_log(folder: Path, event: str | None = None) -> list[dict[str, Any]]:
    lines = (folder / "log.jsonl").read_text(encoding="utf-8").splitlines()
    entries = [json.loads(line) for line in lines]
    return [entry for entry in entries if event is None or entry["event"] == event]


@contextlib.contextmanager
def changed_state(run: Path) -> Iterator[dict[str, Any]]:
    """The JSON values of a run's checkpoint, to be changed in the block; their checksum is then right."""
    path = run / "checkpoint" / "state.json"
    manifest = json.loads(path.read_text(encoding="utf-8"))
    yield manifest["state"]
    manifest["checksum"] = checksum_of_entries(manifest)
    path.write_text(json.dumps(manifest), encoding="utf-8")


def final_tensors(folder: Path) -> dict[str, torch.Tensor]:
    """Weights, averages and optimizer state of the last checkpoint, and the weights of the model folder."""
    state = json.loads((folder / "checkpoint" / "state.json").read_text(encoding="utf-8"))
    tensors = load_file(folder / "checkpoint" / state["tensors"])
    return tensors | {f"model/{name}": tensor for name, tensor in load_file(folder / "model/model.safetensors").items()}


def assert_same_outcome(first: Path, second: Path) -> None:
    """The same weights, averages, optimizer state and best model to the last bit, and the same history."""
    expected, actual = final_tensors(first), final_tensors(second)
    assert set(expected) == set(actual)
    differing = [name for name in expected if not torch.equal(expected[name], actual[name])]
    assert not differing
    for event, value in (("step", "loss"), ("evaluation", "scores"), ("test", "scores")):
        assert [entry[value] for entry in read_log(first, event)] == [entry[value] for entry in read_log(second, event)]


def start_training(
    config: Path, output: Path, *arguments: str, environment: dict[str, str] | None = None
) -> subprocess.Popen[str]:
    """``dmf train`` in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "diffusion_mf.cli", "train", str(config), "--output", str(output), *arguments],
        env={**os.environ, "OMP_WAIT_POLICY": "passive", **(environment or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def share_of_evaluation(
    model: StoredModel, rank: int, world_size: int, budget: int, decoders: Sequence[str]
) -> tuple[Tensor, Tensor]:
    """What one of several processes contributes to the labels and marginals of the dev sentences."""
    sentences = read_training_data(model.config).dev
    assert sentences is not None
    processes = _OneOfSeveral(rank, world_size, torch.device("cpu"))
    predictor = Predictor(model.labeller, model.config, torch.device("cpu"))
    inference = model.config.inference.model_copy(update={"budget": budget})
    config = model.config.model_copy(update={"inference": inference})
    return predict_all(predictor, sentences, config, model.vocabulary, decoders, processes)


class _OneOfSeveral(Processes):
    """A process whose share is not summed with those of the others."""

    def sum(self, tensor: torch.Tensor) -> None:
        pass
