"""Memory in which pieces of recorded work leave for each other what they know of a batch's units."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from diffusion_mf.denoisers import Conditions


class Units(NamedTuple):
    """What a call says, unit by unit."""

    beliefs: Tensor
    """(T, K), after the update"""
    marginals: Tensor
    """ρ₀ (T, K)"""
    unary_scores: Tensor
    transition_scores: Tensor | None
    """(T, K, K): those of a unit and the next; None where there are none, or the same everywhere"""
    first_marginals: Tensor | None = None
    """the first call's ρ₀ (T, K), if scores are reported from them"""


class Store(NamedTuple):
    """What is known of the T units of a batch; one more row is there for filling to write to."""

    conditions: Conditions
    units: Units

    @classmethod
    def of_size(cls, conditions: Conditions, units: Units) -> Store:
        """Memory for what looks like this."""

        def empty(tensor: Tensor) -> Tensor:
            return tensor.new_zeros((len(tensor) + 1, *tensor.shape[1:]))

        # Tensors made in inference mode could not be written to outside of it.
        with torch.inference_mode(False):
            return cls(
                _each(empty, conditions),
                Units(*(None if tensor is None else empty(tensor) for tensor in units)),  # type: ignore[arg-type]
            )

    def begin(self, conditions: Conditions, units: Units) -> None:
        """Take all of a new batch."""
        pairs = zip(_tensors(self.conditions), _tensors(conditions), strict=True)
        for own, new in (*pairs, *zip(self.units, units, strict=True)):
            if own is not None and new is not None:
                own[:-1].copy_(new)

    def conditions_of(self, rows: Tensor) -> Conditions:
        """The conditions of some units."""
        return _each(lambda tensor: tensor.index_select(0, rows), self.conditions)

    def update(self, rows: Tensor, units: Units) -> None:
        """Replace what is known of some units."""
        for own, new in zip(self.units, units, strict=True):
            if own is not None and new is not None:
                own.index_copy_(0, rows, new)


def _each(function: Callable[[Tensor], Tensor], conditions: Conditions) -> Conditions:
    blocks, final, first = conditions
    return Conditions(tuple(map(function, blocks)), function(final), None if first is None else function(first))


def _tensors(conditions: Conditions) -> list[Tensor | None]:
    return [*conditions.blocks, conditions.final, conditions.input]
