"""Small plans with invented corpora, and made-up results for tables."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from diffusion_mf.data.files import write_json
from diffusion_mf.lab.experiments.folders import ExperimentFolder
from diffusion_mf.lab.synthetic import write_corpus

SMALL_CONFIG = """
task = "ner"
system = "unigram"
[encoder]
word_width = 8
character_width = 4
character_hidden = 4
width = 16
layers = 1
heads = 2
[denoiser]
layers = 1
heads = 2
width = 16
time_width = 8
[structure]
scorer_width = 8
[training]
epochs = 2
budget = 200
learning_rate = 3e-3
warmup_steps = 4
ema_decay = 0.9
log_every = 1
[inference]
num_calls = 2
"""


def write_plan(folder: Path, text: str, *, sentences: int = 40) -> Path:
    """A corpus, a configuration and a plan for them, in ``folder``."""
    write_corpus(folder / "corpus", flavours=["ner"], sizes={"train": sentences, "dev": 12, "test": 8}, seed=3)
    (folder / "small.toml").write_text(SMALL_CONFIG, encoding="utf-8")
    (folder / "corpora.toml").write_text(corpora_text(folder), encoding="utf-8")
    path = folder / "plan.toml"
    path.write_text('configs = "small.toml"\ncorpora = ["tiny"]\n' + text, encoding="utf-8")
    return path


def corpora_text(folder: Path) -> str:
    files = {split: folder / "corpus" / "ner" / f"{split}.txt" for split in ("train", "dev", "test")}
    return "\n".join(['[tiny]\ntask = "ner"', *(f'{split} = "{path}"' for split, path in files.items())]) + "\n"


def start_runner(
    plan: Path, output: Path, *arguments: str, environment: Mapping[str, str] | None = None
) -> subprocess.Popen[str]:
    """``dmf experiment run`` in a process of its own."""
    command = [sys.executable, "-m", "diffusion_mf.cli", "experiment", "run", str(plan), "--output", str(output)]
    return subprocess.Popen(
        [*command, "--devices", "cpu", *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive", **(environment or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def attempts_of(output: Path) -> dict[str, list[str]]:
    """The outcomes of every run's attempts."""
    return {
        path.parent.name: [attempt["outcome"] for attempt in json.loads(path.read_text())["attempts"]]
        for path in (output / "runs").glob("*/attempts.json")
    }


def made_up_result(
    *,
    dev: Mapping[str, float],
    test: Mapping[str, float],
    metric: str = "f1",
    task: str = "ner",
    is_diffusion: bool = True,
    schedules: Mapping[str, Mapping[str, Mapping[str, float]]] | None = None,
    exact_match: float | None = None,
) -> dict[str, Any]:
    """A result whose decoders have the given scores; ``schedules`` by name, split and decoder."""

    def metrics(scores: Mapping[str, float]) -> dict[str, dict[str, float]]:
        others = {} if exact_match is None else {"exact_match": exact_match}
        return {decoder: {metric: score, **others} for decoder, score in scores.items()}

    return {
        "task": task,
        "metric": metric,
        "is_diffusion": is_diffusion,
        "dev": {metric: max(dev.values())},
        "decoders": metrics(dev),
        "test_decoders": metrics(test),
        "schedules": {
            name: {split: metrics(scores) for split, scores in splits.items()}
            for name, splits in (schedules or {}).items()
        },
        "configuration": "configs/x.toml",
        "parameters": 7,
        "seconds": 10.0,
        "command": "dmf experiment run x.toml",
        "commit": "abc",
        "hardware": "a machine",
        "versions": {"python": "3"},
        "date": "2026-01-01T00:00:00+00:00",
    }


def write_experiment(
    root: Path, results: list[tuple[dict[str, Any], dict[str, Any] | None]], *, table: str = "main"
) -> Path:
    """An experiment's folder from (coordinates, result) pairs; None is a run that has not finished."""
    folder = ExperimentFolder(root)
    runs = []
    for number, (coordinates, result) in enumerate(results):
        place = {"encoder": "scratch", "variant": "default", **coordinates}
        name = f"run{number}"
        runs.append({"name": name, **place})
        folder.run(name).root.mkdir(parents=True)
        if result is not None:
            write_json(folder.run(name).root / "result.json", result)
    folder.save_plan({"name": "made-up", "table": table, "runs": runs, "evaluation": {}})
    return root
