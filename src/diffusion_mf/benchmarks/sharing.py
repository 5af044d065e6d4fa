"""How many runs share a device before they take from each other what they gain: aggregate sentences per second.

Every run is a process of its own that trains as `dmf train` does (`benchmarks.sharing_worker`). All of them warm up first;
they begin to count at the same moment, and stop after the same number of seconds.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any

from diffusion_mf.config import Config
from diffusion_mf.errors import DiffusionMFError
from diffusion_mf.training.corpora import read_training_data

ROW_KEY = ("benchmark", "corpus", "system", "phase", "implementation", "setting", "parameters", "hardware")
COUNTS = (1, 2, 4, 8, 12)
SECONDS = 20.0
LEAST_GAIN = 0.05
"""of aggregate throughput, for which more processes are worth it"""


def measure_sharing(
    config: Config, *, corpus: str, device: str, counts: Sequence[int] = COUNTS, seconds: float = SECONDS
) -> Iterator[list[dict[str, Any]]]:
    """A row for each number of processes, as soon as it is known."""
    read_training_data(config)  # what is wrong with the data is better said here than by a process
    alone: float | None = None
    for count in counts:
        found = run_together(count, config, device=device, seconds=seconds)
        each = [answer["sentences"] / answer["seconds"] for answer in found]
        total = sum(each)
        alone = alone or total / count
        yield [
            {
                "benchmark": "sharing",
                "corpus": corpus,
                "system": config.system,
                "phase": "training",
                "implementation": "fast, MPS" if device == "cuda" and has_multi_process_service() else "fast",
                "setting": count,
                "sentences_per_second": total,
                "sentences_per_second_each": each,
                "relative": total / alone,
                "peak_memory_gb": found[0]["peak_memory_gb"],
                "parameters": found[0]["parameters"],
                "seconds": [answer["seconds"] for answer in found],
            }
        ]


def has_multi_process_service() -> bool:
    """Whether CUDA's programs run side by side on a GPU (NVIDIA's MPS) instead of taking turns."""
    # The pipe of its daemon, where that or NVIDIA's default says it is.
    return os.path.exists(os.path.join(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps"), "control"))


def best_count(rows: Sequence[Mapping[str, Any]]) -> int:
    """The number of processes after which no larger one adds `LEAST_GAIN` to the aggregate throughput."""
    best = rows[0]
    for row in rows[1:]:
        if row["sentences_per_second"] > (1 + LEAST_GAIN) * best["sentences_per_second"]:
            best = row
    return int(best["setting"])


def run_together(count: int, config: Config, *, device: str, seconds: float) -> list[dict[str, Any]]:
    """What so many processes answer that begin together."""
    task = json.dumps({"config": config.model_dump_json(), "device": device, "seconds": seconds})
    with contextlib.ExitStack() as stack:
        workers = [_Worker(task, stack) for _ in range(count)]
        for worker in workers:
            worker.hear()
        for worker in workers:
            worker.tell("go")
        return [worker.hear() for worker in workers]


class _Worker:
    """A process that is told things and answers, a line of JSON each; it ends with the stack."""

    def __init__(self, task: str, stack: contextlib.ExitStack) -> None:
        errors = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115 (the stack closes it)
        self._errors: IO[str] = stack.enter_context(errors)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "diffusion_mf.benchmarks.sharing_worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        stack.callback(self._end)
        self.tell(task)

    def tell(self, line: str) -> None:
        assert self._process.stdin is not None
        # One that has ended already will have nothing to say: `hear` finds out.
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()

    def hear(self) -> dict[str, Any]:
        """Its next answer; an error with its last words if it has ended."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if line:
            answer: dict[str, Any] = json.loads(line)
            return answer
        self._process.wait()
        self._errors.seek(0)
        words = [line.strip() for line in self._errors if line.strip()]
        raise DiffusionMFError(f"a run that shares the device has failed: {words[-1] if words else 'without a word'}")

    def _end(self) -> None:
        # It has no files to finish: what it knows, it has said.
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            with contextlib.suppress(BrokenPipeError):
                stream.close()
