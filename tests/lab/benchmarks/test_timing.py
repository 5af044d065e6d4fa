from __future__ import annotations

import time

import pytest
import torch

from diffusion_mf.lab.benchmarks import timing
from diffusion_mf.lab.benchmarks.timing import as_graph, median_milliseconds, peak_memory_mb, seconds_of

CPU = torch.device("cpu")


def test_rivals_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    monkeypatch.setattr(timing, "seconds_of", lambda run, device: (run(), 0.02)[1])
    found = median_milliseconds(
        {"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, CPU, blocks=3, block_seconds=0.04
    )
    assert found == {"a": pytest.approx(20), "b": pytest.approx(20)}
    # Two runs each to warm up and to find how many fill a block; then blocks of one untimed run and two timed ones.
    assert "".join(calls) == "aabb" + "aaabbb" * 3


def test_the_median_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([1.0, 0.003, 0.001, 0.002, 5.0, 0.004])
    monkeypatch.setattr(timing, "seconds_of", lambda run, device: next(times))
    found = median_milliseconds({"a": lambda: None}, CPU, blocks=5, block_seconds=0.0)
    assert found["a"] == pytest.approx(3)


def test_seconds_are_those_of_the_run() -> None:
    assert 0.02 <= seconds_of(lambda: time.sleep(0.02), CPU) < 5


def test_no_memory_is_measured_on_a_cpu() -> None:
    assert peak_memory_mb(lambda: torch.ones(10), CPU) is None


@pytest.mark.gpu
def test_memory_and_graphs_on_a_gpu() -> None:
    device = torch.device("cuda")
    values = torch.ones(2**20, device=device)
    assert peak_memory_mb(lambda: values + 1, device) == pytest.approx(4, abs=0.1)
    replay = as_graph(lambda: values * 2)
    values.fill_(3)
    result = replay()
    torch.cuda.synchronize()
    assert isinstance(result, torch.Tensor)
    assert float(result[0]) == 6
