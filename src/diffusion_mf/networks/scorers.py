"""From position vectors to the scores of a structure: the unary and pairwise MLPs of the paper's figure."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from diffusion_mf.batches.layouts import Layout
from diffusion_mf.config import StructureConfig
from diffusion_mf.ops.gelu import GELU
from diffusion_mf.structures import LabelDistribution, Potentials


class FullPrecisionLinear(nn.Linear):
    """A linear layer in float32 (or float64), whatever the autocast type: bfloat16 would round scores to three digits."""

    def forward(self, input: Tensor) -> Tensor:
        """W·x + b."""
        dtype = torch.promote_types(input.dtype, torch.float32)
        with torch.autocast(input.device.type, enabled=False):
            bias = None if self.bias is None else self.bias.to(dtype)
            return F.linear(input.to(dtype), self.weight.to(dtype), bias)


class ScoringMLP(nn.Sequential):
    """Linear, GELU, dropout, linear; the last layer is in full precision unless ``is_coarse``."""

    def __init__(self, width: int, num_scores: int, config: StructureConfig, *, is_coarse: bool = False) -> None:
        last = nn.Linear if is_coarse else FullPrecisionLinear
        super().__init__(
            nn.Linear(width, config.scorer_width),
            GELU(),
            nn.Dropout(config.scorer_dropout),
            last(config.scorer_width, num_scores),
        )

    def forward(self, vectors: Tensor, rows: Tensor | None = None) -> Tensor:
        """The scores of ``vectors``, or of the given rows of them, gathered on the way, which costs nothing on a GPU."""
        first, gelu, dropout, last = self
        hidden = dropout(gelu(first(vectors)))
        return last(hidden if rows is None else hidden[rows])


class Scorer(nn.Module):
    """Unary scores lᵢ, and transition scores where the structure uses them (paper: figure 1).

    Local transitions: B_i ∈ ℝ^{K×K} from zᵢ, for the step from i to i + 1. Global: one learned matrix, zero at the start.
    """

    def __init__(
        self, width: int, num_labels: int, config: StructureConfig, structure: type[LabelDistribution]
    ) -> None:
        super().__init__()
        self.num_labels = num_labels
        self.is_coarse = structure.takes_coarse_transitions
        self.unary = ScoringMLP(width, num_labels, config)
        self.local_transitions: ScoringMLP | None = None
        self.global_transitions: nn.Parameter | None = None
        if structure.uses_transitions and config.transitions == "local":
            self.local_transitions = ScoringMLP(width, num_labels**2, config, is_coarse=self.is_coarse)
        elif structure.uses_transitions:
            self.global_transitions = nn.Parameter(torch.zeros(num_labels, num_labels))

    def forward(self, vectors: Float[Tensor, "*units D"], layout: Layout) -> Potentials:
        """The potentials, (B, N, …); values at padding are undefined, and structures do not read them."""
        transitions: Tensor | None = None
        if self.local_transitions is not None:
            # Gradients of rows gathered twice would have to be summed, and full-precision products are expensive.
            rows = layout.pair_units if self.is_coarse and not torch.is_grad_enabled() else None
            scores = self.local_transitions(vectors, rows)
            if rows is None:
                scores = layout.unpack_pairs(scores)
            transitions = scores.unflatten(-1, (self.num_labels, self.num_labels))
        elif self.global_transitions is not None:
            transitions = self.global_transitions
            if self.is_coarse and torch.is_autocast_enabled(transitions.device.type):
                transitions = transitions.to(torch.get_autocast_dtype(transitions.device.type))
        return Potentials(layout.unpack(self.unary(vectors)), transitions)
