"""Mean-Field as one Triton launch each way: one program per sentence runs every iteration.

Beliefs pass between iterations through two buffers that stay in cache, as a position needs its neighbours' old ones. Global
transitions are on chip for the whole launch, and messages are products of a tile of positions with them; local transitions
are read again at every iteration, from a copy with both labels swapped for the messages to the left. The backward pass recomputes the iterations first, so nothing is kept from the forward
pass but its inputs. See `cpu` for the mathematics of the backward pass.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from diffusion_mf.ops.chain_scores import accumulation_dtype
from diffusion_mf.ops.triton_launch import NEGATIVE_INFINITY, finite_or_zero, padded_labels, triton_type


@triton.jit
def _softmax_rows(scores):
    """Softmax of each row; zero where everything is −∞."""
    weights = tl.exp(scores - finite_or_zero(tl.max(scores, 1))[:, None])
    sums = tl.sum(weights, 1)
    return weights / tl.where(sums == 0.0, 1.0, sums)[:, None]


@triton.jit
def _load_transitions(pointer, mask, FLOOR: tl.constexpr, DTYPE: tl.constexpr):
    """Transition scores, with the floor in place of −∞ and 0 outside the mask."""
    scores = tl.load(pointer, mask=mask, other=0.0).to(DTYPE)
    return tl.where(scores == NEGATIVE_INFINITY, FLOOR, scores)


@triton.jit
def _split(values, USE_HALVES: tl.constexpr):
    """``values`` ≈ high + low, both half precision: together 22 bits, enough to multiply like float32 on tensor cores."""
    if USE_HALVES:
        high = values.to(tl.float16)
        low = (values - high.to(tl.float32)).to(tl.float16)
    else:
        high = values
        low = values
    return high, low


@triton.jit
def _product(left_high, left_low, right_high, right_low, total, USE_HALVES: tl.constexpr, DTYPE: tl.constexpr):
    """total + left · right, for matrices split by `_split`."""
    if USE_HALVES:
        total = tl.dot(left_low, right_high, acc=total)
        total = tl.dot(left_high, right_low, acc=total)
        total = tl.dot(left_high, right_high, acc=total)
    else:
        total = tl.dot(left_high, right_high, acc=total, input_precision="ieee", out_dtype=DTYPE)
    return total


@triton.jit
def _scale_of(values, AXIS: tl.constexpr):
    """Largest magnitude along an axis (1 where all are 0): dividing by it brings values into half precision's range."""
    top = tl.max(tl.abs(values), AXIS)
    return tl.where(top == 0.0, 1.0, top)


@triton.jit
def _neighbour_scores(
    values_pointer,
    transition_pointer,
    transposed_pointer,
    high,
    low,
    scale,
    positions,
    length,
    num_labels,
    IS_BELIEF: tl.constexpr,
    IS_LOCAL: tl.constexpr,
    FLOOR: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    DTYPE: tl.constexpr,
    USE_HALVES: tl.constexpr,
):
    """Σⱼ valuesᵢ₋₁(j) Tᵢ₋₁(j, ·) + Σₖ Tᵢ(·, k) valuesᵢ₊₁(k) for a tile of positions of one sentence."""
    labels = tl.arange(0, BLOCK)
    is_label = (labels < num_labels)[None, :]
    has_left = (positions >= 1) & (positions < length)
    has_right = positions + 1 < length
    if IS_LOCAL:
        result = tl.zeros([ROWS, BLOCK], DTYPE)
        before = values_pointer + (positions - 1) * num_labels
        after = values_pointer + (positions + 1) * num_labels
        into = transition_pointer + (positions[:, None] - 1) * num_labels * num_labels + labels[None, :]
        back = transposed_pointer + positions[:, None] * num_labels * num_labels + labels[None, :]
        for label in range(0, num_labels):
            weight = tl.load(before + label, mask=has_left, other=0.0)
            row = _load_transitions(into + label * num_labels, has_left[:, None] & is_label, FLOOR, DTYPE)
            result += weight[:, None] * row
            weight = tl.load(after + label, mask=has_right, other=0.0)
            row = tl.load(back + label * num_labels, mask=has_right[:, None] & is_label, other=0.0)
            result += weight[:, None] * row
    else:
        cells = positions[:, None] * num_labels + labels[None, :]
        left = tl.load(values_pointer + cells - num_labels, mask=has_left[:, None] & is_label, other=0.0)
        right = tl.load(values_pointer + cells + num_labels, mask=has_right[:, None] & is_label, other=0.0)
        # Beliefs lie in [0, 1] as they are; gradients of any size are scaled by position.
        if USE_HALVES and not IS_BELIEF:
            left_scale = _scale_of(left, 1)[:, None]
            right_scale = _scale_of(right, 1)[:, None]
            left = left / left_scale
            right = right / right_scale
        zeros = tl.zeros_like(left)
        left_high, left_low = _split(left, USE_HALVES)
        right_high, right_low = _split(right, USE_HALVES)
        result = _product(left_high, left_low, high, low, zeros, USE_HALVES, DTYPE)
        if USE_HALVES and not IS_BELIEF:
            result = result * left_scale
            result += right_scale * _product(
                right_high, right_low, tl.trans(high), tl.trans(low), zeros, USE_HALVES, DTYPE
            )
        else:
            result = _product(right_high, right_low, tl.trans(high), tl.trans(low), result, USE_HALVES, DTYPE)
        result = result * scale
    return result


