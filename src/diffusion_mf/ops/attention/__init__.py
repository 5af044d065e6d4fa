"""Self-attention within the sentences of a packed batch, with rotary positions (Su et al., 2021):

    outputᵢ = Σⱼ softmaxⱼ(⟨R(i)·queryᵢ, R(j)·keyⱼ⟩ / √d) · valueⱼ,   i and j units of one sentence

On a GPU, the forward and the backward pass are one Triton launch each for sentences of up to 128 units. It is registered as a
PyTorch operator, so that compiled and recorded networks can contain it.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from diffusion_mf.ops.attention import reference
from diffusion_mf.ops.backends import Backend, differentiable_gradients, has_triton, is_interpreting

MAX_FUSED_UNITS = 128

_HAS_TRITON = has_triton()  # a constant, because compiled networks cannot read caches


def packed_attention(
    inputs: Float[Tensor, "T 3 H d"],
    boundaries: Int[Tensor, " B_plus_1"],
    cosine: Float[Tensor, "longest half"],
    sine: Float[Tensor, "longest half"],
    *,
    backend: Backend = "auto",
) -> Float[Tensor, "T H d"]:
    """Attention from queries, keys and values; sentence b has the units boundaries[b]…boundaries[b + 1] − 1.

    No sentence may have more units than there are angles; boundaries are int32. The reference is PyTorch's own attention, which
    is also the backend ``torch``.
    """
    is_short = len(cosine) <= MAX_FUSED_UNITS
    if backend == "auto":
        backend = "triton" if inputs.is_cuda and _HAS_TRITON and is_short else "torch"
    if backend == "triton":
        if not (is_short and _HAS_TRITON and (inputs.is_cuda or is_interpreting())):
            raise RuntimeError(
                f"backend 'triton' needs a CUDA GPU, the triton package and sentences of at most {MAX_FUSED_UNITS} units"
            )
        return _fused(inputs.contiguous(), boundaries, cosine.contiguous(), sine.contiguous())
    if backend not in ("reference", "torch"):
        raise ValueError(f"backend must be auto, reference, torch or triton, found {backend!r}")
    return reference.packed_attention(inputs, boundaries, cosine, sine)


# With explicit schemas, because PyTorch cannot read the annotations of functions whose shapes the tests check.
@torch.library.custom_op(
    "diffusion_mf::packed_attention",
    mutates_args=(),
    schema="(Tensor inputs, Tensor boundaries, Tensor cosine, Tensor sine) -> Tensor",
)
def _fused(inputs: Tensor, boundaries: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    from diffusion_mf.ops.attention import triton

    return triton.forward(inputs, boundaries, cosine, sine, len(cosine))


@torch.library.custom_op(
    "diffusion_mf::packed_attention_gradient",
    mutates_args=(),
    schema="(Tensor grad, Tensor inputs, Tensor boundaries, Tensor cosine, Tensor sine) -> Tensor",
)
def _fused_gradient(grad: Tensor, inputs: Tensor, boundaries: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    from diffusion_mf.ops.attention import triton

    return triton.backward(grad.contiguous(), inputs, boundaries, cosine, sine, len(cosine))


@_fused.register_fake
def _fused_shape(inputs: Tensor, boundaries: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    return inputs.new_empty(inputs.shape[0], inputs.shape[2], inputs.shape[3])


@_fused_gradient.register_fake
def _fused_gradient_shape(grad: Tensor, inputs: Tensor, boundaries: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    return torch.empty_like(inputs)


def _keep(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _gradient(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
    return _fused_gradient(grad, *ctx.saved_tensors), None, None, None


_fused.register_autograd(_gradient, setup_context=_keep)


def _second_gradient(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    """The second gradient, from the reference formula; PyTorch's own attention kernels have none."""
    grad_output, inputs, *constants = ctx.saved_tensors

    def gradient(grad_output: Tensor, inputs: Tensor) -> Tensor:
        def attention(inputs: Tensor) -> Tensor:
            return reference.packed_attention(inputs, *constants)

        (found,) = differentiable_gradients(attention, (inputs,), (grad_output,))
        assert found is not None
        return found

    with sdpa_kernel(SDPBackend.MATH):
        return (*differentiable_gradients(gradient, (grad_output, inputs), (grad,)), None, None, None)


_fused_gradient.register_autograd(_second_gradient, setup_context=_keep)
