"""Words too long to be read whole."""

from __future__ import annotations

import torch
from jaxtyping import Int
from torch import Tensor


def shorten(
    character_ids: Int[Tensor, "W C"], lengths: Int[Tensor, "W"], most: int
) -> tuple[Int[Tensor, "W c"], Int[Tensor, "W"]]:
    """At most ``most`` characters of each word: of a longer one the first ⌈half⌉ and the last ⌊half⌋.

    Addresses and the like would make all other words of a batch pay for their length.
    """
    if character_ids.shape[1] <= most:
        return character_ids, lengths
    positions = torch.arange(most, device=character_ids.device)
    num_left_out = (lengths - most).clamp(min=0)[:, None]
    source = torch.where(positions < most - most // 2, positions, positions + num_left_out)
    return character_ids.gather(1, source), lengths.clamp(max=most)


def shortened(word: str, most: int) -> str:
    """`shorten` for one word."""
    return word if len(word) <= most else word[: most - most // 2] + word[len(word) - most // 2 :]
