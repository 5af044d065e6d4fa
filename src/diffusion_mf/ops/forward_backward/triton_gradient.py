"""Triton kernel of the backward pass: given the messages, positions are independent and no recursion is needed.

See `pytorch.gradient` for the mathematics. Pair marginals exist only on chip.
"""

from __future__ import annotations

import triton
import triton.language as tl

from diffusion_mf.ops.forward_backward.triton_messages import load_row, normalised
from diffusion_mf.ops.forward_backward.triton_tangents import share
from diffusion_mf.ops.triton_launch import NEGATIVE_INFINITY, finite_or_zero

# How far (in nats) the sum at a place may be below the product of the best scores of its two sides for products to be used
# instead of exponentials: terms that underflow are then below e^(60 − 87) of the sum.
SAFE_SPREAD = tl.constexpr(60.0)


@triton.jit
def _normalised_rows(states):
    """Rows of states minus their largest scores."""
    return states - finite_or_zero(tl.max(states, 1))[:, None]


@triton.jit
def _places_in_log_space(
    unary_pointer,
    transition_pointer,
    forward_pointer,
    backward_pointer,
    pair_direction_pointer,
    left_moves_pointer,
    right_moves_pointer,
    grad_transition_pointer,
    total,
    weight,
    tile_top,
    sentence,
    first,
    end,
    length,
    num_units,
    num_labels,
    IS_LOCAL: tl.constexpr,
    HAS_MOVES: tl.constexpr,
    HAS_PAIR_DIRECTION: tl.constexpr,
    USE_PRODUCTS: tl.constexpr,
    COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
    DTYPE: tl.constexpr,
):
    """Compute pair marginals place by place, with one exponential per pair of labels.

    Local transitions: each place's gradient is stored. Global: it is added to ``total``, with ``USE_PRODUCTS`` only for the places
    that `gradient_kernel` left out.
    """
    labels = tl.arange(0, BLOCK)
    columns = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
    is_label = labels < num_labels
    is_pair = is_label[:, None] & (columns < num_labels)[None, :]
    cells = sentence * num_units * num_labels + labels
    square = labels[:, None] * num_labels + columns[None, :]
    pairs_before = sentence * (num_units - 1) * num_labels * num_labels
    for position in range(first, end):
        is_next = is_label & (position + 1 < length)
        is_place = is_pair & (position + 1 < length)
        here = cells + position * num_labels
        after = sentence * num_units * num_labels + (position + 1) * num_labels + columns
        is_after = (columns < num_labels) & (position + 1 < length)
        left = load_row(unary_pointer + here, is_next, DTYPE)
        left, _ = normalised(left + tl.load(forward_pointer + here, mask=is_next, other=0.0))
        # State and backward message give the marginal, whose normaliser is also that of the pairs.
        whole = left + tl.load(backward_pointer + here, mask=is_next, other=0.0)
        _, log_normaliser = share(whole)
        whole_right = load_row(unary_pointer + here + num_labels, is_next, DTYPE)
        whole_right += tl.load(backward_pointer + here + num_labels, mask=is_next, other=0.0)
        right = load_row(unary_pointer + after, is_after, DTYPE)
        right += tl.load(backward_pointer + after, mask=is_after, other=0.0)
        right -= finite_or_zero(tl.max(whole_right, 0))
        place = position * num_labels * num_labels + square
        if IS_LOCAL:
            tile = load_row(transition_pointer + pairs_before + place, is_place, DTYPE)
        else:
            tile = load_row(transition_pointer + square, is_pair, DTYPE)
            if USE_PRODUCTS:
                is_far = finite_or_zero(tl.max(whole, 0)) - tile_top < -SAFE_SPREAD
                right = tl.where(is_far, right, NEGATIVE_INFINITY)
        pair = tl.exp(left[:, None] + tile + (right - log_normaliser)[None, :])
        factor = weight
        if HAS_MOVES:
            left_move = tl.load(left_moves_pointer + here, mask=is_next, other=0.0)
            right_move = tl.load(right_moves_pointer + after, mask=is_after, other=0.0)
            factor = factor + left_move[:, None] + right_move[None, :]
        if HAS_PAIR_DIRECTION:
            pair_move = tl.load(pair_direction_pointer + pairs_before + place, mask=is_place, other=0.0).to(DTYPE)
            factor = factor + pair_move - tl.sum(tl.sum(pair * pair_move, 1), 0)
        if IS_LOCAL:
            tl.store(grad_transition_pointer + pairs_before + place, pair * factor, mask=is_pair)
        else:
            total += pair * factor
    return total


