"""Decoders: argmax, Viterbi with and without learned transitions, and native decoding of bits."""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Protocol

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from diffusion_mf.decoding.constraints import Legality
from diffusion_mf.diffusion.bits import BitCodes
from diffusion_mf.errors import InputError
from diffusion_mf.ops.backends import Backend
from diffusion_mf.ops.chain_scores import accumulation_dtype, check_lengths, fold_scores, unit_mask
from diffusion_mf.ops.viterbi import viterbi
from diffusion_mf.structures.distribution import Potentials, check_legal, check_positions, check_scores

ZERO_PROBABILITY_COST = 1e3
"""How far a label of probability zero scores below the lowest finite score of its sentence (or below 0, if that is lower)."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class DecoderInput:
    """What a model knows about a batch at the end of inference; each system fills in the fields that it has."""

    lengths: Int[Tensor, " B"]
    unary_scores: Float[Tensor, "B N K"] | None = None
    """for argmax and Mask-Viterbi: log π₀ (diffusion), log-marginals (direct systems) or −‖z − c‖²/τ (bits)"""
    potentials: Potentials | None = None
    """for Viterbi: the structure's scores, from the last call in diffusion"""
    bits: Float[Tensor, "B N b"] | None = None
    """for native decoding: DiffusionSL's z"""
    codes: BitCodes | None = None
    legality: Legality | None = None
    """None: every sequence is legal"""
    allowed: Bool[Tensor, "B N K"] | None = None
    """clamps, always respected"""
    allowed_pairs: Bool[Tensor, "B N-1 K K"] | None = None
    """clamps of neighbours, [previous, next]: respected by the decoders that look at sequences"""
    backend: Backend = "auto"
    check: bool = True
    """raise `NoLegalSequenceError` if clamps and legality leave no sequence; waits for a GPU"""


class Decoder(Protocol):
    """A frozen object that turns a decoder input into (B, N) labels, 0 past each length."""

    name: ClassVar[str]
    is_always_legal: ClassVar[bool]
    """whether its output is a legal sequence whatever the scores are"""

    def __call__(self, decoder_input: DecoderInput) -> Int[Tensor, "B N"]:
        """The labels; `InputError` if the decoder input lacks what this decoder needs."""
        ...


def missing(decoder: str, what: str, remedy: str) -> InputError:
    """The error for a decoder whose input lacks what it needs."""
    return InputError(f"the decoder {decoder} needs {what}, which this system does not have", remedy=remedy)


def hard_clamps(decoder_input: DecoderInput, decoder: str) -> Float[Tensor, "B N K"]:
    """Unary scores that are −∞ only where a clamp forbids the label.

    A zero probability is usually an underflow, and structured decoding may need that label to repair a sequence: it costs
    `ZERO_PROBABILITY_COST` instead. Scores past each length are 0.
    """
    if decoder_input.unary_scores is None:
        raise missing(decoder, "a score for every label", "choose native or viterbi")
    lengths = decoder_input.lengths
    scores = decoder_input.unary_scores.to(accumulation_dtype(decoder_input.unary_scores.dtype))
    is_unit = unit_mask(lengths, scores.shape[1])
    if decoder_input.check:
        check_lengths(lengths, scores.shape[1])
        if bool((is_unit[..., None] & ~(scores < torch.inf)).any()):
            raise ValueError("unary scores contain NaN or +∞")
    scores = torch.where(is_unit[..., None], scores, 0)
    is_finite = scores > -torch.inf
    least = torch.where(is_finite, scores, 0).flatten(1).amin(1)
    scores = torch.where(is_finite, scores, (least - ZERO_PROBABILITY_COST)[:, None, None])
    if decoder_input.allowed is not None:
        scores = scores.masked_fill(~decoder_input.allowed & is_unit[..., None], -torch.inf)
        if decoder_input.check:
            check_positions(scores, is_unit)
    return scores


@dataclasses.dataclass(frozen=True)
class Argmax:
    """ŷᵢ = argmaxₖ uᵢ(k); ties go to the smaller label. Clamps are respected, legality is ignored.

    Paper: appendix “Final Decoders and Constraints”.
    """

    name: ClassVar[str] = "argmax"
    is_always_legal: ClassVar[bool] = False

    def __call__(self, decoder_input: DecoderInput) -> Int[Tensor, "B N"]:
        """The labels."""
        scores = decoder_input.unary_scores
        if scores is None or decoder_input.check or decoder_input.allowed is not None:
            # Otherwise no repair is needed: −∞ is never the maximum, unless all scores are −∞.
            scores = hard_clamps(decoder_input, self.name)
        return torch.where(unit_mask(decoder_input.lengths, scores.shape[1]), scores.argmax(-1), 0)


