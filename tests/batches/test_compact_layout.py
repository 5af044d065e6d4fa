"""Units without padding, against the rectangle."""

from __future__ import annotations

import torch

from diffusion_mf.batches.layouts import CompactLayout, Layout, PaddedLayout
from diffusion_mf.config import EncoderConfig
from diffusion_mf.networks.encoders import EncoderLayer
from diffusion_mf.ops.backends import CPU_ROWS
from diffusion_mf.ops.chain_scores import unit_mask

NUM_UNITS = 9
LENGTHS = torch.tensor([3, 1, 5])
IS_UNIT = unit_mask(LENGTHS, 5)
COMPACT, PADDED = CompactLayout.of_units(IS_UNIT), PaddedLayout(IS_UNIT)


def test_units_are_packed_and_put_back_in_place() -> None:
    assert isinstance(COMPACT, Layout)
    values = torch.randn(3, 5, 2)
    packed = COMPACT.pack(values)
    assert len(packed) == 12
    assert torch.equal(packed[:NUM_UNITS], values[IS_UNIT])
    assert torch.equal(COMPACT.unpack(packed)[IS_UNIT], values[IS_UNIT])
    has_next = unit_mask(LENGTHS - 1, 4)
    assert torch.equal(COMPACT.unpack_pairs(packed)[has_next], values[:, :-1][has_next])


def test_rows_of_sentences_are_spread_over_their_units() -> None:
    rows = torch.randn(3, 2)
    assert torch.equal(COMPACT.spread(rows)[:NUM_UNITS], rows.repeat_interleave(LENGTHS, 0))
    assert torch.equal(COMPACT.spread(rows[:1]).expand(9, 2), rows[:1].expand(9, 2))


def test_attention_is_that_of_the_rectangle() -> None:
    inputs = torch.randn(3, 5, 3, 2, 4, dtype=torch.float64)
    expected = PADDED.attend(inputs, PADDED.rotation(4))[IS_UNIT]
    found = COMPACT.attend(COMPACT.pack(inputs), COMPACT.rotation(4))
    torch.testing.assert_close(found[:NUM_UNITS], expected)
    inputs[~IS_UNIT] = torch.nan
    torch.testing.assert_close(COMPACT.attend(COMPACT.pack(inputs), COMPACT.rotation(4))[:NUM_UNITS], expected)


@torch.no_grad()
def test_a_layer_gives_a_unit_the_same_bits_whatever_is_computed_with_it() -> None:
    """Up to two numbers in the last place: a CPU that nobody has tried may sum in yet another order."""
    layer = EncoderLayer(EncoderConfig(width=64, heads=4)).eval()
    lengths = torch.tensor([1, 2, 3, 7, 16, 17, 40])
    is_unit = unit_mask(lengths, 40)
    values = torch.randn(*is_unit.shape, 64, generator=torch.Generator().manual_seed(0))

    def states(rows: list[int]) -> torch.Tensor:
        longest = -(-int(lengths[rows].max()) // CPU_ROWS) * CPU_ROWS
        layout = CompactLayout.of_units(is_unit[rows, :longest])
        return layout.unpack(layer(layout.pack(values[rows, :longest]), layout, layout.rotation(16)))

    whole = states([*range(len(lengths))])
    for row, length in enumerate(lengths.tolist()):
        for others in ([], [0], [0, 1, 2, 3]):
            alone = states([row, *others])[0, :length]
            torch.testing.assert_close(alone, whole[row, :length], rtol=0, atol=2.5e-7)
