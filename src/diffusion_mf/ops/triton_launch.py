"""What the Triton kernels share: −∞, safe maxima, types and tile sizes."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

NEGATIVE_INFINITY = tl.constexpr(float("-inf"))

_TRITON_TYPES = {torch.float32: tl.float32, torch.float64: tl.float64}


@triton.jit
def finite_or_zero(top):
    """``top``, or 0 where it is −∞, so that −∞ − top stays −∞."""
    return tl.where(top == NEGATIVE_INFINITY, 0.0, top)


def triton_type(dtype: torch.dtype) -> tl.dtype:
    """Triton's name of an accumulation type."""
    return _TRITON_TYPES[dtype]


def padded_labels(num_labels: int) -> int:
    """The power of two a row of labels is padded to on chip; nothing of it is visible to the caller."""
    return max(16, triton.next_power_of_2(num_labels))
