"""Words from their characters: a bidirectional LSTM over the distinct words of a batch."""

from __future__ import annotations

import functools
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

from diffusion_mf.data.spellings import shorten

GRADIENT_SCALE = 4096.0
"""a power of two, about the number of units that a loss is averaged over"""


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
        here, beside = torch.cuda.current_stream(embedded.device), _stream_beside(embedded.device)
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
    use_scaling = inputs.is_cuda and torch.is_autocast_enabled(inputs.device.type)
    states = states_with_scaled_gradients(lstm, inputs) if use_scaling else lstm(inputs)[0]
    return states.gather(1, (lengths - 1)[:, None, None].expand(-1, 1, states.shape[-1]))[:, 0]


def states_with_scaled_gradients(lstm: nn.LSTM, inputs: Float[Tensor, "W C E"]) -> Float[Tensor, "W C H"]:
    """All states; gradients are scaled up on their way through the LSTM, and down again.

    Under autocast cuDNN's LSTM computes in float16, whatever type was asked for, and gradients of a mean over thousands of
    units are too small for that.
    """
    weights = [_scaled_gradient(weight, 1 / GRADIENT_SCALE) for weight in lstm.all_weights[0]]
    nothing = inputs.new_zeros(1, len(inputs), lstm.hidden_size)
    inputs = _scaled_gradient(inputs, 1 / GRADIENT_SCALE)
    states = torch._VF.lstm(inputs, (nothing, nothing), weights, True, 1, 0.0, lstm.training, False, True)[0]
    return _scaled_gradient(states, GRADIENT_SCALE)


def _scaled_gradient(values: Tensor, factor: float) -> Tensor:
    return _ScaledGradient.apply(values, factor)


class _ScaledGradient(torch.autograd.Function):
    """The values themselves, whose gradient is multiplied by a factor."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        # In float32 downwards: what was too small for half precision must not become so again.
        return (grad.float() if ctx.factor < 1 else grad) * ctx.factor, None
