"""Models that do not fit on a device: what is said."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from diffusion_mf.errors import DiffusionMFError
from diffusion_mf.prediction import memory
from diffusion_mf.prediction.memory import MemoryGuard, free_bytes, placed
from diffusion_mf.prediction.recording import BatchSignature, FlatBatch, Recorder

GPU = torch.device("cuda", 0)


def model() -> nn.Module:
    layers = nn.Sequential(nn.Linear(1000, 1000, bias=False), nn.Linear(1000, 1000, bias=False))
    layers[0].requires_grad_(False)
    return layers


@pytest.mark.parametrize(
    ("is_trained", "needed"),
    # 2 million weights of 4 bytes; in training twice, and 16 more for each of the million that is adjusted.
    [(False, 8_000_000), (True, 32_000_000)],
)
def test_a_gpu_that_is_too_small(monkeypatch: pytest.MonkeyPatch, is_trained: bool, needed: int) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (needed - 1, 10**12))
    with pytest.raises(DiffusionMFError, match=r"2 million parameters and needs 0\.0 GB .*more than cuda:0 has free"):
        placed(model(), GPU, is_trained=is_trained)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (needed, 10**12))
    monkeypatch.setattr(nn.Module, "to", lambda self, device: self)
    assert isinstance(placed(model(), GPU, is_trained=is_trained), nn.Sequential)


def test_memory_that_runs_out_on_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    def to(self: nn.Module, device: torch.device) -> nn.Module:
        raise torch.OutOfMemoryError("no memory")

    monkeypatch.setattr(nn.Module, "to", to)
    with pytest.raises(DiffusionMFError, match="choose a smaller encoder or size"):
        placed(model(), torch.device("cpu"))


def test_other_errors_stay_what_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    def to(self: nn.Module, device: torch.device) -> nn.Module:
        raise RuntimeError("something else")

    monkeypatch.setattr(nn.Module, "to", to)
    with pytest.raises(RuntimeError, match="something else"):
        placed(model(), torch.device("cpu"))


def test_a_cpu_that_is_too_small(monkeypatch: pytest.MonkeyPatch) -> None:
    # The weights are there already: a copy of the best model, and 16 bytes for each number that is adjusted.
    monkeypatch.setattr(memory, "free_bytes", lambda device: 24_000_000 - 1)
    with pytest.raises(DiffusionMFError, match="more than cpu has free"):
        placed(model(), torch.device("cpu"), is_trained=True)
    monkeypatch.setattr(memory, "free_bytes", lambda device: 24_000_000)
    assert isinstance(placed(model(), torch.device("cpu"), is_trained=True), nn.Sequential)


@pytest.mark.skipif(not Path("/proc/meminfo").exists(), reason="told by Linux only")
def test_the_limit_of_a_process_counts() -> None:
    code = (
        "import resource, torch; from diffusion_mf.prediction.memory import free_bytes; before = free_bytes(torch.device('cpu'));"
        "resource.setrlimit(resource.RLIMIT_AS, (8 * 10**9, 8 * 10**9)); print(before, free_bytes(torch.device('cpu')))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert 0 < int(found[1]) < 8 * 10**9
    assert int(found[1]) <= int(found[0])
    assert free_bytes(torch.device("meta")) is None


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("no memory"),
        MemoryError(),
        RuntimeError("DefaultCPUAllocator: can't allocate memory"),
        RuntimeError("CUDA error: out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    ],
)
def test_work_ends_quietly_where_memory_runs_out(error: Exception) -> None:
    with MemoryGuard() as guard:
        raise error
    assert guard.ran_out
    with MemoryGuard() as guard:
        pass
    assert not guard.ran_out


@pytest.mark.parametrize("error", [RuntimeError("something else"), KeyboardInterrupt()])
def test_other_errors_end_it_as_they_would(error: BaseException) -> None:
    with pytest.raises(type(error)), MemoryGuard():
        raise error


def _fails(error: type[RuntimeError]) -> Callable[..., Any]:
    def work(*arguments: object) -> None:
        raise error("from the work")

    return work


@pytest.mark.parametrize(
    ("work", "error", "message"),
    [
        (_fails(torch.OutOfMemoryError), torch.OutOfMemoryError, "from the work"),
        (lambda *arguments: None, torch.AcceleratorError, "unjoined work"),
    ],
)
def test_an_error_during_a_recording_is_not_hidden_by_that_of_its_end(
    monkeypatch: pytest.MonkeyPatch, work: Callable[..., Any], error: type[RuntimeError], message: str
) -> None:
    @contextlib.contextmanager
    def graph(*arguments: object, **options: object) -> Any:
        try:
            yield
        finally:
            raise torch.AcceleratorError("CUDA error: capturing stream has unjoined work")

    monkeypatch.setattr(torch.cuda, "graph", graph)
    for name in ("CUDAGraph", "graph_pool_handle", "Stream", "current_stream"):
        monkeypatch.setattr(torch.cuda, name, lambda *arguments: None)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())
    batch = FlatBatch(BatchSignature((), (), 0, 0), torch.zeros(1, dtype=torch.int64))
    with pytest.raises(error, match=message):
        Recorder(torch.device("cpu"))._record(batch, work)
