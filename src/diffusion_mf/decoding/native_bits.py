"""DiffusionSL's own decoder."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import torch
from jaxtyping import Int
from torch import Tensor

from diffusion_mf.decoding.evidence import Evidence, missing
from diffusion_mf.ops.chain_scores import check_lengths, unit_mask
from diffusion_mf.structures.validation import check_positions


@dataclasses.dataclass(frozen=True)
class NativeBits:
    """ŷᵢ = dec_b([zᵢ > 0]); a pattern of bits that is no label's code gives `diffusion.NO_LABEL`.

    Paper: appendix “Mask-Viterbi Extension for DiffusionSL”, native decoding. A clamped position takes the nearest allowed
    code; legality is not looked at.
    """

    name: ClassVar[str] = "native"

    def __call__(self, evidence: Evidence) -> Int[Tensor, "B N"]:
        """The labels, or `diffusion.NO_LABEL`."""
        bits, codes, allowed = evidence.bits, evidence.codes, evidence.allowed
        if bits is None or codes is None:
            raise missing(self.name, "bits", "choose argmax, mask-viterbi or viterbi")
        is_unit = unit_mask(evidence.lengths, bits.shape[1])
        if evidence.check:
            check_lengths(evidence.lengths, bits.shape[1])
        if allowed is not None:
            if evidence.check:
                check_positions(torch.where(allowed, 0.0, -torch.inf), is_unit)
            bits = codes.restrict(bits, allowed)
        return torch.where(is_unit, codes.decode_native(bits), 0)
