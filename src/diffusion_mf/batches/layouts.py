"""The memory layout of a batch's units inside the networks: padded to a rectangle, or packed one after the other.

Outside the networks a batch is always (B, N, …). Position-wise layers work with any layout; attention, positions and
per-sentence values go through it. Packing saves a GPU the work on padding, and gives batches of one budget the same shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from diffusion_mf.ops.attention import MAX_FUSED_UNITS, packed_attention
from diffusion_mf.ops.attention.reference import turn
from diffusion_mf.ops.backends import CPU_LANES, CPU_ROWS

ROTARY_PERIOD = 10_000.0
LONGEST_WHOLE = 2048
"""units of a sentence up to which every unit attends to every other: beyond, time and memory would grow with the square"""
WINDOW = 512
"""in longer sentences, the units of each stretch of this many attend to their own stretch and its two neighbours"""


def is_attended_whole(lengths: Int[Tensor, " B"]) -> bool:
    """Whether no sentence needs windows, which packed batches do not have; ``lengths`` are on the host."""
    return int(lengths.max()) <= LONGEST_WHOLE


class Rotation(NamedTuple):
    """The angles of rotary position embeddings (Su et al., 2021), computed once and used by every layer."""

    cosine: Float[Tensor, "*units 1 half"]
    sine: Float[Tensor, "*units 1 half"]

    @classmethod
    def of_positions(cls, positions: Int[Tensor, " *units"], head_width: int) -> Rotation:
        """Position i rotates pair p of a head's dimensions by i·period^(−2p/width)."""
        half = head_width // 2
        rates = ROTARY_PERIOD ** (torch.arange(half, device=positions.device, dtype=torch.float32) / -half)
        angles = positions.float()[..., None, None] * rates
        return cls(angles.cos(), angles.sin())

    def none(self) -> Rotation:
        """By no angle: attention does not see positions."""
        return Rotation(torch.ones_like(self.cosine), torch.zeros_like(self.sine))

    def turn(self, values: Float[Tensor, "*units H d"]) -> Float[Tensor, "*units H d"]:
        """Rotate; the product of two rotated vectors depends only on the distance of their positions."""
        return turn(values, self.cosine, self.sine)


@runtime_checkable
class Layout(Protocol):
    """The interface of layouts; ``*units`` is (B, N) or (T,)."""

    def pack(self, values: Tensor) -> Tensor:
        """(B, N, …) as (*units, …), without gradient."""
        ...

    def unpack(self, values: Tensor) -> Tensor:
        """(*units, …) as (B, N, …); values at padding are undefined."""
        ...

    def unpack_pairs(self, values: Tensor) -> Tensor:
        """(*units, …) as (B, N − 1, …): row i belongs to the pair of units i and i + 1."""
        ...

    @property
    def pair_units(self) -> Tensor | None:
        """The units (B, N − 1) that `unpack_pairs` gathers, if the caller should gather them earlier instead; otherwise None."""
        ...

    def spread(self, values: Tensor) -> Tensor:
        """One row per sentence, or one for all, (b, D), so that it broadcasts over (*units, D)."""
        ...

    def rotation(self, head_width: int) -> Rotation:
        """The angles of all positions, for `attend`."""
        ...

    def attend(self, inputs: Tensor, rotation: Rotation) -> Tensor:
        """Attention (*units, H, d) among the units of each sentence, from queries, keys and values (*units, 3, H, d)."""
        ...


class PaddedLayout(NamedTuple):
    """A rectangle: every sentence has N positions, and those past its length are never attended to."""

    is_unit: Bool[Tensor, "B N"]

    def pack(self, values: Tensor) -> Tensor:
        """The values unchanged."""
        return values

    def unpack(self, values: Tensor) -> Tensor:
        """The values unchanged."""
        return values

    def unpack_pairs(self, values: Tensor) -> Tensor:
        """All but the last position."""
        return values[:, :-1]

    @property
    def pair_units(self) -> None:
        """None: there is nothing to gather."""

    def spread(self, values: Float[Tensor, "b D"]) -> Float[Tensor, "b 1 D"]:
        """Broadcast over the positions of each sentence."""
        return values[:, None]

    def rotation(self, head_width: int) -> Rotation:
        """The angles of positions 0…N−1, the same for all sentences."""
        return Rotation.of_positions(torch.arange(self.is_unit.shape[1], device=self.is_unit.device), head_width)

    def attend(self, inputs: Float[Tensor, "B N 3 H d"], rotation: Rotation) -> Float[Tensor, "B N H d"]:
        """Masked attention."""
        query, key, value = inputs.unbind(2)
        return _masked_attention(rotation.turn(query), rotation.turn(key), value, self.is_unit)


