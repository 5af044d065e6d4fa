"""Mean-Field kernels for local transitions: one program per sentence runs every iteration.

Each iteration reads a sentence's transitions once, row by row: a row adds to the message for the unit after, and its product
with the beliefs there is one number of the message for the unit before. Buffers have rows padded to the tile.
"""

from __future__ import annotations

import triton
import triton.language as tl

from diffusion_mf.ops.mean_field.triton_tiles import (
    load_transitions,
    log_softmax_gradient,
    log_softmax_rows,
    softmax_gradient,
    softmax_rows,
)
from diffusion_mf.ops.triton_launch import NEGATIVE_INFINITY


@triton.jit
def _send_messages(
    values_pointer,
    transition_pointer,
    rightward_pointer,
    leftward_pointer,
    length,
    num_labels,
    FLOOR: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    DTYPE: tl.constexpr,
):
    """valuesᵢ Tᵢ to i + 1 and Tᵢ valuesᵢ₊₁ to i, for all neighbours of one sentence."""
    labels = tl.arange(0, BLOCK)
    is_label = (labels < num_labels)[None, :]
    tl.debug_barrier()
    for start in range(0, length - 1, ROWS):
        positions = start + tl.arange(0, ROWS)
        has_right = positions + 1 < length
        is_read = has_right[:, None] & is_label
        cells = positions[:, None] * BLOCK + labels[None, :]
        following = tl.load(values_pointer + cells + BLOCK, mask=has_right[:, None], other=0.0)
        rows = transition_pointer + positions[:, None] * num_labels * num_labels + labels[None, :]
        rightward = tl.zeros([ROWS, BLOCK], DTYPE)
        leftward = tl.zeros([ROWS, BLOCK], DTYPE)
        # The loads of several labels overlap.
        for label in tl.range(0, num_labels, loop_unroll_factor=4):
            row = load_transitions(rows + label * num_labels, is_read, FLOOR, DTYPE)
            weight = tl.load(values_pointer + positions * BLOCK + label, mask=has_right, other=0.0)
            rightward += weight[:, None] * row
            leftward = tl.where((labels == label)[None, :], tl.sum(row * following, 1)[:, None], leftward)
        tl.store(rightward_pointer + cells + BLOCK, rightward, mask=has_right[:, None])
        tl.store(leftward_pointer + cells, leftward, mask=has_right[:, None])
    tl.debug_barrier()


@triton.jit
def _receive_messages(rightward_pointer, leftward_pointer, cells, positions, length):
    """What both neighbours sent to a tile of positions."""
    has_left = (positions >= 1) & (positions < length)
    has_right = positions + 1 < length
    received = tl.load(rightward_pointer + cells, mask=has_left[:, None], other=0.0)
    return received + tl.load(leftward_pointer + cells, mask=has_right[:, None], other=0.0)


