"""Mean-Field as one Triton launch each way: one program per sentence runs every iteration.

Beliefs pass between iterations through two buffers that stay in cache, as a position needs its neighbours' old ones. Global
transitions are on chip for the whole launch, and messages are products of a tile of positions with them; local transitions
are read again at every iteration. The backward pass recomputes the iterations first, so nothing is kept from the forward
pass but its inputs. See `cpu` for the mathematics of the backward pass.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from diffusion_mf.ops.chain_scores import accumulation_dtype
from diffusion_mf.ops.triton_launch import NEGATIVE_INFINITY, finite_or_zero, transition_strides, triton_type


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
def _neighbour_scores(
    values_pointer,
    transition_pointer,
    transition,
    transposed,
    positions,
    length,
    num_labels,
    transition_stride_n,
    transition_stride_j,
    transition_stride_k,
    IS_LOCAL: tl.constexpr,
    FLOOR: tl.constexpr,
    BLOCK: tl.constexpr,
    DTYPE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Σⱼ valuesᵢ₋₁(j) Tᵢ₋₁(j, ·) + Σₖ Tᵢ(·, k) valuesᵢ₊₁(k) for a tile of positions of one sentence."""
    labels = tl.arange(0, BLOCK)
    is_label = (labels < num_labels)[None, :]
    has_left = (positions >= 1) & (positions < length)
    has_right = positions + 1 < length
    cells = positions[:, None] * num_labels + labels[None, :]
    left = tl.load(values_pointer + cells - num_labels, mask=has_left[:, None] & is_label, other=0.0)
    right = tl.load(values_pointer + cells + num_labels, mask=has_right[:, None] & is_label, other=0.0)
    if IS_LOCAL:
        is_pair = (labels < num_labels)[None, :, None] & is_label[:, None, :]
        square = labels[None, :, None] * transition_stride_j + labels[None, None, :] * transition_stride_k
        here = transition_pointer + positions[:, None, None] * transition_stride_n + square
        into = _load_transitions(here - transition_stride_n, has_left[:, None, None] & is_pair, FLOOR, DTYPE)
        from_left = tl.sum(left[:, :, None] * into, 1)
        out = _load_transitions(here, has_right[:, None, None] & is_pair, FLOOR, DTYPE)
        from_right = tl.sum(out * right[:, None, :], 2)
        result = from_left + from_right
    else:
        result = tl.dot(left, transition, input_precision=PRECISION, out_dtype=DTYPE)
        result = tl.dot(right, transposed, acc=result, input_precision=PRECISION, out_dtype=DTYPE)
    return result


