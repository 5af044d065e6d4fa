"""Mean-Field as one Triton launch each way; nothing is kept from the forward pass for the backward one but its inputs.

Kernels come in families, one module each: `triton_global` and `triton_local` for the two kinds of transitions, `triton_whole`
and `triton_short` faster ones for sentences that fit on chip, `triton_pair_sums` for a sum that the first and the third leave
to it. See `pytorch` for the mathematics of the backward pass.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

from diffusion_mf.ops.chain_scores import accumulation_dtype
from diffusion_mf.ops.device_limits import MAX_SUMMED_LABELS, card_of, num_summing_programs
from diffusion_mf.ops.mean_field import pytorch, triton_global, triton_local, triton_short, triton_whole
from diffusion_mf.ops.mean_field.triton_pair_sums import pair_sums_kernel
from diffusion_mf.ops.triton_launch import padded_labels, triton_type

FAMILIES = {"global", "whole", "pair_sums", "short", "local"}
"""The families that may be launched; without one the next best takes its work, in the end plain PyTorch.

All of them, except where `benchmarks/kernel_families.py` measures what each one brings."""

# Local transitions among so many labels, of so many units, fit into the registers of one program; in bfloat16, of twice as many.
MAX_SHORT_LABELS, MAX_SHORT_UNITS = 20, 32

# Rows that the sum of outer products takes at a time.
_SUMMED_ROWS = 32


def _settings(num_labels: int, num_units: int, dtype: torch.dtype, floor: float, cells: int) -> dict[str, Any]:
    """Tile of positions × labels per step (about ``cells`` numbers), and what all kernels are compiled for."""
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
        # Half precision holds every digit of bfloat16.
        "IS_COARSE": transition.dtype == torch.bfloat16,
        "num_warps": 8 if settings["BLOCK"] > 64 else 4,
    }


def _local_settings(num_labels: int, num_units: int, dtype: torch.dtype, floor: float) -> dict[str, Any]:
    return _settings(num_labels, num_units, dtype, floor, 2048) | {"num_warps": 8}


def _short_units(transition: Tensor, dtype: torch.dtype) -> int:
    """How many units `triton_short` takes at once; 0: none."""
    if transition.shape[-1] > MAX_SHORT_LABELS or dtype != torch.float32:
        return 0
    return 2 * MAX_SHORT_UNITS if transition.dtype == torch.bfloat16 else MAX_SHORT_UNITS


def _num_windows(num_units: int, short_units: int, num_iterations: int) -> int:
    """Windows of ``short_units`` through which `triton_short` sees a sentence; 0: none, each would tell too little."""
    if num_units <= short_units:
        return 1
    told = short_units - 2 * num_iterations
    return 1 + triton.cdiv(num_units - short_units, told) if 4 * told >= max(1, short_units) else 0


def _short_settings(
    transition: Tensor, num_units: int, dtype: torch.dtype, floor: float, *, rows_per_warp: int
) -> dict[str, Any]:
    settings = _settings(transition.shape[-1], num_units, dtype, floor, 2048)
    return settings | {
        "LABELS": transition.shape[-1],
        "IS_PACKED": settings["ROWS"] > MAX_SHORT_UNITS,
        "num_warps": max(8, settings["ROWS"] // rows_per_warp),
    }


def _is_whole(settings: dict[str, Any]) -> bool:
    # With fewer labels nothing is gained, and the gradient of the transitions can be summed on chip.
    return bool(settings["IS_ONE_TILE"] and settings["USE_HALVES"] and settings["BLOCK"] > MAX_SUMMED_LABELS)


def _whole_settings(settings: dict[str, Any]) -> dict[str, Any]:
    others = {name: value for name, value in settings.items() if name != "IS_ONE_TILE"}
    # Matrix units want 64 rows: short sentences share a tile.
    return others | {"ROWS": 64, "SENTENCES": 64 // settings["ROWS"]}


def _first_allowed(*families: str) -> str | None:
    return next((family for family in families if family in FAMILIES), None)


def forward_family(unary: Tensor, transition: Tensor, num_iterations: int) -> str | None:
    """The family that computes beliefs; None: plain PyTorch."""
    num_units, dtype = unary.shape[1], accumulation_dtype(unary.dtype)
    if transition.dim() == 2:
        return _global_family(transition, num_units, dtype)
    is_short = _num_windows(num_units, _short_units(transition, dtype), num_iterations) > 0
    return _first_allowed("short", "local") if is_short else _first_allowed("local")


def gradient_family(unary: Tensor, transition: Tensor) -> str | None:
    """The family that computes gradients; None: plain PyTorch."""
    num_units, dtype = unary.shape[1], accumulation_dtype(unary.dtype)
    if transition.dim() == 2:
        return _global_family(transition, num_units, dtype)
    is_short = min(MAX_SHORT_UNITS, _short_units(transition, dtype)) >= num_units
    return _first_allowed("short", "local") if is_short else _first_allowed("local")


def _global_family(transition: Tensor, num_units: int, dtype: torch.dtype) -> str | None:
    is_whole = _is_whole(_global_settings(transition, num_units, dtype, 0.0))
    return _first_allowed("whole", "global") if is_whole else _first_allowed("global")


def sums_family(dtype: torch.dtype) -> str | None:
    """The family that sums the gradient of global transitions among many labels; None: plain PyTorch."""
    return _first_allowed("pair_sums") if dtype == torch.float32 else None


def _exchange(unary: Tensor, block: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Two buffers of high and low parts by which neighbours exchange values, (2, B, N, block) each."""
    B, N, _ = unary.shape
    parts = torch.float16 if dtype == torch.float32 else dtype
    high, low = torch.empty((2, 2, B, N, block), dtype=parts, device=unary.device).unbind(0)
    return high, low


