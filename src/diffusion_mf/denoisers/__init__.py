"""Networks that denoise labels: Diffusion-Transformer blocks conditioned on encoder states and timestep."""

from diffusion_mf.denoisers.bit_denoiser import BitDenoiser
from diffusion_mf.denoisers.diffusion_transformer import Conditions, DiffusionTransformer
from diffusion_mf.denoisers.label_denoiser import LabelDenoiser
from diffusion_mf.denoisers.time_embedding import TimeEmbedding

__all__ = ["BitDenoiser", "Conditions", "DiffusionTransformer", "LabelDenoiser", "TimeEmbedding"]