@triton.jit
def _run_iterations(
    unary_pointer,
    transition_pointer,
    transition,
    transposed,
    beliefs_pointer,
    length,
    unary_stride_n,
    unary_stride_k,
    transition_stride_n,
    transition_stride_j,
    transition_stride_k,
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
    PRECISION: tl.constexpr,
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
            places = positions[:, None] * unary_stride_n + labels[None, :] * unary_stride_k
            scores = tl.load(unary_pointer + places, mask=is_read, other=NEGATIVE_INFINITY).to(DTYPE)
            if (iteration > 0) & (start < length):
                scores += _neighbour_scores(
                    source, transition_pointer, transition, transposed, positions, length, num_labels,
                    transition_stride_n, transition_stride_j, transition_stride_k,
                    IS_LOCAL, FLOOR, BLOCK, DTYPE, PRECISION,
                )  # fmt: skip
            beliefs = _softmax_rows(scores)
            cells = positions[:, None] * num_labels + labels[None, :]
            tl.store(target + cells, beliefs, mask=(positions < num_units)[:, None] & is_label)


@triton.jit
def _iterate_kernel(
    unary_pointer,
    transition_pointer,
    lengths_pointer,
    beliefs_pointer,
    unary_stride_b,
    unary_stride_n,
    unary_stride_k,
    transition_stride_b,
    transition_stride_n,
    transition_stride_j,
    transition_stride_k,
    num_units,
    num_labels,
    num_iterations,
    buffer_stride,
    IS_LOCAL: tl.constexpr,
    FLOOR: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    DTYPE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """All updates of one sentence between two buffers; the last one is written to the first buffer."""
    sentence = tl.program_id(0).to(tl.int64)
    length = tl.load(lengths_pointer + sentence).to(tl.int32)
    transition_pointer += sentence * transition_stride_b
    transition = 0.0
    transposed = 0.0
    if not IS_LOCAL:
        labels = tl.arange(0, BLOCK)
        square = labels[:, None] * transition_stride_j + labels[None, :] * transition_stride_k
        is_pair = (labels < num_labels)[:, None] & (labels < num_labels)[None, :]
        transition = _load_transitions(transition_pointer + square, is_pair, FLOOR, DTYPE)
        transposed = tl.trans(transition)
    _run_iterations(
        unary_pointer + sentence * unary_stride_b, transition_pointer, transition, transposed,
        beliefs_pointer + sentence * num_units * num_labels, length, unary_stride_n, unary_stride_k,
        transition_stride_n, transition_stride_j, transition_stride_k, num_units, num_labels, num_iterations,
        buffer_stride, False, IS_LOCAL, FLOOR, ROWS, BLOCK, DTYPE, PRECISION,
    )  # fmt: skip


@triton.jit
def _gradient_kernel(
    unary_pointer,
    transition_pointer,
    lengths_pointer,
    beliefs_pointer,
    grad_beliefs_pointer,
    grad_scores_pointer,
    grad_unary_pointer,
    grad_transition_pointer,
    unary_stride_b,
    unary_stride_n,
    unary_stride_k,
    transition_stride_b,
    transition_stride_n,
    transition_stride_j,
    transition_stride_k,
    num_units,
    num_labels,
    num_iterations,
    buffer_stride,
    IS_LOCAL: tl.constexpr,
    FLOOR: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    DTYPE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Backpropagation through all updates of one sentence: all beliefs again, then backwards through them."""
    sentence = tl.program_id(0).to(tl.int64)
    length = tl.load(lengths_pointer + sentence).to(tl.int32)
    labels = tl.arange(0, BLOCK)
    is_label = (labels < num_labels)[None, :]
    offset = sentence * num_units * num_labels
    transition_pointer += sentence * transition_stride_b
    beliefs_pointer += offset
    grad_beliefs_pointer += offset
    grad_scores_pointer += offset
    grad_unary_pointer += offset
    square = labels[:, None] * num_labels + labels[None, :]
    is_pair = (labels < num_labels)[:, None] & is_label
    transition = 0.0
    transposed = 0.0
    if not IS_LOCAL:
        places = labels[:, None] * transition_stride_j + labels[None, :] * transition_stride_k
        transition = _load_transitions(transition_pointer + places, is_pair, FLOOR, DTYPE)
        transposed = tl.trans(transition)
    _run_iterations(
        unary_pointer + sentence * unary_stride_b, transition_pointer, transition, transposed, beliefs_pointer,
        length, unary_stride_n, unary_stride_k, transition_stride_n, transition_stride_j, transition_stride_k,
        num_units, num_labels, num_iterations, buffer_stride,
        True, IS_LOCAL, FLOOR, ROWS, BLOCK, DTYPE, PRECISION,
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
                    target + buffer_stride, transition_pointer, transition, transposed, positions, length, num_labels,
                    transition_stride_n, transition_stride_j, transition_stride_k,
                    IS_LOCAL, FLOOR, BLOCK, DTYPE, PRECISION,
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
        for start in range(0, num_units - 1, ROWS):
            positions = start + tl.arange(0, ROWS)
            is_read = (positions + 1 < length)[:, None] & is_label
            cells = positions[:, None] * num_labels + labels[None, :]
            total = tl.zeros([ROWS, BLOCK, BLOCK], DTYPE)
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
            place = positions[:, None, None] * transition_stride_n
            place += labels[None, :, None] * transition_stride_j + labels[None, None, :] * transition_stride_k
            is_score = (positions + 1 < length)[:, None, None] & is_pair[None, :, :]
            scores = tl.load(transition_pointer + place, mask=is_score, other=0.0)
            total = tl.where(scores == NEGATIVE_INFINITY, 0.0, total)
            cell = positions[:, None, None] * num_labels * num_labels + square[None, :, :]
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
                left = tl.load(beliefs, mask=is_read, other=0.0)
                right = tl.load(grads + num_labels, mask=is_read, other=0.0)
                sums = tl.dot(tl.trans(left), right, acc=sums, input_precision=PRECISION, out_dtype=DTYPE)
                left = tl.load(grads, mask=is_read, other=0.0)
                right = tl.load(beliefs + num_labels, mask=is_read, other=0.0)
                sums = tl.dot(tl.trans(left), right, acc=sums, input_precision=PRECISION, out_dtype=DTYPE)
        places = labels[:, None] * transition_stride_j + labels[None, :] * transition_stride_k
        scores = tl.load(transition_pointer + places, mask=is_pair, other=0.0)
        sums = tl.where(scores == NEGATIVE_INFINITY, 0.0, sums)
        tl.store(grad_transition_pointer + sentence * num_labels * num_labels + square, sums, mask=is_pair)


def _settings(num_labels: int, num_units: int, is_local: bool, dtype: torch.dtype, floor: float) -> dict[str, object]:
    block = max(16, triton.next_power_of_2(num_labels))
    if is_local:
        rows = max(1, min(8192 // (block * block), triton.next_power_of_2(num_units)))
        num_warps = 4 if rows * block * block <= 8192 else 8
    else:
        rows = max(16, min(64, 8192 // block, triton.next_power_of_2(num_units)))
        num_warps = 4 if block <= 64 else 8
    return {
        "IS_LOCAL": is_local,
        "FLOOR": floor,
        "ROWS": rows,
        "BLOCK": block,
        "DTYPE": triton_type(dtype),
        # Three tensor-core products of split numbers: as exact as float32 arithmetic, several times as fast.
        "PRECISION": "tf32x3" if dtype == torch.float32 else "ieee",
        "num_warps": num_warps,
        "num_stages": 1,  # loads must not move ahead of the stores of the iteration before
    }


def iterate(unary: Tensor, transition: Tensor, lengths: Tensor, num_iterations: int, floor: float) -> Tensor:
    """Beliefs after the last update, in one launch."""
    B, N, K = unary.shape
    dtype = accumulation_dtype(unary.dtype)
    beliefs = torch.empty((2, B, N, K), dtype=dtype, device=unary.device)
    _iterate_kernel[(B,)](
        unary, transition, lengths, beliefs, *unary.stride(), *transition_strides(transition),
        N, K, num_iterations, B * N * K, **_settings(K, N, transition.dim() == 4, dtype, floor),
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
        unary, transition, lengths, beliefs, grad_beliefs.contiguous(), grad_scores, grad_unary, grad_transition,
        *unary.stride(), *transition_strides(transition), N, K, num_iterations, B * N * K,
        **_settings(K, N, is_local, dtype, floor),
    )  # fmt: skip
    if not is_local:
        grad_transition = grad_transition.sum(0).to(transition.dtype)
    return grad_unary.to(unary.dtype), grad_transition
