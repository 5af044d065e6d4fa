"""Two processes on this machine train as one does; the death of one is told by the other."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import small_runs
import torch
from torch import nn

from diffusion_mf.errors import DiffusionMFError
from diffusion_mf.tagger import load_model
from diffusion_mf.training import processes as distributed
from diffusion_mf.training.loop import train
from diffusion_mf.training.processes import Processes

BOUND = 120.0
"""seconds that any of these processes may take"""

CHANGES = {"training": {"epochs": 3, "ema_decay": 0.0, "threads": 1}}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class _Pair:
    """Two processes as torchrun would start them, each with an output folder of its own."""

    def __init__(self, config: Path, folder: Path, *arguments: str) -> None:
        common = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port())}
        self.folders = [folder / "first", folder / "second"]
        self.processes = [
            small_runs.start_training(
                config,
                self.folders[rank],
                *arguments,
                environment={**common, "RANK": str(rank), "LOCAL_RANK": str(rank), "DIFFUSION_MF_TIMEOUT": str(BOUND)},
            )
            for rank in (0, 1)
        ]

    def end(self) -> list[tuple[int, str, str]]:
        """Exit status, stdout and stderr of both."""
        found = []
        for process in self.processes:
            stdout, stderr = process.communicate(timeout=BOUND)
            found.append((process.returncode, stdout, stderr))
        return found

    def kill(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
                process.communicate()


@pytest.fixture
def pairs() -> Iterator[list[_Pair]]:
    started: list[_Pair] = []
    yield started
    for pair in started:
        pair.kill()


def test_two_processes_train_as_one(corpus: Path, tmp_path: Path, pairs: list[_Pair]) -> None:
    values = small_runs.settings(corpus, small_runs.NO_DROPOUT, CHANGES)
    pair = _Pair(small_runs.write_config(tmp_path / "config.toml", values), tmp_path)
    pairs.append(pair)
    train(small_runs.small_config(corpus, small_runs.NO_DROPOUT, CHANGES), output=tmp_path / "alone", device="cpu")
    (first, first_output, first_errors), (second, second_output, second_errors) = pair.end()
    assert (first, second) == (0, 0), first_errors + second_errors
    alone, together = (small_runs.read_log(folder, "step") for folder in (tmp_path / "alone", pair.folders[0]))
    assert len(alone) == len(together) >= 20
    for one, two in list(zip(alone, together, strict=True))[:20]:
        assert two["loss"] == pytest.approx(one["loss"], abs=1e-5)
        assert two["gradient_norm"] == pytest.approx(one["gradient_norm"], rel=1e-3)
    scores = [
        small_runs.read_log(folder, "evaluation")[0]["scores"] for folder in (tmp_path / "alone", pair.folders[0])
    ]
    assert scores[0] == scores[1], "dev sentences are shared out and none is lost"
    # Only rank 0 writes and speaks.
    assert "f1" in first_output
    assert not pair.folders[1].exists()
    assert second_output == ""


def test_a_dead_process_ends_the_others_with_a_message(corpus: Path, tmp_path: Path, pairs: list[_Pair]) -> None:
    values = small_runs.settings(corpus, {"training": {"epochs": 2000}})
    pair = _Pair(small_runs.write_config(tmp_path / "config.toml", values), tmp_path)
    pairs.append(pair)
    log = pair.folders[0] / "log.jsonl"
    deadline = time.monotonic() + BOUND
    while not (log.exists() and b'"event": "step"' in log.read_bytes()):
        assert time.monotonic() < deadline, "training did not begin"
        assert pair.processes[0].poll() is None, pair.processes[0].communicate()
        time.sleep(0.05)
    start = time.monotonic()
    os.kill(pair.processes[1].pid, signal.SIGKILL)
    try:
        _, errors = pair.processes[0].communicate(timeout=30)
    except subprocess.TimeoutExpired:
        pytest.fail("the surviving process waits for the dead one")
    assert time.monotonic() - start < 30
    assert pair.processes[0].returncode == 1
    assert "process 0 of 2 lost another process, which died or no longer answers" in errors
    assert "--resume" in errors
    assert "Traceback" not in errors


def test_shares_of_evaluation_fit_together_whatever_the_budgets(finished_run: Path, corpus: Path) -> None:
    """One process may have had to halve its batches; every unit is still labelled by exactly one of them."""
    model = load_model(finished_run / "model")
    labels, marginals = small_runs.share_of_evaluation(model, 0, 1, 500, ["argmax", "mask-viterbi"])
    shares = [
        small_runs.share_of_evaluation(model, rank, 3, budget, ["argmax", "mask-viterbi"])
        for rank, budget in enumerate((500, 60, 7))
    ]
    assert torch.equal(sum(share[0] for share in shares), labels)
    torch.testing.assert_close(sum(share[1] for share in shares), marginals)
    torch.testing.assert_close(marginals.sum(1), torch.ones(len(marginals)))


def test_gradients_are_summed_in_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for the network: the other process holds twice our gradients, and one that we have not."""
    monkeypatch.setattr(distributed, "_BUCKET_SIZE", 4)
    sent: list[int] = []

    def all_reduce(tensor: torch.Tensor) -> None:
        sent.append(tensor.numel())
        if len(sent) == 1:
            tensor += torch.tensor([1.0, 1.0, 1.0, 0.0])  # which parameters the other one has used
        else:
            tensor += 2 * tensor

    monkeypatch.setattr(torch.distributed, "all_reduce", all_reduce)
    parameters = [nn.Parameter(torch.zeros(shape)) for shape in ((3,), (1, 2), (2,), (5,))]
    parameters[0].grad = torch.tensor([1.0, 2.0, 3.0])
    parameters[1].grad = torch.tensor([[4.0, 5.0]])
    Processes(0, 2, torch.device("cpu")).sum_gradients(parameters)
    assert sent == [4, 3, 4]
    assert parameters[0].grad.tolist() == [3.0, 6.0, 9.0]
    assert parameters[1].grad.tolist() == [[12.0, 15.0]]
    assert parameters[2].grad is not None
    assert parameters[2].grad.tolist() == [0.0, 0.0]
    assert parameters[3].grad is None, "no process has used it"


def test_processes_that_cannot_meet_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = {"WORLD_SIZE": "2", "RANK": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port())}
    for name, value in {**environment, "DIFFUSION_MF_TIMEOUT": "1"}.items():
        monkeypatch.setenv(name, value)
    with (
        pytest.raises(DiffusionMFError, match="process 1 of 2 could not reach the others"),
        distributed.connected("cpu"),
    ):
        pytest.fail("nobody else is there")
