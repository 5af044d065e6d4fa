"""Choose the device, and make a GPU the current one."""

from __future__ import annotations

import contextlib

import torch

from diffusion_mf.errors import InputError, quoted


def choose_device(device: str | torch.device, *, local_rank: int | None = None) -> torch.device:
    """The named device or, with "auto", a GPU if there is one; each process of a machine takes its own GPU."""
    num_gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    name = str(device)
    if name == "auto":
        name = "cuda" if num_gpus else "cpu"
    if name == "cuda" and local_rank is not None:
        name = f"cuda:{local_rank}"
    try:
        chosen = torch.device(name)
        if chosen.type not in ("cuda", "meta"):  # the latter computes shapes only
            torch.empty(0, device=chosen)
            return chosen
        # Nothing is initialised on a GPU here: a process that only checks a name must not use its memory.
        current = torch.cuda.current_device() if torch.cuda.is_initialized() else 0
        index = current if chosen.index is None else chosen.index
        if chosen.type == "cuda" and index < num_gpus:
            return torch.device("cuda", index)
    except (RuntimeError, AssertionError, NotImplementedError, ImportError):
        pass
    *others, last = ["auto", "cpu", *(f"cuda:{index}" for index in range(num_gpus))]
    there = f"{', '.join(others)} or {last}" + ("" if num_gpus else " (PyTorch finds no CUDA GPU)")
    more = "" if local_rank is None else ", or start fewer processes"
    raise InputError(f"there is no device {quoted(name)} here", remedy=f"choose {there}{more}")


def on_device(device: torch.device) -> contextlib.AbstractContextManager[object]:
    """Make a GPU the current one for the block: streams, graphs and Triton launches use the current GPU."""
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()
