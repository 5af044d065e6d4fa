"""Mean-Field as one Triton launch per direction; the forward pass keeps every iteration's beliefs for the backward pass.

Kernels come in two families, one module each, for the two kinds of transitions: `triton_global` and `triton_local`. See `pytorch`
for the mathematics of the backward pass.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
import triton
from torch import Tensor

from diffusion_mf.ops.chain_scores import accumulation_dtype
from diffusion_mf.ops.device_limits import MAX_SUMMED_LABELS
from diffusion_mf.ops.mean_field import pytorch, triton_global, triton_local
from diffusion_mf.ops.triton_launch import padded_labels, triton_type

FAMILIES = {"global", "local"}
"""The families that may be launched; plain PyTorch is used instead of one that is missing.

Both, except where `benchmarks/kernel_families.py` measures the benefit of each."""


def _settings(num_labels: int, num_units: int, dtype: torch.dtype, floor: float, cells: int) -> dict[str, Any]:
    """The tile of positions × labels per step (about ``cells`` numbers), and compile-time constants of all kernels."""
    block = padded_labels(num_labels)
    return {
        "FLOOR": floor,
        "ROWS": max(16, min(64, cells // block, triton.next_power_of_2(num_units))),
        "BLOCK": block,
        "DTYPE": triton_type(dtype),
        "num_stages": 1,  # loads must not move ahead of the stores of the iteration before
    }


def _global_settings(transition: Tensor, num_units: int, dtype: torch.dtype, floor: float) -> dict[str, Any]:
    settings = _settings(len(transition), num_units, dtype, floor, 8192)
    return settings | {
        "USE_HALVES": dtype == torch.float32,
        # Half precision has all the significant digits of bfloat16.
        "IS_COARSE": transition.dtype == torch.bfloat16,
        "num_warps": 8 if settings["ROWS"] * settings["BLOCK"] > 4096 else 4,
    }


def _local_settings(num_labels: int, num_units: int, dtype: torch.dtype, floor: float) -> dict[str, Any]:
    return _settings(num_labels, num_units, dtype, floor, 2048) | {"num_warps": 8}


def family_of(transition: Tensor) -> str | None:
    """The kernel family for these transitions; None means plain PyTorch."""
    family = "global" if transition.dim() == 2 else "local"
    return family if family in FAMILIES else None


def _exchange(unary: Tensor, block: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Two buffers, for high and low parts, through which neighbours exchange values, (2, B, N, block) each."""
    B, N, _ = unary.shape
    parts = torch.float16 if dtype == torch.float32 else dtype
    high, low = torch.empty((2, 2, B, N, block), dtype=parts, device=unary.device).unbind(0)
    return high, low


@contextlib.contextmanager
def _tf32_products(*, enabled: bool) -> Iterator[None]:
    """Round the factors of float32 products to 11 bits: enough for a result that will be rounded to 8, and twice as fast."""
    matmul = torch.backends.cuda.matmul
    before = matmul.fp32_precision
    if enabled:
        matmul.fp32_precision = "tf32"
    try:
        yield
    finally:
        matmul.fp32_precision = before


def _transition_sums(beliefs: Tensor, grads: Tensor, num_labels: int) -> Tensor:
    """Σ qᵢ ⊗ gᵢ₊₁ + gᵢ ⊗ qᵢ₊₁ over all neighbours of all sentences and iterations, (K, K)."""
    beliefs, grads = beliefs.flatten(0, 2), grads.flatten(0, 2)
    total = beliefs[:-1].T @ grads[1:]
    total.addmm_(grads[:-1].T, beliefs[1:])
    return total[:num_labels, :num_labels]


def _with_penalty(transition: Tensor, floor: float) -> Tensor:
    """The transitions for plain PyTorch: illegal ones get a large penalty, in a type that can represent it."""
    scores = transition.to(accumulation_dtype(transition.dtype))
    return torch.where(scores == -torch.inf, floor, scores)


