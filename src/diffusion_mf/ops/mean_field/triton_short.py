"""Mean-Field kernels for local transitions among few labels: iterations touch no memory.

One program per sentence holds its transitions in registers, twice: Tᵢ₋₁[j, ·] for what unit i hears from the left and
Tᵢ[·, k] for what it hears from the right, a tile of units × labels for each j or k. A message is then a sum of such tiles,
each times one neighbour's belief, which a warp passes among its threads. Transitions in bfloat16 share registers two by two,
so that twice as many units fit.

Where a sentence has more units than fit, forward passes see it through windows, a program each. After n iterations a unit has
heard of no other that is more than n away, so all but the outermost n units of a window are what they are in the sentence.
More labels, and gradients of longer sentences, take `triton_local`.
"""

# ruff: noqa: RUF005 (Triton's compiler adds tuples, but unpacks none)

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
def _bits(values):
    """bfloat16 numbers as the upper halves of float32 ones."""
    return values.to(tl.uint16, bitcast=True).to(tl.uint32) << 16


@triton.jit
def _nothing(iteration):
    """0, as there are less than 2³⁰ iterations."""
    return tl.full([1, 1], iteration >> 30, tl.uint32)


@triton.jit
def _from_left(tile, nothing, FLOOR: tl.constexpr, IS_PACKED: tl.constexpr):
    """The transitions from a unit's left neighbour, of a tile as `_load_scores` made it.

    ``nothing`` is 0, but the compiler does not know: else it would unpack all tiles for good, before the loop of iterations.
    """
    scores = tile
    if IS_PACKED:
        scores = ((tile ^ nothing) & 0xFFFF0000).to(tl.float32, bitcast=True)
        scores = tl.where(scores == NEGATIVE_INFINITY, FLOOR, scores)
    return scores


@triton.jit
def _from_right(tile, nothing, FLOOR: tl.constexpr, IS_PACKED: tl.constexpr):
    """The transitions to a unit's right neighbour, likewise."""
    scores = tile
    if IS_PACKED:
        scores = ((tile ^ nothing) << 16).to(tl.float32, bitcast=True)
        scores = tl.where(scores == NEGATIVE_INFINITY, FLOOR, scores)
    return scores


@triton.jit
def _load_scores(
    unary_pointer,
    transition_pointer,
    length,
    FLOOR: tl.constexpr,
    ROWS: tl.constexpr,
    LABELS: tl.constexpr,
    BLOCK: tl.constexpr,
    DTYPE: tl.constexpr,
    IS_PACKED: tl.constexpr,
):
    """Unary scores, −∞ beside the sentence's labels, and both tuples of tiles of transitions, 0 beside its pairs.

    Packed tiles hold both kinds of transitions; the tuples are then the same.
    """
    rows, labels = tl.arange(0, ROWS)[:, None], tl.arange(0, BLOCK)[None, :]
    is_score = (rows < length) & (labels < LABELS)
    unary = tl.load(unary_pointer + rows * LABELS + labels, mask=is_score, other=NEGATIVE_INFINITY).to(DTYPE)
    has_left, has_right = is_score & (rows >= 1), is_score & (rows + 1 < length)
    from_left, from_right = (), ()
    for label in tl.static_range(LABELS):
        before = transition_pointer + ((rows - 1) * LABELS + label) * LABELS + labels
        after = transition_pointer + (rows * LABELS + labels) * LABELS + label
        if IS_PACKED:
            left = _bits(tl.load(before, mask=has_left, other=0.0))
            right = _bits(tl.load(after, mask=has_right, other=0.0)) >> 16
            from_left = from_left + (left | right,)
        else:
            from_left = from_left + (load_transitions(before, has_left, FLOOR, DTYPE),)
            from_right = from_right + (load_transitions(after, has_right, FLOOR, DTYPE),)
    if IS_PACKED:
        from_right = from_left
    return unary, from_left, from_right


