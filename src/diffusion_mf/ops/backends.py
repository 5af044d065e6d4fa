"""The one place that decides which implementation of an operation runs."""

from __future__ import annotations

import functools
import importlib.util
import os
from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor

Backend = Literal["auto", "reference", "torch", "triton"]
"""``reference`` is the readable path, ``torch`` is optimised plain PyTorch for any device, ``triton`` is fused kernels for a CUDA
GPU; ``auto`` is ``triton`` if available, otherwise ``torch``"""

MAX_TRITON_LABELS = 256

CPU_ROWS = 4
"""On a CPU, a row of a matrix product has the same bits for any number of rows that is a multiple of this; other numbers of rows may
be summed in another order"""
CPU_LANES = 16
"""the same for the number of terms summed: the size of a CPU's longest vectors"""


@functools.cache
def has_triton() -> bool:
    """Whether Triton can be imported."""
    return importlib.util.find_spec("triton") is not None


def is_interpreting() -> bool:
    """Whether Triton interprets kernels on CPU tensors, as in the tests (must be set before Triton is imported)."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def choose_backend(
    backend: Backend, scores: Tensor, *, max_labels: int = MAX_TRITON_LABELS
) -> Literal["reference", "torch", "triton"]:
    """Resolve ``auto`` to a backend for ``scores`` (…, K), or check that the requested one is available.

    ``auto`` is ``torch`` if there is no CUDA GPU with Triton, or if there are more than ``max_labels`` labels. An explicit choice
    that is not available raises an error, so that slow code is never used silently.
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
            f"backend 'triton' supports at most {max_labels} labels here, found {num_labels}: choose 'auto' or 'torch'"
        )
    return "triton"


def differentiable_gradients(
    function: Callable[..., Tensor | Sequence[Tensor]], inputs: Sequence[Tensor], grads: Sequence[Tensor]
) -> list[Tensor | None]:
    """Gradients of ``function`` with respect to ``inputs`` by autograd, which can be differentiated again.

    For backward passes under ``create_graph=True``. The gradient computed by a kernel is a constant to autograd, so second
    derivatives through it would silently be lost.
    """
    with torch.enable_grad():
        # Views, because one input may depend on another, and only paths through ``function`` count here.
        views = [tensor.view_as(tensor) for tensor in inputs]
        results = function(*views)
        wanted = [view for view in views if view.requires_grad]
        found = iter(torch.autograd.grad(results, wanted, grads, create_graph=True, allow_unused=True))
    return [next(found) if view.requires_grad else None for view in views]
