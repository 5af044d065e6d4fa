"""Mean-Field kernels for global transitions among many labels, for sentences that fit a tile: iterations touch no memory.

A program has a tile of 64 rows: one sentence of up to 64 units, two of up to 32, four of up to 16.
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
def _rows(lengths_pointer, num_sentences, ROWS: tl.constexpr, SENTENCES: tl.constexpr):
    """The position in its sentence, the sentence, and that one's length, for each row of a program's tile."""
    rows = tl.arange(0, ROWS)
    sentences = tl.program_id(0).to(tl.int64) * SENTENCES + rows // (ROWS // SENTENCES)
    lengths = tl.load(lengths_pointer + sentences, mask=sentences < num_sentences, other=0).to(tl.int32)
    return rows % (ROWS // SENTENCES), sentences, lengths


@triton.jit
def _neighbour_scores(
    values,
    scale,
    high,
    low,
    positions,
    lengths,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    DTYPE: tl.constexpr,
    USE_HALVES: tl.constexpr,
    IS_COARSE: tl.constexpr,
):
    """valuesᵢ₋₁ T + T valuesᵢ₊₁ for every unit, each message times its sender's ``scale``."""
    rows = tl.arange(0, ROWS)
    value_high, value_low = split(values, USE_HALVES)
    to_right = product(value_high, value_low, high, low, scale, USE_HALVES, DTYPE, IS_COARSE)
    source = tl.broadcast_to(tl.maximum(rows - 1, 0)[:, None], [ROWS, BLOCK])
    has_left = (positions >= 1) & (positions < lengths)
    scores = tl.where(has_left[:, None], tl.gather(to_right, source, 0), 0.0)
    to_left = product(value_high, value_low, tl.trans(high), tl.trans(low), scale, USE_HALVES, DTYPE, IS_COARSE)
    source = tl.broadcast_to(tl.minimum(rows + 1, ROWS - 1)[:, None], [ROWS, BLOCK])
    return scores + tl.where((positions + 1 < lengths)[:, None], tl.gather(to_left, source, 0), 0.0)


@triton.jit
def iterate_kernel(
    unary_pointer,
    transition_pointer,
    lengths_pointer,
    beliefs_pointer,
    num_sentences,
    num_units,
    num_labels,
    num_iterations,
    IS_LOG: tl.constexpr,
    FLOOR: tl.constexpr,
    ROWS: tl.constexpr,
    SENTENCES: tl.constexpr,
    BLOCK: tl.constexpr,
    DTYPE: tl.constexpr,
    USE_HALVES: tl.constexpr,
    IS_COARSE: tl.constexpr,
):
    """Beliefs (B, N, K) of a few sentences after the last update, or their logarithms; zero past their lengths."""
    high, low, scale = load_tile(transition_pointer, num_labels, FLOOR, BLOCK, DTYPE, USE_HALVES)
    positions, sentences, lengths = _rows(lengths_pointer, num_sentences, ROWS, SENTENCES)
    labels = tl.arange(0, BLOCK)
    is_unit = (positions < lengths)[:, None]
    is_label = (labels < num_labels)[None, :]
    places = (sentences * num_units + positions)[:, None] * num_labels + labels[None, :]
    unary = tl.load(unary_pointer + places, mask=is_unit & is_label, other=NEGATIVE_INFINITY).to(DTYPE)
    scores = unary
    for _ in range(0, num_iterations):
        scores = unary + _neighbour_scores(
            softmax_rows(scores), scale, high, low, positions, lengths, ROWS, BLOCK, DTYPE, USE_HALVES, IS_COARSE
        )
    beliefs = log_softmax_rows(scores) if IS_LOG else softmax_rows(scores)
    is_cell = ((positions < num_units) & (sentences < num_sentences))[:, None] & is_label
    tl.store(beliefs_pointer + places, tl.where(is_unit, beliefs, 0.0), mask=is_cell)