@triton.jit
def _transpose_local(
    transition_pointer,
    transposed_pointer,
    length,
    num_labels,
    FLOOR: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    DTYPE: tl.constexpr,
):
    """A sentence's local transitions with both labels swapped, so that messages to the left add whole rows too."""
    labels = tl.arange(0, BLOCK)
    for start in range(0, length - 1, ROWS):
        positions = start + tl.arange(0, ROWS)
        is_read = (positions + 1 < length)[:, None] & (labels < num_labels)[None, :]
        rows = transition_pointer + positions[:, None] * num_labels * num_labels + labels[None, :]
        columns = transposed_pointer + (positions[:, None] * num_labels + labels[None, :]) * num_labels
        for label in range(0, num_labels):
            scores = _load_transitions(rows + label * num_labels, is_read, FLOOR, DTYPE)
            tl.store(columns + label, scores, mask=is_read)


@triton.jit
def _load_global(
    transition_pointer,
    num_labels,
    FLOOR: tl.constexpr,
    BLOCK: tl.constexpr,
    DTYPE: tl.constexpr,
    USE_HALVES: tl.constexpr,
):
    """Global transitions, split, and their scale: 1 unless a score is too large for half precision."""
    labels = tl.arange(0, BLOCK)
    is_pair = (labels < num_labels)[:, None] & (labels < num_labels)[None, :]
    square = labels[:, None] * num_labels + labels[None, :]
    scores = _load_transitions(transition_pointer + square, is_pair, FLOOR, DTYPE)
    scale = tl.maximum(tl.max(tl.max(tl.abs(scores), 1), 0) / 32768.0, 1.0) if USE_HALVES else 1.0
    high, low = _split(scores / scale, USE_HALVES)
    return high, low, scale


@triton.jit
def _run_iterations(
    unary_pointer,
    transition_pointer,
    transposed_pointer,
    high,
    low,
    scale,
    beliefs_pointer,
    length,
    num_units,
    num_labels,
    num_iterations,
    buffer_stride,
    KEEP_ALL: tl.constexpr,
    IS_LOCAL: tl.constexpr,
    FLOOR: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    DTYPE: tl.constexpr,
    USE_HALVES: tl.constexpr,
):
    """All updates of one sentence. Iteration t is written to buffer t with KEEP_ALL, else the last to buffer 0."""
    labels = tl.arange(0, BLOCK)
    is_label = (labels < num_labels)[None, :]
    for iteration in range(0, num_iterations + 1):
        if KEEP_ALL:
            target = beliefs_pointer + iteration * buffer_stride
            source = target - buffer_stride
        else:
            target = beliefs_pointer + ((num_iterations - iteration) % 2) * buffer_stride
            source = beliefs_pointer + ((num_iterations - iteration + 1) % 2) * buffer_stride
        # Every thread's beliefs of the iteration before must be there before a neighbour reads them.
        tl.debug_barrier()
        for start in range(0, num_units, ROWS):
            positions = start + tl.arange(0, ROWS)
            is_read = (positions < length)[:, None] & is_label
            places = positions[:, None] * num_labels + labels[None, :]
            scores = tl.load(unary_pointer + places, mask=is_read, other=NEGATIVE_INFINITY).to(DTYPE)
            if (iteration > 0) & (start < length):
                scores += _neighbour_scores(
                    source, transition_pointer, transposed_pointer, high, low, scale, positions, length, num_labels,
                    True, IS_LOCAL, FLOOR, ROWS, BLOCK, DTYPE, USE_HALVES,
                )  # fmt: skip
            beliefs = _softmax_rows(scores)
            cells = positions[:, None] * num_labels + labels[None, :]
            tl.store(target + cells, beliefs, mask=(positions < num_units)[:, None] & is_label)


