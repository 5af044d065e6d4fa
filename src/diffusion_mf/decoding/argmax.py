"""The most probable label at every position, whatever its neighbours."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import torch
from jaxtyping import Int
from torch import Tensor

from diffusion_mf.decoding.evidence import Evidence, hard_clamps
from diffusion_mf.ops.chain_scores import unit_mask


@dataclasses.dataclass(frozen=True)
class Argmax:
    """ŷᵢ = argmaxₖ uᵢ(k); ties to the smaller label. Clamps are honoured, legality is not looked at.

    Paper: appendix “Final Decoders and Constraints”.
    """

    name: ClassVar[str] = "argmax"

    def __call__(self, evidence: Evidence) -> Int[Tensor, "B N"]:
        """The labels."""
        scores = evidence.unary_scores
        if scores is None or evidence.check or evidence.allowed is not None:
            # Else there is nothing to repair: −∞ is never the highest, or all are −∞ and alike.
            scores = hard_clamps(evidence, self.name)
        return torch.where(unit_mask(evidence.lengths, scores.shape[1]), scores.argmax(-1), 0)
