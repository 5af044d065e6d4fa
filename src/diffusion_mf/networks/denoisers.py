"""Diffusion Transformers: from noisy labels or bits, a timestep and encoder states to states for scores."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from diffusion_mf.batches.layouts import Layout, Rotation
from diffusion_mf.config import DenoiserConfig
from diffusion_mf.networks.scorers import FullPrecisionLinear
from diffusion_mf.networks.transformer import FeedForward, SelfAttention

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

    def forward(self, t: Int[Tensor, " B"]) -> Float[Tensor, "B D"]:
        """One vector per timestep."""
        return self.network(sinusoid(t, self.width))


def sinusoid(t: Int[Tensor, " B"], width: int) -> Float[Tensor, "B {width}"]:
    """sin and cos of t at width/2 rates, in float32: half precision could not tell neighbouring steps apart."""
    half = width // 2
    rates = torch.exp(torch.arange(half, device=t.device, dtype=torch.float32) * (-math.log(LONGEST_PERIOD) / half))
    angles = t.float()[:, None] * rates
    return torch.cat([angles.sin(), angles.cos()], dim=-1)


class Conditions(NamedTuple):
    """What the encoder's states contribute to every call: made once per sentence."""

    blocks: tuple[Float[Tensor, "*units six_D"], ...]
    """to the modulations"""
    final: Float[Tensor, "*units two_D"]
    input: Float[Tensor, "*units D"] | None = None
    """to the first block's input, where `state_input` is on"""


class Modulation(nn.Module):
    """Linear([silu(state) ; silu(time)]) as a sum of two parts, so that the part of the state is computed once.

    ``of_state`` takes the activated state, which all blocks share.

    ``is_zero`` starts it at zero (adaLN-zero): a fresh block passes its input through.
    """

    def __init__(self, state_width: int, time_width: int, width: int, *, is_zero: bool) -> None:
        super().__init__()
        self.of_state = nn.Linear(state_width, width, bias=False)
        # The bias is here, where its gradient is a sum over sentences instead of units.
        self.of_time = nn.Sequential(nn.SiLU(), nn.Linear(time_width, width))
        if is_zero:
            for parameter in self.parameters():
                nn.init.zeros_(parameter)


class DiffusionBlock(nn.Module):
    """x + g₁·attention(n(x)·(1 + a₁) + b₁), then x + g₂·feed-forward(n(x)·(1 + a₂) + b₂), all six from the modulation."""

    def __init__(self, config: DenoiserConfig, state_width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(config.width, elementwise_affine=False)
        self.attention = SelfAttention(config.width, config.heads)
        self.feed_forward = FeedForward(config.width)
        self.dropout = nn.Dropout(config.dropout)
        self.modulation = Modulation(state_width, config.time_width, 6 * config.width, is_zero=True)

    def forward(
        self,
        values: Float[Tensor, "*units D"],
        condition: Float[Tensor, "*units six_D"],
        time: Float[Tensor, "b time_D"],
        layout: Layout,
        rotation: Rotation,
    ) -> Float[Tensor, "*units D"]:
        """The next block's input."""
        modulation = condition + layout.spread(self.modulation.of_time(time))
        shift, scale, gate, second_shift, second_scale, second_gate = modulation.chunk(6, dim=-1)
        attended = self.attention(self.norm(values) * (1 + scale) + shift, layout, rotation)
        values = values + gate * self.dropout(attended)
        passed = self.feed_forward(self.norm(values) * (1 + second_scale) + second_shift)
        return values + second_gate * self.dropout(passed)


class DiffusionTransformer(nn.Module):
    """Position vectors z from embedded noisy labels, a timestep and encoder states (paper: “Neural Architecture”).

    The modulation after the last block does not start at zero, a departure from adaLN-zero: through it the states reach the
    scores, and the loss the encoder, from the first step on. With `state_input`, another departure, a linear map of the states
    is added to the embedded labels: then blocks pass states on as those of the encoder do.
    """

    def __init__(self, config: DenoiserConfig, state_width: int) -> None:
        super().__init__()
        self.width = config.width
        self.head_width = config.width // config.heads
        self.time = TimeEmbedding(config.time_width)
        self.blocks = nn.ModuleList(DiffusionBlock(config, state_width) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width, elementwise_affine=False)
        self.modulation = Modulation(state_width, config.time_width, 2 * config.width, is_zero=False)
        self.input_of_state = nn.Linear(state_width, config.width, bias=False) if config.state_input else None

    def prepare(self, states: Float[Tensor, "*units S"]) -> Conditions:
        """The states' part of every modulation, and of the input; it holds 6·D numbers per layer and unit."""
        activated = F.silu(states)
        linears = [block.get_submodule("modulation.of_state") for block in self.blocks]
        return Conditions(
            tuple(linear(activated) for linear in linears),
            self.modulation.of_state(activated),
            None if self.input_of_state is None else self.input_of_state(states),
        )

    def forward(
        self,
        inputs: Float[Tensor, "*units D"],
        t: Int[Tensor, " b"],
        conditions: Conditions,
        layout: Layout,
    ) -> Float[Tensor, "*units D"]:
        """z; ``t`` is one step per sentence, or one for all, (1,)."""
        time = self.time(t)
        rotation = layout.rotation(self.head_width)
        values = inputs if conditions.input is None else inputs + conditions.input
        for block, condition in zip(self.blocks, conditions.blocks, strict=True):
            values = block(values, condition, time, layout, rotation)
        shift, scale = (conditions.final + layout.spread(self.modulation.of_time(time))).chunk(2, dim=-1)
        return self.norm(values) * (1 + scale) + shift


class KnownFlag(nn.Module):
    """Marks the positions whose label is given; a vector that starts at zero, so that without such training it is silent."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.vector = nn.Parameter(torch.zeros(width))

    def forward(
        self, inputs: Float[Tensor, "*units D"], is_known: Bool[Tensor, " *units"] | None
    ) -> Float[Tensor, "*units D"]:
        """The inputs, marked."""
        return inputs if is_known is None else inputs + is_known[..., None] * self.vector


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
        t: Int[Tensor, " b"],
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
        t: Int[Tensor, " #B"],
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


__all__ = ["BitDenoiser", "Conditions", "DiffusionTransformer", "LabelDenoiser", "TimeEmbedding"]
