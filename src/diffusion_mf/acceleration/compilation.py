"""Transformer blocks compiled by TorchInductor, which fuses what lies between matrix products."""

from __future__ import annotations

from torch import nn

from diffusion_mf.denoisers.diffusion_transformer import DiffusionBlock
from diffusion_mf.encoders.scratch import EncoderLayer
from diffusion_mf.scorers import ScoringMLP

BLOCKS = (EncoderLayer, DiffusionBlock, ScoringMLP)


def compile_blocks(model: nn.Module) -> None:
    """Compile each kind of block once; blocks of a kind share the code, so that depth costs no time to compile."""
    for module in model.modules():
        if isinstance(module, BLOCKS):
            module.compile()