def _masked_attention(query: Tensor, key: Tensor, value: Tensor, is_key: Tensor) -> Tensor:
    """Attention (B, N, H, d) restricted to the positions where ``is_key`` is true; in windows if a sentence is too long."""
    if query.shape[1] <= LONGEST_WHOLE:
        return _whole_attention(query, key, value, is_key)
    # Whether a sentence is attended to as a whole must not depend on the others of its batch.
    is_long = is_key.sum(1) > LONGEST_WHOLE
    long, short = is_long.nonzero()[:, 0], (~is_long).nonzero()[:, 0]
    attended = torch.zeros_like(query)
    if len(short):
        parts = (part[short, :LONGEST_WHOLE] for part in (query, key, value, is_key))
        attended[short, :LONGEST_WHOLE] = _whole_attention(*parts)
    for start in range(0, query.shape[1], WINDOW) if len(long) else ():
        end = start + WINDOW
        before, after = max(0, start - WINDOW), end + WINDOW
        seen = is_key[long, before:after]
        # Past a sentence's end nothing is read, but it must be finite: a weight of 0 does not hide NaN.
        seen = seen | ~seen.any(1, keepdim=True)
        attended[long, start:end] = _whole_attention(
            query[long, start:end], key[long, before:after], value[long, before:after], seen
        )
    return attended


def _whole_attention(query: Tensor, key: Tensor, value: Tensor, is_key: Tensor) -> Tensor:
    query, key, value = (part.transpose(1, 2) for part in (query, key, value))
    attended = F.scaled_dot_product_attention(query, key, value, attn_mask=is_key[:, None, None, :])
    return attended.transpose(1, 2)


