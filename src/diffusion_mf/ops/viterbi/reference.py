"""Viterbi, sentence by sentence, in float64: the textbook recursion with back-pointers."""

from __future__ import annotations

import torch
from torch import Tensor

from diffusion_mf.ops.chain_scores import transitions_into


def best_sequence(unary: Tensor, transition: Tensor) -> tuple[list[int], Tensor]:
    """The best labels of one sentence, (N, K) and (K, K) or (N − 1, K, K), and their score; ties to the smaller label."""
    best = unary[0]
    came_from = []
    for position in range(1, unary.shape[0]):
        step = transitions_into(transition if transition.dim() == 2 else transition[None], position)[0]
        best, before = (best[:, None] + step).max(0)
        best = best + unary[position]
        came_from.append(before)
    score, label = best.max(0)
    labels = [int(label)]
    for before in reversed(came_from):
        labels.append(int(before[labels[-1]]))
    return labels[::-1], score


def viterbi(unary: Tensor, transition: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Best labels (B, N), 0 past each length, and their scores (B,), float64."""
    labels = torch.zeros(unary.shape[:2], dtype=torch.long, device=unary.device)
    scores = []
    for sentence, length in enumerate(lengths.tolist()):
        own = transition if transition.dim() == 2 else transition[sentence, : length - 1]
        found, score = best_sequence(unary[sentence, :length].double(), own.double())
        labels[sentence, :length] = torch.tensor(found, device=unary.device)
        scores.append(score)
    return labels, torch.stack(scores)