@triton.jit
def _iterate_kernel(
    unary_pointer,
    transition_pointer,
    transposed_pointer,
    lengths_pointer,
    beliefs_pointer,
    num_units,
    num_labels,
    num_iterations,
    buffer_stride,
    IS_LOCAL: tl.constexpr,
    FLOOR: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    DTYPE: tl.constexpr,
    USE_HALVES: tl.constexpr,
):
    """All updates of one sentence between two buffers; the last one is written to the first buffer."""
    sentence = tl.program_id(0).to(tl.int64)
    length = tl.load(lengths_pointer + sentence).to(tl.int32)
    if IS_LOCAL:
        transition_pointer += sentence * (num_units - 1) * num_labels * num_labels
    high = 0.0
    low = 0.0
    scale = 0.0
    if IS_LOCAL:
        transposed_pointer += sentence * (num_units - 1) * num_labels * num_labels
        _transpose_local(
            transition_pointer, transposed_pointer, length, num_labels,
            FLOOR, ROWS, BLOCK, DTYPE,
        )  # fmt: skip
    else:
        high, low, scale = _load_global(transition_pointer, num_labels, FLOOR, BLOCK, DTYPE, USE_HALVES)
    _run_iterations(
        unary_pointer + sentence * num_units * num_labels, transition_pointer, transposed_pointer, high, low, scale,
        beliefs_pointer + sentence * num_units * num_labels, length,
        num_units, num_labels, num_iterations,
        buffer_stride, False, IS_LOCAL, FLOOR, ROWS, BLOCK, DTYPE, USE_HALVES,
    )  # fmt: skip


