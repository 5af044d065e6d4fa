"""Where half precision and packed batches are used, and on which device."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Literal

import torch

Precision = Literal["auto", "float32", "bfloat16"]
Layout = Literal["auto", "padded", "packed"]


def uses_bfloat16(device: torch.device, precision: Precision) -> bool:
    """Whether forward passes are made in bfloat16: where asked for, or where "auto" finds a GPU that has it."""
    return precision == "bfloat16" or (precision == "auto" and device.type == "cuda" and torch.cuda.is_bf16_supported())


def uses_packing(device: torch.device, encoder: str, *, layout: Layout, precision: Precision) -> bool:
    """Whether batches are packed: where asked for, or where "auto" finds the GPU's kernel for it usable.

    An encoder of another kind than ``scratch`` works on rectangles of its own.
    """
    if layout != "auto":
        return layout == "packed"
    return device.type == "cuda" and encoder == "scratch" and uses_bfloat16(device, precision)


def autocast_for(
    device: torch.device, precision: Precision, *, is_training: bool = True
) -> Callable[[], contextlib.AbstractContextManager[object]]:
    """A maker of contexts for forward passes."""
    if not uses_bfloat16(device, precision):
        return contextlib.nullcontext
    # Without a cache in training: versions of PyTorch differ in whether a weight first cast where gradients are off (on a
    # model's own trajectory) gets any afterwards.
    return lambda: torch.autocast(device.type, dtype=torch.bfloat16, cache_enabled=not is_training)


def on_device(device: torch.device) -> contextlib.AbstractContextManager[object]:
    """Make a GPU the current one for the time of a block: streams, graphs and Triton's launches go to that."""
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()
