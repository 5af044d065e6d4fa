"""Viterbi over the whole batch at once: two operations a step forwards, one look-up a step backwards."""

from __future__ import annotations

import torch
from torch import Tensor

from diffusion_mf.ops.chain_scores import accumulation_dtype, blank_padding


def viterbi(unary: Tensor, transition: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Best labels (B, N), 0 past each length, and their scores (B,).

    Nothing is masked on the way: a sentence's result is read at its own last unit, before the padding.
    """
    dtype = accumulation_dtype(unary.dtype)
    unary, transition = blank_padding(unary.to(dtype), transition.to(dtype), lengths)
    B, N, K = unary.shape
    # To × from, so that the maximum runs over adjacent numbers.
    into = transition.transpose(-1, -2).contiguous()
    unary = unary.transpose(0, 1).contiguous()
    best = torch.empty_like(unary)
    came_from = torch.empty((N, B, K), dtype=torch.long, device=unary.device)
    best[0] = unary[0]
    for position in range(1, N):
        step = into if into.dim() == 2 else into[:, position - 1]
        top, came_from[position] = (best[position - 1][:, None, :] + step).max(-1)
        torch.add(top, unary[position], out=best[position])
    sentences = torch.arange(B, device=unary.device)
    final = best[lengths - 1, sentences]
    scores, last_labels = final.max(-1)

    labels = torch.zeros((N, B), dtype=torch.long, device=unary.device)
    labels[lengths - 1, sentences] = last_labels
    is_before_last = torch.arange(N, device=unary.device)[:, None] < lengths - 1
    for position in range(N - 2, -1, -1):
        found = came_from[position + 1].gather(1, labels[position + 1][:, None])[:, 0]
        torch.where(is_before_last[position], found, labels[position], out=labels[position])
    return labels.T.contiguous(), scores
