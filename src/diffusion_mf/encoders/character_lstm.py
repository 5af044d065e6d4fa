"""Words from their characters: a bidirectional LSTM over the distinct words of a batch."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence


class CharacterLSTM(nn.Module):
    """The last states of two LSTMs, one from the left and one from the right (Lample et al., 2016).

    The two directions are modules of their own: the second reads each word reversed within its length, so that on a GPU
    neither needs the lengths on the host. On a CPU sequences are packed, and short words cost nothing for long ones.
    """

    def __init__(self, num_characters: int, *, width: int, hidden: int, max_characters: int) -> None:
        super().__init__()
        self.max_characters = max_characters
        self.embedding = nn.Embedding(num_characters, width, padding_idx=0)
        self.from_left = nn.LSTM(width, hidden, batch_first=True)
        self.from_right = nn.LSTM(width, hidden, batch_first=True)
        self.width = 2 * hidden

    def forward(self, character_ids: Int[Tensor, "W C"], lengths: Int[Tensor, "W"]) -> Float[Tensor, "W D"]:
        """One vector per distinct word; that of a word without characters (padding) means nothing."""
        character_ids, lengths = shorten(character_ids, lengths, self.max_characters)
        lengths = lengths.clamp(min=1)
        positions = torch.arange(character_ids.shape[1], device=character_ids.device)
        reversed_ids = character_ids.gather(1, (lengths[:, None] - 1 - positions).clamp(min=0))
        left = _last_state(self.from_left, self.embedding(character_ids), lengths)
        right = _last_state(self.from_right, self.embedding(reversed_ids), lengths)
        return torch.cat([left, right], dim=-1)


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


def _last_state(lstm: nn.LSTM, inputs: Tensor, lengths: Tensor) -> Tensor:
    return (packed_last_state if inputs.device.type == "cpu" else gathered_last_state)(lstm, inputs, lengths)


def packed_last_state(lstm: nn.LSTM, inputs: Float[Tensor, "W C E"], lengths: Int[Tensor, "W"]) -> Float[Tensor, "W H"]:
    """The state at each word's last character, without work for padding; lengths are read by the host."""
    packed = pack_padded_sequence(inputs, lengths, batch_first=True, enforce_sorted=False)
    return lstm(packed)[1][0][0]


def gathered_last_state(
    lstm: nn.LSTM, inputs: Float[Tensor, "W C E"], lengths: Int[Tensor, "W"]
) -> Float[Tensor, "W H"]:
    """The same, running over padding too, without waiting for the device."""
    states = lstm(inputs)[0]
    return states.gather(1, (lengths - 1)[:, None, None].expand(-1, 1, states.shape[-1]))[:, 0]
