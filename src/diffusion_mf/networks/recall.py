"""Recall: what a unit sees of the other occurrences of its form in the document (`batches.batching.other_places`)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from diffusion_mf.batches.layouts import Layout
from diffusion_mf.config import EncoderConfig
from diffusion_mf.errors import InputError
from diffusion_mf.networks.encoders import EncoderLayer


def mean_of_others(values: Float[Tensor, "B N D"], others: Int[Tensor, "*units M"]) -> Float[Tensor, "*units D"]:
    """The mean of the values at the positions ``others`` of the rectangle (−1: none); zeros if there are none."""
    is_there = (others >= 0).to(values.dtype)
    weights = is_there / is_there.sum(-1, keepdim=True).clamp(min=1)
    # An embedding, not indexing: its gradient is summed in a fixed order.
    rows = F.embedding(others.clamp(min=0), values.flatten(0, 1))
    return (rows * weights[..., None]).sum(-2)


class RecalledStates(nn.Module):
    """Encoder states that have seen the other occurrences of their form; ours, the paper has no such thing.

    eᵢ + W·mean of the others' states or, with ``recall_of = "flag"``, eᵢ + W·1 if there are others. W is initialised to zero. The
    states then pass through ``recall_layers`` Transformer layers, in which the neighbours of a recurring unit see this, too. In
    training, a share ``recall_dropout`` of the sentences sees only its own units.
    """

    def __init__(self, config: EncoderConfig, width: int) -> None:
        super().__init__()
        self.is_flag = config.recall_of == "flag"
        self.dropout = config.recall_dropout
        self.recalled = nn.Linear(1 if self.is_flag else width, width, bias=False)
        nn.init.zeros_(self.recalled.weight)
        if config.recall_layers and width % (2 * config.heads):
            raise InputError(
                f"encoder.recall_layers need states whose width, {width}, is a multiple of twice the heads, {config.heads}",
                remedy="set encoder.heads",
            )
        self.head_width = width // config.heads
        sized = config.model_copy(update={"width": width})  # pretrained encoders have their own
        self.layers = nn.ModuleList(EncoderLayer(sized) for _ in range(config.recall_layers))
        self.norm = nn.LayerNorm(width) if config.recall_layers else nn.Identity()

    def forward(
        self, states: Float[Tensor, "*units D"], others: Int[Tensor, "B N M"], layout: Layout
    ) -> Float[Tensor, "*units D"]:
        """The states with what is recalled; ``others`` are those of the batch."""
        places = layout.pack(self._kept(others))
        if self.is_flag:
            seen = (places >= 0).any(-1, keepdim=True).to(states.dtype)
        else:
            seen = mean_of_others(layout.unpack(states), places)
        states = states + self.recalled(seen)
        if not self.layers:
            return states
        rotation = layout.rotation(self.head_width)
        for layer in self.layers:
            states = layer(states, layout, rotation)
        return self.norm(states)

    def _kept(self, others: Int[Tensor, "B N M"]) -> Int[Tensor, "B N M"]:
        """In training, without those in other sentences for some of the sentences."""
        if not self.training or self.dropout == 0:
            return others
        num_sentences, num_units, _ = others.shape
        is_alone = torch.rand(num_sentences, 1, 1, device=others.device) < self.dropout
        sentences = torch.arange(num_sentences, device=others.device)[:, None, None]
        return torch.where(is_alone & (others // num_units != sentences), -1, others)
