"""When memory runs out: how to tell, and what to do before trying with less."""

from __future__ import annotations

import torch

# What PyTorch's allocator for the CPU says; it has no exception of its own.
_CPU_MESSAGE = "can't allocate memory"


def is_out_of_memory(error: BaseException) -> bool:
    """Whether ``error`` says that the device or the machine has no memory left for a tensor."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or (
        isinstance(error, RuntimeError) and _CPU_MESSAGE in str(error)
    )


def release_memory(device: torch.device) -> None:
    """Hand cached blocks back to the device, so that other sizes fit."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
