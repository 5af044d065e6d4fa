"""Triton kernel for the derivative of messages, needed where marginals themselves are differentiated.

A recursion like that of the messages (`triton_messages`); see `cpu.gradient` for the mathematics.
"""

from __future__ import annotations

import triton
import triton.language as tl

from diffusion_mf.ops.forward_backward.triton_messages import load_row, normalised
from diffusion_mf.ops.triton_launch import finite_or_zero


@triton.jit
def share(scores):
    """Softmax of a row, zero where everything is −∞, and its log normaliser (then 0)."""
    top = finite_or_zero(tl.max(scores, 0))
    weights = tl.exp(scores - top)
    total = tl.sum(weights, 0)
    total = tl.where(total == 0.0, 1.0, total)
    return weights / total, top + tl.log(total)


@triton.jit
def _tangents_one_way(
    unary_pointer,
    tile_pointer,
    messages_pointer,
    opposite_pointer,
    direction_pointer,
    pair_direction_pointer,
    moves_pointer,
    sentence,
    length,
    num_units,
    num_labels,
    AXIS: tl.constexpr,
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
    unary_pointer += cells
    messages_pointer += cells
    opposite_pointer += cells
    square = labels[:, None] * num_labels + labels[None, :]
    tile_pointer += square
    pair_direction_pointer += sentence * (num_units - 1) * num_labels * num_labels
    if IS_BACKWARD and AXIS == 0:
        pair_direction_pointer += labels[:, None] + labels[None, :] * num_labels
    else:
        pair_direction_pointer += square
    # A larger tile does not fit the registers: it is read again at every step.
    IS_KEPT: tl.constexpr = not IS_LOCAL and BLOCK <= 128
    if IS_KEPT:
        tile = load_row(tile_pointer, is_pair, DTYPE)

    inflow = tl.zeros([BLOCK], DTYPE)
    for done in range(0, length):
        here = length - 1 - done if IS_BACKWARD else done
        row = here * num_labels
        state = load_row(unary_pointer + row, is_label, DTYPE)
        state += tl.load(messages_pointer + row, mask=is_label, other=0.0)
        mean, _ = share(state + tl.load(opposite_pointer + row, mask=is_label, other=0.0))
        move = inflow
        if HAS_DIRECTION:
            move += tl.load(direction_pointer + cells + row, mask=is_label, other=0.0).to(DTYPE)
        move = move - tl.sum(mean * move, 0)
        tl.store(moves_pointer + cells + row, move, mask=is_label)
        if done + 1 < length:
            following = here - 1 if IS_BACKWARD else here + 1
            place = following if IS_BACKWARD else here
            if not IS_KEPT:
                tile_place = place if IS_LOCAL else 0
                tile = load_row(tile_pointer + tile_place * num_labels * num_labels, is_pair, DTYPE)
            state, _ = normalised(state)
            arrived = finite_or_zero(tl.load(messages_pointer + following * num_labels, mask=is_label, other=0.0))
            # P(label before | label here, all before): at most 1, and 0 where either label is impossible.
            shares = tl.exp(tl.expand_dims(state, 1 - AXIS) + tile - tl.expand_dims(arrived, AXIS))
            moves = tl.broadcast_to(tl.expand_dims(move, 1 - AXIS), [BLOCK, BLOCK])
            if HAS_PAIR_DIRECTION:
                moved = pair_direction_pointer + place * num_labels * num_labels
                moves += tl.load(moved, mask=is_pair, other=0.0).to(DTYPE)
            inflow = tl.sum(shares * moves, AXIS)


@triton.jit
def tangents_kernel(
    unary_pointer,
    transition_pointer,
    transposed_pointer,
    lengths_pointer,
    forward_pointer,
    backward_pointer,
    direction_pointer,
    pair_direction_pointer,
    left_moves_pointer,
    right_moves_pointer,
    num_units,
    num_labels,
    IS_LOCAL: tl.constexpr,
    HAS_DIRECTION: tl.constexpr,
    HAS_PAIR_DIRECTION: tl.constexpr,
    BLOCK: tl.constexpr,
    DTYPE: tl.constexpr,
):
    """The derivative of both messages, with the same programs and tiles as `messages_kernel`."""
    sentence = tl.program_id(0).to(tl.int64)
    length = tl.load(lengths_pointer + sentence).to(tl.int32)
    if IS_LOCAL:
        transition_pointer += sentence * (num_units - 1) * num_labels * num_labels
    if tl.program_id(1) == 0:
        _tangents_one_way(
            unary_pointer, transition_pointer, forward_pointer, backward_pointer, direction_pointer,
            pair_direction_pointer, left_moves_pointer, sentence, length, num_units, num_labels,
            0, False, IS_LOCAL, HAS_DIRECTION, HAS_PAIR_DIRECTION, BLOCK, DTYPE,
        )  # fmt: skip
    elif IS_LOCAL or BLOCK > 128:
        _tangents_one_way(
            unary_pointer, transition_pointer, backward_pointer, forward_pointer, direction_pointer,
            pair_direction_pointer, right_moves_pointer, sentence, length, num_units, num_labels,
            1, True, IS_LOCAL, HAS_DIRECTION, HAS_PAIR_DIRECTION, BLOCK, DTYPE,
        )  # fmt: skip
    else:
        _tangents_one_way(
            unary_pointer, transposed_pointer, backward_pointer, forward_pointer, direction_pointer,
            pair_direction_pointer, right_moves_pointer, sentence, length, num_units, num_labels,
            0, True, False, HAS_DIRECTION, HAS_PAIR_DIRECTION, BLOCK, DTYPE,
        )  # fmt: skip