def _transition_sums(beliefs: Tensor, grads: Tensor, num_labels: int) -> Tensor:
    """Σ qᵢ ⊗ gᵢ₊₁ + gᵢ ⊗ qᵢ₊₁ over all neighbours of all sentences and iterations, (K, K)."""
    beliefs, grads = beliefs.flatten(0, 2), grads.flatten(0, 2)
    num_rows, block = beliefs.shape
    if sums_family(beliefs.dtype) is None:
        total = beliefs[:-1].T @ grads[1:]
        total.addmm_(grads[:-1].T, beliefs[1:])
        return total[:num_labels, :num_labels]
    # Parts are added up in a fixed order: results repeat bit for bit.
    most_programs = num_summing_programs(card_of(beliefs.device))
    rows = max(_SUMMED_ROWS, triton.cdiv(triton.cdiv(num_rows, most_programs), _SUMMED_ROWS) * _SUMMED_ROWS)
    num_programs = triton.cdiv(num_rows, rows)
    parts = torch.empty((num_programs, block, block), dtype=beliefs.dtype, device=beliefs.device)
    pair_sums_kernel[(num_programs,)](
        beliefs, grads, parts, num_rows, rows,
        ROWS=_SUMMED_ROWS, BLOCK=block, WIDE=not beliefs.is_cuda, num_warps=8, num_stages=1, maxnreg=128,
    )  # fmt: skip
    return parts.sum(0)[:num_labels, :num_labels]


def _with_penalty(transition: Tensor, floor: float) -> Tensor:
    """As plain PyTorch takes them: illegal transitions have a large penalty, in a type that holds it."""
    scores = transition.to(accumulation_dtype(transition.dtype))
    return torch.where(scores == -torch.inf, floor, scores)


