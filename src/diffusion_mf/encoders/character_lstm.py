"""Words from their characters: a bidirectional LSTM over the distinct words of a batch."""

from __future__ import annotations

import functools

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

from diffusion_mf.data.spellings import shorten


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
        embedded, reversed_embedded = self.embedding(character_ids), self.embedding(reversed_ids)
        if not embedded.is_cuda:
            left = packed_last_state(self.from_left, embedded, lengths)
            return torch.cat([left, packed_last_state(self.from_right, reversed_embedded, lengths)], dim=-1)
        # Neither direction fills a GPU: they run side by side.
        here, beside = torch.cuda.current_stream(), _stream_beside(embedded.device)
        beside.wait_stream(here)
        with torch.cuda.stream(beside):
            right = gathered_last_state(self.from_right, reversed_embedded, lengths)
        left = gathered_last_state(self.from_left, embedded, lengths)
        here.wait_stream(beside)
        for tensor, stream in ((reversed_embedded, beside), (lengths, beside), (right, here)):
            tensor.record_stream(stream)
        return torch.cat([left, right], dim=-1)


@functools.cache
def _stream_beside(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


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
