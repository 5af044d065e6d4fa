"""Mean-Field as one Triton launch per direction; only the inputs are saved for the backward pass.

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
        "IS_ONE_TILE": num_units <= settings["ROWS"],
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
    unary: Tensor, transition: Tensor, lengths: Tensor, num_iterations: int, floor: float, *, is_log: bool = False
) -> Tensor:
    """Beliefs after the last update, or their logarithms."""
    B, N, K = unary.shape
    dtype = accumulation_dtype(unary.dtype)
    family = family_of(transition)
    if family is None:
        return pytorch.iterate(unary, _with_penalty(transition, floor), lengths, num_iterations, is_log=is_log)
    unary, transition = unary.contiguous(), transition.contiguous()
    beliefs = torch.empty((B, N, K), dtype=dtype, device=unary.device)
    if family == "global":
        settings = _global_settings(transition, N, dtype, floor)
        high, low = _exchange(unary, settings["BLOCK"], dtype)
        triton_global.iterate_kernel[(B,)](
            unary, transition, lengths, beliefs, high, low,
            N, K, num_iterations, high.stride(0), IS_LOG=is_log, **settings,
        )  # fmt: skip
    else:
        settings = _local_settings(K, N, dtype, floor)
        buffers = torch.empty((3, B, N, settings["BLOCK"]), dtype=dtype, device=unary.device)
        triton_local.iterate_kernel[(B,)](
            unary, transition, lengths, beliefs, *buffers.unbind(0), N, K, num_iterations, IS_LOG=is_log, **settings
        )
    return beliefs


def gradient(
    unary: Tensor,
    transition: Tensor,
    lengths: Tensor,
    num_iterations: int,
    floor: float,
    grad_beliefs: Tensor,
    *,
    is_log: bool = False,
) -> tuple[Tensor, Tensor]:
    """Gradients with respect to unary and transition scores; every iteration's beliefs exist for this call only."""
    B, N, K = unary.shape
    dtype = accumulation_dtype(unary.dtype)
    device = unary.device
    family = family_of(transition)
    if family is None:
        legal = _with_penalty(transition, floor)
        grad_unary, grad_transition = pytorch.gradient(
            unary, legal, lengths, num_iterations, grad_beliefs, is_log=is_log
        )
        return grad_unary, torch.where(transition == -torch.inf, 0, grad_transition).to(transition.dtype)
    unary, transition, grad_beliefs = unary.contiguous(), transition.contiguous(), grad_beliefs.contiguous()
    grad_unary = torch.empty((B, N, K), dtype=dtype, device=device)
    if family == "global":
        settings = _global_settings(transition, N, dtype, floor)
        # A row of zeros after each sentence makes neighbours adjacent rows of one long matrix.
        shape = (num_iterations + 1, B, N + 1, settings["BLOCK"])
        keep_grads = settings["BLOCK"] > MAX_SUMMED_LABELS
        trajectory = torch.empty(shape, dtype=dtype, device=device)
        grads = torch.empty_like(trajectory) if keep_grads else trajectory
        high, low = _exchange(unary, settings["BLOCK"], dtype)
        scales = torch.empty((2, B, N), dtype=dtype, device=device)
        parts = scales if keep_grads else torch.empty((B, K, K), dtype=dtype, device=device)
        triton_global.gradient_kernel[(B,)](
            unary, transition, lengths, grad_beliefs, trajectory, grads, high, low, scales, grad_unary, parts,
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
    block = settings["BLOCK"]
    trajectory, grads = torch.empty((2, num_iterations + 1, B, N, block), dtype=dtype, device=device).unbind(0)
    messages = torch.empty((2, B, N, block), dtype=dtype, device=device)
    grad_transition = torch.empty_like(transition)
    triton_local.gradient_kernel[(B,)](
        unary, transition, lengths, grad_beliefs, trajectory, grads, *messages.unbind(0), grad_unary, grad_transition,
        N, K, num_iterations, trajectory.stride(0), IS_LOG=is_log, SQUARES=max(1, 8192 // block**2), **settings,
    )  # fmt: skip
    return grad_unary.to(unary.dtype), grad_transition
