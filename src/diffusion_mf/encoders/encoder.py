"""The contract of encoders."""

from __future__ import annotations

import abc

from jaxtyping import Float
from torch import Tensor, nn

from diffusion_mf.data.batching import Batch


class Encoder(nn.Module, abc.ABC):
    """Units in, one state per unit out."""

    width: int
    """of a state"""

    @abc.abstractmethod
    def forward(self, batch: Batch) -> Float[Tensor, "B N D"]:
        """The states of a batch; padding may influence no other position, and what stands at padding is never read."""
