"""Viterbi as one Triton launch: one program per sentence runs the recursion and follows its own back-pointers."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from diffusion_mf.ops.chain_scores import accumulation_dtype
from diffusion_mf.ops.triton_launch import NEGATIVE_INFINITY, finite_or_zero, padded_labels, triton_type

# By padded number of labels, so that a tile of labels × labels fits into registers.
_WARPS = {16: 1, 32: 1, 64: 4, 128: 8, 256: 16}


@triton.jit
def _viterbi_kernel(
    unary_pointer,
    transition_pointer,
    lengths_pointer,
    came_from_pointer,
    labels_pointer,
    scores_pointer,
    num_units,
    num_labels,
    IS_LOCAL: tl.constexpr,
    BLOCK: tl.constexpr,
    DTYPE: tl.constexpr,
):
    """Best label sequence of one sentence; states are scaled at every step, the score is summed in float64."""
    sentence = tl.program_id(0).to(tl.int64)
    length = tl.load(lengths_pointer + sentence).to(tl.int32)
    labels = tl.arange(0, BLOCK)
    is_label = labels < num_labels
    is_pair = is_label[:, None] & is_label[None, :]
    unary_pointer += sentence * num_units * num_labels + labels
    transition_pointer += labels[:, None] * num_labels + labels[None, :]
    if IS_LOCAL:
        transition_pointer += sentence * (num_units - 1) * num_labels * num_labels
    came_from_pointer += sentence * num_units * num_labels
    labels_pointer += sentence * num_units
    if not IS_LOCAL:
        transition = tl.load(transition_pointer, mask=is_pair, other=NEGATIVE_INFINITY).to(DTYPE)
    best = tl.load(unary_pointer, mask=is_label, other=NEGATIVE_INFINITY).to(DTYPE)
    total = tl.zeros([], tl.float64)
    for position in range(1, length):
        unary = tl.load(unary_pointer + position * num_labels, mask=is_label, other=NEGATIVE_INFINITY).to(DTYPE)
        if IS_LOCAL:
            transition = tl.load(
                transition_pointer + (position - 1) * num_labels * num_labels, mask=is_pair, other=NEGATIVE_INFINITY
            ).to(DTYPE)
        top = finite_or_zero(tl.max(best, 0))
        total += top.to(tl.float64)
        best, came_from = tl.max((best - top)[:, None] + transition, 0, return_indices=True)
        best += unary
        tl.store(came_from_pointer + position * num_labels + labels, came_from.to(tl.uint8), mask=is_label)
    score, label = tl.max(best, 0, return_indices=True)
    tl.store(scores_pointer + sentence, (total + score.to(tl.float64)).to(DTYPE))
    # All threads of this program have written back-pointers, which one path now reads.
    tl.debug_barrier()
    tl.store(labels_pointer + length - 1, label.to(tl.int64))
    for done in range(1, length):
        position = length - done
        label = tl.load(came_from_pointer + position * num_labels + label).to(tl.int32)
        tl.store(labels_pointer + position - 1, label.to(tl.int64))


def viterbi(unary: Tensor, transition: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Best labels (B, N), 0 past each length, and their scores (B,)."""
    B, N, K = unary.shape
    dtype = accumulation_dtype(unary.dtype)
    labels = torch.zeros((B, N), dtype=torch.long, device=unary.device)
    scores = torch.empty(B, dtype=dtype, device=unary.device)
    came_from = torch.empty((B, N, K), dtype=torch.uint8, device=unary.device)
    block = padded_labels(K)
    _viterbi_kernel[(B,)](
        unary.contiguous(), transition.contiguous(), lengths, came_from, labels, scores, N, K,
        IS_LOCAL=transition.dim() == 4, BLOCK=block, DTYPE=triton_type(dtype), num_warps=_WARPS[block],
    )  # fmt: skip
    return labels, scores