def iterate(
    unary: Tensor, transition: Tensor, lengths: Tensor, num_iterations: int, floor: float, *, is_log: bool = False
) -> Tensor:
    """Beliefs after the last update, or their logarithms."""
    B, N, K = unary.shape
    dtype = accumulation_dtype(unary.dtype)
    family = forward_family(unary, transition, num_iterations)
    if family is None:
        return pytorch.iterate(unary, _with_penalty(transition, floor), lengths, num_iterations, is_log=is_log)
    unary, transition = unary.contiguous(), transition.contiguous()
    beliefs = torch.empty((B, N, K), dtype=dtype, device=unary.device)
    if transition.dim() == 2:
        settings = _global_settings(transition, N, dtype, floor)
        if family == "whole":
            whole = _whole_settings(settings)
            triton_whole.iterate_kernel[(triton.cdiv(B, whole["SENTENCES"]),)](
                unary, transition, lengths, beliefs, B, N, K, num_iterations, IS_LOG=is_log, **whole
            )
            return beliefs
        high, low = _exchange(unary, settings["BLOCK"], dtype)
        triton_global.iterate_kernel[(B,)](
            unary,
            transition,
            lengths,
            beliefs,
            high,
            low,
            N,
            K,
            num_iterations,
            high.stride(0),
            IS_LOG=is_log,
            **settings,
        )
    else:
        if family == "short":
            short_units = _short_units(transition, dtype)
            num_windows = _num_windows(N, short_units, num_iterations)
            settings = _short_settings(transition, min(N, short_units), dtype, floor, rows_per_warp=4)
            triton_short.iterate_kernel[(B, num_windows)](
                unary, transition, lengths, beliefs, N, num_iterations, IS_LOG=is_log, **settings
            )
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
    family = gradient_family(unary, transition)
    if family is None:
        legal = _with_penalty(transition, floor)
        grad_unary, grad_transition = pytorch.gradient(
            unary, legal, lengths, num_iterations, grad_beliefs, is_log=is_log
        )
        return grad_unary, torch.where(transition == -torch.inf, 0, grad_transition).to(transition.dtype)
    unary, transition, grad_beliefs = unary.contiguous(), transition.contiguous(), grad_beliefs.contiguous()
    grad_unary = torch.empty((B, N, K), dtype=dtype, device=device)
    if transition.dim() == 2:
        settings = _global_settings(transition, N, dtype, floor)
        # One row of zeros after each sentence: then neighbours are neighbouring rows of one long matrix.
        shape = (num_iterations + 1, B, N + 1, settings["BLOCK"])
        keep_grads = settings["BLOCK"] > MAX_SUMMED_LABELS
        # `triton_whole` writes all of them itself.
        allocate = torch.zeros if keep_grads and family != "whole" else torch.empty
        trajectory = allocate(shape, dtype=dtype, device=device)
        grads = allocate(shape, dtype=dtype, device=device) if keep_grads else trajectory
        if family == "whole":
            whole = _whole_settings(settings)
            triton_whole.gradient_kernel[(triton.cdiv(B, whole["SENTENCES"]),)](
                unary, transition, lengths, grad_beliefs, trajectory, grads, grad_unary,
                B, N, K, num_iterations, trajectory.stride(0), IS_LOG=is_log, **whole,
            )  # fmt: skip
        else:
            high, low = _exchange(unary, settings["BLOCK"], dtype)
            scales = torch.empty((2, B, N), dtype=dtype, device=device)
            parts = scales if keep_grads else torch.empty((B, K, K), dtype=dtype, device=device)
            triton_global.gradient_kernel[(B,)](
                unary, transition, lengths, grad_beliefs, trajectory, grads, high, low, scales, grad_unary, parts,
                N, K, num_iterations, high.stride(0), trajectory.stride(0),
                KEEP_GRADS=keep_grads, IS_LOG=is_log, **settings,
            )  # fmt: skip
        total = _transition_sums(trajectory[:-1], grads[1:], K) if keep_grads else parts.sum(0)
        if keep_grads:
            total = torch.where(transition == -torch.inf, 0, total)
        return grad_unary.to(unary.dtype), total.to(transition.dtype)
    if family == "short":
        settings = _short_settings(transition, N, dtype, floor, rows_per_warp=2)
        shape = (B, num_iterations, settings["ROWS"], settings["BLOCK"])
        trajectory = torch.empty(shape, dtype=dtype, device=device)
        grad_transition = torch.empty_like(transition)
        triton_short.gradient_kernel[(B,)](
            unary, transition, lengths, grad_beliefs, trajectory, grad_unary, grad_transition,
            N, num_iterations, IS_LOG=is_log, **settings,
        )  # fmt: skip
        return grad_unary.to(unary.dtype), grad_transition
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
