"""Triton kernel that sums the gradient of global transitions among many labels from what all iterations left behind.

A product of two long, narrow matrices in float32, for which a GPU has no fast instruction: numbers are split into two bfloat16
ones, sixteen bits together and of any size, and three products of halves are summed in float32.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _halves(values, WIDE: tl.constexpr):
    """``values`` ≈ high + low, both bfloat16; WIDE keeps them in float32, since Triton's interpreter multiplies no bfloat16."""
    high = values.to(tl.bfloat16)
    low = (values - high.to(tl.float32)).to(tl.bfloat16)
    if WIDE:
        high, low = high.to(tl.float32), low.to(tl.float32)
    return high, low


@triton.jit
def _outer_sum(left, right, total, WIDE: tl.constexpr):
    """total + Σᵣ leftᵣ ⊗ rightᵣ."""
    left_high, left_low = _halves(left, WIDE)
    right_high, right_low = _halves(right, WIDE)
    total = tl.dot(tl.trans(left_low), right_high, total)
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
    WIDE: tl.constexpr,
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
        total = _outer_sum(beliefs, grads_after, total, WIDE)
        grads = tl.load(grads_pointer + cells, mask=has_next, other=0.0)
        beliefs_after = tl.load(beliefs_pointer + cells + BLOCK, mask=has_next, other=0.0)
        total = _outer_sum(grads, beliefs_after, total, WIDE)
    square = labels[:, None] * BLOCK + labels[None, :]
    tl.store(sums_pointer + program * BLOCK * BLOCK + square, total)
