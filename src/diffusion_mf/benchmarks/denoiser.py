"""A plain Transformer of about 80 million parameters: the yardstick for the cost of structure."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

_WIDTH, _LAYERS, _HEADS = 768, 11, 12


class _Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention_norm, self.feed_forward_norm = nn.LayerNorm(_WIDTH), nn.LayerNorm(_WIDTH)
        self.query_key_value, self.project = nn.Linear(_WIDTH, 3 * _WIDTH), nn.Linear(_WIDTH, _WIDTH)
        self.feed_forward = nn.Sequential(nn.Linear(_WIDTH, 4 * _WIDTH), nn.GELU(), nn.Linear(4 * _WIDTH, _WIDTH))

    def forward(self, states: Tensor) -> Tensor:
        B, N, D = states.shape
        heads = self.query_key_value(self.attention_norm(states)).view(B, N, 3, _HEADS, D // _HEADS)
        query, key, value = heads.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = functional.scaled_dot_product_attention(query, key, value)
        states = states + self.project(mixed.transpose(1, 2).reshape(B, N, D))
        return states + self.feed_forward(self.feed_forward_norm(states))


def plain_denoiser(num_sentences: int, num_units: int, *, device: torch.device) -> tuple[nn.Module, Tensor]:
    """The model in bfloat16 and states (B, N, width) to run it on."""
    model = nn.Sequential(*(_Block() for _ in range(_LAYERS))).to(device, torch.bfloat16).eval()
    return model, torch.randn((num_sentences, num_units, _WIDTH), device=device, dtype=torch.bfloat16)


def num_parameters(model: nn.Module) -> int:
    """How many numbers the model learns."""
    return sum(parameter.numel() for parameter in model.parameters())
