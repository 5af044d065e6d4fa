"""The Mean-Field approximation of a linear chain: the second row of the paper's grid."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from diffusion_mf.ops.backends import Backend
from diffusion_mf.ops.chain_scores import Lengths, blank_padding, check_lengths, fold_scores
from diffusion_mf.ops.mean_field import mean_field
from diffusion_mf.structures.distribution import (
    Factorised,
    InferenceSettings,
    Potentials,
    check_positions,
    check_scores,
    check_shapes,
    remember,
)


class MeanField(Factorised):
    """q(y) = Πᵢ qᵢ(yᵢ), by a fixed number of parallel updates towards the chain of the same scores.

    q⁰ᵢ = softmax(unaryᵢ),  qᵢ ← softmax(unaryᵢ + Σⱼ qᵢ₋₁(j) Tᵢ₋₁(j, ·) + Σₖ Tᵢ(·, k) qᵢ₊₁(k)).

    Paper: “Structured Denoising”. Transitions are (K, K), or (B, N − 1, K, K) with one matrix per position. A transition of
    −∞ acts on beliefs as a large finite penalty (`ops.mean_field`). ``check`` waits for a GPU; without it a position
    without an allowed label has marginals 0.
    """

    uses_transitions = True
    takes_coarse_transitions = True

    def __init__(
        self,
        unary_scores: Float[Tensor, "B N K"],
        transition_scores: Float[Tensor, "K K"] | Float[Tensor, "B N-1 K K"],
        lengths: Lengths,
        num_iterations: int = 5,
        *,
        start_scores: Float[Tensor, " K"] | None = None,
        end_scores: Float[Tensor, " K"] | None = None,
        allowed: Bool[Tensor, "B N K"] | None = None,
        backend: Backend = "auto",
        check: bool = True,
    ) -> None:
        check_shapes(
            unary_scores,
            transition_scores=transition_scores,
            start_scores=start_scores,
            end_scores=end_scores,
            allowed=allowed,
        )
        if num_iterations < 0:
            raise ValueError(f"num_iterations must not be negative, found {num_iterations}")
        super().__init__(unary_scores, lengths, check=check)
        self.num_iterations = num_iterations
        self.backend: Backend = backend
        self.transition_scores = transition_scores
        self.unary_scores = fold_scores(
            unary_scores,
            self.lengths,
            start_scores=None if start_scores is None else start_scores.to(self.dtype),
            end_scores=None if end_scores is None else end_scores.to(self.dtype),
            allowed=allowed,
        )
        if check:
            check_lengths(self.lengths, self.num_units)
            check_scores(self.unary_scores, self._is_unit, transition_scores=transition_scores)
            check_positions(self.unary_scores, self._is_unit)

    @classmethod
    def from_potentials(
        cls,
        potentials: Potentials,
        lengths: Lengths,
        *,
        allowed: Bool[Tensor, "B N K"] | None = None,
        settings: InferenceSettings | None = None,
    ) -> MeanField:
        """From unary and transition scores, and start and end scores if there are any."""
        if potentials.transition_scores is None:
            raise ValueError("Mean-Field needs transition scores")
        settings = settings or InferenceSettings()
        return cls(
            potentials.unary_scores,
            potentials.transition_scores,
            lengths,
            settings.num_iterations,
            start_scores=potentials.start_scores,
            end_scores=potentials.end_scores,
            allowed=allowed,
            backend=settings.backend,
            check=settings.check,
        )

    @remember
    def marginals(self) -> Float[Tensor, "B N K"]:
        """qᵢ after the last update, by one fused operation."""
        return mean_field(
            self.unary_scores, self.transition_scores, self.lengths, self.num_iterations, backend=self.backend
        )

    @remember
    def log_marginals(self) -> Float[Tensor, "B N K"]:
        """log qᵢ after the last update; −∞ for labels not allowed, 0 past each length.

        Computed in log space, so that no probability underflows and every label keeps its gradient.
        """
        return mean_field(
            self.unary_scores,
            self.transition_scores,
            self.lengths,
            self.num_iterations,
            backend=self.backend,
            is_log=True,
        )

    def evidence_lower_bound(self) -> Float[Tensor, " B"]:
        """E_q[score(y)] + H(q) ≤ log Z of the chain, differentiable.

        0·(−∞) = 0; if q gives an impossible pair of labels any probability, the bound is −∞ and has no gradient.
        """
        unary, transition = blank_padding(
            self.unary_scores.to(self.dtype), self.transition_scores.to(self.dtype), self.lengths
        )
        beliefs = torch.where(self._is_unit[..., None], self.log_marginals().exp(), 0)
        expected = (beliefs * torch.where(unary == -torch.inf, 0, unary)).flatten(1).sum(1)
        left, right = beliefs[:, :-1], beliefs[:, 1:]
        is_impossible = transition == -torch.inf
        expected = expected + (_to_right(left, transition.masked_fill(is_impossible, 0)) * right).flatten(1).sum(1)
        stray = (_to_right(left, is_impossible.to(self.dtype)) * right).detach().flatten(1).sum(1)
        return torch.where(stray > 0, -torch.inf, expected + self.entropy())


def _to_right(values: Tensor, transition: Tensor) -> Tensor:
    """Σⱼ valuesᵢ(j) Tᵢ(j, ·), (B, N − 1, K)."""
    if transition.dim() == 2:
        return values @ transition
    return (values[..., None, :] @ transition).squeeze(-2)
