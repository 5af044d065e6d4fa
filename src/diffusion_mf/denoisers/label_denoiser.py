"""The denoiser of categorical diffusion: beliefs about labels in, position vectors out."""

from __future__ import annotations

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from diffusion_mf.config import DenoiserConfig
from diffusion_mf.denoisers.diffusion_transformer import Conditions, DiffusionTransformer, KnownFlag
from diffusion_mf.layouts import Layout


class LabelDenoiser(nn.Module):
    """z from π_t, t and the encoder's states; noisy labels enter as expected embeddings (one-hot beliefs in training).

    With `recall`, a departure, the labels are those of a document: beside its own, a unit has the mean belief about other
    occurrences of its form there. It is news: those stand in sentences that the encoder has not seen together with this one.
    """

    def __init__(self, config: DenoiserConfig, *, num_labels: int, state_width: int) -> None:
        super().__init__()
        self.width = config.width
        self.labels = nn.Linear(num_labels, config.width, bias=False)
        nn.init.normal_(self.labels.weight)
        self.recalled: nn.Linear | None = None
        if config.recall:
            self.recalled = nn.Linear(num_labels, config.width, bias=False)
            nn.init.zeros_(self.recalled.weight)  # so that it is silent until something is learnt from it
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
        others: Int[Tensor, "B N M"] | None = None,
    ) -> Float[Tensor, "*units D"]:
        """One call: Σ_ℓ π_t(ℓ)·embedding(ℓ), then the blocks."""
        marks = None if is_known is None else layout.pack(is_known)
        inputs = self.labels(layout.pack(beliefs))
        if self.recalled is not None:
            if others is None:
                raise ValueError("a denoiser with recall needs to know the other occurrences")
            inputs = inputs + self.recalled(mean_of_others(beliefs, layout.pack(others)))
        return self.transformer(self.flag(inputs, marks), t, conditions, layout)


def mean_of_others(beliefs: Float[Tensor, "B N K"], others: Int[Tensor, "*units M"]) -> Float[Tensor, "*units K"]:
    """The mean belief at the places ``others`` of the rectangle (−1: none), zeros where there are none."""
    is_there = (others >= 0).to(beliefs.dtype)
    weights = is_there / is_there.sum(-1, keepdim=True).clamp(min=1)
    rows = beliefs.flatten(0, 1)[others.clamp(min=0)]
    return (rows * weights[..., None]).sum(-2)
