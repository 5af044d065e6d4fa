"""Forward–backward as fused Triton kernels: a launch for the recursions, one for all that is parallel in positions.

`_messages_kernel` runs one program per sentence and direction, with the state and (where they are global) the transitions on
chip; the backward direction is the forward one with positions mirrored and transitions transposed. Everything else needs
no recursion: marginals, and in the backward pass the pair marginals that the transitions' gradient sums.
`_tangents_kernel` is the recursion again for the derivative of the marginals (see `cpu.gradient` for the mathematics).

States are scaled to a largest value of 0 at every step, so no sum grows with the sentence; log Z itself is summed in
float64. Transitions of several sentences are summed in two steps in a fixed order, never by atomics: results repeat bit for bit.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from diffusion_mf.ops.chain_scores import accumulation_dtype
from diffusion_mf.ops.triton_launch import (
    NEGATIVE_INFINITY,
    finite_or_zero,
    square_tile,
    transition_strides,
    triton_type,
)


@triton.jit
def _messages_one_way(
    unary_pointer,
    transition_pointer,
    output_pointer,
    log_partition_pointer,
    sentence,
    length,
    unary_stride_b,
    unary_stride_n,
    unary_stride_k,
    transition_stride_b,
    transition_stride_n,
    stride_from,
    stride_to,
    num_units,
    num_labels,
    IS_BACKWARD: tl.constexpr,
    IS_LOCAL: tl.constexpr,
    BLOCK: tl.constexpr,
    DTYPE: tl.constexpr,
):
    """Messages of one sentence in one direction; the forward direction also gives log Z."""
    labels = tl.arange(0, BLOCK)
    is_label = labels < num_labels
    is_pair = is_label[:, None] & is_label[None, :]
    output_pointer += sentence * num_units * num_labels + labels
    unary_pointer += sentence * unary_stride_b + labels * unary_stride_k
    transition_pointer += labels[:, None] * stride_from + labels[None, :] * stride_to + sentence * transition_stride_b
    if not IS_LOCAL:
        transition = tl.load(transition_pointer, mask=is_pair, other=NEGATIVE_INFINITY).to(DTYPE)

    position = length - 1 if IS_BACKWARD else 0
    unary = tl.load(unary_pointer + position * unary_stride_n, mask=is_label, other=NEGATIVE_INFINITY).to(DTYPE)
    message = tl.zeros([BLOCK], DTYPE)
    total = tl.zeros([], tl.float64)
    for done in range(1, length):
        here = length - done if IS_BACKWARD else done - 1
        tl.store(output_pointer + here * num_labels, message, mask=is_label)
        state = unary + message
        # Asked for now, needed at the end of this step: the loads hide behind the arithmetic.
        following = here - 1 if IS_BACKWARD else here + 1
        unary = tl.load(unary_pointer + following * unary_stride_n, mask=is_label, other=NEGATIVE_INFINITY).to(DTYPE)
        if IS_LOCAL:
            place = following if IS_BACKWARD else here
            transition = tl.load(
                transition_pointer + place * transition_stride_n, mask=is_pair, other=NEGATIVE_INFINITY
            ).to(DTYPE)
        top = finite_or_zero(tl.max(state, 0))
        total += top.to(tl.float64)
        scores = (state - top)[:, None] + transition
        tops = finite_or_zero(tl.max(scores, 0))
        message = tl.log(tl.sum(tl.exp(scores - tops[None, :]), 0)) + tops
    last = 0 if IS_BACKWARD else length - 1
    tl.store(output_pointer + last * num_labels, message, mask=is_label)
    if not IS_BACKWARD:
        state = unary + message
        top = finite_or_zero(tl.max(state, 0))
        log_sum = tl.log(tl.sum(tl.exp(state - top), 0))
        tl.store(log_partition_pointer + sentence, (total + top.to(tl.float64) + log_sum.to(tl.float64)).to(DTYPE))


# Strides of the transitions stay unknown to the compiler: told that one is 1, it would lay the transposed tile out along the
# dimension that is summed, and every sum would cross threads.
@triton.jit(do_not_specialize=["transition_stride_j", "transition_stride_k"])
def _messages_kernel(
    unary_pointer,
    transition_pointer,
    lengths_pointer,
    forward_pointer,
    backward_pointer,
    log_partition_pointer,
    unary_stride_b,
    unary_stride_n,
    unary_stride_k,
    transition_stride_b,
    transition_stride_n,
    transition_stride_j,
    transition_stride_k,
    num_units,
    num_labels,
    IS_LOCAL: tl.constexpr,
    BLOCK: tl.constexpr,
    DTYPE: tl.constexpr,
):
    """Programs (sentence, 0) run forward, programs (sentence, 1) backward, with transitions transposed."""
    sentence = tl.program_id(0).to(tl.int64)
    length = tl.load(lengths_pointer + sentence).to(tl.int32)
    if tl.program_id(1) == 0:
        _messages_one_way(
            unary_pointer, transition_pointer, forward_pointer, log_partition_pointer, sentence, length,
            unary_stride_b, unary_stride_n, unary_stride_k,
            transition_stride_b, transition_stride_n, transition_stride_j, transition_stride_k,
            num_units, num_labels, False, IS_LOCAL, BLOCK, DTYPE,
        )  # fmt: skip
    else:
        _messages_one_way(
            unary_pointer, transition_pointer, backward_pointer, log_partition_pointer, sentence, length,
            unary_stride_b, unary_stride_n, unary_stride_k,
            transition_stride_b, transition_stride_n, transition_stride_k, transition_stride_j,
            num_units, num_labels, True, IS_LOCAL, BLOCK, DTYPE,
        )  # fmt: skip


@triton.jit
def _marginals_kernel(
    unary_pointer,
    lengths_pointer,
    forward_pointer,
    backward_pointer,
    marginals_pointer,
    unary_stride_b,
    unary_stride_n,
    unary_stride_k,
    num_units,
    num_labels,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    DTYPE: tl.constexpr,
):
    """softmax(forward + unary + backward) for some positions of one sentence, zero past its length."""
    sentence = tl.program_id(0).to(tl.int64)
    length = tl.load(lengths_pointer + sentence).to(tl.int32)
    positions = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    labels = tl.arange(0, BLOCK)
    is_label = (labels < num_labels)[None, :]
    is_read = (positions < length)[:, None] & is_label
    cells = (sentence * num_units + positions[:, None]) * num_labels + labels[None, :]
    places = sentence * unary_stride_b + positions[:, None] * unary_stride_n + labels[None, :] * unary_stride_k
    score = tl.load(unary_pointer + places, mask=is_read, other=NEGATIVE_INFINITY).to(DTYPE)
    score += tl.load(forward_pointer + cells, mask=is_read, other=0.0)
    score += tl.load(backward_pointer + cells, mask=is_read, other=0.0)
    weights = tl.exp(score - finite_or_zero(tl.max(score, 1))[:, None])
    sums = tl.sum(weights, 1)
    marginals = weights / tl.where(sums == 0.0, 1.0, sums)[:, None]
    tl.store(marginals_pointer + cells, marginals, mask=(positions < num_units)[:, None] & is_label)


@triton.jit
def _tangents_one_way(
    unary_pointer,
    transition_pointer,
    messages_pointer,
    marginals_pointer,
    direction_pointer,
    pair_direction_pointer,
    moves_pointer,
    sentence,
    length,
    unary_stride_b,
    unary_stride_n,
    unary_stride_k,
    transition_stride_b,
    transition_stride_n,
    stride_from,
    stride_to,
    num_units,
    num_labels,
    IS_BACKWARD: tl.constexpr,
    IS_LOCAL: tl.constexpr,
    HAS_DIRECTION: tl.constexpr,
    HAS_PAIR_DIRECTION: tl.constexpr,
    BLOCK: tl.constexpr,
    DTYPE: tl.constexpr,
):
    """Movement of message + unary in one direction when the scores move; each has mean 0 under the marginals."""
    labels = tl.arange(0, BLOCK)
    is_label = labels < num_labels
    is_pair = is_label[:, None] & is_label[None, :]
    cells = sentence * num_units * num_labels + labels
    unary_pointer += sentence * unary_stride_b + labels * unary_stride_k
    transition_pointer += labels[:, None] * stride_from + labels[None, :] * stride_to + sentence * transition_stride_b
    pair_direction_pointer += sentence * (num_units - 1) * num_labels * num_labels
    if IS_BACKWARD:
        pair_direction_pointer += labels[:, None] + labels[None, :] * num_labels
    else:
        pair_direction_pointer += labels[:, None] * num_labels + labels[None, :]

    if not IS_LOCAL:
        transition = tl.load(transition_pointer, mask=is_pair, other=NEGATIVE_INFINITY).to(DTYPE)
    inflow = tl.zeros([BLOCK], DTYPE)
    for done in range(0, length):
        here = length - 1 - done if IS_BACKWARD else done
        move = inflow
        if HAS_DIRECTION:
            move += tl.load(direction_pointer + cells + here * num_labels, mask=is_label, other=0.0).to(DTYPE)
        mean = tl.load(marginals_pointer + cells + here * num_labels, mask=is_label, other=0.0)
        move = move - tl.sum(mean * move, 0)
        tl.store(moves_pointer + cells + here * num_labels, move, mask=is_label)
        if done + 1 < length:
            following = here - 1 if IS_BACKWARD else here + 1
            place = following if IS_BACKWARD else here
            if IS_LOCAL:
                transition = tl.load(
                    transition_pointer + place * transition_stride_n, mask=is_pair, other=NEGATIVE_INFINITY
                ).to(DTYPE)
            state = tl.load(unary_pointer + here * unary_stride_n, mask=is_label, other=NEGATIVE_INFINITY).to(DTYPE)
            state += tl.load(messages_pointer + cells + here * num_labels, mask=is_label, other=0.0)
            state -= finite_or_zero(tl.max(state, 0))
            arrived = tl.load(messages_pointer + cells + following * num_labels, mask=is_label, other=0.0)
            # P(label before | label here, all before): at most 1, and 0 where either label is impossible.
            shares = tl.exp(state[:, None] + transition - finite_or_zero(arrived)[None, :])
            moves = tl.broadcast_to(move[:, None], [BLOCK, BLOCK])
            if HAS_PAIR_DIRECTION:
                moves += tl.load(pair_direction_pointer + place * num_labels * num_labels, mask=is_pair, other=0.0).to(
                    DTYPE
                )
            inflow = tl.sum(shares * moves, 0)


# Strides of the transitions stay unknown to the compiler: told that one is 1, it would lay the transposed tile out along the
# dimension that is summed, and every sum would cross threads.
@triton.jit(do_not_specialize=["transition_stride_j", "transition_stride_k"])
def _tangents_kernel(
    unary_pointer,
    transition_pointer,
    lengths_pointer,
    forward_pointer,
    backward_pointer,
    marginals_pointer,
    direction_pointer,
    pair_direction_pointer,
    left_moves_pointer,
    right_moves_pointer,
    unary_stride_b,
    unary_stride_n,
    unary_stride_k,
    transition_stride_b,
    transition_stride_n,
    transition_stride_j,
    transition_stride_k,
    num_units,
    num_labels,
    IS_LOCAL: tl.constexpr,
    HAS_DIRECTION: tl.constexpr,
    HAS_PAIR_DIRECTION: tl.constexpr,
    BLOCK: tl.constexpr,
    DTYPE: tl.constexpr,
):
    """The derivative of both messages, with the same programs as `_messages_kernel`."""
    sentence = tl.program_id(0).to(tl.int64)
    length = tl.load(lengths_pointer + sentence).to(tl.int32)
    if tl.program_id(1) == 0:
        _tangents_one_way(
            unary_pointer, transition_pointer, forward_pointer, marginals_pointer, direction_pointer,
            pair_direction_pointer, left_moves_pointer, sentence, length,
            unary_stride_b, unary_stride_n, unary_stride_k,
            transition_stride_b, transition_stride_n, transition_stride_j, transition_stride_k,
            num_units, num_labels, False, IS_LOCAL, HAS_DIRECTION, HAS_PAIR_DIRECTION, BLOCK, DTYPE,
        )  # fmt: skip
    else:
        _tangents_one_way(
            unary_pointer, transition_pointer, backward_pointer, marginals_pointer, direction_pointer,
            pair_direction_pointer, right_moves_pointer, sentence, length,
            unary_stride_b, unary_stride_n, unary_stride_k,
            transition_stride_b, transition_stride_n, transition_stride_k, transition_stride_j,
            num_units, num_labels, True, IS_LOCAL, HAS_DIRECTION, HAS_PAIR_DIRECTION, BLOCK, DTYPE,
        )  # fmt: skip


@triton.jit
def _gradient_kernel(
    unary_pointer,
    transition_pointer,
    lengths_pointer,
    forward_pointer,
    backward_pointer,
    marginals_pointer,
    grad_log_partition_pointer,
    direction_pointer,
    pair_direction_pointer,
    left_moves_pointer,
    right_moves_pointer,
    grad_unary_pointer,
    grad_transition_pointer,
    unary_stride_b,
    unary_stride_n,
    unary_stride_k,
    transition_stride_b,
    transition_stride_n,
    transition_stride_j,
    transition_stride_k,
    num_units,
    num_labels,
    chunk,
    IS_LOCAL: tl.constexpr,
    HAS_LOG_PARTITION: tl.constexpr,
    HAS_MOVES: tl.constexpr,
    HAS_DIRECTION: tl.constexpr,
    HAS_PAIR_DIRECTION: tl.constexpr,
    BLOCK: tl.constexpr,
    DTYPE: tl.constexpr,
):
    """Gradients for ``chunk`` positions of one sentence: of unary scores, and of transitions (each, or their sum)."""
    sentence = tl.program_id(0).to(tl.int64)
    length = tl.load(lengths_pointer + sentence).to(tl.int32)
    labels = tl.arange(0, BLOCK)
    is_label = labels < num_labels
    is_pair = is_label[:, None] & is_label[None, :]
    cells = sentence * num_units * num_labels + labels
    square = labels[:, None] * num_labels + labels[None, :]
    unary_pointer += sentence * unary_stride_b + labels * unary_stride_k
    transition_pointer += sentence * transition_stride_b
    transition_pointer += labels[:, None] * transition_stride_j + labels[None, :] * transition_stride_k
    pairs_before = sentence * (num_units - 1) * num_labels * num_labels

    weight = tl.zeros([], DTYPE)
    if HAS_LOG_PARTITION:
        weight = tl.load(grad_log_partition_pointer + sentence).to(DTYPE)
    if not IS_LOCAL:
        transition = tl.load(transition_pointer, mask=is_pair, other=NEGATIVE_INFINITY).to(DTYPE)
        grad_transition = tl.zeros([BLOCK, BLOCK], DTYPE)
    first = tl.program_id(1) * chunk
    for position in range(first, tl.minimum(first + chunk, num_units)):
        is_read = is_label & (position < length)
        here = cells + position * num_labels
        marginal = tl.load(marginals_pointer + here, mask=is_read, other=0.0)
        grad_unary = weight * marginal
        if HAS_MOVES:
            left_move = tl.load(left_moves_pointer + here, mask=is_read, other=0.0)
            # Both sides hold the position's own movement; it counts once.
            move = left_move + tl.load(right_moves_pointer + here, mask=is_read, other=0.0)
            if HAS_DIRECTION:
                move -= tl.load(direction_pointer + here, mask=is_read, other=0.0).to(DTYPE)
            grad_unary += marginal * (move - tl.sum(marginal * move, 0))
        tl.store(grad_unary_pointer + here, grad_unary, mask=is_label)

        if position + 1 < num_units:
            is_next = is_label & (position + 1 < length)
            if IS_LOCAL:
                transition = tl.load(
                    transition_pointer + position * transition_stride_n,
                    mask=is_pair & (position + 1 < length),
                    other=NEGATIVE_INFINITY,
                ).to(DTYPE)
            left = tl.load(unary_pointer + position * unary_stride_n, mask=is_next, other=NEGATIVE_INFINITY).to(DTYPE)
            left += tl.load(forward_pointer + here, mask=is_next, other=0.0)
            left -= finite_or_zero(tl.max(left, 0))
            after = here + num_labels
            right = tl.load(unary_pointer + (position + 1) * unary_stride_n, mask=is_next, other=NEGATIVE_INFINITY).to(
                DTYPE
            )
            right += tl.load(backward_pointer + after, mask=is_next, other=0.0)
            right -= finite_or_zero(tl.max(right, 0))
            # The backward message is the sum over the right label: it gives the normaliser without a second pass.
            whole = left + tl.load(backward_pointer + here, mask=is_next, other=NEGATIVE_INFINITY)
            top = finite_or_zero(tl.max(whole, 0))
            whole_sum = tl.sum(tl.exp(whole - top), 0)
            log_normaliser = top + tl.log(tl.where(whole_sum == 0.0, 1.0, whole_sum))
            pair = tl.exp(left[:, None] + transition + (right - log_normaliser)[None, :])
            factor = tl.zeros([BLOCK, BLOCK], DTYPE) + weight
            if HAS_MOVES:
                right_move = tl.load(right_moves_pointer + after, mask=is_next, other=0.0)
                factor += tl.where(is_next, left_move, 0.0)[:, None] + right_move[None, :]
            if HAS_PAIR_DIRECTION:
                pair_move = tl.load(
                    pair_direction_pointer + pairs_before + position * num_labels * num_labels + square,
                    mask=is_pair & (position + 1 < length),
                    other=0.0,
                ).to(DTYPE)
                factor += pair_move - tl.sum(tl.sum(pair * pair_move, 1), 0)
            if IS_LOCAL:
                target = grad_transition_pointer + pairs_before + position * num_labels * num_labels + square
                tl.store(target, pair * factor, mask=is_pair)
            else:
                grad_transition += pair * factor
    if not IS_LOCAL:
        program = sentence * tl.num_programs(1) + tl.program_id(1)
        tl.store(grad_transition_pointer + program * num_labels * num_labels + square, grad_transition, mask=is_pair)


# Positions per program of `_gradient_kernel`, by padded number of labels.
_CHUNK = {16: 16, 32: 16, 64: 32, 128: 64, 256: 64}


def messages(unary: Tensor, transition: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Log-partition (B,), marginals, forward and backward messages (B, N, K), in two launches."""
    B, N, K = unary.shape
    dtype = accumulation_dtype(unary.dtype)
    forward, backward, marginals = torch.empty((3, B, N, K), dtype=dtype, device=unary.device).unbind(0)
    log_partition = torch.empty(B, dtype=dtype, device=unary.device)
    block, num_warps = square_tile(K)
    settings = {"BLOCK": block, "DTYPE": triton_type(dtype)}
    _messages_kernel[(B, 2)](
        unary, transition, lengths, forward, backward, log_partition,
        *unary.stride(), *transition_strides(transition), N, K,
        IS_LOCAL=transition.dim() == 4, num_warps=num_warps, **settings,
    )  # fmt: skip
    rows = max(1, 1024 // block)
    _marginals_kernel[(B, triton.cdiv(N, rows))](
        unary, lengths, forward, backward, marginals, *unary.stride(), N, K, ROWS=rows, num_warps=2, **settings
    )
    return log_partition, marginals, forward, backward


def gradient(
    unary: Tensor,
    transition: Tensor,
    lengths: Tensor,
    forward: Tensor,
    backward: Tensor,
    marginals: Tensor,
    grad_log_partition: Tensor | None,
    grad_marginals: Tensor | None,
    grad_pairs: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Gradients with respect to unary and transition scores: one launch, two where marginals are differentiated."""
    B, N, K = unary.shape
    dtype = forward.dtype
    block, num_warps = square_tile(K)
    settings = {
        "IS_LOCAL": transition.dim() == 4,
        "HAS_DIRECTION": grad_marginals is not None,
        "HAS_PAIR_DIRECTION": grad_pairs is not None,
        "BLOCK": block,
        "DTYPE": triton_type(dtype),
        "num_warps": num_warps,
    }
    strides = (*unary.stride(), *transition_strides(transition), N, K)
    direction = marginals if grad_marginals is None else grad_marginals.contiguous()
    pair_direction = marginals if grad_pairs is None else grad_pairs.contiguous()
    weight = marginals if grad_log_partition is None else grad_log_partition.contiguous()
    has_moves = grad_marginals is not None or grad_pairs is not None
    left_moves = right_moves = marginals
    if has_moves:
        left_moves, right_moves = torch.empty((2, B, N, K), dtype=dtype, device=unary.device).unbind(0)
        _tangents_kernel[(B, 2)](
            unary, transition, lengths, forward, backward, marginals, direction, pair_direction,
            left_moves, right_moves, *strides, **settings,
        )  # fmt: skip
    # Enough programs to fill a large GPU, few enough that their partial sums stay O(B N K).
    chunk = min(N, _CHUNK[block])
    num_chunks = triton.cdiv(N, chunk)
    grad_unary = torch.empty((B, N, K), dtype=unary.dtype, device=unary.device)
    if settings["IS_LOCAL"]:
        grad_transition = torch.empty((B, N - 1, K, K), dtype=transition.dtype, device=unary.device)
    else:
        grad_transition = torch.empty((B * num_chunks, K, K), dtype=dtype, device=unary.device)
    _gradient_kernel[(B, num_chunks)](
        unary, transition, lengths, forward, backward, marginals, weight, direction, pair_direction,
        left_moves, right_moves, grad_unary, grad_transition, *strides, chunk,
        HAS_LOG_PARTITION=grad_log_partition is not None, HAS_MOVES=has_moves, **settings,
    )  # fmt: skip
    if not settings["IS_LOCAL"]:
        grad_transition = grad_transition.sum(0).to(transition.dtype)
    return grad_unary, grad_transition
