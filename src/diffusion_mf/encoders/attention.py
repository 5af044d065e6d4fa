"""What encoder and denoiser share: attention with rotary positions, and the feed-forward layer."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

ROTARY_PERIOD = 10_000.0


class Rotation(NamedTuple):
    """The angles of rotary positions (Su et al., 2021), made once and used by every layer."""

    cosine: Float[Tensor, "N half"]
    sine: Float[Tensor, "N half"]

    @classmethod
    def of_positions(cls, num_units: int, head_width: int, *, device: torch.device) -> Rotation:
        """Position i turns pair p of a head's dimensions by i·period^(−2p/width)."""
        half = head_width // 2
        rates = ROTARY_PERIOD ** (torch.arange(half, device=device, dtype=torch.float32) / -half)
        angles = torch.arange(num_units, device=device, dtype=torch.float32)[:, None] * rates
        return cls(angles.cos(), angles.sin())

    def turn(self, values: Float[Tensor, "B H N d"]) -> Float[Tensor, "B H N d"]:
        """Rotate; products of two turned vectors depend on the distance of their positions only."""
        first, second = values.float().chunk(2, dim=-1)
        turned = (first * self.cosine - second * self.sine, second * self.cosine + first * self.sine)
        return torch.cat(turned, dim=-1).to(values.dtype)


class SelfAttention(nn.Module):
    """Multi-head attention among the units of a sentence; padding is never attended to."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.inputs = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)

    def forward(
        self, values: Float[Tensor, "B N D"], is_unit: Bool[Tensor, "B N"], rotation: Rotation
    ) -> Float[Tensor, "B N D"]:
        """What each position takes from the others."""
        query, key, value = self.inputs(values).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mask = is_unit[:, None, None, :]
        attended = F.scaled_dot_product_attention(rotation.turn(query), rotation.turn(key), value, attn_mask=mask)
        return self.output(attended.transpose(1, 2).flatten(2))


class FeedForward(nn.Sequential):
    """Two linear layers, four times as wide in between."""

    def __init__(self, width: int) -> None:
        super().__init__(nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width))
