"""The k best label sequences of a linear chain."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from diffusion_mf.decoding.constraints import Legality
from diffusion_mf.decoding.decoders import DecoderInput, MaskViterbi, Viterbi, constrained, hard_clamps
from diffusion_mf.ops.chain_scores import (
    Lengths,
    accumulation_dtype,
    blank_padding,
    check_lengths,
    length_tensor,
    unit_mask,
)
from diffusion_mf.structures.distribution import Potentials, check_scores, check_shapes


class BestSequences(NamedTuple):
    """Best first; if a sentence has fewer than k legal sequences, the remaining ones have score −∞ and labels 0."""

    labels: Int[Tensor, "B k N"]
    scores: Float[Tensor, "B k"]


@torch.no_grad()
def k_best(
    unary_scores: Float[Tensor, "B N K"],
    transition_scores: Float[Tensor, "K K"] | Float[Tensor, "B N-1 K K"],
    lengths: Lengths,
    k: int,
    *,
    start_scores: Float[Tensor, " K"] | None = None,
    end_scores: Float[Tensor, " K"] | None = None,
    allowed: Bool[Tensor, "B N K"] | None = None,
    allowed_pairs: Bool[Tensor, "B N-1 K K"] | None = None,
    legality: Legality | None = None,
) -> BestSequences:
    """The k highest-scoring distinct sequences, exact, for all sentences at once in O(N K² k log(K k)).

    For each label, the k best sequences that end in it are extended by one unit at a time. Ties go to the sequence with the
    smaller label, compared from the end of the sentence, as in `ops.viterbi`.
    """
    check_shapes(
        unary_scores,
        transition_scores=transition_scores,
        start_scores=start_scores,
        end_scores=end_scores,
        allowed=allowed,
    )
    lengths = length_tensor(lengths, unary_scores)
    check_lengths(lengths, unary_scores.shape[1])
    check_scores(
        unary_scores,
        unit_mask(lengths, unary_scores.shape[1]),
        transition_scores=transition_scores,
        start_scores=start_scores,
        end_scores=end_scores,
    )
    if k < 1:
        raise ValueError(f"k must be at least 1, found {k}")
    potentials = Potentials(unary_scores, transition_scores, start_scores, end_scores)
    unary, transition = constrained(
        potentials, lengths, legality=legality, allowed=allowed, allowed_pairs=allowed_pairs
    )
    dtype = accumulation_dtype(unary_scores.dtype)
    unary, transition = blank_padding(unary.to(dtype), transition.to(dtype), lengths)
    B, N, K = unary.shape

    best = torch.full((N, B, K, k), -torch.inf, dtype=dtype, device=unary.device)
    came_from = torch.zeros((N, B, K, k), dtype=torch.long, device=unary.device)
    best[0, ..., 0] = unary[:, 0]
    for position in range(1, N):
        step = transition if transition.dim() == 2 else transition[:, position - 1]
        # (B, from, rank, to) to (B, to, from·k + rank): a stable sort then leaves ties in the order of labels.
        ways = (best[position - 1][..., None] + step[..., :, None, :]).flatten(1, 2).transpose(1, 2)
        top, came_from[position] = _top(ways, k)
        best[position] = top + unary[:, position, :, None]

    sentences = torch.arange(B, device=unary.device)
    scores, state = _top(best[lengths - 1, sentences].flatten(1), k)  # state is label·k + rank
    labels = torch.zeros((N, B, k), dtype=torch.long, device=unary.device)
    for position in range(N - 1, -1, -1):
        is_unit = (position < lengths)[:, None]
        labels[position] = torch.where(is_unit, state // k, 0)
        before = came_from[position].flatten(1).gather(1, state)
        state = torch.where(is_unit, before, state)
    labels = labels.permute(1, 2, 0).masked_fill((scores == -torch.inf)[..., None], 0)
    return BestSequences(labels.contiguous(), scores)


def k_best_of(decoder_input: DecoderInput, k: int, *, decoder: str) -> BestSequences:
    """The k best legal sequences by the scores that ``decoder`` uses; for argmax and native bits, those of Mask-Viterbi."""
    potentials, allowed = decoder_input.potentials, decoder_input.allowed
    if decoder != Viterbi.name or potentials is None:
        potentials, allowed = Potentials(hard_clamps(decoder_input, MaskViterbi.name)), None
    unary, transition, start, end = potentials
    return k_best(
        unary,
        unary.new_zeros(unary.shape[-1], unary.shape[-1]) if transition is None else transition,
        decoder_input.lengths,
        k,
        start_scores=start,
        end_scores=end,
        allowed=allowed,
        allowed_pairs=decoder_input.allowed_pairs,
        legality=decoder_input.legality,
    )


def _top(values: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest values along the last dimension, in order; ties in their original order."""
    found, order = values.sort(dim=-1, descending=True, stable=True)
    return found[..., :k], order[..., :k]
