"""Where half precision, packed batches and compiled blocks are used."""

from __future__ import annotations

import contextlib
import functools
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
    """Whether forward passes use bfloat16: if requested, or if "auto" finds a GPU that supports it."""
    return precision == "bfloat16" or (precision == "auto" and device.type == "cuda" and torch.cuda.is_bf16_supported())


def uses_packing(device: torch.device, encoder: str, *, layout: LayoutChoice, precision: Precision) -> bool:
    """Whether batches are packed: if requested, or if "auto" finds that the GPU kernel for it can be used.

    Pretrained encoders have their own rectangles, and those of plugins may wait for the device, which cannot be recorded.
    """
    if layout != "auto":
        return layout == "packed"
    return device.type == "cuda" and encoder in ("scratch", "window") and uses_bfloat16(device, precision)


def leaves_out_padding(device: torch.device, prepare_input: PrepareInput | None) -> bool:
    """Whether documents, whose sentences differ in length, are computed without padding where they are not packed.

    On a CPU, padding would cost more than everything else. Pretrained encoders have their own rectangles.
    """
    return device.type == "cpu" and prepare_input is None


def autocast_for(
    device: torch.device, precision: Precision, *, is_training: bool = True
) -> Callable[[], contextlib.AbstractContextManager[object]]:
    """A function that makes contexts for forward passes; it can be pickled, as taggers can."""
    if not uses_bfloat16(device, precision):
        return contextlib.nullcontext
    # Without a cache in training: versions of PyTorch differ in whether a weight that is first cast with gradients off (on a
    # model's own trajectory) gets a gradient afterwards.
    return functools.partial(torch.autocast, device.type, dtype=torch.bfloat16, cache_enabled=not is_training)


class HalfWeights:
    """bfloat16 copies of the weights and biases of linear layers, except those in full precision."""

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
        """the tensors to differentiate, in the order of the parameters"""

    @torch.no_grad()
    def refresh(self) -> None:
        """Copy the current weights."""
        torch._foreach_copy_(list(self.copies.values()), list(self._sources.values()))

    @staticmethod
    def widened(gradients: Sequence[Tensor | None]) -> tuple[Tensor | None, ...]:
        """Gradients in the type of the parameters: float32."""
        narrow = [grad for grad in gradients if grad is not None and grad.dtype == torch.bfloat16]
        wide = [torch.empty_like(grad, dtype=torch.float32) for grad in narrow]
        if narrow:
            torch._foreach_copy_(wide, narrow)
        following = iter(wide)
        return tuple(
            next(following) if grad is not None and grad.dtype == torch.bfloat16 else grad for grad in gradients
        )


def half_weights_for(model: nn.Module, device: torch.device, precision: Precision) -> HalfWeights | None:
    """Copies of the trained weights if forward passes use bfloat16 on a GPU, otherwise None."""
    if device.type != "cuda" or not uses_bfloat16(device, precision):
        return None
    return HalfWeights(model, {name: value for name, value in model.named_parameters() if value.requires_grad})


BLOCKS = (EncoderLayer, DiffusionBlock, ScoringMLP)
MOST_VERSIONS = 24
"""compiled variants of a block: training and inference, both types of weights, fixed and varying numbers of units"""


def compile_blocks(model: nn.Module) -> None:
    """Compile each kind of block once; blocks of a kind share the code, so that depth adds no compile time."""
    limits = torch._dynamo.config
    # Beyond the limit a block would silently run uncompiled.
    limits.recompile_limit = max(limits.recompile_limit, MOST_VERSIONS)
    for module in model.modules():
        if isinstance(module, BLOCKS):
            module.compile()