@triton.jit
def _gradient_kernel(
    unary_pointer,
    transition_pointer,
    transposed_pointer,
    lengths_pointer,
    beliefs_pointer,
    grad_beliefs_pointer,
    grad_scores_pointer,
    grad_unary_pointer,
    grad_transition_pointer,
    num_units,
    num_labels,
    num_iterations,
    buffer_stride,
    IS_LOCAL: tl.constexpr,
    FLOOR: tl.constexpr,
    ROWS: tl.constexpr,
    SQUARES: tl.constexpr,
    BLOCK: tl.constexpr,
    DTYPE: tl.constexpr,
    USE_HALVES: tl.constexpr,
):
    """Backpropagation through all updates of one sentence: all beliefs again, then backwards through them."""
    sentence = tl.program_id(0).to(tl.int64)
    length = tl.load(lengths_pointer + sentence).to(tl.int32)
    labels = tl.arange(0, BLOCK)
    is_label = (labels < num_labels)[None, :]
    offset = sentence * num_units * num_labels
    if IS_LOCAL:
        transition_pointer += sentence * (num_units - 1) * num_labels * num_labels
    beliefs_pointer += offset
    grad_beliefs_pointer += offset
    grad_scores_pointer += offset
    grad_unary_pointer += offset
    square = labels[:, None] * num_labels + labels[None, :]
    is_pair = (labels < num_labels)[:, None] & is_label
    high = 0.0
    low = 0.0
    scale = 0.0
    if IS_LOCAL:
        transposed_pointer += sentence * (num_units - 1) * num_labels * num_labels
        _transpose_local(
            transition_pointer, transposed_pointer, length, num_labels,
            FLOOR, ROWS, BLOCK, DTYPE,
        )  # fmt: skip
    else:
        high, low, scale = _load_global(transition_pointer, num_labels, FLOOR, BLOCK, DTYPE, USE_HALVES)
    _run_iterations(
        unary_pointer + sentence * num_units * num_labels, transition_pointer, transposed_pointer, high, low, scale, beliefs_pointer,
        length,
        num_units, num_labels, num_iterations, buffer_stride,
        True, IS_LOCAL, FLOOR, ROWS, BLOCK, DTYPE, USE_HALVES,
    )  # fmt: skip
    for done in range(0, num_iterations + 1):
        iteration = num_iterations - done
        # The scores' gradient of iteration t is kept in buffer t, for the transitions' gradient below.
        target = grad_scores_pointer + iteration * buffer_stride
        tl.debug_barrier()
        for start in range(0, num_units, ROWS):
            positions = start + tl.arange(0, ROWS)
            is_read = (positions < length)[:, None] & is_label
            is_cell = (positions < num_units)[:, None] & is_label
            cells = positions[:, None] * num_labels + labels[None, :]
            if done == 0:
                grad = tl.load(grad_beliefs_pointer + cells, mask=is_read, other=0.0).to(DTYPE)
                grad_unary = tl.zeros([ROWS, BLOCK], DTYPE)
            else:
                grad = _neighbour_scores(
                    target + buffer_stride, transition_pointer, transposed_pointer, high, low, scale,
                    positions, length, num_labels,
                    False, IS_LOCAL, FLOOR, ROWS, BLOCK, DTYPE, USE_HALVES,
                )  # fmt: skip
                grad_unary = tl.load(grad_unary_pointer + cells, mask=is_read, other=0.0)
            beliefs = tl.load(beliefs_pointer + iteration * buffer_stride + cells, mask=is_read, other=0.0)
            grad_scores = beliefs * (grad - tl.sum(beliefs * grad, 1)[:, None])
            tl.store(target + cells, grad_scores, mask=is_cell)
            tl.store(grad_unary_pointer + cells, grad_unary + grad_scores, mask=is_cell)

    # grad Tᵢ = Σₜ qₜ₋₁,ᵢ ⊗ gₜ,ᵢ₊₁ + gₜ,ᵢ ⊗ qₜ₋₁,ᵢ₊₁
    tl.debug_barrier()
    if IS_LOCAL:
        grad_transition_pointer += sentence * (num_units - 1) * num_labels * num_labels
        for start in range(0, num_units - 1, SQUARES):
            positions = start + tl.arange(0, SQUARES)
            is_read = (positions + 1 < length)[:, None] & is_label
            cells = positions[:, None] * num_labels + labels[None, :]
            total = tl.zeros([SQUARES, BLOCK, BLOCK], DTYPE)
            for iteration in range(1, num_iterations + 1):
                grads = grad_scores_pointer + iteration * buffer_stride + cells
                beliefs = beliefs_pointer + (iteration - 1) * buffer_stride + cells
                left = tl.load(beliefs, mask=is_read, other=0.0)
                right = tl.load(grads + num_labels, mask=is_read, other=0.0)
                total += left[:, :, None] * right[:, None, :]
                left = tl.load(grads, mask=is_read, other=0.0)
                right = tl.load(beliefs + num_labels, mask=is_read, other=0.0)
                total += left[:, :, None] * right[:, None, :]
            is_target = (positions + 1 < num_units)[:, None, None] & is_pair[None, :, :]
            cell = positions[:, None, None] * num_labels * num_labels + square[None, :, :]
            is_score = (positions + 1 < length)[:, None, None] & is_pair[None, :, :]
            scores = tl.load(transition_pointer + cell, mask=is_score, other=0.0)
            total = tl.where(scores == NEGATIVE_INFINITY, 0.0, total)
            tl.store(grad_transition_pointer + cell, total, mask=is_target)
    else:
        sums = tl.zeros([BLOCK, BLOCK], DTYPE)
        for iteration in range(1, num_iterations + 1):
            for start in range(0, length - 1, ROWS):
                positions = start + tl.arange(0, ROWS)
                is_read = (positions + 1 < length)[:, None] & is_label
                cells = positions[:, None] * num_labels + labels[None, :]
                grads = grad_scores_pointer + iteration * buffer_stride + cells
                beliefs = beliefs_pointer + (iteration - 1) * buffer_stride + cells
                zeros = tl.zeros([BLOCK, BLOCK], DTYPE)
                # before × gradient after, then gradient before × after; the gradient is scaled by tile.
                for side in tl.static_range(2):
                    belief = tl.load(beliefs + side * num_labels, mask=is_read, other=0.0)
                    grad = tl.load(grads + (1 - side) * num_labels, mask=is_read, other=0.0)
                    grad_scale = tl.max(_scale_of(grad, 1), 0) if USE_HALVES else 1.0
                    belief_high, belief_low = _split(belief, USE_HALVES)
                    grad_high, grad_low = _split(grad / grad_scale, USE_HALVES)
                    if side == 0:
                        part = _product(
                            tl.trans(belief_high), tl.trans(belief_low), grad_high, grad_low, zeros, USE_HALVES, DTYPE
                        )
                    else:
                        part = _product(
                            tl.trans(grad_high), tl.trans(grad_low), belief_high, belief_low, zeros, USE_HALVES, DTYPE
                        )
                    sums += part * grad_scale
        scores = tl.load(transition_pointer + square, mask=is_pair, other=0.0)
        sums = tl.where(scores == NEGATIVE_INFINITY, 0.0, sums)
        tl.store(grad_transition_pointer + sentence * num_labels * num_labels + square, sums, mask=is_pair)


