"""A learned mixture of a model's layers (Peters et al., 2018): what a task needs may lie below the last layer.

The last layer of encoders tuned to tell sentences apart says little about single words.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from diffusion_mf.errors import InputError

PACE = 10.0
"""weights of the mixture move so much faster than the encoder's learning rate, which is a small one, says"""


class LayerMixture(nn.Module):
    """Σ_l softmax(w)_l · norm(h_l) over the last ``num_layers`` layers, or all and the embeddings (0); equal weights at first.

    Layers are normalised, so that none outweighs the others by its size alone.
    """

    def __init__(self, num_layers: int, *, num_available: int) -> None:
        super().__init__()
        if num_layers > num_available:
            raise InputError(
                f"encoder.mix_layers is {num_layers}, but there are {num_available} layers, embeddings included",
                remedy="set it lower; 0 takes all",
            )
        self.weights = nn.Parameter(torch.zeros(num_layers or num_available))

    def forward(self, layers: Sequence[Float[Tensor, "W S D"]]) -> Float[Tensor, "W S D"]:
        """The mixture of the last of ``layers``."""
        shares = (PACE * self.weights.float()).softmax(0)
        chosen = layers[-len(shares) :]
        return torch.stack(
            [share * F.layer_norm(layer.float(), layer.shape[-1:]) for share, layer in zip(shares, chosen, strict=True)]
        ).sum(0)
