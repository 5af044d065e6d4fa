"""DiffusionSL's denoiser: noisy bits in, predicted clean bits out."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from diffusion_mf.config import DenoiserConfig
from diffusion_mf.denoisers.diffusion_transformer import Conditions, DiffusionTransformer, KnownFlag
from diffusion_mf.layouts import Layout
from diffusion_mf.scorers import FullPrecisionLinear


class BitDenoiser(nn.Module):
    """x̂₀ from x_t, t and the encoder's states, with the previous x̂₀ beside x_t where self-conditioning is on.

    Predictions are in units of the codes' scale: at ±0.1 a fresh network would be far from its targets.
    """

    def __init__(
        self, config: DenoiserConfig, *, num_bits: int, state_width: int, use_self_conditioning: bool = False
    ) -> None:
        super().__init__()
        self.use_self_conditioning = use_self_conditioning
        self.bits = nn.Linear(num_bits * (1 + use_self_conditioning), config.width)
        self.flag = KnownFlag(config.width)
        self.transformer = DiffusionTransformer(config, state_width)
        self.output = nn.Sequential(
            nn.Linear(config.width, config.width),
            nn.GELU(approximate="tanh"),
            FullPrecisionLinear(config.width, num_bits),
        )

    def prepare(self, states: Float[Tensor, "*units S"]) -> Conditions:
        """What all calls on these states share."""
        return self.transformer.prepare(states)

    def forward(
        self,
        noisy: Float[Tensor, "B N b"],
        t: Int[Tensor, "#B"],
        conditions: Conditions,
        layout: Layout,
        *,
        previous: Float[Tensor, "B N b"] | None = None,
        is_known: Bool[Tensor, "B N"] | None = None,
    ) -> Float[Tensor, "B N b"]:
        """One call; the answer is float32 and in units of the scale."""
        if self.use_self_conditioning:
            noisy = torch.cat([noisy, torch.zeros_like(noisy) if previous is None else previous], dim=-1)
        marks = None if is_known is None else layout.pack(is_known)
        hidden = self.transformer(self.flag(self.bits(layout.pack(noisy)), marks), t, conditions, layout)
        return layout.unpack(self.output(hidden))
