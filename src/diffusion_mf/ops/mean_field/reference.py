"""Mean-Field in plain PyTorch and float64, written as in the equation, with gradients by autograd through all iterations."""

from __future__ import annotations

import torch
from torch import Tensor

from diffusion_mf.ops.chain_scores import blank_padding, log_softmax, softmax, unit_mask


def neighbour_scores(beliefs: Tensor, transition: Tensor) -> Tensor:
    """Expected transition scores from both neighbours: Σⱼ qᵢ₋₁(j) Tᵢ₋₁(j, ·) + Σₖ Tᵢ(·, k) qᵢ₊₁(k), (B, N, K)."""
    matrices = transition if transition.dim() == 4 else transition[None, None]
    from_left = (beliefs[:, :-1, None, :] @ matrices).squeeze(-2)
    from_right = (matrices @ beliefs[:, 1:, :, None]).squeeze(-1)
    nothing = torch.zeros_like(beliefs[:, :1])
    return torch.cat([nothing, from_left], 1) + torch.cat([from_right, nothing], 1)


def mean_field(
    unary: Tensor, transition: Tensor, lengths: Tensor, num_iterations: int, *, is_log: bool = False
) -> Tensor:
    """Beliefs (B, N, K) after ``num_iterations`` parallel updates from softmax(unary), or their logarithms; 0 past lengths."""
    unary, transition = blank_padding(unary.double(), transition.double(), lengths)
    is_unit = unit_mask(lengths, unary.shape[1])[..., None]
    scores = unary
    beliefs = torch.where(is_unit, softmax(scores), 0)
    for _ in range(num_iterations):
        scores = unary + neighbour_scores(beliefs, transition)
        beliefs = torch.where(is_unit, softmax(scores), 0)
    return torch.where(is_unit, log_softmax(scores), 0) if is_log else beliefs
