"""Units without padding, against the rectangle."""

from __future__ import annotations

import torch

from diffusion_mf.layouts import CompactLayout, Layout, PaddedLayout
from diffusion_mf.ops.chain_scores import unit_mask

LENGTHS = torch.tensor([3, 1, 5])
IS_UNIT = unit_mask(LENGTHS, 5)
COMPACT, PADDED = CompactLayout.of_units(IS_UNIT), PaddedLayout(IS_UNIT)


def test_units_are_packed_and_put_back_in_place() -> None:
    assert isinstance(COMPACT, Layout)
    values = torch.randn(3, 5, 2)
    packed = COMPACT.pack(values)
    assert torch.equal(packed, values[IS_UNIT])
    assert torch.equal(COMPACT.unpack(packed)[IS_UNIT], values[IS_UNIT])
    has_next = unit_mask(LENGTHS - 1, 4)
    assert torch.equal(COMPACT.unpack_pairs(packed)[has_next], values[:, :-1][has_next])


def test_rows_of_sentences_are_spread_over_their_units() -> None:
    rows = torch.randn(3, 2)
    assert torch.equal(COMPACT.spread(rows), rows.repeat_interleave(LENGTHS, 0))
    assert torch.equal(COMPACT.spread(rows[:1]).expand(9, 2), rows[:1].expand(9, 2))


def test_attention_is_that_of_the_rectangle() -> None:
    inputs = torch.randn(3, 5, 3, 2, 4, dtype=torch.float64)
    expected = PADDED.attend(inputs, PADDED.rotation(4))[IS_UNIT]
    found = COMPACT.attend(COMPACT.pack(inputs), COMPACT.rotation(4))
    torch.testing.assert_close(found, expected)
    inputs[~IS_UNIT] = torch.nan
    torch.testing.assert_close(COMPACT.attend(COMPACT.pack(inputs), COMPACT.rotation(4)), expected)
