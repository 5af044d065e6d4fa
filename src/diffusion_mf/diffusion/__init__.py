"""Diffusion over labels: noise, posteriors, losses and the reverse loops; mathematics only, no networks.

`CategoricalDiffusion` is the paper's process; `BitCodes` and `GaussianDiffusion` are DiffusionSL's.
"""

from diffusion_mf.diffusion.bits import NO_LABEL_ID, BitCodes, GaussianDiffusion
from diffusion_mf.diffusion.categorical import CategoricalDiffusion, Reading, draw, one_hot, restrict
from diffusion_mf.diffusion.keyed_random import keyed_normals, keyed_uniforms
from diffusion_mf.diffusion.losses import posterior_kl, squared_bit_error, sum_over_units, token_cross_entropy
from diffusion_mf.diffusion.reverse import BitResult, Denoised, ReverseResult, ReverseStep, ddim, reverse_diffusion

__all__ = [
    "NO_LABEL_ID",
    "BitCodes",
    "BitResult",
    "CategoricalDiffusion",
    "Denoised",
    "GaussianDiffusion",
    "Reading",
    "ReverseResult",
    "ReverseStep",
    "ddim",
    "draw",
    "keyed_normals",
    "keyed_uniforms",
    "one_hot",
    "posterior_kl",
    "restrict",
    "reverse_diffusion",
    "squared_bit_error",
    "sum_over_units",
    "token_cross_entropy",
]
