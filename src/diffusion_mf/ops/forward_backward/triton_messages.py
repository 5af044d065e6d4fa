"""Triton kernels of the forward pass: messages in both directions, and marginals from them.

All tensors are contiguous: unary scores and messages (B, N, K), transitions (K, K) or (B, N − 1, K, K).
"""

from __future__ import annotations

import triton
import triton.language as tl

from diffusion_mf.ops.triton_launch import NEGATIVE_INFINITY, finite_or_zero

# The smallest product of probabilities that is safely above the smallest float32, e^-87.
LOWEST_PRODUCT = tl.constexpr(-80.0)


@triton.jit
def load_row(pointer, mask, DTYPE: tl.constexpr):
    """A row of scores, −∞ outside the mask."""
    return tl.load(pointer, mask=mask, other=NEGATIVE_INFINITY).to(DTYPE)


@triton.jit
def normalised(state):
    """A state minus its largest score, and that score."""
    top = finite_or_zero(tl.max(state, 0))
    return state - top, top


@triton.jit
def as_probabilities(tile):
    """exp(tile − tops), the largest values (tops) of its columns, and the lowest finite logarithm."""
    tops = finite_or_zero(tl.max(tile, 0))
    tile -= tops[None, :]
    floor = tl.min(tl.min(tl.where(tile == NEGATIVE_INFINITY, 0.0, tile), 0), 0)
    return tl.exp(tile), tops, floor


@triton.jit
def _log_message(state, tile, AXIS: tl.constexpr):
    """log Σ exp(state + tile) over the label a message comes from, safe for any scores."""
    scores = tl.expand_dims(state, 1 - AXIS) + tile
    tops = finite_or_zero(tl.max(scores, AXIS))
    return tl.log(tl.sum(tl.exp(scores - tl.expand_dims(tops, AXIS)), AXIS)) + tops


@triton.jit
def _finish(
    output_pointer,
    log_partition_pointer,
    unary,
    message,
    total,
    length,
    num_labels,
    is_label,
    IS_BACKWARD: tl.constexpr,
    DTYPE: tl.constexpr,
):
    """Store the last message and, going forward, log Z."""
    last = 0 if IS_BACKWARD else length - 1
    tl.store(output_pointer + last * num_labels, message, mask=is_label)
    if not IS_BACKWARD:
        state, top = normalised(unary + message)
        log_sum = tl.log(tl.sum(tl.exp(state), 0))
        tl.store(log_partition_pointer, (total + top.to(tl.float64) + log_sum.to(tl.float64)).to(DTYPE))


