"""Log-partition and marginals of a linear chain, differentiable, the marginals too (Diffusion-LCRF's losses need that).

    log Z = log Σ_y exp score(y),   marginalᵢ(k) = P(yᵢ = k),   pairᵢ(j, k) = P(yᵢ = j, yᵢ₊₁ = k)

Exact in O(N K²) time. The fast paths keep messages only, O(B N K) memory beyond their inputs: their backward pass
recomputes pair marginals where it needs them, and is a forward-mode sweep where marginals themselves are differentiated.
Paper: section 2.1 (bigram models) and “Structured Denoising”.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from diffusion_mf.ops.backends import Backend, choose_backend
from diffusion_mf.ops.chain_scores import accumulation_dtype, logsumexp, unit_mask
from diffusion_mf.ops.forward_backward import cpu, reference


class ForwardBackward(NamedTuple):
    """What one forward–backward pass knows of a chain.

    ``log_partition`` (B,) is −∞ and ``marginals`` (B, N, K) are 0 for a sentence without any legal sequence; marginals are 0 past
    each length. Messages are log-scores of what lies before (after) a position given its label, up to a constant per
    position, and not differentiable.
    """

    log_partition: Tensor
    marginals: Tensor
    forward_messages: Tensor
    backward_messages: Tensor


def _kernels(backend: str) -> Any:
    if backend == "cpu":
        return cpu
    from diffusion_mf.ops.forward_backward import triton

    return triton


class _Marginals(torch.autograd.Function):
    """Log-partition and marginals found by a fast backend; the backward pass recomputes from the messages."""

    @staticmethod
    def forward(
        ctx: Any, unary: Tensor, transition: Tensor, lengths: Tensor, backend: str, found: tuple[Tensor, ...]
    ) -> tuple[Tensor, ...]:
        log_partition, marginals, forward, backward = found
        ctx.backend = backend
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(forward, backward)
        ctx.save_for_backward(unary, transition, lengths, forward, backward, marginals)
        return log_partition, marginals, forward, backward

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_log_partition: Tensor | None, grad_marginals: Tensor | None, *_: None) -> tuple:
        grads = _kernels(ctx.backend).gradient(*ctx.saved_tensors, grad_log_partition, grad_marginals, None)
        return (*grads, None, None, None)


class _PairMarginals(torch.autograd.Function):
    """Pair marginals from messages, with the same backward pass."""

    @staticmethod
    def forward(
        ctx: Any, unary: Tensor, transition: Tensor, lengths: Tensor, backend: str, found: ForwardBackward
    ) -> Tensor:
        dtype = found.forward_messages.dtype
        unary_scores, transition_scores = unary.to(dtype), transition.to(dtype)
        if transition_scores.dim() == 2:
            transition_scores = transition_scores[None, None]
        left = (found.forward_messages + unary_scores)[:, :-1, :, None]
        right = (unary_scores + found.backward_messages)[:, 1:, None, :]
        score = left + transition_scores + right
        normaliser = logsumexp(score.flatten(2), -1)[..., None, None]
        pairs = (score - torch.where(normaliser == -torch.inf, 0, normaliser)).exp()
        is_pair = unit_mask(lengths, unary.shape[1])[:, 1:, None, None]
        ctx.backend = backend
        ctx.save_for_backward(
            unary, transition, lengths, found.forward_messages, found.backward_messages, found.marginals
        )
        return torch.where(is_pair, pairs, 0).to(accumulation_dtype(unary.dtype))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_pairs: Tensor) -> tuple:
        grads = _kernels(ctx.backend).gradient(*ctx.saved_tensors, None, None, grad_pairs)
        return (*grads, None, None, None)


def forward_backward(
    unary_scores: Float[Tensor, "B N K"],
    transition_scores: Float[Tensor, "K K"] | Float[Tensor, "B M K K"],
    lengths: Int[Tensor, "B"],
    *,
    backend: Backend = "auto",
) -> ForwardBackward:
    """Log-partition, marginals and messages; start and end scores and clamps come folded in (`ops.chain_scores`).

    The CPU path hands extreme scores (spreads of hundreds of nats along a path) to the reference, which works in log space.
    """
    chosen = choose_backend(backend, unary_scores)
    found = None
    if chosen != "reference":
        with torch.no_grad():
            found = _kernels(chosen).messages(unary_scores, transition_scores, lengths)
    if found is None:
        dtype = accumulation_dtype(unary_scores.dtype)
        log_partition, marginals, forward, backward = reference.forward_backward(
            unary_scores, transition_scores, lengths
        )
        return ForwardBackward(log_partition.to(dtype), marginals.to(dtype), forward.detach(), backward.detach())
    return ForwardBackward(*_Marginals.apply(unary_scores, transition_scores, lengths, chosen, found))


def pair_marginals(
    unary_scores: Float[Tensor, "B N K"],
    transition_scores: Float[Tensor, "K K"] | Float[Tensor, "B M K K"],
    lengths: Int[Tensor, "B"],
    *,
    backend: Backend = "auto",
) -> Float[Tensor, "B M K K"]:
    """P(yᵢ = j, yᵢ₊₁ = k) for neighbours, differentiable; zero past each length. O(B N K²) memory."""
    chosen = choose_backend(backend, unary_scores)
    found = None
    if chosen != "reference":
        with torch.no_grad():
            found = _kernels(chosen).messages(unary_scores, transition_scores, lengths)
    if found is None:
        dtype = accumulation_dtype(unary_scores.dtype)
        return reference.pair_marginals(unary_scores, transition_scores, lengths).to(dtype)
    return _PairMarginals.apply(unary_scores, transition_scores, lengths, chosen, ForwardBackward(*found))
