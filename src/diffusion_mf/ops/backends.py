"""Which implementation of an operation runs: the one place where that is decided."""

from __future__ import annotations

import functools
import importlib.util
import os
from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor

Backend = Literal["auto", "reference", "torch", "triton"]
"""``reference`` is the readable path, ``torch`` plain PyTorch scheduled for few operations, on any device, ``triton`` fused
kernels for a CUDA GPU; ``auto`` is ``triton`` where that can be had, else ``torch``"""

MAX_TRITON_LABELS = 256

CPU_ROWS = 4
"""Matrices with a multiple of this many rows get the same bits for a row on a CPU, however many there are: fewer are summed in
another order"""
CPU_LANES = 16
"""the same for how many numbers are summed: as many as the longest vectors of a CPU hold"""


@functools.cache
def has_triton() -> bool:
    """Whether Triton can be imported."""
    return importlib.util.find_spec("triton") is not None


def is_interpreting() -> bool:
    """Whether Triton runs kernels on CPU tensors, in Python (the tests' way; set before Triton is imported)."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def choose_backend(
    backend: Backend, scores: Tensor, *, max_labels: int = MAX_TRITON_LABELS
) -> Literal["reference", "torch", "triton"]:
    """Turn ``auto`` into a backend for ``scores`` (…, K), or check that the one asked for can be had.

    ``auto`` takes ``torch`` wherever there is no CUDA GPU with Triton, or more than ``max_labels`` labels. An explicit choice
    that cannot be had raises: slow code never stands in silently.
    """
    num_labels = scores.shape[-1]
    if backend == "auto":
        return "triton" if scores.is_cuda and has_triton() and num_labels <= max_labels else "torch"
    if backend in ("reference", "torch"):
        return backend
    if backend != "triton":
        raise ValueError(f"backend must be auto, reference, torch or triton, found {backend!r}")
    if not has_triton():
        raise RuntimeError("backend 'triton' needs the triton package, which is not installed")
    if not scores.is_cuda and not is_interpreting():
        raise RuntimeError(
            "backend 'triton' needs tensors on a CUDA GPU (or TRITON_INTERPRET=1 before the first import)"
        )
    if num_labels > max_labels:
        raise ValueError(
            f"backend 'triton' takes at most {max_labels} labels here, found {num_labels}: choose 'auto' or 'torch'"
        )
    return "triton"


def differentiable_gradients(
    function: Callable[..., Tensor | Sequence[Tensor]], inputs: Sequence[Tensor], grads: Sequence[Tensor]
) -> list[Tensor | None]:
    """Gradients of ``function`` with respect to ``inputs`` by autograd, with a graph: they can be differentiated again.

    For backward passes under ``create_graph=True``. A gradient that a kernel computes is a constant to autograd, so what is
    differentiated through it would be lost without an error.
    """
    with torch.enable_grad():
        # Views, because an input may itself depend on another: only what leads through ``function`` counts here.
        views = [tensor.view_as(tensor) for tensor in inputs]
        results = function(*views)
        wanted = [view for view in views if view.requires_grad]
        found = iter(torch.autograd.grad(results, wanted, grads, create_graph=True, allow_unused=True))
    return [next(found) if view.requires_grad else None for view in views]
