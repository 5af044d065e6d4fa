"""Layers that encoder and denoiser share: attention with rotary positions, and the feed-forward layer."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor, nn

from diffusion_mf.batches.layouts import Layout, Rotation
from diffusion_mf.ops.gelu import GELU


class SelfAttention(nn.Module):
    """Multi-head attention among the units of a sentence."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.inputs = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)

    def forward(
        self, values: Float[Tensor, "*units D"], layout: Layout, rotation: Rotation
    ) -> Float[Tensor, "*units D"]:
        """The attention output at each position."""
        attended = layout.attend(self.inputs(values).unflatten(-1, (3, self.heads, -1)), rotation)
        return self.output(attended.flatten(-2))


class FeedForward(nn.Sequential):
    """Two linear layers with a hidden layer of four times the width."""

    def __init__(self, width: int) -> None:
        super().__init__(nn.Linear(width, 4 * width), GELU(), nn.Linear(4 * width, width))
