"""Measures the time and memory of calls under equal conditions, and makes the problems they are measured on.

Calls to be compared take turns in short blocks within one process, and each gets its median over all blocks. The time of a run is
the wall-clock time between two synchronisations of the device: Python, autograd, launches and the computation itself.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Hashable, Mapping
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

Workload = Callable[[], object]
Name = TypeVar("Name", bound=Hashable)

_BLOCKS = 7
_BLOCK_SECONDS = 0.05
_MAX_RUNS_PER_BLOCK = 50
_CLOCK_SECONDS = 0.2
_MEGABYTE = 2**20


def synchronise(device: torch.device) -> None:
    """Wait until the device has finished all its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def raise_clocks(device: torch.device, *, seconds: float = _CLOCK_SECONDS) -> None:
    """Keep a GPU busy with matrix products for a while, because its clock is low when idle and takes time to rise."""
    if device.type != "cuda":
        return
    matrix = torch.ones((4096, 4096), dtype=torch.bfloat16, device=device)
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for _ in range(8):
            torch.mm(matrix, matrix)
        synchronise(device)


def seconds_of(run: Workload, device: torch.device) -> float:
    """Wall-clock seconds of one run, from an idle device to an idle device."""
    synchronise(device)
    start = time.perf_counter()
    run()
    synchronise(device)
    return time.perf_counter() - start


def median_milliseconds(
    runs: Mapping[Name, Workload], device: torch.device, *, blocks: int = _BLOCKS, block_seconds: float = _BLOCK_SECONDS
) -> dict[Name, float]:
    """The median time of each of ``runs``, which take turns; every block begins with an untimed run."""
    counts = {}
    for name, run in runs.items():
        run()  # compiles kernels, fills caches
        slowest = max(seconds_of(run, device), 1e-6)
        counts[name] = min(_MAX_RUNS_PER_BLOCK, max(1, round(block_seconds / slowest)))
    found: dict[Name, list[float]] = {name: [] for name in runs}
    raise_clocks(device)
    was_collecting = gc.isenabled()
    gc.disable()
    try:
        for _ in range(blocks):
            for name, run in runs.items():
                raise_clocks(device, seconds=_CLOCK_SECONDS / 10)
                run()
                found[name] += [seconds_of(run, device) for _ in range(counts[name])]
    finally:
        if was_collecting:
            gc.enable()
    return {name: 1e3 * statistics.median(times) for name, times in found.items()}


def peak_memory_mb(run: Workload, device: torch.device) -> float | None:
    """The peak GPU memory of a run beyond what was allocated before, in MiB; None on a CPU.

    Gradients and results that the run leaves allocated are included.
    """
    if device.type != "cuda":
        return None
    run()
    gc.collect()
    synchronise(device)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    run()
    synchronise(device)
    return (torch.cuda.max_memory_allocated(device) - before) / _MEGABYTE


def as_graph(run: Workload) -> Workload:
    """``run`` captured as a CUDA graph: replaying it costs the device's time and next to no host time."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = run()

    def replay() -> object:
        graph.replay()
        return kept

    return replay


class ProblemShape(NamedTuple):
    """The number of sentences, units per sentence, and labels."""

    num_sentences: int
    num_units: int
    num_labels: int


class ChainProblem(NamedTuple):
    """Scores that require gradients, with labels, lengths and weights."""

    unary: Tensor
    transition: Tensor
    lengths: Tensor
    labels: Tensor
    is_unit: Tensor
    weights: Tensor  # (B, N, K), what marginals are multiplied with before they are differentiated

    @property
    def device(self) -> torch.device:
        """The device of all tensors."""
        return self.unary.device

    @property
    def scores(self) -> tuple[Tensor, Tensor]:
        """The tensors that gradients are taken with respect to."""
        return self.unary, self.transition


def random_problem(shape: ProblemShape, *, is_local: bool, device: torch.device) -> ChainProblem:
    """A problem of standard normal unary scores and small transition scores, from a fixed seed."""
    B, N, K = shape
    generator = torch.Generator().manual_seed(0)

    def normal(*size: int) -> Tensor:
        return torch.randn(size, generator=generator).to(device)

    return ChainProblem(
        unary=normal(B, N, K).requires_grad_(),
        transition=(0.1 * (normal(B, N - 1, K, K) if is_local else normal(K, K))).requires_grad_(),
        lengths=torch.full((B,), N, device=device),
        labels=torch.randint(K, (B, N), generator=generator).to(device),
        is_unit=torch.ones((B, N), dtype=torch.bool, device=device),
        weights=normal(B, N, K),
    )