@dataclasses.dataclass(frozen=True)
class NativeBits:
    """ŷᵢ = dec_b([zᵢ > 0]); a bit pattern that is not the code of a label gives `diffusion.NO_LABEL_ID`.

    Paper: appendix “Mask-Viterbi Extension for DiffusionSL”, native decoding. A clamped position takes the nearest allowed
    code; legality is ignored.
    """

    name: ClassVar[str] = "native"
    is_always_legal: ClassVar[bool] = False

    def __call__(self, decoder_input: DecoderInput) -> Int[Tensor, "B N"]:
        """The labels, or `diffusion.NO_LABEL_ID`."""
        bits, codes, allowed = decoder_input.bits, decoder_input.codes, decoder_input.allowed
        if bits is None or codes is None:
            raise missing(self.name, "bits", "choose argmax, mask-viterbi or viterbi")
        is_unit = unit_mask(decoder_input.lengths, bits.shape[1])
        if decoder_input.check:
            check_lengths(decoder_input.lengths, bits.shape[1])
        if allowed is not None:
            if decoder_input.check:
                check_positions(torch.where(allowed, 0.0, -torch.inf), is_unit)
            bits = codes.restrict(bits, allowed)
        return torch.where(is_unit, codes.decode_native(bits), 0)


@dataclasses.dataclass(frozen=True)
class MaskViterbi:
    """ŷ = argmax over legal y of Σᵢ uᵢ(yᵢ): fixed constraints, no learned transitions. The output is always legal.

    a_s(y₁) + Σᵢ uᵢ(yᵢ) + Σᵢ A(yᵢ₋₁, yᵢ) + a_e(yₙ) with A, a_s and a_e 0 where legal and −∞ elsewhere (paper: “Fixed
    constraints”, which writes −10⁴ for −∞; a large score could outweigh that). Only clamps are as hard as legality: see
    `hard_clamps` for scores of −∞.
    """

    name: ClassVar[str] = "mask-viterbi"
    is_always_legal: ClassVar[bool] = True

    def __call__(self, decoder_input: DecoderInput) -> Int[Tensor, "B N"]:
        """The labels; `NoLegalSequenceError` where clamps leave no legal sequence."""
        scores = hard_clamps(decoder_input, self.name)
        return _best(Potentials(scores), decoder_input, allowed=None)


@dataclasses.dataclass(frozen=True)
class Viterbi:
    """ŷ = argmax_y score(y) with learned transitions, over legal y if there are constraints.

    Paper: “LCRF Viterbi additionally uses learned transition scores”. Constraints are masks on top of learned scores.
    """

    name: ClassVar[str] = "viterbi"
    is_always_legal: ClassVar[bool] = True

    def __call__(self, decoder_input: DecoderInput) -> Int[Tensor, "B N"]:
        """The labels; `NoLegalSequenceError` where clamps and scores of −∞ leave no legal sequence."""
        potentials = decoder_input.potentials
        if potentials is None or potentials.transition_scores is None:
            raise missing(self.name, "learned transitions", "choose argmax or mask-viterbi")
        if decoder_input.check:
            num_units = potentials.unary_scores.shape[1]
            check_lengths(decoder_input.lengths, num_units)
            check_scores(
                potentials.unary_scores,
                unit_mask(decoder_input.lengths, num_units),
                transition_scores=potentials.transition_scores,
                start_scores=potentials.start_scores,
                end_scores=potentials.end_scores,
            )
        return _best(potentials, decoder_input, allowed=decoder_input.allowed)


def _best(potentials: Potentials, decoder_input: DecoderInput, *, allowed: Tensor | None) -> Tensor:
    unary, transition = constrained(
        potentials,
        decoder_input.lengths,
        legality=decoder_input.legality,
        allowed=allowed,
        allowed_pairs=decoder_input.allowed_pairs,
    )
    found = viterbi(unary, transition, decoder_input.lengths, backend=decoder_input.backend)
    if decoder_input.check:
        check_legal(found.scores > -torch.inf)
    return found.labels


def constrained(
    potentials: Potentials,
    lengths: Tensor,
    *,
    legality: Legality | None = None,
    allowed: Tensor | None = None,
    allowed_pairs: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Unary and transition scores for the chain operations, with −∞ for everything illegal or excluded by clamps."""
    unary, transition, start, end = potentials
    if transition is None:
        transition = unary.new_zeros(unary.shape[-1], unary.shape[-1])
    if legality is not None:
        legality = legality.to(unary.device)
        if legality.num_labels != unary.shape[-1]:
            raise ValueError(f"constraints on {legality.num_labels} labels do not fit scores of {unary.shape[-1]}")
        allowed = legality.restrict_ends(allowed, lengths, unary.shape[1])
        transition = transition.masked_fill(~legality.transitions, -torch.inf)
    if allowed_pairs is not None:
        forbidden = ~allowed_pairs.to(transition.device)
        transition = transition.expand(forbidden.shape).masked_fill(forbidden, -torch.inf)
    return fold_scores(unary, lengths, start_scores=start, end_scores=end, allowed=allowed), transition
