"""The best legal sequence, with and without learned transitions."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import torch
from jaxtyping import Int
from torch import Tensor

from diffusion_mf.decoding.constraints import Legality
from diffusion_mf.decoding.evidence import Evidence, hard_clamps, missing
from diffusion_mf.ops.chain_scores import check_lengths, fold_scores, unit_mask
from diffusion_mf.ops.viterbi import viterbi
from diffusion_mf.structures.distribution import Potentials
from diffusion_mf.structures.validation import check_legal, check_scores


@dataclasses.dataclass(frozen=True)
class MaskViterbi:
    """ŷ = argmax over legal y of Σᵢ uᵢ(yᵢ): fixed constraints, no learned transitions. The output is always legal.

    a_s(y₁) + Σᵢ uᵢ(yᵢ) + Σᵢ A(yᵢ₋₁, yᵢ) + a_e(yₙ) with A, a_s and a_e 0 where legal and −∞ elsewhere (paper: “Fixed
    constraints”, which writes −10⁴ for −∞; a large score could beat that). Only clamps are as hard as legality: see
    `evidence.hard_clamps` for scores of −∞.
    """

    name: ClassVar[str] = "mask-viterbi"

    def __call__(self, evidence: Evidence) -> Int[Tensor, "B N"]:
        """The labels; `NoLegalSequenceError` where clamps leave no legal sequence."""
        scores = hard_clamps(evidence, self.name)
        no_transitions = scores.new_zeros(scores.shape[-1], scores.shape[-1])
        return _best(Potentials(scores, no_transitions), evidence, allowed=None)


@dataclasses.dataclass(frozen=True)
class Viterbi:
    """ŷ = argmax_y score(y) with learned transitions, over legal y where there is legality.

    Paper: “LCRF Viterbi additionally uses learned transition scores”. Constraints are masks on top of learned scores.
    """

    name: ClassVar[str] = "viterbi"

    def __call__(self, evidence: Evidence) -> Int[Tensor, "B N"]:
        """The labels; `NoLegalSequenceError` where clamps and scores of −∞ leave no legal sequence."""
        potentials = evidence.potentials
        if potentials is None or potentials.transition_scores is None:
            raise missing(self.name, "learned transitions", "choose argmax or mask-viterbi")
        if evidence.check:
            num_units = potentials.unary_scores.shape[1]
            check_lengths(evidence.lengths, num_units)
            check_scores(
                potentials.unary_scores,
                unit_mask(evidence.lengths, num_units),
                transition_scores=potentials.transition_scores,
                start_scores=potentials.start_scores,
                end_scores=potentials.end_scores,
            )
        return _best(potentials, evidence, allowed=evidence.allowed)


def _best(potentials: Potentials, evidence: Evidence, *, allowed: Tensor | None) -> Tensor:
    unary, transition = constrained(potentials, evidence.lengths, legality=evidence.legality, allowed=allowed)
    found = viterbi(unary, transition, evidence.lengths, backend=evidence.backend)
    if evidence.check:
        check_legal(found.scores > -torch.inf)
    return found.labels


def constrained(
    potentials: Potentials, lengths: Tensor, *, legality: Legality | None = None, allowed: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Unary and transition scores for the chain operations, with everything illegal or clamped away at −∞."""
    unary, transition, start, end = potentials
    if transition is None:
        transition = unary.new_zeros(unary.shape[-1], unary.shape[-1])
    if legality is not None:
        legality = legality.to(unary.device)
        if legality.num_labels != unary.shape[-1]:
            raise ValueError(f"constraints on {legality.num_labels} labels do not fit scores of {unary.shape[-1]}")
        allowed = legality.restrict_ends(allowed, lengths, unary.shape[1])
        transition = transition.masked_fill(~legality.transitions, -torch.inf)
    return fold_scores(unary, lengths, start_scores=start, end_scores=end, allowed=allowed), transition
