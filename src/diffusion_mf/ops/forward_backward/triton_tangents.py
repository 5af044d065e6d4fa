"""Triton kernel for the derivative of messages, needed if marginals themselves are differentiated.

A recursion like that of the messages (`triton_messages`); see `pytorch.gradient` for the mathematics.
"""

from __future__ import annotations

import triton
import triton.language as tl

from diffusion_mf.ops.forward_backward.triton_messages import LOWEST_PRODUCT, as_probabilities, load_row, normalised
from diffusion_mf.ops.triton_launch import NEGATIVE_INFINITY, finite_or_zero


@triton.jit
def share(scores):
    """Softmax of a row, zero where everything is −∞, and its log normaliser (then 0)."""
    top = finite_or_zero(tl.max(scores, 0))
    weights = tl.exp(scores - top)
    total = tl.sum(weights, 0)
    total = tl.where(total == 0.0, 1.0, total)
    return weights / total, top + tl.log(total)


@triton.jit
def _load_place(
    unary_pointer,
    messages_pointer,
    opposite_pointer,
    direction_pointer,
    row,
    mask,
    HAS_DIRECTION: tl.constexpr,
    DTYPE: tl.constexpr,
):
    """Unary scores, both messages and the direction at one place."""
    unary = load_row(unary_pointer + row, mask, DTYPE)
    message = tl.load(messages_pointer + row, mask=mask, other=0.0)
    opposite = tl.load(opposite_pointer + row, mask=mask, other=0.0)
    direction = tl.zeros_like(message)
    if HAS_DIRECTION:
        direction = tl.load(direction_pointer + row, mask=mask, other=0.0).to(DTYPE)
    return unary, message, opposite, direction


@triton.jit
def _movement(moves_pointer, row, unary, message, opposite, direction, inflow, mask):
    """Message + unary at one place, normalised, and their tangent minus its mean under the marginals, which is stored."""
    state = unary + message
    move = inflow + direction
    mean, _ = share(state + opposite)
    move = move - tl.sum(mean * move, 0)
    tl.store(moves_pointer + row, move, mask=mask)
    state, _ = normalised(state)
    return state, move


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
    """Tangents of message + unary in one direction for given tangents of the scores; each has mean 0 under the marginals."""
    labels = tl.arange(0, BLOCK)
    is_label = labels < num_labels
    is_pair = is_label[:, None] & is_label[None, :]
    cells = sentence * num_units * num_labels + labels
    unary_pointer += cells
    messages_pointer += cells
    opposite_pointer += cells
    direction_pointer += cells
    moves_pointer += cells
    square = labels[:, None] * num_labels + labels[None, :]
    tile_pointer += square
    pair_direction_pointer += sentence * (num_units - 1) * num_labels * num_labels
    if IS_BACKWARD and AXIS == 0:
        pair_direction_pointer += labels[:, None] + labels[None, :] * num_labels
    else:
        pair_direction_pointer += square
    # A larger tile does not fit into registers, so it is read again at every step.
    FITS: tl.constexpr = not IS_LOCAL and BLOCK <= 128

    # As in `triton_messages`, steps multiply probabilities on chip, which is exact as long as no product underflows.
    is_exact = 0
    if FITS and not HAS_PAIR_DIRECTION:
        weights, column_tops, tile_floor = as_probabilities(load_row(tile_pointer, is_pair, DTYPE))
        lowest = tl.zeros([BLOCK], DTYPE)
        inflow = tl.zeros([BLOCK], DTYPE)
        here = length - 1 if IS_BACKWARD else 0
        unary, message, opposite, direction = _load_place(
            unary_pointer, messages_pointer, opposite_pointer, direction_pointer, here * num_labels, is_label,
            HAS_DIRECTION, DTYPE,
        )  # fmt: skip
        for done in range(0, length):
            here = length - 1 - done if IS_BACKWARD else done
            state, move = _movement(
                moves_pointer, here * num_labels, unary, message, opposite, direction, inflow, is_label
            )
            # Loaded one step ahead, so that the arithmetic hides the latency.
            following = here - 1 if IS_BACKWARD else here + 1
            unary, message, opposite, direction = _load_place(
                unary_pointer, messages_pointer, opposite_pointer, direction_pointer, following * num_labels,
                is_label & (done + 1 < length), HAS_DIRECTION, DTYPE,
            )  # fmt: skip
            lowest = tl.minimum(lowest, tl.where(state == NEGATIVE_INFINITY, 0.0, state))
            arrived = finite_or_zero(message)
            inflow = tl.sum((tl.exp(state) * move)[:, None] * weights, 0) * tl.exp(column_tops - arrived)
        is_exact = (tl.min(lowest, 0) + tile_floor > LOWEST_PRODUCT).to(tl.int32)

    if is_exact == 0:
        IS_KEPT: tl.constexpr = FITS and HAS_PAIR_DIRECTION
        if IS_KEPT:
            tile = load_row(tile_pointer, is_pair, DTYPE)
        inflow = tl.zeros([BLOCK], DTYPE)
        here = length - 1 if IS_BACKWARD else 0
        unary, message, opposite, direction = _load_place(
            unary_pointer, messages_pointer, opposite_pointer, direction_pointer, here * num_labels, is_label,
            HAS_DIRECTION, DTYPE,
        )  # fmt: skip
        for done in range(0, length):
            here = length - 1 - done if IS_BACKWARD else done
            state, move = _movement(
                moves_pointer, here * num_labels, unary, message, opposite, direction, inflow, is_label
            )
            following = here - 1 if IS_BACKWARD else here + 1
            has_following = done + 1 < length
            unary, message, opposite, direction = _load_place(
                unary_pointer, messages_pointer, opposite_pointer, direction_pointer, following * num_labels,
                is_label & has_following, HAS_DIRECTION, DTYPE,
            )  # fmt: skip
            place = following if IS_BACKWARD else here
            if not IS_KEPT:
                tile_place = place if IS_LOCAL else 0
                tile_row = tile_pointer + tile_place * num_labels * num_labels
                tile = load_row(tile_row, is_pair & has_following, DTYPE)
            arrived = finite_or_zero(message)
            # P(label before | label here, all before): at most 1, and 0 where either label is impossible.
            shares = tl.exp(tl.expand_dims(state, 1 - AXIS) + tile - tl.expand_dims(arrived, AXIS))
            inflow = tl.sum(shares * tl.expand_dims(move, 1 - AXIS), AXIS)
            if HAS_PAIR_DIRECTION:
                moved = pair_direction_pointer + place * num_labels * num_labels
                moves = tl.load(moved, mask=is_pair & has_following, other=0.0).to(DTYPE)
                inflow += tl.sum(shares * moves, AXIS)


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
