"""Attention within short sentences as one Triton launch per direction, with one program per sentence and head.

All scores of a sentence fit on chip, so only the inputs are kept for the backward pass, which recomputes them. Kernels for long
sequences would waste most of a tile: sentences typically have 16 words, and tiles 128 rows. The rotation of positions is part of
the kernels and pairs the two halves of a head.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from diffusion_mf.ops.triton_launch import NEGATIVE_INFINITY

_WARPS = {16: 1, 32: 2, 64: 4, 128: 8}


@triton.jit
def _tile(length, stride: tl.constexpr, half: tl.constexpr, UNITS: tl.constexpr, HALF: tl.constexpr):
    """Units and columns of half a head, the mask of existing ones, and their offsets."""
    units, columns = tl.arange(0, UNITS), tl.arange(0, HALF)
    mask = (units < length)[:, None] & (columns < half)[None, :]
    return units, columns, mask, units[:, None] * stride + columns[None, :]


@triton.jit
def _angles(cosine_pointer, sine_pointer, units, columns, half: tl.constexpr, mask):
    """Cosine and sine of every position's angles."""
    places = units[:, None] * half + columns[None, :]
    cosine = tl.load(cosine_pointer + places, mask=mask, other=0.0)
    return cosine, tl.load(sine_pointer + places, mask=mask, other=0.0)


@triton.jit
def _load(pointer, cells, half, mask):
    """The two halves of a tile of units."""
    first = tl.load(pointer + cells, mask=mask, other=0.0)
    second = tl.load(pointer + cells + half, mask=mask, other=0.0)
    return first, second


@triton.jit
def _store(pointer, cells, half, first, second, mask):
    tl.store(pointer + cells, first, mask=mask)
    tl.store(pointer + cells + half, second, mask=mask)


@triton.jit
def _turned(first, second, cosine, sine):
    """The halves rotated by the positions' angles in float32, returned in the inputs' type."""
    one, other = first.to(tl.float32), second.to(tl.float32)
    turned = (one * cosine - other * sine).to(first.dtype)
    return turned, (other * cosine + one * sine).to(first.dtype)


@triton.jit
def _turned_back(first, second, cosine, sine):
    """The transpose of `_turned`, for gradients in float32."""
    return first * cosine + second * sine, second * cosine - first * sine


@triton.jit
def _product(left, right, PRECISION: tl.constexpr):
    return tl.dot(left, right, input_precision=PRECISION)


@triton.jit
def _weights(query, other_query, key, other_key, length, scale, UNITS: tl.constexpr, PRECISION: tl.constexpr):
    """softmax(query · keyᵀ · scale) among the sentence's units."""
    scores = _product(query, tl.trans(key), PRECISION) + _product(other_query, tl.trans(other_key), PRECISION)
    is_unit = (tl.arange(0, UNITS) < length)[None, :]
    scores = tl.where(is_unit, scores * scale, NEGATIVE_INFINITY)
    weights = tl.exp(scores - tl.max(scores, 1)[:, None])
    return weights / tl.sum(weights, 1)[:, None]