def _settings(num_labels: int, num_units: int, is_local: bool, dtype: torch.dtype, floor: float) -> dict[str, object]:
    """Tile of positions × labels per step and warps per program."""
    block = padded_labels(num_labels)
    rows = max(16, min(64, 2048 // block if is_local else 8192 // block, triton.next_power_of_2(num_units)))
    return {
        "IS_LOCAL": is_local,
        "FLOOR": floor,
        "ROWS": rows,
        "BLOCK": block,
        "DTYPE": triton_type(dtype),
        "USE_HALVES": dtype == torch.float32,
        "num_warps": 8 if is_local or block > 64 else 4,
        "num_stages": 1,  # loads must not move ahead of the stores of the iteration before
    }


def _transposed_buffer(transition: Tensor, dtype: torch.dtype) -> Tensor:
    """Room for local transitions with both labels swapped; global ones need none."""
    return torch.empty(transition.shape if transition.dim() == 4 else 0, dtype=dtype, device=transition.device)


def iterate(unary: Tensor, transition: Tensor, lengths: Tensor, num_iterations: int, floor: float) -> Tensor:
    """Beliefs after the last update, in one launch."""
    B, N, K = unary.shape
    dtype = accumulation_dtype(unary.dtype)
    beliefs = torch.empty((2, B, N, K), dtype=dtype, device=unary.device)
    _iterate_kernel[(B,)](
        unary.contiguous(), transition.contiguous(), _transposed_buffer(transition, dtype), lengths, beliefs, N, K, num_iterations, B * N * K, **_settings(K, N, transition.dim() == 4, dtype, floor),
    )  # fmt: skip
    return beliefs[0]


def gradient(
    unary: Tensor, transition: Tensor, lengths: Tensor, num_iterations: int, floor: float, grad_beliefs: Tensor
) -> tuple[Tensor, Tensor]:
    """Gradients with respect to unary and transition scores, in one launch (and a sum over sentences)."""
    B, N, K = unary.shape
    dtype = accumulation_dtype(unary.dtype)
    is_local = transition.dim() == 4
    # Only for the time of this call: the beliefs of every iteration and the gradients of their scores.
    beliefs, grad_scores = torch.empty((2, num_iterations + 1, B, N, K), dtype=dtype, device=unary.device).unbind(0)
    grad_unary = torch.empty((B, N, K), dtype=dtype, device=unary.device)
    shape = (B, N - 1, K, K) if is_local else (B, K, K)
    grad_transition = torch.empty(shape, dtype=transition.dtype if is_local else dtype, device=unary.device)
    _gradient_kernel[(B,)](
        unary.contiguous(), transition.contiguous(), _transposed_buffer(transition, dtype), lengths,
        beliefs, grad_beliefs.contiguous(), grad_scores, grad_unary, grad_transition,
        N, K, num_iterations, B * N * K,
        SQUARES=max(1, 8192 // padded_labels(K) ** 2), **_settings(K, N, is_local, dtype, floor),
    )  # fmt: skip
    if not is_local:
        grad_transition = grad_transition.sum(0).to(transition.dtype)
    return grad_unary.to(unary.dtype), grad_transition
