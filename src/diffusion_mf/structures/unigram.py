"""Independent positions: the first row of the paper's grid."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from diffusion_mf.ops.chain_scores import Lengths, check_lengths, fold_scores, softmax
from diffusion_mf.structures.distribution import (
    Factorised,
    InferenceSettings,
    Potentials,
    check_positions,
    check_scores,
    check_shapes,
    remember,
    safe_log_softmax,
)


class Unigram(Factorised):
    """p(y) = Πᵢ softmax(unaryᵢ)(yᵢ).

    Paper: section 2.1, “Unigram Models”. ``allowed`` gives the labels each position may have. ``check`` waits for a GPU;
    without it a position without an allowed label has marginals 0.
    """

    uses_transitions = False

    def __init__(
        self,
        unary_scores: Float[Tensor, "B N K"],
        lengths: Lengths,
        *,
        allowed: Bool[Tensor, "B N K"] | None = None,
        check: bool = True,
    ) -> None:
        check_shapes(unary_scores, allowed=allowed)
        super().__init__(unary_scores, lengths, check=check)
        scores = fold_scores(unary_scores, self.lengths, allowed=allowed).to(self.dtype)
        if check:
            check_lengths(self.lengths, self.num_units)
            check_scores(scores, self._is_unit)
            check_positions(scores, self._is_unit)
        self.unary_scores = torch.where(self._is_unit[..., None], scores, 0)

    @classmethod
    def from_potentials(
        cls,
        potentials: Potentials,
        lengths: Lengths,
        *,
        allowed: Bool[Tensor, "B N K"] | None = None,
        settings: InferenceSettings | None = None,
    ) -> Unigram:
        """From unary scores; other scores are refused."""
        if any(scores is not None for scores in potentials[1:]):
            raise ValueError("Unigram has no transition, start or end scores")
        settings = settings or InferenceSettings()
        return cls(potentials.unary_scores, lengths, allowed=allowed, check=settings.check)

    @remember
    def marginals(self) -> Float[Tensor, "B N K"]:
        """softmax(unaryᵢ)."""
        return softmax(self.unary_scores) * self._is_unit[..., None]

    @remember
    def log_marginals(self) -> Float[Tensor, "B N K"]:
        """log softmax(unaryᵢ), exact; −∞ for labels not allowed, 0 past each length."""
        return safe_log_softmax(self.unary_scores, self._is_unit)
