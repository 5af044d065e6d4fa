"""Diffusion-Transformer blocks (Peebles & Xie, 2023), modulated at every position by [encoder state ; timestep]."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from diffusion_mf.config import DenoiserConfig
from diffusion_mf.denoisers.time_embedding import TimeEmbedding
from diffusion_mf.encoders.attention import FeedForward, SelfAttention
from diffusion_mf.layouts import Layout, Rotation


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
        self.state_dropout = config.state_dropout
        self.input_of_state = nn.Linear(state_width, config.width, bias=False) if config.state_input else None

    def prepare(self, states: Float[Tensor, "*units S"]) -> Conditions:
        """The states' part of every modulation, and of the input; it holds 6·D numbers per layer and unit.

        In training some states are hidden (`state_dropout`), other ones each time.
        """
        if self.training and self.state_dropout:
            is_seen = torch.rand(states.shape[:-1], device=states.device) >= self.state_dropout
            states = states * is_seen[..., None]
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
        t: Int[Tensor, "b"],
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
        self, inputs: Float[Tensor, "*units D"], is_known: Bool[Tensor, "*units"] | None
    ) -> Float[Tensor, "*units D"]:
        """The inputs, marked."""
        return inputs if is_known is None else inputs + is_known[..., None] * self.vector
