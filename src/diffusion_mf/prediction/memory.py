"""Running out of memory: detect it, release memory before retrying with less, and report a model that cannot fit."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from diffusion_mf.errors import DiffusionMFError
from diffusion_mf.prediction.recording import Recorder

Model = TypeVar("Model", bound=nn.Module)

TRAINING_BYTES = 16
"""per trained parameter, besides the parameter itself: gradient, two moments and moving average, all float32"""

# Messages of PyTorch's CPU allocator, and of CUDA where another process has taken the rest of a card: they have no class of their own.
_MESSAGES = ("can't allocate memory", "CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether ``error`` means that the device or the machine is out of memory."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or (
        isinstance(error, RuntimeError) and any(message in str(error) for message in _MESSAGES)
    )


class MemoryGuard:
    """A block of work that ends without an error when memory runs out; ``ran_out`` records it.

    Call `release_memory` and retry with half the size after the block, where nothing refers to its tensors any more.
    """

    ran_out = False

    def __enter__(self) -> MemoryGuard:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:
        self.ran_out = error is not None and is_out_of_memory(error)
        return self.ran_out


class DoesNotFitError(DiffusionMFError):
    """A sentence or document that does not fit into memory even on its own."""

    def __init__(self, num_units: int, *, is_document: bool, advice: str) -> None:
        self.problem = f"a {'document' if is_document else 'sentence'} of {num_units} units does not fit in memory"
        super().__init__(f"{self.problem}; {advice}.")


def placed(model: Model, device: torch.device, *, is_trained: bool = False) -> Model:
    """``model`` on ``device``; a `DiffusionMFError` that states its size if there is not enough memory.

    ``is_trained`` requires memory for the state of training, and for a copy of the best model.
    """
    sizes = [(parameter.numel(), parameter.requires_grad) for parameter in model.parameters()]
    num_parameters = sum(size for size, _ in sizes)
    needed = 4 * num_parameters
    if is_trained:
        needed += 4 * num_parameters + TRAINING_BYTES * sum(size for size, is_adjusted in sizes if is_adjusted)
    free = free_bytes(device)
    # On a CPU the weights themselves are already in memory.
    if free is not None and needed - (4 * num_parameters if device.type == "cpu" else 0) > free:
        raise _does_not_fit(num_parameters, needed, device, is_trained=is_trained)
    try:
        return model.to(device)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
    raise _does_not_fit(num_parameters, needed, device, is_trained=is_trained)


def free_bytes(device: torch.device) -> int | None:
    """Bytes that can still be allocated on ``device``; None if unknown. For a CPU: memory, swap, and the process's limit."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    if device.type != "cpu":
        return None
    try:
        entries = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        free = 1024 * sum(int(entries[name].split()[0]) for name in ("MemAvailable", "SwapFree"))
        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except (OSError, ValueError, KeyError, IndexError):
        return None
    import resource  # available wherever there is /proc

    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    return free if limit == resource.RLIM_INFINITY else min(free, max(limit - pages * resource.getpagesize(), 0))


def _does_not_fit(num_parameters: int, needed: int, device: torch.device, *, is_trained: bool) -> DiffusionMFError:
    advice = "choose a smaller encoder or size"
    if is_trained:
        advice += ", or for a pretrained encoder encoder.freeze or encoder.lora_rank"
    return DiffusionMFError(
        f"the model has {num_parameters / 1e6:,.0f} million parameters and needs {needed / 1e9:,.1f} GB "
        f"{'for training ' if is_trained else ''}without any batch, more than {device} has free; {advice}."
    )


def release_memory(device: torch.device, recorders: Iterable[Recorder[Any]] = ()) -> None:
    """Drop recordings, which hold on to their memory, and return cached blocks to the device, so that other sizes fit."""
    for recorder in recorders:
        recorder.forget()
    if device.type == "cuda":
        torch.cuda.empty_cache()
