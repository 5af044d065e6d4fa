"""A pretrained encoder: subwords in, pooled to one state per unit."""

from __future__ import annotations

from diffusion_mf.encoders.encoder import Encoder


class PretrainedEncoder(Encoder):
    """States of a pretrained Transformer."""
