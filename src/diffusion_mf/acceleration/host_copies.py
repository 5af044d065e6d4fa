"""Results on their way from the device to the host, which need not stand still meanwhile."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class Pending:
    """Tensors on their way to the host."""

    def __init__(self, tensors: Sequence[Tensor], arrival: torch.cuda.Event | None = None) -> None:
        self._tensors = tensors
        self._arrival = arrival

    def wait(self) -> Sequence[Tensor]:
        """The tensors, once they are there."""
        if self._arrival is not None:
            self._arrival.synchronize()
        return self._tensors


def to_host(tensors: Sequence[Tensor]) -> Pending:
    """Copy ``tensors`` as soon as the device's current stream has made them; those of the host are taken as they are."""
    if not tensors or not tensors[0].is_cuda:
        return Pending(tensors)
    copies = [torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True) for tensor in tensors]
    for copy, tensor in zip(copies, tensors, strict=True):
        copy.copy_(tensor, non_blocking=True)
    return Pending(copies, torch.cuda.current_stream(tensors[0].device).record_event())
