"""Weights of linear layers in bfloat16, cast all at once at the beginning of a step instead of one by one where they are used.

What is computed is what autocast computes: a product takes the weight rounded to bfloat16, and its gradient, of that type,
goes to the float32 weight.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from diffusion_mf.acceleration.precision import Precision, uses_bfloat16
from diffusion_mf.scorers import FullPrecisionLinear


class HalfWeights:
    """bfloat16 copies of the weights and biases of a model's linear layers, those in full precision excepted."""

    def __init__(self, model: nn.Module, parameters: Mapping[str, nn.Parameter]) -> None:
        names = {
            f"{prefix}.{name}"
            for prefix, module in model.named_modules()
            if isinstance(module, nn.Linear) and not isinstance(module, FullPrecisionLinear)
            for name, _ in module.named_parameters(recurse=False)
        }
        self._sources = {name: parameter for name, parameter in parameters.items() if name in names}
        self.copies = {
            name: torch.empty_like(parameter, dtype=torch.bfloat16).requires_grad_()
            for name, parameter in self._sources.items()
        }
        self.leaves: list[Tensor] = [self.copies.get(name, parameter) for name, parameter in parameters.items()]
        """what gradients are asked for, in the order of the parameters"""

    @torch.no_grad()
    def refresh(self) -> None:
        """Take the weights as they are now."""
        torch._foreach_copy_(list(self.copies.values()), list(self._sources.values()))

    @staticmethod
    def widened(gradients: Sequence[Tensor | None]) -> tuple[Tensor | None, ...]:
        """Gradients as the parameters have them: float32."""
        narrow = [grad for grad in gradients if grad is not None and grad.dtype == torch.bfloat16]
        wide = [torch.empty_like(grad, dtype=torch.float32) for grad in narrow]
        if narrow:
            torch._foreach_copy_(wide, narrow)
        following = iter(wide)
        return tuple(
            next(following) if grad is not None and grad.dtype == torch.bfloat16 else grad for grad in gradients
        )


def half_weights_for(model: nn.Module, device: torch.device, precision: Precision) -> HalfWeights | None:
    """Copies of the trained weights where forward passes are made in bfloat16 on a GPU, else None."""
    if device.type != "cuda" or not uses_bfloat16(device, precision):
        return None
    return HalfWeights(model, {name: value for name, value in model.named_parameters() if value.requires_grad})
