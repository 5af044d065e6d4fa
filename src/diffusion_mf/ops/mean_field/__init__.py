"""Mean-Field marginals of a linear chain: parallel updates of a factorised distribution q = Πᵢ qᵢ.

    q⁰ᵢ = softmax(unaryᵢ),   qᵢ ← softmax(unaryᵢ + Σⱼ qᵢ₋₁(j) Tᵢ₋₁(j, ·) + Σₖ Tᵢ(·, k) qᵢ₊₁(k))

The number of updates is fixed, each covers all positions at once, and all are differentiable. For the backward pass, the Triton
kernels keep the beliefs of all iterations, and the torch path recomputes them. Gradients can be differentiated again, to any order
(``create_graph=True``). Paper: “Structured Denoising” (after Wang et al., 2020).

A transition of −∞ has no finite expectation under a factorised q, so it enters as `ILLEGAL_TRANSITION`, a large finite
penalty without gradient. Unary scores of −∞ (clamped labels) are exact: their belief is 0.

The Triton kernels keep global transitions on chip, which is possible up to 128 labels, or fewer on a smaller card
(`ops.device_limits`). Beyond that, ``backend="auto"`` uses the torch path, whose matrix products are then large enough to keep a
GPU busy, and an explicit ``"triton"`` raises.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from diffusion_mf.ops.backends import MAX_TRITON_LABELS, Backend, choose_backend, differentiable_gradients
from diffusion_mf.ops.chain_scores import Lengths, accumulation_dtype, length_tensor
from diffusion_mf.ops.device_limits import card_of, max_global_labels
from diffusion_mf.ops.mean_field import pytorch, reference

ILLEGAL_TRANSITION = -1e4


class _MeanField(torch.autograd.Function):
    """Beliefs from a fast backend, and their gradients."""

    @staticmethod
    def forward(
        ctx: Any,
        unary: Tensor,
        transition: Tensor,
        lengths: Tensor,
        num_iterations: int,
        backend: str,
        is_log: bool,
        has_backward: bool,
    ) -> Tensor:
        ctx.settings = num_iterations, backend, is_log
        trajectory = None
        if backend == "torch":
            beliefs = pytorch.iterate(unary, transition, lengths, num_iterations, is_log=is_log)
        else:
            from diffusion_mf.ops.mean_field import triton

            beliefs, trajectory = triton.iterate(
                unary, transition, lengths, num_iterations, ILLEGAL_TRANSITION, is_log=is_log, keep_all=has_backward
            )
        ctx.save_for_backward(unary, transition, lengths, trajectory)
        return beliefs

    @staticmethod
    def backward(ctx: Any, grad_beliefs: Tensor) -> tuple:
        num_iterations, backend, is_log = ctx.settings
        unary, transition, lengths, trajectory = ctx.saved_tensors
        if backend == "torch":
            # Built from differentiable operations, so that its results have gradients too under create_graph=True.
            grads: Any = pytorch.gradient(unary, transition, lengths, num_iterations, grad_beliefs, is_log=is_log)
        elif torch.is_grad_enabled():

            def by_torch_path(unary: Tensor, transition: Tensor) -> Tensor:
                return mean_field(unary, transition, lengths, num_iterations, backend="torch", is_log=is_log)

            grads = differentiable_gradients(by_torch_path, (unary, transition), (grad_beliefs,))
        else:
            from diffusion_mf.ops.mean_field import triton

            grads = triton.gradient(
                unary, transition, lengths, num_iterations, ILLEGAL_TRANSITION, grad_beliefs, trajectory, is_log=is_log
            )
        return (*grads, None, None, None, None, None)


def mean_field(
    unary_scores: Float[Tensor, "B N K"],
    transition_scores: Float[Tensor, "K K"] | Float[Tensor, "B M K K"],
    lengths: Lengths,
    num_iterations: int,
    *,
    backend: Backend = "auto",
    is_log: bool = False,
) -> Float[Tensor, "B N K"]:
    """Beliefs after ``num_iterations`` updates; zero past each length, and where a position allows no label.

    With ``is_log``, returns their logarithms for losses, so that no probability underflows and every label has a gradient; −∞ for
    labels that are not allowed, 0 past each length.
    """
    is_global = transition_scores.dim() == 2
    max_labels = max_global_labels(card_of(unary_scores.device)) if is_global else MAX_TRITON_LABELS
    chosen = choose_backend(backend, unary_scores, max_labels=max_labels)
    lengths = length_tensor(lengths, unary_scores)
    if chosen != "triton":
        transition_scores = transition_scores.to(
            accumulation_dtype(unary_scores.dtype)
        )  # bfloat16 cannot represent -1e4 exactly
        transition_scores = torch.where(transition_scores == -torch.inf, ILLEGAL_TRANSITION, transition_scores)
    if chosen == "reference":
        beliefs = reference.mean_field(unary_scores, transition_scores, lengths, num_iterations, is_log=is_log)
        return beliefs.to(accumulation_dtype(unary_scores.dtype))
    # Not known inside of it, where no gradients are recorded.
    has_backward = torch.is_grad_enabled() and (unary_scores.requires_grad or transition_scores.requires_grad)
    return _MeanField.apply(unary_scores, transition_scores, lengths, num_iterations, chosen, is_log, has_backward)
