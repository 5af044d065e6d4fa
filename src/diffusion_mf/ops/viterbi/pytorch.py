"""Viterbi over the whole batch at once: best scores forwards, then back-pointers only for the chosen labels."""

from __future__ import annotations

import torch
from torch import Tensor

from diffusion_mf.ops.chain_scores import accumulation_dtype
from diffusion_mf.ops.length_order import arrays, batch_major, by_length, length_order, time_major


def viterbi(unary: Tensor, transition: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Best labels (B, N), 0 past each length, and their scores (B,).

    bestᵢ(k) = maxⱼ (bestᵢ₋₁(j) + transitionᵢ₋₁(j, k)) + unaryᵢ(k), in float64, because float32 sums over long sentences lose the
    differences between labels. Backtracking repeats the sum for one k per sentence, which is cheaper than storing all
    back-pointers.
    """
    dtype = torch.float64
    layout = length_order(lengths, unary.shape[1])
    best = time_major(unary, layout).to(dtype)
    moves = by_length(transition, layout).to(dtype)
    N, B, K = best.shape
    sums = torch.empty((K, B, K), dtype=dtype, device=unary.device)  # from × sentence × to
    is_global = moves.dim() == 2
    # Global transitions are expanded over the sentences once, so that each step adds contiguous memory.
    spread = moves[:, None].expand(K, B, K).contiguous() if is_global else moves
    labels = torch.zeros((N, B), dtype=torch.long, device=unary.device)
    run, best_, spread_, into_, sums_, labels_ = arrays(best, spread, moves, sums, labels)

    for position in range(1, N):
        count = layout.counts[position]
        step = spread_[:, :count] if is_global else spread_[:count, position - 1].swapaxes(0, 1)
        total = sums_[:, :count]
        run.add(best_[position - 1, :count].T[:, :, None], step, out=total)
        best_[position, :count] += run.greatest(total, 0)

    final = best.view(N * B, K).index_select(0, layout.last)
    scores, last_labels = final.max(-1)
    labels.view(-1)[layout.last] = last_labels
    into = into_.swapaxes(-1, -2)  # to × from
    sentences = range(B)
    for position in range(N - 2, -1, -1):
        count = layout.counts[position + 1]
        chosen = labels_[position + 1, :count]
        step = into[chosen] if is_global else into[sentences[:count], position, chosen]
        labels_[position, :count] = (best_[position, :count] + step).argmax(-1)
    return batch_major(labels[..., None], layout)[..., 0], scores.to(accumulation_dtype(unary.dtype))
