"""The best label sequence of a linear chain and its score, exact in O(N K²).

    ŷ = argmax_y score(y)

Ties go to the smaller label, decided from the end of the sentence, in every backend. Not differentiable.
Paper: section 2.1 (Viterbi decoding) and appendix B.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from diffusion_mf.ops.backends import Backend, choose_backend
from diffusion_mf.ops.chain_scores import Lengths, accumulation_dtype, length_tensor
from diffusion_mf.ops.viterbi import pytorch, reference


class BestSequence(NamedTuple):
    """``labels`` (B, N), 0 past each length; ``scores`` (B,), −∞ if no sequence is legal (the labels are then meaningless)."""

    labels: Int[Tensor, "B N"]
    scores: Float[Tensor, " B"]


@torch.no_grad()
def viterbi(
    unary_scores: Float[Tensor, "B N K"],
    transition_scores: Float[Tensor, "K K"] | Float[Tensor, "B M K K"],
    lengths: Lengths,
    *,
    backend: Backend = "auto",
) -> BestSequence:
    """Best labels and scores; start and end scores and clamps must be folded in (`ops.chain_scores.fold_scores`)."""
    chosen = choose_backend(backend, unary_scores)
    lengths = length_tensor(lengths, unary_scores)
    if chosen == "reference":
        labels, scores = reference.viterbi(unary_scores, transition_scores, lengths)
        return BestSequence(labels, scores.to(accumulation_dtype(unary_scores.dtype)))
    if chosen == "torch":
        return BestSequence(*pytorch.viterbi(unary_scores, transition_scores, lengths))
    from diffusion_mf.ops.viterbi import triton

    return BestSequence(*triton.viterbi(unary_scores, transition_scores, lengths))
