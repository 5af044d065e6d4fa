"""Mean-Field kernels for global transitions: one program per sentence runs every iteration.

The transitions stay on chip, split in halves; messages are products of a tile of positions with them. Neighbours exchange
beliefs through a small buffer in cache, already split, with rows padded to the tile so that loads are wide.
"""

from __future__ import annotations

import triton
import triton.language as tl

from diffusion_mf.ops.mean_field.triton_tiles import (
    load_transitions,
    log_softmax_gradient,
    log_softmax_rows,
    product,
    scaled_rows,
    softmax_gradient,
    softmax_rows,
    split,
)
from diffusion_mf.ops.triton_launch import NEGATIVE_INFINITY


@triton.jit
def load_tile(
    transition_pointer,
    num_labels,
    FLOOR: tl.constexpr,
    BLOCK: tl.constexpr,
    DTYPE: tl.constexpr,
    USE_HALVES: tl.constexpr,
):
    """The transitions, split, and their scale: 1 unless a score is too large for half precision."""
    labels = tl.arange(0, BLOCK)
    is_pair = (labels < num_labels)[:, None] & (labels < num_labels)[None, :]
    scores = load_transitions(
        transition_pointer + labels[:, None] * num_labels + labels[None, :], is_pair, FLOOR, DTYPE
    )
    scale = tl.full([], 1.0, DTYPE)
    if USE_HALVES:
        scale = tl.maximum(tl.max(tl.max(tl.abs(scores), 0), 0) / 32768.0, 1.0)
    high, low = split(scores / scale, USE_HALVES)
    return high, low, scale


@triton.jit
def _publish(high_pointer, low_pointer, values, cells, mask, USE_HALVES: tl.constexpr):
    """Store values for the neighbours."""
    high, low = split(values, USE_HALVES)
    tl.store(high_pointer + cells, high, mask=mask)
    if USE_HALVES:
        tl.store(low_pointer + cells, low, mask=mask)


@triton.jit
def _collect(high_pointer, low_pointer, cells, mask, USE_HALVES: tl.constexpr):
    """Load the values that a neighbour stored, still split."""
    high = tl.load(high_pointer + cells, mask=mask, other=0.0)
    low = high
    if USE_HALVES:
        low = tl.load(low_pointer + cells, mask=mask, other=0.0)
    return high, low


@triton.jit
def iterate_kernel(
    unary_pointer,
    transition_pointer,
    lengths_pointer,
    beliefs_pointer,
    trajectory_pointer,
    high_pointer,
    low_pointer,
    num_units,
    num_labels,
    num_iterations,
    exchange_stride,
    trajectory_stride,
    KEEP_ALL: tl.constexpr,
    IS_LOG: tl.constexpr,
    FLOOR: tl.constexpr,
    IS_ONE_TILE: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    DTYPE: tl.constexpr,
    USE_HALVES: tl.constexpr,
    IS_COARSE: tl.constexpr,
):
    """Beliefs (B, N, K) of one sentence after the last update; zero past its length.

    With KEEP_ALL, ``trajectory`` (iterations + 1, B, N + 1, BLOCK) receives those of every iteration, for `gradient_kernel`.
    """
    sentence = tl.program_id(0).to(tl.int64)
    exchange_stride = tl.cast(exchange_stride, tl.int64)
    trajectory_stride = tl.cast(trajectory_stride, tl.int64)
    length = tl.load(lengths_pointer + sentence).to(tl.int32)
    high, low, scale = load_tile(transition_pointer, num_labels, FLOOR, BLOCK, DTYPE, USE_HALVES)
    unary_pointer += sentence * num_units * num_labels
    beliefs_pointer += sentence * num_units * num_labels
    high_pointer += sentence * num_units * BLOCK
    low_pointer += sentence * num_units * BLOCK
    trajectory_pointer += sentence * (num_units + 1) * BLOCK
    labels = tl.arange(0, BLOCK)
    is_label = (labels < num_labels)[None, :]
    if IS_ONE_TILE:
        positions = tl.arange(0, ROWS)
        is_score = (positions < length)[:, None] & is_label
        places = positions[:, None] * num_labels + labels[None, :]
        unary = tl.load(unary_pointer + places, mask=is_score, other=NEGATIVE_INFINITY).to(DTYPE)
    for iteration in range(0, num_iterations + 1):
        # All threads must have stored the previous iteration's beliefs before a neighbour reads them.
        tl.debug_barrier()
        old = ((iteration + 1) % 2) * exchange_stride
        new = (iteration % 2) * exchange_stride
        for start in range(0, length, ROWS):
            positions = start + tl.arange(0, ROWS)
            is_unit = (positions < length)[:, None]
            cells = positions[:, None] * BLOCK + labels[None, :]
            places = positions[:, None] * num_labels + labels[None, :]
            # At the first iteration there are no messages yet, so all rows are masked and both products are 0.
            has_left = ((positions >= 1) & (positions < length) & (iteration > 0))[:, None]
            has_right = ((positions + 1 < length) & (iteration > 0))[:, None]
            left_high, left_low = _collect(
                high_pointer + old - BLOCK, low_pointer + old - BLOCK, cells, has_left, USE_HALVES
            )
            right_high, right_low = _collect(
                high_pointer + old + BLOCK, low_pointer + old + BLOCK, cells, has_right, USE_HALVES
            )
            scores = product(left_high, left_low, high, low, scale, USE_HALVES, DTYPE, IS_COARSE)
            scores += product(right_high, right_low, tl.trans(high), tl.trans(low), scale, USE_HALVES, DTYPE, IS_COARSE)
            if not IS_ONE_TILE:
                unary = tl.load(unary_pointer + places, mask=is_unit & is_label, other=NEGATIVE_INFINITY).to(DTYPE)
            beliefs = softmax_rows(unary + scores)
            _publish(high_pointer + new, low_pointer + new, beliefs, cells, is_unit, USE_HALVES)
            if KEEP_ALL:
                tl.store(trajectory_pointer + iteration * trajectory_stride + cells, beliefs, mask=is_unit)
            if iteration == num_iterations:
                if IS_LOG:
                    beliefs = log_softmax_rows(unary + scores)
                tl.store(beliefs_pointer + places, beliefs, mask=is_unit & is_label)
    for start in range(length, num_units, ROWS):
        positions = start + tl.arange(0, ROWS)
        is_padding = (positions < num_units)[:, None] & is_label
        places = positions[:, None] * num_labels + labels[None, :]
        tl.store(beliefs_pointer + places, tl.zeros([ROWS, BLOCK], DTYPE), mask=is_padding)


