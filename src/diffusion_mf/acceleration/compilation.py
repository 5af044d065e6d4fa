"""Transformer blocks compiled by TorchInductor, which fuses what lies between matrix products."""

from __future__ import annotations

import torch
from torch import nn

from diffusion_mf.denoisers.diffusion_transformer import DiffusionBlock
from diffusion_mf.encoders.scratch import EncoderLayer
from diffusion_mf.scorers import ScoringMLP

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
