"""Where half precision and packed batches are used, weights in it, and compiled blocks."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from diffusion_mf.batches.batching import PrepareInput
from diffusion_mf.networks.denoisers import DiffusionBlock
from diffusion_mf.networks.encoders import EncoderLayer
from diffusion_mf.networks.scorers import FullPrecisionLinear, ScoringMLP

Precision = Literal["auto", "float32", "bfloat16"]
LayoutChoice = Literal["auto", "padded", "packed"]


def uses_bfloat16(device: torch.device, precision: Precision) -> bool:
    """Whether forward passes are made in bfloat16: where asked for, or where "auto" finds a GPU that has it."""
    return precision == "bfloat16" or (precision == "auto" and device.type == "cuda" and torch.cuda.is_bf16_supported())


def uses_packing(device: torch.device, encoder: str, *, layout: LayoutChoice, precision: Precision) -> bool:
    """Whether batches are packed: where asked for, or where "auto" finds the GPU's kernel for it usable.

    An encoder of another kind than ``scratch`` works on rectangles of its own.
    """
    if layout != "auto":
        return layout == "packed"
    return device.type == "cuda" and encoder == "scratch" and uses_bfloat16(device, precision)


def leaves_out_padding(device: torch.device, prepare_input: PrepareInput | None) -> bool:
    """Whether documents, which have sentences of all lengths, are computed without their padding where they are not packed.

    On a CPU it would cost more than everything else. Pretrained encoders have rectangles of their own.
    """
    return device.type == "cpu" and prepare_input is None


def autocast_for(
    device: torch.device, precision: Precision, *, is_training: bool = True
) -> Callable[[], contextlib.AbstractContextManager[object]]:
    """A maker of contexts for forward passes."""
    if not uses_bfloat16(device, precision):
        return contextlib.nullcontext
    # Without a cache in training: versions of PyTorch differ in whether a weight first cast where gradients are off (on a
    # model's own trajectory) gets any afterwards.
    return lambda: torch.autocast(device.type, dtype=torch.bfloat16, cache_enabled=not is_training)


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


BLOCKS = (EncoderLayer, DiffusionBlock, ScoringMLP)
MOST_VERSIONS = 24
"""of a block's code: training and inference, both types of weights, fixed and changing numbers of units have their own"""


def compile_blocks(model: nn.Module) -> None:
    """Compile each kind of block once; blocks of a kind share the code, so that depth costs no time to compile."""
    limits = torch._dynamo.config
    # Beyond the limit a block would run uncompiled, without a word.
    limits.recompile_limit = max(limits.recompile_limit, MOST_VERSIONS)
    for module in model.modules():
        if isinstance(module, BLOCKS):
            module.compile()
