"""Pieces of the Mean-Field kernels: softmax, transitions, and float32 products on half-precision tensor cores."""

from __future__ import annotations

import triton
import triton.language as tl

from diffusion_mf.ops.triton_launch import NEGATIVE_INFINITY, finite_or_zero


@triton.jit
def softmax_rows(scores):
    """Softmax of each row; zero where everything is −∞."""
    weights = tl.exp(scores - finite_or_zero(tl.max(scores, 1))[:, None])
    sums = tl.sum(weights, 1)
    return weights / tl.where(sums == 0.0, 1.0, sums)[:, None]


@triton.jit
def log_softmax_rows(scores):
    """Logarithm of the softmax of each row; −∞ where everything is −∞."""
    shifted = scores - finite_or_zero(tl.max(scores, 1))[:, None]
    sums = tl.sum(tl.exp(shifted), 1)
    return shifted - tl.log(tl.where(sums == 0.0, 1.0, sums))[:, None]


@triton.jit
def log_softmax_gradient(beliefs, grad):
    """Gradient of the scores whose log-softmax had the gradient ``grad``; none where a row allows nothing."""
    has_label = tl.sum(beliefs, 1) > 0.0
    return tl.where(has_label[:, None], grad - beliefs * tl.sum(grad, 1)[:, None], 0.0)


@triton.jit
def softmax_gradient(beliefs, grad):
    """Gradient of the scores whose softmax the beliefs are."""
    return beliefs * (grad - tl.sum(beliefs * grad, 1)[:, None])


@triton.jit
def load_transitions(pointer, mask, FLOOR: tl.constexpr, DTYPE: tl.constexpr):
    """Transition scores, with a finite floor instead of −∞, and 0 outside the mask."""
    scores = tl.load(pointer, mask=mask, other=0.0).to(DTYPE)
    return tl.where(scores == NEGATIVE_INFINITY, FLOOR, scores)


@triton.jit
def split(values, USE_HALVES: tl.constexpr):
    """``values`` ≈ high + low, both half precision: 22 bits together, enough to multiply like float32 on tensor cores.

    Values must be in the range of half precision; 2⁻²⁴ is the smallest difference it represents. Without ``USE_HALVES`` (float64)
    the value itself is returned.
    """
    if USE_HALVES:
        high = values.to(tl.float16)
        low = (values - high.to(tl.float32)).to(tl.float16)
    else:
        high = values
        low = values
    return high, low


@triton.jit
def product(
    left_high,
    left_low,
    right_high,
    right_low,
    scale,
    USE_HALVES: tl.constexpr,
    DTYPE: tl.constexpr,
    IS_COARSE: tl.constexpr = False,
):
    """scale · (left · right), for matrices split by `split`; the scale is a number or a column. Coarse: ``right_low`` is 0.

    Parts are scaled before they are added: a chain of accumulating products, which the compiler would make of a plain sum,
    is laid out so that of eight warps four repeat the other four's work.
    """
    if USE_HALVES:
        result = tl.dot(left_low, right_high) * scale
        if not IS_COARSE:
            result += tl.dot(left_high, right_low) * scale
        result += tl.dot(left_high, right_high) * scale
    else:
        result = tl.dot(left_high, right_high, input_precision="ieee", out_dtype=DTYPE) * scale
    return result


# Rows of smaller numbers count as zero, because the reciprocal of a subnormal float32 may be infinite.
NEGLIGIBLE = tl.constexpr(1e-30)


@triton.jit
def scaled_rows(values):
    """Rows divided by their largest magnitude, to fit the range of half precision, and the magnitudes; negligible rows are 0."""
    top = tl.max(tl.abs(values), 1)
    is_negligible = top < NEGLIGIBLE
    scaled = values / tl.where(is_negligible, 1.0, top)[:, None]
    return tl.where(is_negligible[:, None], 0.0, scaled), tl.where(is_negligible, 0.0, top)
