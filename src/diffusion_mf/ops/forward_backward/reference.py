"""Forward–backward in plain PyTorch, one line per equation, with gradients of any order by autograd.

It always computes in float64; the fast paths are tested against it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from diffusion_mf.ops.chain_scores import blank_padding, logsumexp, transitions_into, unit_mask


def forward_messages(unary: Tensor, transition: Tensor) -> Tensor:
    """Fᵢ(k) = log Σⱼ exp(Fᵢ₋₁(j) + unaryᵢ₋₁(j) + transitionᵢ₋₁(j, k)), F₁ = 0: all that comes before i, for yᵢ = k."""
    messages = [torch.zeros_like(unary[:, 0])]
    for position in range(1, unary.shape[1]):
        before = messages[-1] + unary[:, position - 1]
        messages.append(logsumexp(before[:, :, None] + transitions_into(transition, position), 1))
    return torch.stack(messages, 1)


def backward_messages(unary: Tensor, transition: Tensor, lengths: Tensor) -> Tensor:
    """Mᵢ(j) = log Σₖ exp(transitionᵢ(j, k) + unaryᵢ₊₁(k) + Mᵢ₊₁(k)), M = 0 from the last unit on: all that comes after i."""
    messages = [torch.zeros_like(unary[:, 0])]
    for position in range(unary.shape[1] - 1, 0, -1):
        after = unary[:, position] + messages[-1]
        message = logsumexp(transitions_into(transition, position) + after[:, None, :], 2)
        messages.append(torch.where((position < lengths)[:, None], message, 0))
    return torch.stack(messages[::-1], 1)


def forward_backward(unary: Tensor, transition: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Log-partition (B,), marginals (B, N, K), forward and backward messages (B, N, K), all float64.

    log Z = log Σₖ exp(F₁(k) + unary₁(k) + M₁(k)), and marginalᵢ = softmax(Fᵢ + unaryᵢ + Mᵢ).
    """
    unary, transition = blank_padding(unary.double(), transition.double(), lengths)
    forward = forward_messages(unary, transition)
    backward = backward_messages(unary, transition, lengths)
    score = forward + unary + backward
    log_partition = logsumexp(score[:, 0], -1)
    # Each position is normalised by its own sum, which equals log Z up to rounding.
    normaliser = logsumexp(score, -1)[..., None]
    marginals = (score - torch.where(normaliser == -torch.inf, 0, normaliser)).exp()
    marginals = torch.where(unit_mask(lengths, unary.shape[1])[..., None], marginals, 0)
    return log_partition, marginals, forward, backward


def pair_marginals(unary: Tensor, transition: Tensor, lengths: Tensor) -> Tensor:
    """P(yᵢ = j, yᵢ₊₁ = k) for each pair of neighbours, (B, N − 1, K, K), float64."""
    unary, transition = blank_padding(unary.double(), transition.double(), lengths)
    left = (forward_messages(unary, transition) + unary)[:, :-1]
    right = (unary + backward_messages(unary, transition, lengths))[:, 1:]
    score = left[..., :, None] + (transition[None, None] if transition.dim() == 2 else transition) + right[..., None, :]
    normaliser = logsumexp(score.flatten(2), -1)[..., None, None]
    pairs = (score - torch.where(normaliser == -torch.inf, 0, normaliser)).exp()
    return torch.where(unit_mask(lengths, unary.shape[1])[:, 1:, None, None], pairs, 0)