@triton.jit
def gradient_kernel(
    transition_pointer,
    lengths_pointer,
    grad_beliefs_pointer,
    trajectory_pointer,
    grads_pointer,
    high_pointer,
    low_pointer,
    scales_pointer,
    grad_unary_pointer,
    grad_transition_pointer,
    num_units,
    num_labels,
    num_iterations,
    exchange_stride,
    trajectory_stride,
    KEEP_GRADS: tl.constexpr,
    IS_LOG: tl.constexpr,
    FLOOR: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    DTYPE: tl.constexpr,
    USE_HALVES: tl.constexpr,
    IS_COARSE: tl.constexpr,
):
    """Backpropagation through all updates of one sentence, from the last to the first.

    ``trajectory`` has the beliefs that `iterate_kernel` kept; ``scales`` (2, B, N) receives the magnitudes of the gradients that
    neighbours exchange, since gradients of any magnitude must fit into half precision. The gradient of the transitions is summed
    here or, with KEEP_GRADS, by the caller from ``trajectory`` and ``grads``, which receives the gradients of all scores; both
    become zero past the length. For many labels, the sums would leave no registers for anything else.
    """
    sentence = tl.program_id(0).to(tl.int64)
    exchange_stride = tl.cast(exchange_stride, tl.int64)
    trajectory_stride = tl.cast(trajectory_stride, tl.int64)
    length = tl.load(lengths_pointer + sentence).to(tl.int32)
    labels = tl.arange(0, BLOCK)
    is_label = (labels < num_labels)[None, :]
    high, low, scale = load_tile(transition_pointer, num_labels, FLOOR, BLOCK, DTYPE, USE_HALVES)
    offset = sentence * num_units * num_labels
    exchange = sentence * num_units * BLOCK
    high_pointer += exchange
    low_pointer += exchange
    trajectory_pointer += sentence * (num_units + 1) * BLOCK
    grads_pointer += sentence * (num_units + 1) * BLOCK
    scales_pointer += sentence * num_units
    scales_stride = tl.num_programs(0) * num_units
    grad_beliefs_pointer += offset
    grad_unary_pointer += offset
    if not KEEP_GRADS:
        sums = tl.zeros([BLOCK, BLOCK], DTYPE)
    for done in range(0, num_iterations + 1):
        tl.debug_barrier()
        iteration = num_iterations - done
        old = (done + 1) % 2
        new = done % 2
        for start in range(0, num_units, ROWS):
            positions = start + tl.arange(0, ROWS)
            is_unit = (positions < length)[:, None]
            cells = positions[:, None] * BLOCK + labels[None, :]
            places = positions[:, None] * num_labels + labels[None, :]
            beliefs = tl.load(trajectory_pointer + iteration * trajectory_stride + cells, mask=is_unit, other=0.0)
            has_left = (positions >= 1) & (positions < length) & (done > 0)
            has_right = (positions + 1 < length) & (done > 0)
            before = old * exchange_stride - BLOCK
            after = old * exchange_stride + BLOCK
            left_high, left_low = _collect(
                high_pointer + before, low_pointer + before, cells, has_left[:, None], USE_HALVES
            )
            right_high, right_low = _collect(
                high_pointer + after, low_pointer + after, cells, has_right[:, None], USE_HALVES
            )
            scales = scales_pointer + old * scales_stride + positions
            left_scale = tl.load(scales - 1, mask=has_left, other=0.0)
            right_scale = tl.load(scales + 1, mask=has_right, other=0.0)
            grad = product(left_high, left_low, high, low, (left_scale * scale)[:, None], USE_HALVES, DTYPE, IS_COARSE)
            grad += product(
                right_high,
                right_low,
                tl.trans(high),
                tl.trans(low),
                (right_scale * scale)[:, None],
                USE_HALVES,
                DTYPE,
                IS_COARSE,
            )
            is_first = is_unit & is_label & (done == 0)
            grad += tl.load(grad_beliefs_pointer + places, mask=is_first, other=0.0).to(DTYPE)

            if not KEEP_GRADS:
                # Transitions: beliefs here × gradient to the right, gradient to the left × beliefs here. The magnitudes of
                # the gradients, relative to the largest in the tile, are multiplied into the beliefs.
                top = tl.maximum(tl.max(left_scale, 0), tl.max(right_scale, 0))
                relative = 1.0 / tl.where(top == 0.0, 1.0, top)
                one_high, one_low = split(beliefs * (right_scale * relative)[:, None], USE_HALVES)
                other_high, other_low = split(beliefs * (left_scale * relative)[:, None], USE_HALVES)
                sums += product(tl.trans(one_high), tl.trans(one_low), right_high, right_low, top, USE_HALVES, DTYPE)
                sums += product(tl.trans(left_high), tl.trans(left_low), other_high, other_low, top, USE_HALVES, DTYPE)

            grad_scores = softmax_gradient(beliefs, grad)
            if IS_LOG:  # noqa: SIM102 (decided when the kernel is compiled)
                if done == 0:
                    grad_scores = log_softmax_gradient(beliefs, grad)
            scaled, own = scaled_rows(grad_scores)
            _publish(
                high_pointer + new * exchange_stride, low_pointer + new * exchange_stride,
                scaled, cells, is_unit, USE_HALVES,
            )  # fmt: skip
            tl.store(scales_pointer + new * scales_stride + positions, own, mask=positions < length)
            if KEEP_GRADS:
                # Zero past the length, where beliefs are: the caller's sums must not see what was in memory before.
                is_row = (positions < num_units)[:, None]
                tl.store(grads_pointer + iteration * trajectory_stride + cells, grad_scores, mask=is_row)
                padding = trajectory_pointer + iteration * trajectory_stride + cells
                tl.store(padding, tl.zeros([ROWS, BLOCK], DTYPE), mask=is_row & (positions >= length)[:, None])
            total = tl.load(grad_unary_pointer + places, mask=is_unit & is_label & (done > 0), other=0.0)
            is_cell = (positions < num_units)[:, None] & is_label
            tl.store(grad_unary_pointer + places, total + grad_scores, mask=is_cell)
        if KEEP_GRADS:
            row_after = iteration * trajectory_stride + num_units * BLOCK + labels
            tl.store(trajectory_pointer + row_after, tl.zeros([BLOCK], DTYPE))
            tl.store(grads_pointer + row_after, tl.zeros([BLOCK], DTYPE))
    if not KEEP_GRADS:
        square = labels[:, None] * num_labels + labels[None, :]
        is_pair = (labels < num_labels)[:, None] & is_label
        scores = tl.load(transition_pointer + square, mask=is_pair, other=0.0)
        sums = tl.where(scores == NEGATIVE_INFINITY, 0.0, sums)
        tl.store(grad_transition_pointer + sentence * num_labels * num_labels + square, sums, mask=is_pair)
