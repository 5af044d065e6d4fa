"""Encoders of the Hugging Face hub, or of a folder laid out like one there: `PretrainedEncoder`."""

from __future__ import annotations

from diffusion_mf.networks.pretrained.encoder import PretrainedEncoder

__all__ = ["PretrainedEncoder"]
