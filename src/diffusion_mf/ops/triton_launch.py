"""Helpers common to the Triton kernels: −∞, safe maxima, types and tile sizes."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

NEGATIVE_INFINITY = tl.constexpr(float("-inf"))

_TRITON_TYPES = {torch.float32: tl.float32, torch.float64: tl.float64}


@triton.jit
def finite_or_zero(top):
    """``top``, or 0 if it is −∞, so that −∞ − top stays −∞."""
    return tl.where(top == NEGATIVE_INFINITY, 0.0, top)


def triton_type(dtype: torch.dtype) -> tl.dtype:
    """Triton's type for an accumulation type of PyTorch."""
    return _TRITON_TYPES[dtype]


def padded_labels(num_labels: int) -> int:
    """The power of two to which a row of labels is padded on chip, invisibly to the caller."""
    return max(16, triton.next_power_of_2(num_labels))
