"""Diffusion Transformers: from noisy labels or bits, a timestep and encoder states to position vectors for scoring."""

from __future__ import annotations

import math
from itertools import repeat
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from diffusion_mf.batches.layouts import Layout, Rotation
from diffusion_mf.config import DenoiserConfig
from diffusion_mf.networks.recall import mean_of_others
from diffusion_mf.networks.scorers import FullPrecisionLinear, ScoringMLP
from diffusion_mf.networks.transformer import FeedForward, SelfAttention

LONGEST_PERIOD = 10_000.0


class TimeEmbedding(nn.Module):
    """τ(t) = MLP(sin(t·ω), cos(t·ω)), with rates ω falling geometrically from 1 to 1/10,000.

    Inference starts at t = T, which training never sees (t ≤ T − 1): a sinusoid is smooth in t, while a table would have an
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
    """sin and cos of t at width/2 rates, in float32: half precision cannot distinguish neighbouring steps."""
    half = width // 2
    rates = torch.exp(torch.arange(half, device=t.device, dtype=torch.float32) * (-math.log(LONGEST_PERIOD) / half))
    angles = t.float()[:, None] * rates
    return torch.cat([angles.sin(), angles.cos()], dim=-1)


class Conditions(NamedTuple):
    """The contribution of the encoder's states to every call, computed once per sentence; none to a network that sees no states."""

    blocks: tuple[Float[Tensor, "*units six_D"], ...] = ()
    """to the modulations"""
    final: Float[Tensor, "*units two_D"] | None = None
    input: Float[Tensor, "*units D"] | None = None
    """to the first block's input, where `state_input` is on"""
    scores: Float[Tensor, "*units K"] | None = None
    """to the unary scores, where `state_scores` is on"""


class Modulation(nn.Module):
    """Linear([silu(state) ; silu(time)]) as a sum of two parts, so that the state's part is computed once.

    ``of_state`` takes the activated state, which all blocks share.

    ``is_zero`` initialises it to zero (adaLN-zero): a fresh block passes its input through. Without states, ``state_width`` is 0.
    """

    def __init__(self, state_width: int, time_width: int, width: int, *, is_zero: bool) -> None:
        super().__init__()
        self.of_state = nn.Linear(state_width, width, bias=False) if state_width else None
        # The bias belongs here, where its gradient is a sum over sentences instead of units.
        self.of_time = nn.Sequential(nn.SiLU(), nn.Linear(time_width, width))
        if is_zero:
            for parameter in self.parameters():
                nn.init.zeros_(parameter)

    def forward(
        self, condition: Float[Tensor, "*units W"] | None, time: Float[Tensor, "b time_D"], layout: Layout
    ) -> Float[Tensor, "*units_or_one W"]:
        """The sum of the state's part, if there is one, and the time's."""
        of_time = layout.spread(self.of_time(time))
        return of_time if condition is None else condition + of_time


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
        condition: Float[Tensor, "*units six_D"] | None,
        time: Float[Tensor, "b time_D"],
        layout: Layout,
        rotation: Rotation,
    ) -> Float[Tensor, "*units D"]:
        """The next block's input."""
        modulation = self.modulation(condition, time, layout)
        shift, scale, gate, second_shift, second_scale, second_gate = modulation.chunk(6, dim=-1)
        attended = self.attention(self.norm(values) * (1 + scale) + shift, layout, rotation)
        values = values + gate * self.dropout(attended)
        passed = self.feed_forward(self.norm(values) * (1 + second_scale) + second_shift)
        return values + second_gate * self.dropout(passed)


class DiffusionTransformer(nn.Module):
    """Position vectors z from embedded noisy labels, a timestep and encoder states (paper: “Neural Architecture”).

    The modulation after the last block is not initialised to zero, a departure from adaLN-zero: through it the states reach
    the scores, and the loss reaches the encoder, from the first step on. With `state_input`, another departure, a linear map
    of the states is added to the embedded labels, so that the blocks also see the states in their input. A ``state_width`` of 0
    means that it sees no states.
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
        """The states' part of every modulation and of the input; takes 6·D numbers per layer and unit."""
        if self.modulation.of_state is None:
            return Conditions()
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
        """z; ``t`` has one step per sentence, or one for all, (1,)."""
        time = self.time(t)
        rotation = layout.rotation(self.head_width)
        values = inputs if conditions.input is None else inputs + conditions.input
        for block, condition in zip(self.blocks, conditions.blocks or repeat(None, len(self.blocks)), strict=True):
            values = block(values, condition, time, layout, rotation)
        shift, scale = self.modulation(conditions.final, time, layout).chunk(2, dim=-1)
        return self.norm(values) * (1 + scale) + shift


