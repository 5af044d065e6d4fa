"""Forward–backward as fused Triton kernels: one launch for the recursions, one for what is parallel in positions.

One program per sentence and direction keeps its state, and global transitions, on chip. States are scaled to a largest value of 0
at every step, so no sum grows with the sentence; log Z itself is summed in float64. Gradients of global transitions are summed in
two steps in a fixed order, never by atomics, so results are reproducible bit for bit.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

from diffusion_mf.ops.chain_scores import accumulation_dtype
from diffusion_mf.ops.device_limits import Card, card_of, compiles_chain_products
from diffusion_mf.ops.forward_backward.triton_gradient import gradient_kernel
from diffusion_mf.ops.forward_backward.triton_messages import marginals_kernel, messages_kernel
from diffusion_mf.ops.forward_backward.triton_tangents import tangents_kernel
from diffusion_mf.ops.triton_launch import padded_labels, triton_type

# By padded number of labels: warps per program of the recursions (for global and for local transitions), and of the
# gradient kernel with its positions per program (for local transitions, which it takes one by one, and for global ones).
_GLOBAL_MESSAGE_WARPS = {16: 1, 32: 1, 64: 4, 128: 8, 256: 16}
_LOCAL_MESSAGE_WARPS = {16: 1, 32: 4, 64: 4, 128: 8, 256: 16}
# Few enough registers that the programs of both directions share a multiprocessor; None leaves it to the compiler.
_GLOBAL_MESSAGE_REGISTERS = {16: None, 32: None, 64: None, 128: 128, 256: None}
_GRADIENT_WARPS = {16: 4, 32: 4, 64: 8, 128: 8, 256: 16}
_LOCAL_ROWS = {16: 8, 32: 8, 64: 8, 128: 8, 256: 8}
_GLOBAL_ROWS = {16: 64, 32: 64, 64: 64, 128: 64, 256: 16}
# Without products a program takes positions one after the other.
_ROWS_WITHOUT_PRODUCTS = 16


def _both_ways(transition: Tensor) -> tuple[Tensor, Tensor]:
    """Contiguous transitions, and global ones transposed for the backward direction."""
    transition = transition.contiguous()
    return transition, transition.T.contiguous() if transition.dim() == 2 else transition


def _message_warps(transition: Tensor, block: int) -> int:
    return (_GLOBAL_MESSAGE_WARPS if transition.dim() == 2 else _LOCAL_MESSAGE_WARPS)[block]


def messages(unary: Tensor, transition: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Log-partition (B,), forward and backward messages (B, N, K)."""
    B, N, K = unary.shape
    dtype = accumulation_dtype(unary.dtype)
    forward, backward = torch.empty((2, B, N, K), dtype=dtype, device=unary.device).unbind(0)
    log_partition = torch.empty(B, dtype=dtype, device=unary.device)
    block = padded_labels(K)
    messages_kernel[(B, 2)](
        unary.contiguous(), *_both_ways(transition), lengths, forward, backward, log_partition, N, K,
        IS_LOCAL=transition.dim() == 4, BLOCK=block, DTYPE=triton_type(dtype),
        num_warps=_message_warps(transition, block),
        maxnreg=_GLOBAL_MESSAGE_REGISTERS[block] if transition.dim() == 2 else None,
    )  # fmt: skip
    return log_partition, forward, backward


def marginals(unary: Tensor, lengths: Tensor, forward: Tensor, backward: Tensor) -> Tensor:
    """Marginals (B, N, K) from messages."""
    B, N, K = unary.shape
    result = torch.empty_like(forward)
    block = padded_labels(K)
    rows = max(1, 1024 // block)
    marginals_kernel[(B, triton.cdiv(N, rows))](
        unary.contiguous(), lengths, forward, backward, result, N, K,
        ROWS=rows, BLOCK=block, DTYPE=triton_type(forward.dtype), num_warps=2,
    )  # fmt: skip
    return result


def gradient_tiles(
    card: Card, block: int, *, num_units: int, dtype: torch.dtype, is_local: bool, has_pairs: bool
) -> dict[str, Any]:
    """Positions and labels that a program of the gradient kernel takes, and how it multiplies."""
    has_products = compiles_chain_products(card, block, dtype)
    most_rows = _GLOBAL_ROWS[block] if has_products else _ROWS_WITHOUT_PRODUCTS
    return {
        "ROWS": _LOCAL_ROWS[block] if is_local else max(16, min(most_rows, triton.next_power_of_2(num_units))),
        "COLUMNS": block if has_pairs else min(block, 64),
        "USE_PRODUCTS": has_products and not (is_local or has_pairs),
        "PRECISION": "ieee" if dtype == torch.float64 else "tf32x3",
    }


def gradient(
    unary: Tensor,
    transition: Tensor,
    lengths: Tensor,
    forward: Tensor,
    backward: Tensor,
    grad_log_partition: Tensor | None,
    grad_marginals: Tensor | None,
    grad_pairs: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Gradients with respect to unary and transition scores, in one launch, or two if marginals are differentiated."""
    B, N, K = unary.shape
    dtype = forward.dtype
    block = padded_labels(K)
    is_local = transition.dim() == 4
    has_moves = grad_marginals is not None or grad_pairs is not None
    settings = {
        "IS_LOCAL": is_local,
        "HAS_DIRECTION": grad_marginals is not None,
        "HAS_PAIR_DIRECTION": grad_pairs is not None,
        "BLOCK": block,
        "DTYPE": triton_type(dtype),
    }
    unary = unary.contiguous()
    # Unused pointer arguments of a kernel must still be tensors.
    unused = forward
    direction = unused if grad_marginals is None else grad_marginals.contiguous()
    pair_direction = unused if grad_pairs is None else grad_pairs.contiguous()
    weight = unused if grad_log_partition is None else grad_log_partition.contiguous()
    left_moves, right_moves = unused, unused
    if has_moves:
        left_moves, right_moves = torch.empty((2, B, N, K), dtype=dtype, device=unary.device).unbind(0)
        tangents_kernel[(B, 2)](
            unary, *_both_ways(transition), lengths, forward, backward, direction, pair_direction,
            left_moves, right_moves, N, K, num_warps=_message_warps(transition, block),
            maxnreg=None if is_local or grad_pairs is not None else _GLOBAL_MESSAGE_REGISTERS[block], **settings,
        )  # fmt: skip
    tiles = gradient_tiles(
        card_of(unary.device), block, num_units=N, dtype=dtype, is_local=is_local, has_pairs=grad_pairs is not None
    )
    num_chunks = triton.cdiv(N, tiles["ROWS"])
    grad_unary = torch.empty((B, N, K), dtype=unary.dtype, device=unary.device)
    shape = (B, N - 1, K, K) if is_local else (B * num_chunks, K, K)
    grad_transition = torch.empty(shape, dtype=transition.dtype if is_local else dtype, device=unary.device)
    gradient_kernel[(B, num_chunks, triton.cdiv(K, tiles["COLUMNS"]))](
        unary, transition.contiguous(), lengths, forward, backward, weight, direction, pair_direction,
        left_moves, right_moves, grad_unary, grad_transition, N, K,
        HAS_LOG_PARTITION=grad_log_partition is not None, HAS_MOVES=has_moves,
        num_warps=_GRADIENT_WARPS[block], **tiles, **settings,
    )  # fmt: skip
    if not is_local:
        grad_transition = grad_transition.sum(0).to(transition.dtype)
    return grad_unary, grad_transition