def iterate(
    unary: Tensor,
    transition: Tensor,
    lengths: Tensor,
    num_iterations: int,
    floor: float,
    *,
    is_log: bool = False,
    keep_all: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Beliefs after the last update, or their logarithms; with ``keep_all`` also what `gradient` needs of all iterations."""
    B, N, K = unary.shape
    dtype = accumulation_dtype(unary.dtype)
    device = unary.device
    family = family_of(transition)
    if family is None:
        legal = _with_penalty(transition, floor)
        return pytorch.iterate(unary, legal, lengths, num_iterations, is_log=is_log), None
    unary, transition = unary.contiguous(), transition.contiguous()
    beliefs = torch.empty((B, N, K), dtype=dtype, device=device)
    num_kept = num_iterations + 1 if keep_all else 1
    if family == "global":
        settings = _global_settings(transition, N, dtype, floor)
        # A row of zeros after each sentence makes neighbours adjacent rows of one long matrix.
        shape = (num_kept, B, N + 1, settings["BLOCK"])
        trajectory = torch.empty(shape, dtype=dtype, device=device) if keep_all else beliefs
        high, low = _exchange(unary, settings["BLOCK"], dtype)
        triton_global.iterate_kernel[(B,)](
            unary, transition, lengths, beliefs, trajectory, high, low,
            N, K, num_iterations, high.stride(0), trajectory.stride(0),
            KEEP_ALL=keep_all, IS_LOG=is_log, IS_ONE_TILE=settings["ROWS"] >= N, **settings,
        )  # fmt: skip
    else:
        settings = _local_settings(K, N, dtype, floor)
        trajectory = torch.empty((num_kept, B, N, settings["BLOCK"]), dtype=dtype, device=device)
        messages = torch.empty((2, *trajectory.shape[1:]), dtype=dtype, device=device)
        triton_local.iterate_kernel[(B,)](
            unary, transition, lengths, beliefs, trajectory, *messages.unbind(0),
            N, K, num_iterations, trajectory.stride(0) if keep_all else 0, IS_LOG=is_log, **settings,
        )  # fmt: skip
    return beliefs, trajectory if keep_all else None


def gradient(
    unary: Tensor,
    transition: Tensor,
    lengths: Tensor,
    num_iterations: int,
    floor: float,
    grad_beliefs: Tensor,
    trajectory: Tensor | None,
    *,
    is_log: bool = False,
) -> tuple[Tensor, Tensor]:
    """Gradients with respect to unary and transition scores, from what `iterate` kept."""
    B, N, K = unary.shape
    dtype = accumulation_dtype(unary.dtype)
    device = unary.device
    if trajectory is None:
        legal = _with_penalty(transition, floor)
        grad_unary, grad_transition = pytorch.gradient(
            unary, legal, lengths, num_iterations, grad_beliefs, is_log=is_log
        )
        return grad_unary, torch.where(transition == -torch.inf, 0, grad_transition).to(transition.dtype)
    transition, grad_beliefs = transition.contiguous(), grad_beliefs.contiguous()
    grad_unary = torch.empty((B, N, K), dtype=dtype, device=device)
    if transition.dim() == 2:
        settings = _global_settings(transition, N, dtype, floor)
        keep_grads = settings["BLOCK"] > MAX_SUMMED_LABELS
        grads = torch.empty_like(trajectory) if keep_grads else trajectory
        high, low = _exchange(unary, settings["BLOCK"], dtype)
        scales = torch.empty((2, B, N), dtype=dtype, device=device)
        parts = scales if keep_grads else torch.empty((B, K, K), dtype=dtype, device=device)
        triton_global.gradient_kernel[(B,)](
            transition, lengths, grad_beliefs, trajectory, grads, high, low, scales, grad_unary, parts,
            N, K, num_iterations, high.stride(0), trajectory.stride(0),
            KEEP_GRADS=keep_grads, IS_LOG=is_log, **settings,
        )  # fmt: skip
        if keep_grads:
            with _tf32_products(enabled=settings["IS_COARSE"]):
                total = _transition_sums(trajectory[:-1], grads[1:], K)
            total = torch.where(transition == -torch.inf, 0, total)
        else:
            total = parts.sum(0)
        return grad_unary.to(unary.dtype), total.to(transition.dtype)
    settings = _local_settings(K, N, dtype, floor)
    grads = torch.empty_like(trajectory)
    messages = torch.empty((2, *trajectory.shape[1:]), dtype=dtype, device=device)
    grad_transition = torch.empty_like(transition)
    triton_local.gradient_kernel[(B,)](
        transition, lengths, grad_beliefs, trajectory, grads, *messages.unbind(0), grad_unary, grad_transition,
        N, K, num_iterations, trajectory.stride(0), IS_LOG=is_log,
        SQUARES=max(1, 8192 // settings["BLOCK"] ** 2), **settings,
    )  # fmt: skip
    return grad_unary.to(unary.dtype), grad_transition
