"""What the Triton kernels share: −∞, safe maxima, tile sizes and strides."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

NEGATIVE_INFINITY = tl.constexpr(float("-inf"))

_TRITON_TYPES = {torch.float32: tl.float32, torch.float64: tl.float64}
_WARPS = {16: 1, 32: 1, 64: 4, 128: 8, 256: 16}


@triton.jit
def finite_or_zero(top):
    """``top``, or 0 where it is −∞, so that −∞ − top stays −∞."""
    return tl.where(top == NEGATIVE_INFINITY, 0.0, top)


def triton_type(dtype: torch.dtype) -> tl.dtype:
    """Triton's name of an accumulation type."""
    return _TRITON_TYPES[dtype]


def square_tile(num_labels: int) -> tuple[int, int]:
    """Padded number of labels, and warps per program so that a tile of labels × labels fits the registers."""
    block = max(16, triton.next_power_of_2(num_labels))
    return block, _WARPS[block]


def transition_strides(transition: Tensor) -> tuple[int, ...]:
    """Four strides of (B, N − 1, K, K); global transitions (K, K) are the same at every sentence and position."""
    return transition.stride() if transition.dim() == 4 else (0, 0, *transition.stride())
