"""Triton kernel that sums the gradient of global transitions among many labels from what all iterations left behind.

A product of two long, narrow matrices in float32, for which a GPU has no fast instruction: numbers are split into two of half
precision (`triton_tiles.split`), and three products of halves are summed in float32.
"""

from __future__ import annotations

import triton
import triton.language as tl

from diffusion_mf.ops.mean_field.triton_tiles import NEGLIGIBLE, split


@triton.jit
def _scaled(grads):
    """Gradients divided by the largest, so that they lie in half precision's range, and that; 0 if it is negligible."""
    top = tl.max(tl.max(tl.abs(grads), 1), 0)
    is_negligible = top < NEGLIGIBLE
    return tl.where(is_negligible, 0.0, grads / tl.where(is_negligible, 1.0, top)), top


@triton.jit
def _outer_sum(left, right):
    """Σᵣ leftᵣ ⊗ rightᵣ."""
    left_high, left_low = split(left, True)
    right_high, right_low = split(right, True)
    total = tl.dot(tl.trans(left_low), right_high)
    total = tl.dot(tl.trans(left_high), right_low, total)
    return tl.dot(tl.trans(left_high), right_high, total)


@triton.jit
def pair_sums_kernel(
    beliefs_pointer,
    grads_pointer,
    sums_pointer,
    num_rows,
    rows_per_program,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Σᵣ qᵣ ⊗ gᵣ₊₁ + gᵣ ⊗ qᵣ₊₁ over one program's rows of (num_rows, BLOCK), a tile (BLOCK, BLOCK)."""
    program = tl.program_id(0).to(tl.int64)
    first = program * rows_per_program
    labels = tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK, BLOCK], tl.float32)
    for start in range(0, rows_per_program, ROWS):
        within = start + tl.arange(0, ROWS)
        has_next = ((within < rows_per_program) & (first + within + 1 < num_rows))[:, None]
        cells = (first + within)[:, None] * BLOCK + labels[None, :]
        beliefs = tl.load(beliefs_pointer + cells, mask=has_next, other=0.0)
        grads_after = tl.load(grads_pointer + cells + BLOCK, mask=has_next, other=0.0)
        scaled, scale = _scaled(grads_after)
        total += _outer_sum(beliefs, scaled) * scale
        grads = tl.load(grads_pointer + cells, mask=has_next, other=0.0)
        beliefs_after = tl.load(beliefs_pointer + cells + BLOCK, mask=has_next, other=0.0)
        scaled, scale = _scaled(grads)
        total += _outer_sum(scaled, beliefs_after) * scale
    square = labels[:, None] * BLOCK + labels[None, :]
    tl.store(sums_pointer + program * BLOCK * BLOCK + square, total)
