"""The problems the operations are measured on: random scores of given sizes, full-length sentences."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Shape(NamedTuple):
    """Sentences, units of each, labels."""

    num_sentences: int
    num_units: int
    num_labels: int


class Problem(NamedTuple):
    """Scores that take gradients, and what goes with them."""

    unary: Tensor
    transition: Tensor
    lengths: Tensor
    labels: Tensor
    is_unit: Tensor
    weights: Tensor  # (B, N, K), what marginals are multiplied with before they are differentiated

    @property
    def device(self) -> torch.device:
        """Where everything lies."""
        return self.unary.device

    @property
    def scores(self) -> tuple[Tensor, Tensor]:
        """What gradients are taken with respect to."""
        return self.unary, self.transition


def random_problem(shape: Shape, *, is_local: bool, device: torch.device) -> Problem:
    """A problem of standard normal unary scores and small transition scores, always the same."""
    B, N, K = shape
    generator = torch.Generator().manual_seed(0)

    def normal(*size: int) -> Tensor:
        return torch.randn(size, generator=generator).to(device)

    return Problem(
        unary=normal(B, N, K).requires_grad_(),
        transition=(0.1 * (normal(B, N - 1, K, K) if is_local else normal(K, K))).requires_grad_(),
        lengths=torch.full((B,), N, device=device),
        labels=torch.randint(K, (B, N), generator=generator).to(device),
        is_unit=torch.ones((B, N), dtype=torch.bool, device=device),
        weights=normal(B, N, K),
    )
