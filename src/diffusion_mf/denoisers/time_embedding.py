"""Timesteps as vectors."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

LONGEST_PERIOD = 10_000.0


class TimeEmbedding(nn.Module):
    """τ(t) = MLP(sin(t·ω), cos(t·ω)), with rates ω falling geometrically from 1 to 1/10,000.

    Inference begins at t = T, which training never sees (t ≤ T − 1): a sinusoid is smooth in t, a table would have an
    untrained row there.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        self.network = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width))

    def forward(self, t: Int[Tensor, "B"]) -> Float[Tensor, "B D"]:
        """One vector per timestep."""
        return self.network(sinusoid(t, self.width))


def sinusoid(t: Int[Tensor, "B"], width: int) -> Float[Tensor, "B {width}"]:
    """sin and cos of t at width/2 rates, in float32: half precision could not tell neighbouring steps apart."""
    half = width // 2
    rates = torch.exp(torch.arange(half, device=t.device, dtype=torch.float32) * (-math.log(LONGEST_PERIOD) / half))
    angles = t.float()[:, None] * rates
    return torch.cat([angles.sin(), angles.cos()], dim=-1)
