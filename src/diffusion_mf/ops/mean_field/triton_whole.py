"""Mean-Field kernels for global transitions among many labels, for sentences that fit a tile: iterations touch no memory.

A unit makes messages from its own beliefs, which lie in registers, and the *messages* are passed to the neighbours, within the
program: nothing goes through memory, where `triton_global`'s neighbours exchange beliefs (half the time on an H200).
"""

from __future__ import annotations

import triton
import triton.language as tl

from diffusion_mf.ops.mean_field.triton_global import load_tile
from diffusion_mf.ops.mean_field.triton_tiles import (
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
def _neighbour_scores(
    values,
    scale,
    high,
    low,
    rows,
    length,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    DTYPE: tl.constexpr,
    USE_HALVES: tl.constexpr,
    IS_COARSE: tl.constexpr,
):
    """valuesᵢ₋₁ T + T valuesᵢ₊₁ for every unit, each message times its sender's ``scale``."""
    value_high, value_low = split(values, USE_HALVES)
    to_right = product(value_high, value_low, high, low, scale, USE_HALVES, DTYPE, IS_COARSE)
    source = tl.broadcast_to(tl.maximum(rows - 1, 0)[:, None], [ROWS, BLOCK])
    scores = tl.where(((rows >= 1) & (rows < length))[:, None], tl.gather(to_right, source, 0), 0.0)
    to_left = product(value_high, value_low, tl.trans(high), tl.trans(low), scale, USE_HALVES, DTYPE, IS_COARSE)
    source = tl.broadcast_to(tl.minimum(rows + 1, ROWS - 1)[:, None], [ROWS, BLOCK])
    return scores + tl.where((rows + 1 < length)[:, None], tl.gather(to_left, source, 0), 0.0)


@triton.jit
def iterate_kernel(
    unary_pointer,
    transition_pointer,
    lengths_pointer,
    beliefs_pointer,
    num_units,
    num_labels,
    num_iterations,
    IS_LOG: tl.constexpr,
    FLOOR: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    DTYPE: tl.constexpr,
    USE_HALVES: tl.constexpr,
    IS_COARSE: tl.constexpr,
):
    """Beliefs (B, N, K) of one sentence after the last update, or their logarithms; zero past its length."""
    sentence = tl.program_id(0).to(tl.int64)
    length = tl.load(lengths_pointer + sentence).to(tl.int32)
    high, low, scale = load_tile(transition_pointer, num_labels, FLOOR, BLOCK, DTYPE, USE_HALVES)
    rows, labels = tl.arange(0, ROWS), tl.arange(0, BLOCK)
    offset = sentence * num_units * num_labels
    places = rows[:, None] * num_labels + labels[None, :]
    is_score = (rows < length)[:, None] & (labels < num_labels)[None, :]
    unary = tl.load(unary_pointer + offset + places, mask=is_score, other=NEGATIVE_INFINITY).to(DTYPE)
    scores = unary
    for _ in range(0, num_iterations):
        scores = unary + _neighbour_scores(
            softmax_rows(scores), scale, high, low, rows, length, ROWS, BLOCK, DTYPE, USE_HALVES, IS_COARSE
        )
    beliefs = log_softmax_rows(scores) if IS_LOG else softmax_rows(scores)
    beliefs = tl.where((rows < length)[:, None], beliefs, 0.0)
    is_cell = (rows < num_units)[:, None] & (labels < num_labels)[None, :]
    tl.store(beliefs_pointer + offset + places, beliefs, mask=is_cell)


@triton.jit
def _keep(pointer, values, num_units, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Store rows 0…N of one iteration; those past the sentence, one more than it has places, are zero."""
    rows, labels = tl.arange(0, ROWS)[:, None], tl.arange(0, BLOCK)
    tl.store(pointer + rows * BLOCK + labels[None, :], values, mask=rows <= num_units)
    if num_units >= ROWS:
        tl.store(pointer + num_units * BLOCK + labels, tl.zeros([BLOCK], values.dtype))


@triton.jit
def gradient_kernel(
    unary_pointer,
    transition_pointer,
    lengths_pointer,
    grad_beliefs_pointer,
    trajectory_pointer,
    grads_pointer,
    grad_unary_pointer,
    num_units,
    num_labels,
    num_iterations,
    trajectory_stride,
    IS_LOG: tl.constexpr,
    FLOOR: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    DTYPE: tl.constexpr,
    USE_HALVES: tl.constexpr,
    IS_COARSE: tl.constexpr,
):
    """Backpropagation through all updates of one sentence.

    ``trajectory`` and ``grads`` (iterations + 1, B, N + 1, BLOCK) take every iteration's beliefs and the gradients of their
    scores; the caller sums the gradient of the transitions from them.
    """
    sentence = tl.program_id(0).to(tl.int64)
    trajectory_stride = tl.cast(trajectory_stride, tl.int64)
    length = tl.load(lengths_pointer + sentence).to(tl.int32)
    high, low, scale = load_tile(transition_pointer, num_labels, FLOOR, BLOCK, DTYPE, USE_HALVES)
    rows, labels = tl.arange(0, ROWS), tl.arange(0, BLOCK)
    offset = sentence * num_units * num_labels
    places = rows[:, None] * num_labels + labels[None, :]
    is_unit = (rows < length)[:, None]
    is_score = is_unit & (labels < num_labels)[None, :]
    trajectory_pointer += sentence * (num_units + 1) * BLOCK
    grads_pointer += sentence * (num_units + 1) * BLOCK
    cells = rows[:, None] * BLOCK + labels[None, :]
    unary = tl.load(unary_pointer + offset + places, mask=is_score, other=NEGATIVE_INFINITY).to(DTYPE)
    beliefs = softmax_rows(unary)
    _keep(trajectory_pointer, beliefs, num_units, ROWS, BLOCK)
    for iteration in range(1, num_iterations + 1):
        beliefs = softmax_rows(
            unary
            + _neighbour_scores(beliefs, scale, high, low, rows, length, ROWS, BLOCK, DTYPE, USE_HALVES, IS_COARSE)
        )
        _keep(trajectory_pointer + iteration * trajectory_stride, beliefs, num_units, ROWS, BLOCK)
    tl.debug_barrier()
    grad = tl.load(grad_beliefs_pointer + offset + places, mask=is_score, other=0.0).to(DTYPE)
    grad_scores = log_softmax_gradient(beliefs, grad) if IS_LOG else softmax_gradient(beliefs, grad)
    total = grad_scores
    for done in range(0, num_iterations):
        iteration = num_iterations - done
        _keep(grads_pointer + iteration * trajectory_stride, grad_scores, num_units, ROWS, BLOCK)
        beliefs = tl.load(trajectory_pointer + (iteration - 1) * trajectory_stride + cells, mask=is_unit, other=0.0)
        scaled, own = scaled_rows(grad_scores)
        grad = _neighbour_scores(
            scaled, (own * scale)[:, None], high, low, rows, length, ROWS, BLOCK, DTYPE, USE_HALVES, IS_COARSE
        )
        grad_scores = softmax_gradient(beliefs, grad)
        total += grad_scores
    is_cell = (rows < num_units)[:, None] & (labels < num_labels)[None, :]
    tl.store(grad_unary_pointer + offset + places, tl.where(is_unit, total, 0.0), mask=is_cell)