@triton.jit
def _messages_one_way(
    unary_pointer,
    tile_pointer,
    output_pointer,
    log_partition_pointer,
    sentence,
    length,
    num_units,
    num_labels,
    AXIS: tl.constexpr,
    IS_BACKWARD: tl.constexpr,
    IS_LOCAL: tl.constexpr,
    BLOCK: tl.constexpr,
    DTYPE: tl.constexpr,
):
    """Messages of one sentence in one direction; the forward direction also gives log Z.

    ``AXIS`` of the tile is the label a message comes from, and is summed.
    """
    labels = tl.arange(0, BLOCK)
    is_label = labels < num_labels
    is_pair = is_label[:, None] & is_label[None, :]
    output_pointer += sentence * num_units * num_labels + labels
    unary_pointer += sentence * num_units * num_labels + labels
    tile_pointer += labels[:, None] * num_labels + labels[None, :]
    # Small global tiles stay on chip as probabilities and steps multiply: one exponential per label instead of per pair.
    # That is exact as long as no product of a state and a transition underflows, which the lowest values seen show.
    is_exact = 0
    if not IS_LOCAL and BLOCK <= 128:
        tile, column_tops, tile_floor = as_probabilities(load_row(tile_pointer, is_pair, DTYPE))
        here = length - 1 if IS_BACKWARD else 0
        unary = load_row(unary_pointer + here * num_labels, is_label, DTYPE)
        message = tl.zeros([BLOCK], DTYPE)
        lowest = tl.zeros([BLOCK], DTYPE)
        total = tl.zeros([], tl.float64)
        for done in range(1, length):
            here = length - done if IS_BACKWARD else done - 1
            tl.store(output_pointer + here * num_labels, message, mask=is_label)
            state, top = normalised(unary + message)
            total += top.to(tl.float64)
            lowest = tl.minimum(lowest, tl.where(state == NEGATIVE_INFINITY, 0.0, state))
            # Loaded ahead of its use at the end of this step, so that the arithmetic hides the latency.
            following = here - 1 if IS_BACKWARD else here + 1
            unary = load_row(unary_pointer + following * num_labels, is_label, DTYPE)
            message = tl.log(tl.sum(tl.exp(state)[:, None] * tile, 0)) + column_tops
        _finish(
            output_pointer, log_partition_pointer + sentence, unary, message, total, length, num_labels, is_label,
            IS_BACKWARD, DTYPE,
        )  # fmt: skip
        is_exact = (tl.min(lowest, 0) + tile_floor > LOWEST_PRODUCT).to(tl.int32)

    if is_exact == 0:
        here = length - 1 if IS_BACKWARD else 0
        unary = load_row(unary_pointer + here * num_labels, is_label, DTYPE)
        message = tl.zeros([BLOCK], DTYPE)
        total = tl.zeros([], tl.float64)
        for done in range(1, length):
            here = length - done if IS_BACKWARD else done - 1
            tl.store(output_pointer + here * num_labels, message, mask=is_label)
            state, top = normalised(unary + message)
            total += top.to(tl.float64)
            following = here - 1 if IS_BACKWARD else here + 1
            unary = load_row(unary_pointer + following * num_labels, is_label, DTYPE)
            place = 0
            if IS_LOCAL:
                place = following if IS_BACKWARD else here
            tile = load_row(tile_pointer + place * num_labels * num_labels, is_pair, DTYPE)
            message = _log_message(state, tile, AXIS)
        _finish(
            output_pointer, log_partition_pointer + sentence, unary, message, total, length, num_labels, is_label,
            IS_BACKWARD, DTYPE,
        )  # fmt: skip


@triton.jit
def messages_kernel(
    unary_pointer,
    transition_pointer,
    transposed_pointer,
    lengths_pointer,
    forward_pointer,
    backward_pointer,
    log_partition_pointer,
    num_units,
    num_labels,
    IS_LOCAL: tl.constexpr,
    BLOCK: tl.constexpr,
    DTYPE: tl.constexpr,
):
    """Programs (sentence, 0) run forward and programs (sentence, 1) backward.

    A tile has the same layout in registers as in memory, with a column per thread, so a sum over the first label stays within
    threads. For the backward direction, global transitions are therefore transposed; local and large ones are summed across
    threads instead.
    """
    sentence = tl.program_id(0).to(tl.int64)
    length = tl.load(lengths_pointer + sentence).to(tl.int32)
    if IS_LOCAL:
        transition_pointer += sentence * (num_units - 1) * num_labels * num_labels
    if tl.program_id(1) == 0:
        _messages_one_way(
            unary_pointer, transition_pointer, forward_pointer, log_partition_pointer, sentence, length,
            num_units, num_labels, 0, False, IS_LOCAL, BLOCK, DTYPE,
        )  # fmt: skip
    elif IS_LOCAL or BLOCK > 128:
        _messages_one_way(
            unary_pointer, transition_pointer, backward_pointer, log_partition_pointer, sentence, length,
            num_units, num_labels, 1, True, IS_LOCAL, BLOCK, DTYPE,
        )  # fmt: skip
    else:
        _messages_one_way(
            unary_pointer, transposed_pointer, backward_pointer, log_partition_pointer, sentence, length,
            num_units, num_labels, 0, True, False, BLOCK, DTYPE,
        )  # fmt: skip


@triton.jit
def marginals_kernel(
    unary_pointer,
    lengths_pointer,
    forward_pointer,
    backward_pointer,
    marginals_pointer,
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
    score = load_row(unary_pointer + cells, is_read, DTYPE)
    score += tl.load(forward_pointer + cells, mask=is_read, other=0.0)
    score += tl.load(backward_pointer + cells, mask=is_read, other=0.0)
    weights = tl.exp(score - finite_or_zero(tl.max(score, 1))[:, None])
    sums = tl.sum(weights, 1)
    marginals = weights / tl.where(sums == 0.0, 1.0, sums)[:, None]
    tl.store(marginals_pointer + cells, marginals, mask=(positions < num_units)[:, None] & is_label)
