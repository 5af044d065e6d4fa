"""Attention within sentences as one masked attention over all units."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from diffusion_mf.ops.chain_scores import accumulation_dtype


def packed_attention(inputs: Tensor, boundaries: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """See `ops.attention.packed_attention`; needs memory for a T × T mask."""
    units = torch.arange(len(inputs), device=inputs.device)
    sentences = torch.searchsorted(boundaries[1:].long(), units, right=True)
    positions = units - boundaries[sentences].long()
    query, key, value = inputs.unbind(1)
    query, key = (turn(part, cosine[positions][:, None], sine[positions][:, None]) for part in (query, key))
    mask = sentences[:, None] == sentences
    query, key, value = (part.transpose(0, 1)[None] for part in (query, key, value))
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask)[0].transpose(0, 1)


def turn(values: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotate each vector by the angles of its position, in at least float32."""
    first, second = values.to(accumulation_dtype(values.dtype)).chunk(2, dim=-1)
    turned = (first * cosine - second * sine, second * cosine + first * sine)
    return torch.cat(turned, dim=-1).to(values.dtype)