@triton.jit
def gradient_kernel(
    unary_pointer,
    transition_pointer,
    lengths_pointer,
    forward_pointer,
    backward_pointer,
    grad_log_partition_pointer,
    direction_pointer,
    pair_direction_pointer,
    left_moves_pointer,
    right_moves_pointer,
    grad_unary_pointer,
    grad_transition_pointer,
    num_units,
    num_labels,
    IS_LOCAL: tl.constexpr,
    HAS_LOG_PARTITION: tl.constexpr,
    HAS_MOVES: tl.constexpr,
    HAS_DIRECTION: tl.constexpr,
    HAS_PAIR_DIRECTION: tl.constexpr,
    USE_PRODUCTS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
    DTYPE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Gradients for ``ROWS`` positions of one sentence: of unary scores, and of transitions (each, or their sum).

    A program computes ``COLUMNS`` of the labels to the right (all of them if pairs themselves are differentiated).

    For global transitions, the sum over places of exp(left + tile + right − normaliser) is exp(tile) ∘ Lᵀ R with
    L = exp(left) and R = exp(right − normaliser): a matrix product instead of an exponential per pair of labels.
    Where R could overflow (a place whose paths lie far below the best of either side), and without ``USE_PRODUCTS`` (where pairs
    themselves are differentiated, or no product can be compiled), `_places_in_log_space` does the work.
    """
    sentence = tl.program_id(0).to(tl.int64)
    length = tl.load(lengths_pointer + sentence).to(tl.int32)
    labels = tl.arange(0, BLOCK)
    is_label = (labels < num_labels)[None, :]
    first = tl.program_id(1) * ROWS
    positions = first + tl.arange(0, ROWS)
    is_unit = (positions < length)[:, None] & is_label
    cells = (sentence * num_units + positions[:, None]) * num_labels + labels[None, :]
    weight = tl.zeros([], DTYPE)
    if HAS_LOG_PARTITION:
        weight = tl.load(grad_log_partition_pointer + sentence).to(DTYPE)

    left = tl.load(unary_pointer + cells, mask=is_unit, other=NEGATIVE_INFINITY).to(DTYPE)
    left = _normalised_rows(left + tl.load(forward_pointer + cells, mask=is_unit, other=0.0))
    # State and backward message give the marginal, whose normaliser is also that of the pairs to the right.
    whole = left + tl.load(backward_pointer + cells, mask=is_unit, other=0.0)
    top = finite_or_zero(tl.max(whole, 1))
    marginals = tl.exp(whole - top[:, None])
    sums = tl.sum(marginals, 1)
    sums = tl.where(sums == 0.0, 1.0, sums)
    marginals = marginals / sums[:, None]
    grad_unary = weight * marginals
    if HAS_MOVES:
        left_moves = tl.load(left_moves_pointer + cells, mask=is_unit, other=0.0)
        # Both sides include the position's own tangent, which must count once.
        moves = left_moves + tl.load(right_moves_pointer + cells, mask=is_unit, other=0.0)
        if HAS_DIRECTION:
            moves -= tl.load(direction_pointer + cells, mask=is_unit, other=0.0).to(DTYPE)
        grad_unary += marginals * (moves - tl.sum(marginals * moves, 1)[:, None])
    is_cell = (positions < num_units)[:, None] & is_label & (tl.program_id(2) == 0)
    tl.store(grad_unary_pointer + cells, grad_unary, mask=is_cell)

    total = tl.zeros([BLOCK, COLUMNS], DTYPE)
    tile_top = tl.zeros([], DTYPE)
    num_far = 1
    if not IS_LOCAL:
        columns = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
        square = labels[:, None] * num_labels + columns[None, :]
        is_pair = (labels < num_labels)[:, None] & (columns < num_labels)[None, :]
        if USE_PRODUCTS:
            tile_top = tl.max(tl.max(load_row(transition_pointer + square, is_pair, DTYPE), 0), 0)
            tile_top = finite_or_zero(tile_top)
            shift = top + tl.log(sums) - tile_top
            has_right = positions + 1 < length
            # Scaled by the largest score rather than the normaliser, because a maximum does not depend on the order of computation.
            is_far = has_right & (top - tile_top < -SAFE_SPREAD)
            num_far = tl.sum(is_far.to(tl.int32), 0)
            is_next = has_right[:, None] & is_label
            right = tl.load(unary_pointer + cells + num_labels, mask=is_next, other=NEGATIVE_INFINITY).to(DTYPE)
            right += tl.load(backward_pointer + cells + num_labels, mask=is_next, other=0.0)
            right_top = finite_or_zero(tl.max(right, 1))
            # The same rows, restricted to this program's columns.
            after_cells = (sentence * num_units + positions[:, None] + 1) * num_labels + columns[None, :]
            is_after = has_right[:, None] & (columns < num_labels)[None, :]
            right = tl.load(unary_pointer + after_cells, mask=is_after, other=NEGATIVE_INFINITY).to(DTYPE)
            right += tl.load(backward_pointer + after_cells, mask=is_after, other=0.0)
            right = tl.where(is_far[:, None], NEGATIVE_INFINITY, right - right_top[:, None])
            after = tl.exp(right - tl.where(is_far | (positions + 1 >= length), 0.0, shift)[:, None])
            before = tl.exp(left)
            if HAS_MOVES:
                right_moves = tl.load(right_moves_pointer + after_cells, mask=is_after, other=0.0)
                total = tl.dot(
                    tl.trans(before), after * right_moves, acc=total, input_precision=PRECISION, out_dtype=DTYPE
                )
                before = before * (weight + left_moves)
            total = tl.dot(tl.trans(before), after, acc=total, input_precision=PRECISION, out_dtype=DTYPE)
            tile = load_row(transition_pointer + square, is_pair, DTYPE)
            total = tl.where(tile == NEGATIVE_INFINITY, 0.0, total * tl.exp(tile - tile_top))
            if not HAS_MOVES:
                total = total * weight
    if num_far > 0:
        total = _places_in_log_space(
            unary_pointer, transition_pointer, forward_pointer, backward_pointer, pair_direction_pointer,
            left_moves_pointer, right_moves_pointer, grad_transition_pointer, total, weight, tile_top,
            sentence, first, tl.minimum(first + ROWS, num_units - 1), length, num_units, num_labels,
            IS_LOCAL, HAS_MOVES, HAS_PAIR_DIRECTION, USE_PRODUCTS, COLUMNS, BLOCK, DTYPE,
        )  # fmt: skip
    if not IS_LOCAL:
        program = sentence * tl.num_programs(1) + tl.program_id(1)
        tl.store(grad_transition_pointer + program * num_labels * num_labels + square, total, mask=is_pair)
