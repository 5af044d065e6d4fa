"""Words from their characters: a bidirectional LSTM over the distinct words of a batch."""

from __future__ import annotations

import functools
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.utils.rnn import pack_padded_sequence

from diffusion_mf.data.spellings import shorten

GRADIENT_SUM = 1024.0
"""what the absolute values of a gradient are scaled to add up to on its way through float16"""


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
    """The same, running over padding too, without waiting for the device.

    Under autocast cuDNN's LSTM computes in float16, whatever type was asked for. Gradients of a mean over thousands of units
    are too small for that, and those of a few words that occur everywhere may be too large, so they are scaled on their way
    through the LSTM, by a factor taken from the gradient itself.
    """
    use_scaling = inputs.is_cuda and torch.is_autocast_enabled(inputs.device.type)
    return (
        last_state_with_scaled_gradient(lstm, inputs, lengths) if use_scaling else _last_state(lstm(inputs)[0], lengths)
    )


def last_state_with_scaled_gradient(
    lstm: nn.LSTM, inputs: Float[Tensor, "W C E"], lengths: Int[Tensor, "W"]
) -> Float[Tensor, "W H"]:
    """The last states; backward, the gradient is scaled by a power of two before the LSTM, and back after it.

    A sum over words and characters, as every weight's gradient is one, stays near `GRADIENT_SUM` times the largest input or
    state, far below what float16 holds, however many words there are and however large their gradients.
    """
    scale = _Scale()
    weights = [_Unscaled.apply(weight, scale) for weight in lstm.all_weights[0]]
    nothing = inputs.new_zeros(1, len(inputs), lstm.hidden_size)
    states = torch._VF.lstm(
        _Unscaled.apply(inputs, scale), (nothing, nothing), weights, True, 1, 0.0, lstm.training, False, True
    )[0]
    # In float32 first: a gradient of the states' own type would have lost its small numbers before it could be scaled.
    return _Scaled.apply(_last_state(states, lengths).float(), scale)


def _last_state(states: Float[Tensor, "W C H"], lengths: Int[Tensor, "W"]) -> Float[Tensor, "W H"]:
    return states.gather(1, (lengths - 1)[:, None, None].expand(-1, 1, states.shape[-1]))[:, 0]


class _Scale:
    """What a gradient was multiplied by, on its device; set by `_Scaled`, read by `_Unscaled`, which comes later backward."""

    factor: Tensor


class _Scaled(torch.autograd.Function):
    """The values themselves; their gradient is scaled so that its absolute values add up to `GRADIENT_SUM` or half of it."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, scale: _Scale) -> Tensor:
        ctx.scale = scale
        return values.view_as(values)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        grad = grad.float()
        # A power of two changes no digit. The bounds keep the factor and its inverse in range where a gradient is nothing.
        total = grad.abs().sum(dtype=torch.float64).clamp(1e-30, 1e30)
        ctx.scale.factor = (GRADIENT_SUM / total).log2().floor().exp2().float()
        return grad * ctx.scale.factor, None


class _Unscaled(torch.autograd.Function):
    """The values themselves; their gradient is divided by what `_Scaled` multiplied it by."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, scale: _Scale) -> Tensor:
        ctx.scale = scale
        return values.view_as(values)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad.float() / ctx.scale.factor, None
