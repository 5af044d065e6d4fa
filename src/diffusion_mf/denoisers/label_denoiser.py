"""The denoiser of categorical diffusion: beliefs about labels in, position vectors out."""

from __future__ import annotations

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from diffusion_mf.config import DenoiserConfig
from diffusion_mf.denoisers.diffusion_transformer import Conditions, DiffusionTransformer, KnownFlag
from diffusion_mf.layouts import Layout


class LabelDenoiser(nn.Module):
    """z from π_t, t and the encoder's states; noisy labels enter as expected embeddings (one-hot beliefs in training)."""

    def __init__(self, config: DenoiserConfig, *, num_labels: int, state_width: int) -> None:
        super().__init__()
        self.width = config.width
        self.labels = nn.Linear(num_labels, config.width, bias=False)
        nn.init.normal_(self.labels.weight)
        self.flag = KnownFlag(config.width)
        self.transformer = DiffusionTransformer(config, state_width)

    def prepare(self, states: Float[Tensor, "*units S"]) -> Conditions:
        """What all calls on these states share."""
        return self.transformer.prepare(states)

    def forward(
        self,
        beliefs: Float[Tensor, "B N K"],
        t: Int[Tensor, "b"],
        conditions: Conditions,
        layout: Layout,
        is_known: Bool[Tensor, "B N"] | None = None,
    ) -> Float[Tensor, "*units D"]:
        """One call: Σ_ℓ π_t(ℓ)·embedding(ℓ), then the blocks."""
        marks = None if is_known is None else layout.pack(is_known)
        return self.transformer(self.flag(self.labels(layout.pack(beliefs)), marks), t, conditions, layout)