@triton.jit
def _row_before(values, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Every unit's left neighbour's row; the first unit's own, which transitions of 0 make harmless."""
    rows = tl.arange(0, ROWS)[:, None]
    return tl.gather(values, tl.broadcast_to(tl.maximum(rows - 1, 0), [ROWS, BLOCK]), 0)


@triton.jit
def _row_after(values, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Every unit's right neighbour's row; the last row's own, likewise."""
    rows = tl.arange(0, ROWS)[:, None]
    return tl.gather(values, tl.broadcast_to(tl.minimum(rows + 1, ROWS - 1), [ROWS, BLOCK]), 0)


@triton.jit
def _heard(
    values,
    from_left,
    from_right,
    nothing,
    FLOOR: tl.constexpr,
    ROWS: tl.constexpr,
    LABELS: tl.constexpr,
    BLOCK: tl.constexpr,
    IS_PACKED: tl.constexpr,
):
    """valuesᵢ₋₁ Tᵢ₋₁ + Tᵢ valuesᵢ₊₁ for every unit."""
    before, after = _row_before(values, ROWS, BLOCK), _row_after(values, ROWS, BLOCK)
    # Two sums, so that neither waits for the other.
    left, right = tl.zeros_like(values), tl.zeros_like(values)
    for label in tl.static_range(LABELS):
        column = tl.full([ROWS, BLOCK], label, tl.int32)
        left += tl.gather(before, column, 1) * _from_left(from_left[label], nothing, FLOOR, IS_PACKED)
        right += tl.gather(after, column, 1) * _from_right(from_right[label], nothing, FLOOR, IS_PACKED)
    return left + right


@triton.jit
def iterate_kernel(
    unary_pointer,
    transition_pointer,
    lengths_pointer,
    beliefs_pointer,
    num_units,
    num_iterations,
    IS_LOG: tl.constexpr,
    FLOOR: tl.constexpr,
    ROWS: tl.constexpr,
    LABELS: tl.constexpr,
    BLOCK: tl.constexpr,
    DTYPE: tl.constexpr,
    IS_PACKED: tl.constexpr,
):
    """Beliefs (B, N, K) of one window of a sentence after the last update, or their logarithms; zero past its length.

    Windows begin ROWS − 2n units after each other, and together reach as far as the batch does.
    """
    sentence = tl.program_id(0).to(tl.int64)
    first = tl.program_id(1) * (ROWS - 2 * num_iterations)
    length = tl.load(lengths_pointer + sentence).to(tl.int32) - first
    # Else the window before this one has reached the sentence's end.
    is_needed = (first == 0) | (length > 2 * num_iterations)
    offset = (sentence * num_units + first) * LABELS
    pairs_before = (sentence * (num_units - 1) + first) * LABELS * LABELS
    unary, from_left, from_right = _load_scores(
        unary_pointer + offset, transition_pointer + pairs_before, tl.where(is_needed, tl.minimum(length, ROWS), 0),
        FLOOR, ROWS, LABELS, BLOCK, DTYPE, IS_PACKED,
    )  # fmt: skip
    scores = unary
    for iteration in range(0, tl.where(is_needed, num_iterations, 0)):
        beliefs = softmax_rows(scores)
        scores = unary + _heard(
            beliefs, from_left, from_right, _nothing(iteration), FLOOR, ROWS, LABELS, BLOCK, IS_PACKED
        )
    beliefs = log_softmax_rows(scores) if IS_LOG else softmax_rows(scores)
    rows, labels = tl.arange(0, ROWS)[:, None], tl.arange(0, BLOCK)[None, :]
    beliefs = tl.where(rows < length, beliefs, 0.0)
    begin = tl.where(first > 0, num_iterations, 0)
    end = tl.where(length > ROWS, ROWS - num_iterations, ROWS)
    is_told = (rows >= begin) & (rows < end) & (is_needed | (rows >= length))
    is_cell = (first + rows < num_units) & (labels < LABELS)
    tl.store(beliefs_pointer + offset + rows * LABELS + labels, beliefs, mask=is_told & is_cell)


@triton.jit
def gradient_kernel(
    unary_pointer,
    transition_pointer,
    lengths_pointer,
    grad_beliefs_pointer,
    trajectory_pointer,
    grad_unary_pointer,
    grad_transition_pointer,
    num_units,
    num_iterations,
    IS_LOG: tl.constexpr,
    FLOOR: tl.constexpr,
    ROWS: tl.constexpr,
    LABELS: tl.constexpr,
    BLOCK: tl.constexpr,
    DTYPE: tl.constexpr,
    IS_PACKED: tl.constexpr,
):
    """Backpropagation through all updates of one sentence; ``trajectory`` (B, iterations, ROWS, BLOCK) takes its beliefs.

    The gradient of Tᵢ₋₁[j, ·] is summed where its message arrives, at unit i: qᵢ₋₁[j] gᵢ + gᵢ₋₁[j] qᵢ.
    """
    sentence = tl.program_id(0).to(tl.int64)
    length = tl.load(lengths_pointer + sentence).to(tl.int32)
    offset = sentence * num_units * LABELS
    pairs_before = sentence * (num_units - 1) * LABELS * LABELS
    unary, from_left, from_right = _load_scores(
        unary_pointer + offset, transition_pointer + pairs_before, length,
        FLOOR, ROWS, LABELS, BLOCK, DTYPE, IS_PACKED,
    )  # fmt: skip
    rows, labels = tl.arange(0, ROWS)[:, None], tl.arange(0, BLOCK)[None, :]
    is_unit = rows < length
    trajectory_pointer += sentence * num_iterations * ROWS * BLOCK
    cells = rows * BLOCK + labels
    beliefs = softmax_rows(unary)
    for iteration in range(0, num_iterations):
        tl.store(trajectory_pointer + iteration * ROWS * BLOCK + cells, beliefs)
        heard = _heard(beliefs, from_left, from_right, _nothing(iteration), FLOOR, ROWS, LABELS, BLOCK, IS_PACKED)
        beliefs = softmax_rows(unary + heard)

    places = rows * LABELS + labels
    grad = tl.load(grad_beliefs_pointer + offset + places, mask=is_unit & (labels < LABELS), other=0.0).to(DTYPE)
    grad_scores = log_softmax_gradient(beliefs, grad) if IS_LOG else softmax_gradient(beliefs, grad)
    grad_unary = grad_scores
    sums = ()
    for label in tl.static_range(LABELS):  # noqa: B007 (an underscore would be carried by the loop below)
        sums = sums + (tl.zeros([ROWS, BLOCK], DTYPE),)
    tl.debug_barrier()
    for done in range(0, num_iterations):
        beliefs = tl.load(trajectory_pointer + (num_iterations - 1 - done) * ROWS * BLOCK + cells)
        nothing = _nothing(done)
        beliefs_before = _row_before(beliefs, ROWS, BLOCK)
        grads_before, grads_after = _row_before(grad_scores, ROWS, BLOCK), _row_after(grad_scores, ROWS, BLOCK)
        grad = tl.zeros_like(grad_scores)
        new_sums = ()
        for label in tl.static_range(LABELS):
            column = tl.full([ROWS, BLOCK], label, tl.int32)
            grad_before = tl.gather(grads_before, column, 1)
            grad += grad_before * _from_left(from_left[label], nothing, FLOOR, IS_PACKED)
            grad += tl.gather(grads_after, column, 1) * _from_right(from_right[label], nothing, FLOOR, IS_PACKED)
            added = tl.gather(beliefs_before, column, 1) * grad_scores + grad_before * beliefs
            new_sums = new_sums + (sums[label] + added,)
        sums = new_sums
        grad_scores = softmax_gradient(beliefs, grad)
        grad_unary += grad_scores
    is_cell = (rows < num_units) & (labels < LABELS)
    tl.store(grad_unary_pointer + offset + places, tl.where(is_unit, grad_unary, 0.0), mask=is_cell)

    has_left = is_unit & (rows >= 1) & (labels < LABELS)
    is_pair = (rows >= 1) & is_cell
    for label in tl.static_range(LABELS):
        cells = ((rows - 1) * LABELS + label) * LABELS + labels
        scores = tl.load(transition_pointer + pairs_before + cells, mask=has_left, other=NEGATIVE_INFINITY)
        total = tl.where(scores == NEGATIVE_INFINITY, 0.0, sums[label])
        tl.store(grad_transition_pointer + pairs_before + cells, total, mask=is_pair)