class CompactLayout(NamedTuple):
    """The units without padding, for prediction on a CPU and training on documents there; only attention uses the rectangle.

    `PackedLayout` is for GPUs: it has a fixed size, gradients in a fixed order, and its own kernels.

    The number of units is rounded up to a multiple of `CPU_ROWS`, and the number of keys to a multiple of `CPU_LANES`:
    otherwise the last bit of a unit's state would depend on its batch, and ten denoising calls amplify one bit to the
    fourth digit of a score. For the same reason N should be a multiple of `CPU_ROWS`.
    """

    is_unit: Bool[Tensor, "B N"]
    places: Int[Tensor, " T"]
    """the position of each unit in the rectangle, b·N + i; filler repeats the first unit"""
    units: Int[Tensor, "B N"]
    """the index of each position among the units; for padding, that of any unit"""
    is_key: Bool[Tensor, "B W"]
    keys: Int[Tensor, "B W"]
    """``is_unit`` and ``units`` of a wider rectangle, for the keys of attention"""

    @classmethod
    def of_units(cls, is_unit: Bool[Tensor, "B N"]) -> CompactLayout:
        """The layout for this mask, which must have at least one unit."""
        flat = is_unit.flatten()
        places = flat.nonzero()[:, 0]
        places = torch.cat([places, places[:1].expand(-len(places) % CPU_ROWS)])
        units = (flat.cumsum(0) - 1).clamp_(min=0).view(is_unit.shape)
        wider = (0, -is_unit.shape[1] % CPU_LANES)
        return cls(is_unit, places, units, F.pad(is_unit, wider), F.pad(units, wider))

    def pack(self, values: Tensor) -> Tensor:
        """Select the units from the rectangle."""
        return values.flatten(0, 1).index_select(0, self.places)

    def unpack(self, values: Tensor) -> Tensor:
        """Back to the rectangle."""
        return _taken(values, self.units)

    def unpack_pairs(self, values: Tensor) -> Tensor:
        """The same for pairs of units."""
        return self.unpack(values)[:, :-1]

    @property
    def pair_units(self) -> None:
        """None: on a CPU, more rows mean more work."""

    def spread(self, values: Float[Tensor, "b D"]) -> Float[Tensor, "#T D"]:
        """Repeat each sentence's row for its units."""
        return values if len(values) == 1 else values[self.places // self.is_unit.shape[1]]

    def rotation(self, head_width: int) -> Rotation:
        """The angles of every unit."""
        return Rotation.of_positions(self.places % self.is_unit.shape[1], head_width)

    def attend(self, inputs: Float[Tensor, "T 3 H d"], rotation: Rotation) -> Float[Tensor, "T H d"]:
        """Masked attention in the rectangle."""
        query, key, value = inputs.unbind(1)
        query, key = self.unpack(rotation.turn(query)), _taken(rotation.turn(key), self.keys)
        return self.pack(_masked_attention(query, key, _taken(value, self.keys), self.is_key))


def _taken(values: Tensor, rows: Tensor) -> Tensor:
    return values.index_select(0, rows.flatten()).unflatten(0, rows.shape)


class PackedLayout(NamedTuple):
    """T units, sentence after sentence; empty sentences share the filler after the last of them.

    ``batches.packing`` computes the indices. Filler is attended to only by itself, and its results are not read. There are no
    windows: batches with longer sentences than `LONGEST_WHOLE` are padded instead.
    """

    places: Int[Tensor, " T"]
    """the position of each unit in the rectangle, b·N + i; filler points to a padding position"""
    pair_places: Int[Tensor, " T"]
    """the same for the pair of a unit and its successor, b·(N − 1) + i; the last unit of a sentence points to padding"""
    units: Int[Tensor, "B N"]
    """the index of each position in the packed sequence; 0 for padding"""
    sentences: Int[Tensor, " T"]
    positions: Int[Tensor, " T"]
    boundaries: Int[Tensor, " B_plus_1"]
    """the first unit of each sentence, and T; int32"""
    longest: int
    """the largest number of units per sentence, filler included"""

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> PackedLayout:
        """The same layout on another device."""
        moved = [tensor.to(device, non_blocking=non_blocking) for tensor in self.tensors]
        return PackedLayout.of_tensors(moved, longest=self.longest)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All indices, in the order of the fields."""
        return self.places, self.pair_places, self.units, self.sentences, self.positions, self.boundaries

    @classmethod
    def of_tensors(cls, tensors: Sequence[Tensor], *, longest: int) -> PackedLayout:
        """The inverse of `tensors`."""
        places, pair_places, units, sentences, positions, boundaries = tensors
        return cls(places, pair_places, units, sentences, positions, boundaries, longest)

    def pack(self, values: Tensor) -> Tensor:
        """Select the units from the rectangle."""
        return values.flatten(0, 1).index_select(0, self.places)

    def unpack(self, values: Tensor) -> Tensor:
        """Back to the rectangle; its gradient is `pack`."""
        return _Unpacked.apply(values, self.units, self.places)

    def unpack_pairs(self, values: Tensor) -> Tensor:
        """The same for pairs of units."""
        return _Unpacked.apply(values, self.units[:, :-1], self.pair_places)

    @property
    def pair_units(self) -> Int[Tensor, "B M"]:
        """The units of all pairs: on a GPU, copying takes longer than multiplying."""
        return self.units[:, :-1]

    def spread(self, values: Float[Tensor, "b D"]) -> Float[Tensor, "#T D"]:
        """Repeat each sentence's row for its units."""
        return values if len(values) == 1 else values[self.sentences]

    def rotation(self, head_width: int) -> Rotation:
        """The angles of positions 0…longest−1, the same for all sentences."""
        return Rotation.of_positions(torch.arange(self.longest, device=self.positions.device), head_width)

    def attend(self, inputs: Float[Tensor, "T 3 H d"], rotation: Rotation) -> Float[Tensor, "T H d"]:
        """Attention within sentences: our kernel for short ones on a GPU, PyTorch's for long ones in half precision."""
        if inputs.is_cuda and self.longest > MAX_FUSED_UNITS and inputs.dtype in (torch.bfloat16, torch.float16):
            from torch.nn.attention.varlen import varlen_attn

            query, key, value = inputs.unbind(1)
            of_units = Rotation(rotation.cosine[self.positions], rotation.sine[self.positions])
            query, key = of_units.turn(query), of_units.turn(key)
            attended = varlen_attn(query, key, value, self.boundaries, self.boundaries, self.longest, self.longest)
            assert isinstance(attended, Tensor)
            return attended
        return packed_attention(inputs, self.boundaries, rotation.cosine[:, 0], rotation.sine[:, 0])


class _Unpacked(torch.autograd.Function):
    """A gather whose gradient is a gather, too: no two units share a position, and padding has no gradient to add."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, units: Tensor, places: Tensor) -> Tensor:
        ctx.save_for_backward(places)
        return _taken(values, units)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (places,) = ctx.saved_tensors
        return grad.flatten(0, 1).index_select(0, places), None, None