@triton.jit
def _keep(
    pointer, values, positions, is_row, num_units, ROWS: tl.constexpr, SENTENCES: tl.constexpr, BLOCK: tl.constexpr
):
    """Store one iteration's rows 0…N of each sentence; those past its length, one more than it has places, are zero."""
    cells = positions[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    tl.store(pointer + cells, values, mask=(is_row & (positions <= num_units))[:, None])
    if num_units >= ROWS // SENTENCES:
        beyond = pointer + num_units * BLOCK + tl.arange(0, BLOCK)[None, :]
        tl.store(beyond, tl.zeros_like(values), mask=(is_row & (positions == 0))[:, None])


@triton.jit
def gradient_kernel(
    unary_pointer,
    transition_pointer,
    lengths_pointer,
    grad_beliefs_pointer,
    trajectory_pointer,
    grads_pointer,
    grad_unary_pointer,
    num_sentences,
    num_units,
    num_labels,
    num_iterations,
    trajectory_stride,
    IS_LOG: tl.constexpr,
    FLOOR: tl.constexpr,
    ROWS: tl.constexpr,
    SENTENCES: tl.constexpr,
    BLOCK: tl.constexpr,
    DTYPE: tl.constexpr,
    USE_HALVES: tl.constexpr,
    IS_COARSE: tl.constexpr,
):
    """Backpropagation through all updates of a few sentences.

    ``trajectory`` and ``grads`` (iterations + 1, B, N + 1, BLOCK) take every iteration's beliefs and the gradients of their
    scores; the caller sums the gradient of the transitions from them.
    """
    trajectory_stride = tl.cast(trajectory_stride, tl.int64)
    high, low, scale = load_tile(transition_pointer, num_labels, FLOOR, BLOCK, DTYPE, USE_HALVES)
    positions, sentences, lengths = _rows(lengths_pointer, num_sentences, ROWS, SENTENCES)
    labels = tl.arange(0, BLOCK)
    is_unit = (positions < lengths)[:, None]
    is_label = (labels < num_labels)[None, :]
    is_row = sentences < num_sentences
    places = (sentences * num_units + positions)[:, None] * num_labels + labels[None, :]
    # From here on a pointer to each row's sentence.
    trajectory_pointer += (sentences * (num_units + 1) * BLOCK)[:, None]
    grads_pointer += (sentences * (num_units + 1) * BLOCK)[:, None]
    cells = positions[:, None] * BLOCK + labels[None, :]
    unary = tl.load(unary_pointer + places, mask=is_unit & is_label, other=NEGATIVE_INFINITY).to(DTYPE)
    beliefs = softmax_rows(unary)
    _keep(trajectory_pointer, beliefs, positions, is_row, num_units, ROWS, SENTENCES, BLOCK)
    for iteration in range(1, num_iterations + 1):
        beliefs = softmax_rows(
            unary
            + _neighbour_scores(
                beliefs, scale, high, low, positions, lengths, ROWS, BLOCK, DTYPE, USE_HALVES, IS_COARSE
            )
        )
        target = trajectory_pointer + iteration * trajectory_stride
        _keep(target, beliefs, positions, is_row, num_units, ROWS, SENTENCES, BLOCK)
    tl.debug_barrier()
    grad = tl.load(grad_beliefs_pointer + places, mask=is_unit & is_label, other=0.0).to(DTYPE)
    grad_scores = log_softmax_gradient(beliefs, grad) if IS_LOG else softmax_gradient(beliefs, grad)
    total = grad_scores
    for done in range(0, num_iterations):
        iteration = num_iterations - done
        target = grads_pointer + iteration * trajectory_stride
        _keep(target, grad_scores, positions, is_row, num_units, ROWS, SENTENCES, BLOCK)
        beliefs = tl.load(trajectory_pointer + (iteration - 1) * trajectory_stride + cells, mask=is_unit, other=0.0)
        scaled, own = scaled_rows(grad_scores)
        grad = _neighbour_scores(
            scaled, (own * scale)[:, None], high, low, positions, lengths, ROWS, BLOCK, DTYPE, USE_HALVES, IS_COARSE
        )
        grad_scores = softmax_gradient(beliefs, grad)
        total += grad_scores
    is_cell = ((positions < num_units) & is_row)[:, None] & is_label
    tl.store(grad_unary_pointer + places, tl.where(is_unit, total, 0.0), mask=is_cell)
