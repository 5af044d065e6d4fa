"""Random label sequences by adding Gumbel noise to scores: argmaxₖ(scoreₖ + gumbelₖ) ~ softmax(score)."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from diffusion_mf.ops.chain_scores import unit_mask


def gumbel_noise(
    shape: tuple[int, ...], generator: torch.Generator | None, *, device: torch.device, dtype: torch.dtype
) -> Tensor:
    """−log of exponential draws, made where the generator lives; float64 first, for the sake of the tail."""
    source = device if generator is None else generator.device
    draws = torch.empty(shape, dtype=torch.float64, device=source).exponential_(generator=generator)
    return draws.log_().neg_().to(device=device, dtype=dtype)


@torch.no_grad()
def sample_backwards(
    forward_messages: Float[Tensor, "B N K"],
    unary_scores: Float[Tensor, "B N K"],
    transition_scores: Float[Tensor, "K K"] | Float[Tensor, "B N-1 K K"],
    lengths: Int[Tensor, "B"],
    noise: Float[Tensor, "S B N K"],
) -> Int[Tensor, "S B N"]:
    """Forward filtering, backward sampling: exact draws from a linear chain, O(N K) each once messages are known.

    yₙ ~ softmax(Fₙ + unaryₙ), then yᵢ | yᵢ₊₁ ~ softmax(Fᵢ + unaryᵢ + transitionᵢ(·, yᵢ₊₁)), with forward messages Fᵢ.
    """
    is_unit = unit_mask(lengths, unary_scores.shape[1])
    before = torch.where(is_unit[..., None], forward_messages + unary_scores, 0)
    into = transition_scores.transpose(-1, -2)  # [next, previous]
    num_units = unary_scores.shape[1]
    sentences = torch.arange(len(lengths), device=lengths.device)
    labels = torch.zeros(noise.shape[:-1], dtype=torch.long, device=unary_scores.device)
    for position in range(num_units - 1, -1, -1):
        score = before[:, position] + noise[:, :, position]  # (S, B, K)
        if position < num_units - 1:
            after = labels[:, :, position + 1]
            step = into[after] if into.dim() == 2 else into[sentences, position, after]
            score = score + torch.where((position < lengths - 1)[:, None], step, 0)
        labels[:, :, position] = torch.where(is_unit[:, position], score.argmax(-1), 0)
    return labels