@triton.jit
def forward_kernel(
    inputs_pointer,
    boundaries_pointer,
    cosine_pointer,
    sine_pointer,
    output_pointer,
    scale,
    num_heads: tl.constexpr,
    half: tl.constexpr,
    UNITS: tl.constexpr,
    HALF: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """The output (T, H, d) of one sentence and head from inputs (T, 3, H, d)."""
    sentence, head = tl.program_id(0), tl.program_id(1)
    start = tl.load(boundaries_pointer + sentence)
    length = tl.load(boundaries_pointer + sentence + 1) - start
    if length > 0:
        width = num_heads * 2 * half
        units, columns, mask, cells = _tile(length, 3 * width, half, UNITS, HALF)
        # The sentence's offset may need 64 bits; offsets within it need 32, which saves registers.
        inputs_pointer += start.to(tl.int64) * (3 * width) + head * (2 * half)
        cosine, sine = _angles(cosine_pointer, sine_pointer, units, columns, half, mask)
        query, other_query = _load(inputs_pointer, cells, half, mask)
        query, other_query = _turned(query, other_query, cosine, sine)
        key, other_key = _load(inputs_pointer + width, cells, half, mask)
        key, other_key = _turned(key, other_key, cosine, sine)
        weights = _weights(query, other_query, key, other_key, length, scale, UNITS, PRECISION).to(query.dtype)
        value, other_value = _load(inputs_pointer + 2 * width, cells, half, mask)
        output, other_output = _product(weights, value, PRECISION), _product(weights, other_value, PRECISION)
        output_pointer += start.to(tl.int64) * width + head * (2 * half)
        _store(output_pointer, units[:, None] * width + columns[None, :], half, output, other_output, mask)


@triton.jit
def backward_kernel(
    inputs_pointer,
    boundaries_pointer,
    cosine_pointer,
    sine_pointer,
    grad_output_pointer,
    grad_inputs_pointer,
    scale,
    num_heads: tl.constexpr,
    half: tl.constexpr,
    UNITS: tl.constexpr,
    HALF: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """The gradient of the inputs of one sentence and head; the weights are recomputed."""
    sentence, head = tl.program_id(0), tl.program_id(1)
    start = tl.load(boundaries_pointer + sentence)
    length = tl.load(boundaries_pointer + sentence + 1) - start
    if length > 0:
        width = num_heads * 2 * half
        units, columns, mask, cells = _tile(length, 3 * width, half, UNITS, HALF)
        # The sentence's offset may need 64 bits; offsets within it need 32, which saves registers.
        inputs_pointer += start.to(tl.int64) * (3 * width) + head * (2 * half)
        cosine, sine = _angles(cosine_pointer, sine_pointer, units, columns, half, mask)
        query, other_query = _load(inputs_pointer, cells, half, mask)
        query, other_query = _turned(query, other_query, cosine, sine)
        key, other_key = _load(inputs_pointer + width, cells, half, mask)
        key, other_key = _turned(key, other_key, cosine, sine)
        weights = _weights(query, other_query, key, other_key, length, scale, UNITS, PRECISION)
        # Rows past the end of the sentence have weights too, but their gradient is zero.
        weights = tl.where((units < length)[:, None], weights, 0.0)
        grad_output_pointer += start.to(tl.int64) * width + head * (2 * half)
        grad, other_grad = _load(grad_output_pointer, units[:, None] * width + columns[None, :], half, mask)
        grad_inputs_pointer += start.to(tl.int64) * (3 * width) + head * (2 * half)
        narrow = weights.to(query.dtype)
        _store(
            grad_inputs_pointer + 2 * width, cells, half,
            _product(tl.trans(narrow), grad, PRECISION), _product(tl.trans(narrow), other_grad, PRECISION), mask,
        )  # fmt: skip
        value, other_value = _load(inputs_pointer + 2 * width, cells, half, mask)
        moved = _product(grad, tl.trans(value), PRECISION) + _product(other_grad, tl.trans(other_value), PRECISION)
        grad_scores = (weights * (moved - tl.sum(weights * moved, 1)[:, None]) * scale).to(query.dtype)
        # Loaded again, because keeping the angles would take more registers than there are.
        cosine, sine = _angles(cosine_pointer, sine_pointer, units, columns, half, mask)
        first, second = _turned_back(
            _product(grad_scores, key, PRECISION), _product(grad_scores, other_key, PRECISION), cosine, sine
        )
        _store(grad_inputs_pointer, cells, half, first, second, mask)
        first, second = _turned_back(
            _product(tl.trans(grad_scores), query, PRECISION),
            _product(tl.trans(grad_scores), other_query, PRECISION),
            cosine,
            sine,
        )
        _store(grad_inputs_pointer + width, cells, half, first, second, mask)


def _settings(inputs: Tensor, longest: int) -> dict[str, Any]:
    units = max(16, triton.next_power_of_2(longest))
    # Head sizes are compile-time constants, so that the compiler knows the alignment and uses wide loads.
    return {
        "num_heads": inputs.shape[2],
        "half": inputs.shape[3] // 2,
        "UNITS": units,
        "HALF": max(16, triton.next_power_of_2(inputs.shape[-1] // 2)),
        "PRECISION": "ieee" if inputs.dtype == torch.float32 else "tf32",
        "num_warps": _WARPS[units],
        "num_stages": 1,
    }


def forward(inputs: Tensor, boundaries: Tensor, cosine: Tensor, sine: Tensor, longest: int) -> Tensor:
    """Attention (T, H, d) of inputs (T, 3, H, d); cosine and sine are (longest, d/2), float32 and contiguous."""
    num_units, _, num_heads, width = inputs.shape
    output = torch.empty((num_units, num_heads, width), dtype=inputs.dtype, device=inputs.device)
    forward_kernel[(len(boundaries) - 1, num_heads)](
        inputs, boundaries, cosine, sine, output, width**-0.5, **_settings(inputs, longest)
    )
    return output


def backward(grad: Tensor, inputs: Tensor, boundaries: Tensor, cosine: Tensor, sine: Tensor, longest: int) -> Tensor:
    """The gradient of the inputs."""
    _, _, num_heads, width = inputs.shape
    grad_inputs = torch.empty_like(inputs)
    backward_kernel[(len(boundaries) - 1, num_heads)](
        inputs, boundaries, cosine, sine, grad, grad_inputs, width**-0.5,
        **_settings(inputs, longest),
    )  # fmt: skip
    return grad_inputs
