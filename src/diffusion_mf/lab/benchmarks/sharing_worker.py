"""One of the processes of `lab.benchmarks.load`: reads its task, warms up, says so, and trains from the word “go” on."""

from __future__ import annotations

import json
import sys
from typing import Any

import torch

from diffusion_mf.config import Config
from diffusion_mf.lab.benchmarks.sessions import Session
from diffusion_mf.plugins import from_environment, import_plugins
from diffusion_mf.training.corpora import read_training_data


def main() -> None:
    """A line in, a line out, a line in, a line out."""
    task = json.loads(sys.stdin.readline())
    import_plugins(from_environment())
    config = Config.model_validate_json(task["config"])
    device = torch.device(task["device"])
    if config.training.threads is not None:
        torch.set_num_threads(config.training.threads)
    session = Session(config, read_training_data(config), device)

    def wait() -> None:
        _say({"is_ready": True})
        if not sys.stdin.readline():
            raise SystemExit(1)

    num_sentences, seconds = session.train_for(task["seconds"], wait=wait)
    _say(
        {
            "sentences": num_sentences,
            "seconds": seconds,
            "parameters": session.labeller.num_parameters(),
            "peak_memory_gb": torch.cuda.max_memory_reserved() / 1e9 if device.type == "cuda" else None,
        }
    )


def _say(answer: dict[str, Any]) -> None:
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
