"""Sizes of Triton kernels that depend on the card, and the rule for each.

**Shared memory** of a program bounds the labels of Mean-Field's global kernels, which keep the transitions on chip: as float16 halves,
as they are and transposed, 8 bytes per pair of labels; in addition a tile of 64 positions in float32; and up to 64 labels
three products for the gradient of the transitions, 6 bytes per pair. The largest power of two that fits is the limit (`max_global_labels`).

**Tensor cores** multiply for the gradient of a chain's global transitions where Triton can compile the products. With more than 64 labels
Triton 3.7 cannot for compute capability 8 and 12, nor in float64 for any; exponentials take their place (`compiles_chain_products`).

| card | compute capability | shared memory of a program, KiB | Mean-Field: labels with global transitions | chain: labels with products |
|---|---|---|---|---|
| H100, H200 | 9 | 227 | 128 | 256 |
| A100 | 8 | 163 | 128 | 64 |
| L4 | 8 | 99 | 64 | 64 |
| T4 | 7 | 64 | 32 | 256 |

**Registers** are 65,536 per multiprocessor on every card since compute capability 5, so sizes limited by them are constants next to
the kernels.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch

MAX_SUMMED_LABELS = 64
"""the number of labels up to which Mean-Field's gradient of global transitions is summed in registers"""
_MAX_ROWS = 64
_BLOCKS = (128, 64, 32, 16)


class Card(NamedTuple):
    """The properties of a GPU that kernel sizes depend on."""

    compute_capability: int
    """the major number of the compute capability"""
    shared_memory: int
    """maximum bytes per program"""


H200 = Card(compute_capability=9, shared_memory=227 * 1024)


@functools.cache
def card_of(device: torch.device) -> Card:
    """The card of ``device``; an H200 for a CPU, since Triton's interpreter has no limits."""
    if device.type != "cuda":
        return H200
    properties = torch.cuda.get_device_properties(device)
    # AMD's cards have no larger opt-in limit.
    shared_memory = getattr(properties, "shared_memory_per_block_optin", properties.shared_memory_per_block)
    return Card(properties.major, shared_memory)


def global_shared_memory(block: int) -> int:
    """The bytes of shared memory that Mean-Field's global kernels need for ``block`` labels, a power of two."""
    sums = 6 * block**2 if block <= MAX_SUMMED_LABELS else 0
    return 8 * block**2 + 4 * _MAX_ROWS * block + sums


def max_global_labels(card: Card) -> int:
    """The maximum number of labels for Mean-Field's global kernels."""
    return next((block for block in _BLOCKS if global_shared_memory(block) <= card.shared_memory), 0)


def compiles_chain_products(card: Card, block: int, dtype: torch.dtype) -> bool:
    """Whether the chain's gradient kernel can be compiled with products for ``block`` labels, a power of two."""
    return block <= 64 or (dtype != torch.float64 and card.compute_capability not in (8, 12))
