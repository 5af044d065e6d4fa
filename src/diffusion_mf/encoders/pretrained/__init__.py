"""Encoders of the Hugging Face hub, or of a folder laid out like one there: `PretrainedEncoder`."""

from diffusion_mf.encoders.pretrained.encoder import PretrainedEncoder

__all__ = ["PretrainedEncoder"]
