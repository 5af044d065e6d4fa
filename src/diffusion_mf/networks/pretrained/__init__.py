"""Pretrained encoders from the Hugging Face hub, or from a folder in the same format: `PretrainedEncoder`."""

from __future__ import annotations

from diffusion_mf.networks.pretrained.encoder import PretrainedEncoder

__all__ = ["PretrainedEncoder"]