@triton.jit
def iterate_kernel(
    unary_pointer,
    transition_pointer,
    lengths_pointer,
    beliefs_pointer,
    trajectory_pointer,
    rightward_pointer,
    leftward_pointer,
    num_units,
    num_labels,
    num_iterations,
    trajectory_stride,
    IS_LOG: tl.constexpr,
    FLOOR: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    DTYPE: tl.constexpr,
):
    """Beliefs (B, N, K) of one sentence after the last update; zero past its length.

    Iteration t writes its beliefs at t · trajectory_stride of ``trajectory``, for `gradient_kernel`, or with a stride of 0 over those
    of the iteration before.
    """
    sentence = tl.program_id(0).to(tl.int64)
    trajectory_stride = tl.cast(trajectory_stride, tl.int64)
    length = tl.load(lengths_pointer + sentence).to(tl.int32)
    unary_pointer += sentence * num_units * num_labels
    beliefs_pointer += sentence * num_units * num_labels
    transition_pointer += sentence * (num_units - 1) * num_labels * num_labels
    trajectory_pointer += sentence * num_units * BLOCK
    rightward_pointer += sentence * num_units * BLOCK
    leftward_pointer += sentence * num_units * BLOCK
    labels = tl.arange(0, BLOCK)
    is_label = (labels < num_labels)[None, :]
    for iteration in range(0, num_iterations + 1):
        target = trajectory_pointer + iteration * trajectory_stride
        if iteration > 0:
            _send_messages(
                target - trajectory_stride, transition_pointer, rightward_pointer, leftward_pointer,
                length, num_labels, FLOOR, ROWS, BLOCK, DTYPE,
            )  # fmt: skip
        for start in range(0, length, ROWS):
            positions = start + tl.arange(0, ROWS)
            is_unit = (positions < length)[:, None]
            places = positions[:, None] * num_labels + labels[None, :]
            cells = positions[:, None] * BLOCK + labels[None, :]
            scores = tl.load(unary_pointer + places, mask=is_unit & is_label, other=NEGATIVE_INFINITY).to(DTYPE)
            if iteration > 0:
                scores += _receive_messages(rightward_pointer, leftward_pointer, cells, positions, length)
            beliefs = softmax_rows(scores)
            tl.store(target + cells, beliefs, mask=is_unit)
            if iteration == num_iterations:
                if IS_LOG:
                    beliefs = log_softmax_rows(scores)
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
    beliefs_pointer,
    grads_pointer,
    rightward_pointer,
    leftward_pointer,
    grad_unary_pointer,
    grad_transition_pointer,
    num_units,
    num_labels,
    num_iterations,
    iteration_stride,
    IS_LOG: tl.constexpr,
    FLOOR: tl.constexpr,
    ROWS: tl.constexpr,
    SQUARES: tl.constexpr,
    BLOCK: tl.constexpr,
    DTYPE: tl.constexpr,
):
    """Backpropagation through all updates of one sentence, from the last to the first.

    ``beliefs`` (iterations + 1, B, N, BLOCK) are those that `iterate_kernel` kept; ``grads`` receives the gradients of their scores.
    """
    sentence = tl.program_id(0).to(tl.int64)
    iteration_stride = tl.cast(iteration_stride, tl.int64)
    length = tl.load(lengths_pointer + sentence).to(tl.int32)
    labels = tl.arange(0, BLOCK)
    is_label = (labels < num_labels)[None, :]
    offset = sentence * num_units * num_labels
    padded = sentence * num_units * BLOCK
    pairs_before = sentence * (num_units - 1) * num_labels * num_labels
    transition_pointer += pairs_before
    beliefs_pointer += padded
    grads_pointer += padded
    rightward_pointer += padded
    leftward_pointer += padded
    for done in range(0, num_iterations + 1):
        iteration = (num_iterations - done) * iteration_stride
        if done > 0:
            _send_messages(
                grads_pointer + iteration + iteration_stride, transition_pointer, rightward_pointer, leftward_pointer,
                length, num_labels, FLOOR, ROWS, BLOCK, DTYPE,
            )  # fmt: skip
        else:
            tl.debug_barrier()
        for start in range(0, num_units, ROWS):
            positions = start + tl.arange(0, ROWS)
            is_unit = (positions < length)[:, None]
            cells = positions[:, None] * BLOCK + labels[None, :]
            places = positions[:, None] * num_labels + labels[None, :]
            is_first = is_unit & is_label & (done == 0)
            grad = tl.load(grad_beliefs_pointer + offset + places, mask=is_first, other=0.0).to(DTYPE)
            if done > 0:
                grad += _receive_messages(rightward_pointer, leftward_pointer, cells, positions, length)
            beliefs = tl.load(beliefs_pointer + iteration + cells, mask=is_unit, other=0.0)
            grad_scores = softmax_gradient(beliefs, grad)
            if IS_LOG:  # noqa: SIM102 (decided when the kernel is compiled)
                if done == 0:
                    grad_scores = log_softmax_gradient(beliefs, grad)
            tl.store(grads_pointer + iteration + cells, grad_scores, mask=is_unit)
            is_more = is_unit & is_label & (done > 0)
            total = tl.load(grad_unary_pointer + offset + places, mask=is_more, other=0.0)
            is_cell = (positions < num_units)[:, None] & is_label
            tl.store(grad_unary_pointer + offset + places, total + grad_scores, mask=is_cell)

    # grad Tᵢ = Σₜ qₜ₋₁,ᵢ ⊗ gₜ,ᵢ₊₁ + gₜ,ᵢ ⊗ qₜ₋₁,ᵢ₊₁
    tl.debug_barrier()
    for start in range(0, num_units - 1, SQUARES):
        positions = start + tl.arange(0, SQUARES)
        has_right = (positions + 1 < length)[:, None]
        cells = positions[:, None] * BLOCK + labels[None, :]
        total = tl.zeros([SQUARES, BLOCK, BLOCK], DTYPE)
        for iteration in range(1, num_iterations + 1):
            grads = grads_pointer + iteration * iteration_stride + cells
            beliefs = beliefs_pointer + (iteration - 1) * iteration_stride + cells
            left = tl.load(beliefs, mask=has_right, other=0.0)
            right = tl.load(grads + BLOCK, mask=has_right, other=0.0)
            total += left[:, :, None] * right[:, None, :]
            left = tl.load(grads, mask=has_right, other=0.0)
            right = tl.load(beliefs + BLOCK, mask=has_right, other=0.0)
            total += left[:, :, None] * right[:, None, :]
        is_pair = (labels < num_labels)[None, :, None] & is_label[:, None, :]
        square = labels[None, :, None] * num_labels + labels[None, None, :]
        cell = positions[:, None, None] * num_labels * num_labels + square
        scores = tl.load(transition_pointer + cell, mask=has_right[:, :, None] & is_pair, other=0.0)
        total = tl.where(scores == NEGATIVE_INFINITY, 0.0, total)
        is_target = (positions + 1 < num_units)[:, None, None] & is_pair
        tl.store(grad_transition_pointer + pairs_before + cell, total, mask=is_target)
