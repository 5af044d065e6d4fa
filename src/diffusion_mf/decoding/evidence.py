"""What a decoder decides from, and the contract of decoders."""

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
from diffusion_mf.ops.chain_scores import accumulation_dtype, check_lengths, unit_mask
from diffusion_mf.structures.distribution import Potentials
from diffusion_mf.structures.validation import check_positions

ZERO_PROBABILITY_COST = 1e3
"""How far below the least finite score of its sentence (or 0, if that is less) a label of probability zero stands."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Evidence:
    """All that is known about a batch when reverse diffusion, or a direct system, is done; a system fills in what it has."""

    lengths: Int[Tensor, "B"]
    unary_scores: Float[Tensor, "B N K"] | None = None
    """log π₀ of a diffusion system, log-marginals of a direct one, −‖z − c‖²/τ of bits: for argmax and Mask-Viterbi"""
    potentials: Potentials | None = None
    """the structure's own scores (of the last call, in diffusion): for Viterbi"""
    bits: Float[Tensor, "B N b"] | None = None
    """DiffusionSL's z: for native decoding"""
    codes: BitCodes | None = None
    legality: Legality | None = None
    """None: every sequence is legal"""
    allowed: Bool[Tensor, "B N K"] | None = None
    """clamps, always honoured"""
    backend: Backend = "auto"
    check: bool = True
    """raise `NoLegalSequenceError` where clamps and legality leave nothing; waits for a GPU"""

    @classmethod
    def of_bits(
        cls,
        bits: Float[Tensor, "B N b"],
        codes: BitCodes,
        lengths: Int[Tensor, "B"],
        *,
        temperature: int | float = 0.05,
        legality: Legality | None = None,
        allowed: Bool[Tensor, "B N K"] | None = None,
        backend: Backend = "auto",
        check: bool = True,
    ) -> Evidence:
        """Evidence of DiffusionSL, with the distance-based unary scores u(ℓ) = −‖z − c_ℓ‖²/τ that Mask-Viterbi needs."""
        return cls(
            lengths=lengths,
            unary_scores=codes.unary_scores(bits, temperature=temperature),
            bits=bits,
            codes=codes,
            legality=legality,
            allowed=allowed,
            backend=backend,
            check=check,
        )


class Decoder(Protocol):
    """A way to decide on labels: a frozen object that turns evidence into (B, N) labels, 0 past each length."""

    name: ClassVar[str]

    def __call__(self, evidence: Evidence) -> Int[Tensor, "B N"]:
        """The labels; `InputError` if the evidence lacks what this decoder needs."""
        ...


def missing(decoder: str, what: str, remedy: str) -> InputError:
    """The error of a decoder that is asked to work without what it needs."""
    return InputError(f"the decoder {decoder} needs {what}, which this system does not have", remedy=remedy)


def hard_clamps(evidence: Evidence, decoder: str) -> Float[Tensor, "B N K"]:
    """Unary scores in which nothing but clamps is −∞.

    A probability of zero is mostly one that underflowed, and structured decoding may need that label to repair a sequence:
    `ZERO_PROBABILITY_COST` says what it costs. Past each length scores are 0.
    """
    if evidence.unary_scores is None:
        raise missing(decoder, "a score for every label", "choose native or viterbi")
    lengths = evidence.lengths
    scores = evidence.unary_scores.to(accumulation_dtype(evidence.unary_scores.dtype))
    is_unit = unit_mask(lengths, scores.shape[1])
    if evidence.check:
        check_lengths(lengths, scores.shape[1])
        if bool((is_unit[..., None] & ~(scores < torch.inf)).any()):
            raise ValueError("unary scores hold NaN or +∞")
    scores = torch.where(is_unit[..., None], scores, 0)
    is_finite = scores > -torch.inf
    least = torch.where(is_finite, scores, 0).flatten(1).amin(1)
    scores = torch.where(is_finite, scores, (least - ZERO_PROBABILITY_COST)[:, None, None])
    if evidence.allowed is not None:
        scores = scores.masked_fill(~evidence.allowed & is_unit[..., None], -torch.inf)
        if evidence.check:
            check_positions(scores, is_unit)
    return scores
