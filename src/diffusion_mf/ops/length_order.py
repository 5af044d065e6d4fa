"""The tensor layout for loops in the torch backends: one step per position, sentences sorted by decreasing length.

The sentences that reach a position are then a slice, so no step needs a mask or computes padding. The loops run in NumPy, whose
small operations are much cheaper than PyTorch's and start no threads; large ones, and tensors on other devices, use PyTorch's
functions of the same names.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy
import torch
from torch import Tensor


class LengthOrder(NamedTuple):
    """The layout of a batch.

    ``rows`` (N · B,) maps (B · N, …) to time-major rows, with each sentence's last unit in place of its padding; ``back`` (B · N,)
    is the inverse, and ``last`` (B,) is the time-major row of each sentence's last unit, in batch order. ``order`` (B,) lists
    the sentences by decreasing length, and ``counts[i]`` is the number of sentences that have a unit i.
    """

    rows: Tensor
    back: Tensor
    last: Tensor
    order: Tensor
    counts: list[int]

    @property
    def is_ragged(self) -> bool:
        """Whether there is any padding."""
        return self.counts[-1] < self.counts[0]


def length_order(lengths: Tensor, num_units: int) -> LengthOrder:
    """The layout of sentences of these lengths, padded to ``num_units``."""
    ends = lengths.cpu().numpy()
    batch = len(ends)
    positions, sentences = numpy.arange(num_units), numpy.arange(batch)
    order = rank = sentences
    if batch > 0 and ends.min() < num_units:
        order = numpy.argsort(-ends, kind="stable")
        rank = numpy.empty_like(order)
        rank[order] = sentences
    rows = numpy.minimum(positions[:, None], ends[order] - 1) + order * num_units
    back = positions * batch + rank[:, None]
    last = (ends - 1) * batch + rank
    counts = batch - numpy.searchsorted(ends[order[::-1]], positions, side="right")
    indices = [torch.from_numpy(index).to(lengths.device) for index in (rows.ravel(), back.ravel(), last, order)]
    return LengthOrder(indices[0], indices[1], indices[2], indices[3], counts.tolist())


def time_major(values: Tensor, layout: LengthOrder) -> Tensor:
    """(B, N, K) to (N, B, K), with sentences by decreasing length and padding replaced."""
    B, N, K = values.shape
    return values.reshape(B * N, K).index_select(0, layout.rows).view(N, B, K)


def batch_major(values: Tensor, layout: LengthOrder) -> Tensor:
    """(N, B, K) back to (B, N, K)."""
    N, B, K = values.shape
    return values.view(N * B, K).index_select(0, layout.back).view(B, N, K)


def by_length(transition: Tensor, layout: LengthOrder) -> Tensor:
    """Local transitions with their sentences by decreasing length; global ones unchanged."""
    return transition[layout.order] if transition.dim() == 4 and layout.is_ragged else transition


class Operations(NamedTuple):
    """The functions that the loops call, with the names and arguments that NumPy and PyTorch have in common."""

    add: Any
    multiply: Any
    matmul: Any
    log: Any
    greatest: Any


_NUMPY = Operations(numpy.add, numpy.multiply, numpy.matmul, numpy.log, numpy.maximum.reduce)
_TORCH = Operations(torch.add, torch.multiply, torch.matmul, torch.log, torch.amax)


def arrays(*tensors: Tensor, use_numpy: bool = True) -> tuple[Any, ...]:
    """The operations and the tensors in a form they accept: NumPy's on a CPU unless disabled, otherwise PyTorch's."""
    if use_numpy and tensors[0].device.type == "cpu":
        return _NUMPY, *(tensor.detach().numpy() for tensor in tensors)
    return _TORCH, *(tensor.detach() for tensor in tensors)
