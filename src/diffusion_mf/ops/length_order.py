"""The layout of the torch paths' loops: a step per position, sentences by falling length.

Sentences that reach a position are then a slice, so that no step masks anything and none computes padding. The loops
themselves run in NumPy, whose small operations cost a fraction of PyTorch's and start no threads; large ones, and tensors on
another device, go through the same lines with PyTorch's functions, which carry the same names.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy
import torch
from torch import Tensor


class LengthOrder(NamedTuple):
    """How a batch is laid out.

    ``rows`` (N · B,) takes (B · N, …) to time-major rows, a sentence's last unit standing in for its padding; ``back``
    (B · N,) is the way back, ``last`` (B,) the time-major row of each sentence's last unit, in batch order. ``order`` (B,)
    names the sentences by falling length, and ``counts[i]`` says how many have a unit i.
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
    """(B, N, K) to (N, B, K), sentences by falling length, padding replaced."""
    B, N, K = values.shape
    return values.reshape(B * N, K).index_select(0, layout.rows).view(N, B, K)


def batch_major(values: Tensor, layout: LengthOrder) -> Tensor:
    """(N, B, K) back to (B, N, K)."""
    N, B, K = values.shape
    return values.view(N * B, K).index_select(0, layout.back).view(B, N, K)


def by_length(transition: Tensor, layout: LengthOrder) -> Tensor:
    """Local transitions with their sentences by falling length; global ones as they are."""
    return transition[layout.order] if transition.dim() == 4 and layout.is_ragged else transition


class Operations(NamedTuple):
    """What the loops call, under the names and arguments that NumPy and PyTorch have in common."""

    add: Any
    multiply: Any
    matmul: Any
    log: Any
    greatest: Any


_NUMPY = Operations(numpy.add, numpy.multiply, numpy.matmul, numpy.log, numpy.maximum.reduce)
_TORCH = Operations(torch.add, torch.multiply, torch.matmul, torch.log, torch.amax)


def arrays(*tensors: Tensor, use_numpy: bool = True) -> tuple[Any, ...]:
    """Operations, and the tensors' memory as arrays for them: NumPy's on a CPU unless told not to, else PyTorch's."""
    if use_numpy and tensors[0].device.type == "cpu":
        return _NUMPY, *(tensor.detach().numpy() for tensor in tensors)
    return _TORCH, *(tensor.detach() for tensor in tensors)