class KnownFlag(nn.Module):
    """Marks positions whose label is given, by a vector initialised to zero: without such training it has no effect."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.vector = nn.Parameter(torch.zeros(width))

    def forward(
        self, inputs: Float[Tensor, "*units D"], is_known: Bool[Tensor, " *units"] | None
    ) -> Float[Tensor, "*units D"]:
        """The inputs with the flag added."""
        return inputs if is_known is None else inputs + is_known[..., None] * self.vector


ADDED_LATER = ("known_others.weight", "known_in_document.weight")
"""ends of the names of weights that models of earlier versions lack; without training they are zero, and have no effect"""


class LabelDenoiser(nn.Module):
    """z from π_t, t and the encoder's states; noisy labels enter as expected embeddings (one-hot beliefs in training).

    With `recall`, a departure, a unit also sees the mean belief about the other occurrences of its form in the document. This
    is new information: the encoder has not seen those sentences together with this one. If it is trained for clamps
    (``sees_clamps``), it also sees the mean label of those of them whose label is given, apart from what is only believed, and how
    frequent each label is among those given in the document: what a name is often depends on what the text is about.

    With a ``state_scorer`` (`state_scores`), a departure, the states have scores of their own, to which those of z are added, and z
    depends on labels and timestep alone: with little data, an encoder that is trained through the blocks overfits.
    """

    def __init__(
        self,
        config: DenoiserConfig,
        *,
        num_labels: int,
        state_width: int,
        sees_clamps: bool = False,
        state_scorer: ScoringMLP | None = None,
    ) -> None:
        super().__init__()
        self.width = config.width
        self.labels = nn.Linear(num_labels, config.width, bias=False)
        nn.init.normal_(self.labels.weight)
        self.recalled: nn.Linear | None = None
        if config.recall:
            self.recalled = nn.Linear(num_labels, config.width, bias=False)
            nn.init.zeros_(self.recalled.weight)  # no effect until something is learnt from it
        self.known_others: nn.Linear | None = None
        self.known_in_document: nn.Linear | None = None
        if config.recall and sees_clamps:
            self.known_others, self.known_in_document = (
                nn.Linear(num_labels, config.width, bias=False) for _ in range(2)
            )
            for linear in (self.known_others, self.known_in_document):
                nn.init.zeros_(linear.weight)
        self.flag = KnownFlag(config.width)
        self.transformer = DiffusionTransformer(config, 0 if state_scorer else state_width)
        self.state_scorer = state_scorer

    def prepare(self, states: Float[Tensor, "*units S"]) -> Conditions:
        """What all calls on these states share."""
        conditions = self.transformer.prepare(states)
        return conditions if self.state_scorer is None else conditions._replace(scores=self.state_scorer(states))

    def with_known(
        self,
        conditions: Conditions,
        known: Float[Tensor, "B N K"],
        layout: Layout,
        others: Int[Tensor, "B N M"] | None,
        document_rows: Int[Tensor, " B"] | None,
    ) -> Conditions:
        """The conditions with what given labels say about other units; ``known`` is one-hot where a label is given, else zero."""
        if self.known_others is None or self.known_in_document is None or others is None or document_rows is None:
            return conditions
        places = layout.pack(others)
        is_there = (places >= 0) & (known.sum(-1) > 0).flatten()[places.clamp(min=0)]
        added = self.known_others(mean_of_others(known, torch.where(is_there, places, -1)))
        counts = known.sum(1)
        totals = torch.zeros_like(counts).index_add(0, document_rows, counts)[document_rows]
        # Square roots, because one label (the one outside of names) is far more frequent than all others.
        shares = (totals / totals.sum(-1, keepdim=True).clamp(min=1)).sqrt()
        added = added + layout.spread(self.known_in_document(shares))
        return conditions._replace(input=added if conditions.input is None else conditions.input + added)

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
                raise ValueError("a denoiser with recall needs the other occurrences of each unit")
            inputs = inputs + self.recalled(mean_of_others(beliefs, layout.pack(others)))
        return self.transformer(self.flag(inputs, marks), t, conditions, layout)


class BitDenoiser(nn.Module):
    """x̂₀ from x_t, t and the encoder's states, and from the previous x̂₀ if self-conditioning is on.

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
        """One call; the result is float32, in units of the scale."""
        if self.use_self_conditioning:
            noisy = torch.cat([noisy, torch.zeros_like(noisy) if previous is None else previous], dim=-1)
        marks = None if is_known is None else layout.pack(is_known)
        hidden = self.transformer(self.flag(self.bits(layout.pack(noisy)), marks), t, conditions, layout)
        return layout.unpack(self.output(hidden))


__all__ = ["BitDenoiser", "Conditions", "DiffusionTransformer", "LabelDenoiser", "TimeEmbedding"]
