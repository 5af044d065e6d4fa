"""The processes of a run, and PyTorch's settings during it."""

from __future__ import annotations

import contextlib
import datetime
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
import torch.distributed
import torch.utils.deterministic
from torch import Tensor, nn

from diffusion_mf.errors import DiffusionMFError
from diffusion_mf.prediction.devices import choose_device
from diffusion_mf.training.signals import stop_signals


@contextlib.contextmanager
def reproducible(device: torch.device, *, threads: int | None) -> Iterator[None]:
    """Set the number of threads and, on the CPU, use deterministic algorithms only; the random state is restored."""
    previous_threads = torch.get_num_threads()
    previous_mode = torch.get_deterministic_debug_mode()
    previous_fill = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    if threads is not None:
        torch.set_num_threads(threads)
    if device.type == "cpu":
        torch.use_deterministic_algorithms(True)
        # Filling memory helps to find bugs, is not needed for determinism, and costs time.
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    try:
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            yield
    finally:
        torch.set_num_threads(previous_threads)
        torch.set_deterministic_debug_mode(previous_mode)
        torch.utils.deterministic.fill_uninitialized_memory = previous_fill  # type: ignore[attr-defined]


class Interruption:
    """What SIGINT and SIGTERM do: before the end of the first step they end the run at once, for there is nothing to save;
    later, the run ends after the current step, with a checkpoint, and a second signal ends it at once."""

    def __init__(self) -> None:
        self.is_immediate = True
        self.error: BaseException | None = None

    def watched(self) -> contextlib.AbstractContextManager[None]:
        """Watch for the signals, if this thread can."""
        return stop_signals(self._request)

    def _request(self, error: BaseException, restore: Callable[[], None]) -> None:
        self.error = error
        restore()
        if self.is_immediate:
            raise error


Item = TypeVar("Item")

DEFAULT_TIMEOUT = 600.0
TIMEOUT_VARIABLE = "DIFFUSION_MF_TIMEOUT"
"""Seconds to wait for another process before the run fails."""

# Gradients are summed in buckets of about this many numbers: large enough for the network, small enough for memory.
_BUCKET_SIZE = 1 << 25


@dataclass(frozen=True)
class Processes:
    """This process among all processes of the run."""

    rank: int
    world_size: int
    device: torch.device

    @property
    def is_writer(self) -> bool:
        """Whether this process writes the files."""
        return self.rank == 0

    def share(self, batch: Sequence[Item]) -> list[Item]:
        """The sentences (or documents) of a batch that this process works on; possibly none."""
        return list(batch[self.rank :: self.world_size])

    def sum(self, tensor: Tensor) -> None:
        """Replace ``tensor`` by its sum over all processes."""
        if self.world_size > 1:
            self._guarded(lambda: torch.distributed.all_reduce(tensor))

    def broadcast(self, tensors: Sequence[Tensor]) -> None:
        """Replace ``tensors`` by those of rank 0."""
        if self.world_size > 1:
            for tensor in tensors:
                self._guarded(lambda tensor=tensor: torch.distributed.broadcast(tensor, 0))  # type: ignore[misc]

    def sum_gradients(self, parameters: Sequence[nn.Parameter]) -> None:
        """Sum gradients over all processes; a parameter that no process used keeps no gradient."""
        if self.world_size == 1:
            return
        is_used = torch.tensor([float(parameter.grad is not None) for parameter in parameters], device=self.device)
        self.sum(is_used)
        used = [parameter for parameter, count in zip(parameters, is_used.tolist(), strict=True) if count]
        for bucket in _buckets(used):
            gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in bucket]
            flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
            self.sum(flat)
            pieces = flat.split([parameter.numel() for parameter in bucket])
            for parameter, piece in zip(bucket, pieces, strict=True):
                parameter.grad = piece.view_as(parameter)

    def _guarded(self, collective: Callable[[], object]) -> None:
        try:
            collective()
        except RuntimeError as error:
            raise DiffusionMFError(
                f"process {self.rank} of {self.world_size} lost another process, which died or no longer answers "
                f"({_reason(error)}); see the messages of the others, then continue with --resume."
            ) from None


def _reason(error: Exception) -> str:
    """The first sentence of a network error, without the position in PyTorch's sources."""
    text = re.sub(r"\[/[^\]]*\]\s*", "", str(error)).strip() or type(error).__name__
    return text.splitlines()[0].split(". ")[0].rstrip(".")


def _buckets(parameters: Sequence[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    bucket: list[nn.Parameter] = []
    for parameter in parameters:
        if bucket and sum(member.numel() for member in bucket) + parameter.numel() > _BUCKET_SIZE:
            yield bucket
            bucket = []
        bucket.append(parameter)
    if bucket:
        yield bucket


@contextlib.contextmanager
def connected(device: str = "auto") -> Iterator[Processes]:
    """Join the other processes of the run if torchrun started several; otherwise run alone."""
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    if world_size == 1:
        alone = choose_device(device)
        if alone.type == "cuda":
            torch.cuda.set_device(alone)
        yield Processes(0, 1, alone)
        return
    rank, local_rank = int(os.environ["RANK"]), int(os.environ.get("LOCAL_RANK", "0"))
    chosen = choose_device(device, local_rank=local_rank)
    if chosen.type == "cuda":
        torch.cuda.set_device(chosen)
    timeout = datetime.timedelta(seconds=float(os.environ.get(TIMEOUT_VARIABLE, DEFAULT_TIMEOUT)))
    try:
        torch.distributed.init_process_group(
            # Gradients are on the devices; positions and labels, which are few, on the hosts.
            "cpu:gloo,cuda:nccl" if chosen.type == "cuda" else "gloo",
            timeout=timeout,
        )
    except (RuntimeError, ValueError) as error:
        raise DiffusionMFError(
            f"process {rank} of {world_size} could not reach the others ({_reason(error)}); "
            "check that all were started and that the master's address can be reached."
        ) from None
    yield Processes(rank, world_size, chosen)
    # After an error nothing is taken down: that would wait for processes that may be gone, and this one ends anyway.
    torch.distributed.destroy_process_group()
