"""Sizes that depend on the card, for cards that are not here."""

from __future__ import annotations

import types

import pytest
import torch

from diffusion_mf.ops import mean_field
from diffusion_mf.ops.device_limits import H200, Card, card_of, compiles_chain_products, max_global_labels

KIB = 1024
A100, L4 = Card(8, 163 * KIB), Card(8, 99 * KIB)


@pytest.mark.parametrize(
    ("card", "num_labels", "num_multiplied"),
    [(H200, 128, 256), (A100, 128, 64), (L4, 64, 64), (Card(7, 64 * KIB), 32, 256)],
    ids=["H200", "A100", "L4", "T4"],
)
def test_sizes_follow_from_the_properties_of_a_card(card, num_labels, num_multiplied):
    assert max_global_labels(card) == num_labels
    assert (
        max(block for block in (16, 32, 64, 128, 256) if compiles_chain_products(card, block, torch.float32))
        == num_multiplied
    )
    assert not compiles_chain_products(card, 128, torch.float64)


def test_a_limit_is_the_largest_that_fits():
    """163,840 and 73,728 bytes are what the compiler takes for 128 and for 64 labels."""
    assert max_global_labels(Card(1, 163_840)) == 128
    assert max_global_labels(Card(1, 163_839)) == 64
    assert max_global_labels(Card(1, 73_728)) == 64
    assert max_global_labels(Card(1, 73_727)) == 32
    assert max_global_labels(Card(1, 0)) == 0


def test_properties_are_read_from_the_gpu(monkeypatch):
    properties = types.SimpleNamespace(
        major=8, shared_memory_per_block=48 * KIB, shared_memory_per_block_optin=99 * KIB
    )
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    card_of.cache_clear()
    assert card_of(torch.device("cuda", 0)) == L4
    card_of.cache_clear()
    assert card_of(torch.device("cpu")) == H200


def test_mean_field_takes_no_more_labels_than_the_card(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setattr("diffusion_mf.ops.backends.has_triton", lambda: True)
    monkeypatch.setattr(mean_field, "card_of", lambda device: L4)
    scores = torch.zeros(1, 2, 65), torch.zeros(65, 65), [2], 1
    with pytest.raises(ValueError, match="at most 64 labels here, found 65"):
        mean_field.mean_field(*scores, backend="triton")
    assert mean_field.mean_field(*scores, backend="auto").shape == (1, 2, 65)


def test_tiles_of_the_gradient_of_a_chain():
    pytest.importorskip("triton")
    from diffusion_mf.ops.forward_backward.triton import gradient_tiles

    def tiles(card, block, **options):
        options = {"num_units": 100, "dtype": torch.float32, "is_local": False, "has_pairs": False} | options
        return tuple(gradient_tiles(card, block, **options).values())

    assert tiles(H200, 128) == (64, 64, True, "tf32x3")
    assert tiles(H200, 128, num_units=20) == (32, 64, True, "tf32x3")
    assert tiles(H200, 256) == (16, 64, True, "tf32x3")
    assert tiles(H200, 128, has_pairs=True) == (64, 128, False, "tf32x3")
    assert tiles(H200, 128, dtype=torch.float64) == (16, 64, False, "ieee")
    assert tiles(H200, 64, dtype=torch.float64) == (64, 64, True, "ieee")
    assert tiles(H200, 128, is_local=True) == (8, 64, False, "tf32x3")
    assert tiles(A100, 64) == tiles(H200, 64) == (64, 64, True, "tf32x3")
    assert tiles(A100, 128) == tiles(A100, 256) == (16, 64, False, "tf32x3")
