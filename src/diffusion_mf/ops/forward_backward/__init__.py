"""Log-partition and marginals of a linear chain, both differentiable (the losses of Diffusion-LCRF need both).

    log Z = log Σ_y exp score(y),   marginalᵢ(k) = P(yᵢ = k),   pairᵢ(j, k) = P(yᵢ = j, yᵢ₊₁ = k)

Exact in O(N K²) time. The fast paths keep only messages, O(B N K) memory beyond their inputs: their backward pass recomputes pair
marginals as needed, with a forward-mode sweep if marginals themselves are differentiated. Gradients can be differentiated again,
to any order (``create_graph=True``): the gradient of log Z is the marginals, with the gradients of the fast paths; the gradient of
marginals then comes from the reference.
Paper: section 2.1 (bigram models) and “Structured Denoising”.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from diffusion_mf.ops.backends import Backend, choose_backend, differentiable_gradients
from diffusion_mf.ops.chain_scores import Lengths, accumulation_dtype, blank_padding, length_tensor, unit_mask
from diffusion_mf.ops.forward_backward import pytorch, reference


class ForwardBackward(NamedTuple):
    """The results of one forward–backward pass.

    ``log_partition`` (B,) is −∞ and ``marginals`` (B, N, K) are 0 for a sentence without any legal sequence; marginals are 0
    past each length. Messages are log-scores of the part before (after) a position given its label, up to a constant per
    position, and not differentiable.
    """

    log_partition: Tensor
    marginals: Tensor
    forward_messages: Tensor
    backward_messages: Tensor


def _kernels(backend: str) -> Any:
    """A fast backend: a module with ``messages``, ``marginals`` and ``gradient``."""
    if backend == "torch":
        return pytorch
    from diffusion_mf.ops.forward_backward import triton

    return triton


class _Chain(torch.autograd.Function):
    """Results computed from messages, with one backward pass from messages for all of them.

    ``results`` names the results wanted: log_partition, marginals or pairs, in this order.
    """

    @staticmethod
    def forward(
        ctx: Any,
        unary: Tensor,
        transition: Tensor,
        lengths: Tensor,
        backend: str,
        found: tuple[Tensor | None, Tensor, Tensor],
        results: tuple[str, ...],
    ) -> tuple[Tensor | None, ...]:
        log_partition, forward, backward = found
        ctx.backend, ctx.results = backend, results
        ctx.set_materialize_grads(False)
        # log Z is not saved, because callers may change it in place.
        ctx.save_for_backward(unary, transition, lengths, forward, backward)
        outputs: list[Tensor | None] = []
        if "log_partition" in results:
            outputs.append(log_partition)
        if "marginals" in results:
            outputs.append(_kernels(backend).marginals(unary, lengths, forward, backward))
        if "pairs" in results:
            outputs.append(_pairs(unary, transition, lengths, forward, backward))
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        if all(grad is None for grad in grads):
            return (None,) * 6
        wanted = dict(zip(ctx.results, grads, strict=True))
        gradients: tuple[Tensor | None, Tensor | None]
        if torch.is_grad_enabled():  # create_graph=True
            gradients = _differentiable_gradients(*ctx.saved_tensors, backend=ctx.backend, wanted=wanted)
        else:
            gradients = _kernels(ctx.backend).gradient(
                *ctx.saved_tensors, wanted.get("log_partition"), wanted.get("marginals"), wanted.get("pairs")
            )
        return (*gradients, None, None, None, None)


def _differentiable_gradients(
    unary: Tensor,
    transition: Tensor,
    lengths: Tensor,
    forward: Tensor,
    backward: Tensor,
    *,
    backend: str,
    wanted: dict[str, Tensor | None],
) -> tuple[Tensor | None, Tensor | None]:
    """The gradients of `_Chain` as differentiable functions of scores and incoming gradients."""
    gradients: list[Tensor | None] = [None, None]
    others = {name: grad for name, grad in wanted.items() if grad is not None}
    weight = others.pop("log_partition", None)
    if weight is not None:
        # ∂ log Z/∂ unary is the marginals and ∂ log Z/∂ transition the pair marginals, each of which is differentiable.
        results = ("marginals", "pairs") if transition.requires_grad else ("marginals",)
        marginals, *pairs = _Chain.apply(unary, transition, lengths, backend, (None, forward, backward), results)
        gradients[0] = (weight[:, None, None] * marginals).to(unary.dtype)
        if pairs:
            weighted = weight[:, None, None, None] * pairs[0]
            gradients[1] = (weighted if transition.dim() == 4 else weighted.sum((0, 1))).to(transition.dtype)
    if others:

        def by_reference(unary: Tensor, transition: Tensor) -> list[Tensor]:
            results = {}
            if "marginals" in others:
                results["marginals"] = reference.forward_backward(unary, transition, lengths)[1]
            if "pairs" in others:
                results["pairs"] = reference.pair_marginals(unary, transition, lengths)
            return [results[name].to(grad.dtype) for name, grad in others.items()]

        of_others = differentiable_gradients(by_reference, (unary, transition), list(others.values()))
        gradients = [_sum(*both) for both in zip(gradients, of_others, strict=True)]
    return gradients[0], gradients[1]


def _sum(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    if one is None or other is None:
        return other if one is None else one
    return one + other


def _pairs(unary: Tensor, transition: Tensor, lengths: Tensor, forward: Tensor, backward: Tensor) -> Tensor:
    """Pair marginals from messages, each normalised by its own sum."""
    unary_scores, transition_scores = blank_padding(unary.to(forward.dtype), transition.to(forward.dtype), lengths)
    is_pair = unit_mask(lengths, unary.shape[1])[:, 1:, None, None]
    if transition_scores.dim() == 2:
        transition_scores = transition_scores[None, None]
    left = (forward + unary_scores)[:, :-1, :, None]
    right = (unary_scores + backward)[:, 1:, None, :]
    score = (left + transition_scores).add_(right).masked_fill_(~is_pair, -torch.inf)
    top = score.amax((-1, -2), keepdim=True)
    pairs = score.sub_(torch.where(top == -torch.inf, 0, top)).exp_()
    # The largest value is 1, if there is any.
    pairs /= pairs.sum((-1, -2), keepdim=True).clamp_(min=1)
    return pairs.to(accumulation_dtype(unary.dtype))


def _messages(
    unary_scores: Tensor, transition_scores: Tensor, lengths: Tensor, backend: Backend
) -> tuple[str, tuple[Tensor, Tensor, Tensor] | None]:
    """The backend used, with its log-partition and messages; None if the reference must be used.

    The torch path leaves extreme scores (spreads of hundreds of nats along a path) to the reference, which works in log space.
    """
    chosen = choose_backend(backend, unary_scores)
    if chosen == "reference":
        return chosen, None
    with torch.no_grad():
        return chosen, _kernels(chosen).messages(unary_scores, transition_scores, lengths)


def log_partition(
    unary_scores: Float[Tensor, "B N K"],
    transition_scores: Float[Tensor, "K K"] | Float[Tensor, "B M K K"],
    lengths: Lengths,
    *,
    backend: Backend = "auto",
) -> Float[Tensor, " B"]:
    """log Z, whose gradient is the marginals; start and end scores and clamps are folded in (`ops.chain_scores`)."""
    lengths = length_tensor(lengths, unary_scores)
    chosen, found = _messages(unary_scores, transition_scores, lengths, backend)
    if found is None:
        result = reference.forward_backward(unary_scores, transition_scores, lengths)[0]
        return result.to(accumulation_dtype(unary_scores.dtype))
    return _Chain.apply(unary_scores, transition_scores, lengths, chosen, found, ("log_partition",))[0]


def forward_backward(
    unary_scores: Float[Tensor, "B N K"],
    transition_scores: Float[Tensor, "K K"] | Float[Tensor, "B M K K"],
    lengths: Lengths,
    *,
    backend: Backend = "auto",
) -> ForwardBackward:
    """Log-partition and marginals, both differentiable by one backward pass, and messages."""
    lengths = length_tensor(lengths, unary_scores)
    chosen, found = _messages(unary_scores, transition_scores, lengths, backend)
    if found is None:
        dtype = accumulation_dtype(unary_scores.dtype)
        log_z, marginals, forward, backward = reference.forward_backward(unary_scores, transition_scores, lengths)
        return ForwardBackward(log_z.to(dtype), marginals.to(dtype), forward.detach(), backward.detach())
    log_z, marginals = _Chain.apply(
        unary_scores, transition_scores, lengths, chosen, found, ("log_partition", "marginals")
    )
    return ForwardBackward(log_z, marginals, *found[1:])


def pair_marginals(
    unary_scores: Float[Tensor, "B N K"],
    transition_scores: Float[Tensor, "K K"] | Float[Tensor, "B M K K"],
    lengths: Lengths,
    *,
    backend: Backend = "auto",
) -> Float[Tensor, "B M K K"]:
    """P(yᵢ = j, yᵢ₊₁ = k) for neighbours, differentiable; zero past each length. O(B N K²) memory."""
    lengths = length_tensor(lengths, unary_scores)
    chosen, found = _messages(unary_scores, transition_scores, lengths, backend)
    if found is None:
        result = reference.pair_marginals(unary_scores, transition_scores, lengths)
        return result.to(accumulation_dtype(unary_scores.dtype))
    return _Chain.apply(unary_scores, transition_scores, lengths, chosen, found, ("pairs",))[0]
