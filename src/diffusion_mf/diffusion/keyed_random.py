"""Random numbers that depend on the sentence, not on its batch.

Each number is a hash of (seed, step, stream, sentence, index): the same on every device and for every way of splitting work
into batches, accumulation steps and processes. The hash is the output function of SplitMix64 (Steele et al., 2014).
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor


def keyed_uniforms(
    keys: Int[Tensor, " B"],
    shape: tuple[int, ...],
    *,
    seed: int,
    step: int | Int[Tensor, ""] = 0,
    stream: int = 0,
) -> Float[Tensor, "B ..."]:
    """Numbers from [0, 1), (B, *shape), for the sentences identified by ``keys``; ``stream`` separates different uses.

    Numbers are counted over the last dimensions first, so that a longer first dimension (more padding) changes no number.
    """
    num_bits = 24  # what the mantissa of float32 holds exactly
    return (_shifted(_hashes(keys, shape, seed, step, stream), 64 - num_bits) * 2.0**-num_bits).float()


def keyed_normals(
    keys: Int[Tensor, " B"],
    shape: tuple[int, ...],
    *,
    seed: int,
    step: int | Int[Tensor, ""] = 0,
    stream: int = 0,
) -> Float[Tensor, "B ..."]:
    """Standard normal numbers, (B, *shape), otherwise as `keyed_uniforms`."""
    # Mid-points stay clear of 0 and 1, where the quantile function is infinite.
    midpoints = (_shifted(_hashes(keys, shape, seed, step, stream), 12).double() + 0.5) * 2.0**-52
    return torch.special.ndtri(midpoints).float()


def _signed(value: int) -> int:
    return (value + 2**63) % 2**64 - 2**63


_INCREMENT = _signed(0x9E3779B97F4A7C15)
_FIRST_FACTOR = _signed(0xBF58476D1CE4E5B9)
_SECOND_FACTOR = _signed(0x94D049BB133111EB)


def _shifted(values: Tensor, num_bits: int) -> Tensor:
    """Logical shift to the right; ``>>`` alone would copy the sign."""
    return (values >> num_bits) & (2 ** (64 - num_bits) - 1)


def _mixed(values: Tensor) -> Tensor:
    values = (values ^ _shifted(values, 30)) * _FIRST_FACTOR
    values = (values ^ _shifted(values, 27)) * _SECOND_FACTOR
    return values ^ _shifted(values, 31)


def _hashes(keys: Tensor, shape: tuple[int, ...], seed: int, step: int | Tensor, stream: int) -> Tensor:
    state = torch.zeros_like(keys, dtype=torch.int64)
    for part in (seed, step, stream, keys):
        part = part.long() if isinstance(part, Tensor) else _signed(part)
        state = _mixed(state + _INCREMENT) ^ part
    state = _mixed(state + _INCREMENT)
    counter = torch.arange(1, math.prod(shape) + 1, device=keys.device)
    return _mixed(state.unsqueeze(-1) + counter * _INCREMENT).reshape(len(keys), *shape)
