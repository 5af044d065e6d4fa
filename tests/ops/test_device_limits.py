"""Sizes that depend on the card, for cards that are not here."""

from __future__ import annotations

import types

import pytest
import torch

from diffusion_mf.ops import mean_field
from diffusion_mf.ops.device_limits import H200, Card, card_of, max_global_labels, num_summing_programs

KIB = 1024


@pytest.mark.parametrize(
    ("card", "num_labels", "num_programs"),
    [
        (H200, 128, 264),
        (Card(108, 163 * KIB), 128, 216),  # A100
        (Card(58, 99 * KIB), 64, 116),  # L4
        (Card(40, 64 * KIB), 32, 80),  # T4
    ],
    ids=["H200", "A100", "L4", "T4"],
)
def test_sizes_follow_from_the_properties_of_a_card(card, num_labels, num_programs):
    assert max_global_labels(card) == num_labels
    assert num_summing_programs(card) == num_programs


def test_a_limit_is_the_largest_that_fits():
    """163,840 and 73,728 bytes are what the compiler takes for 128 and for 64 labels."""
    assert max_global_labels(Card(1, 163_840)) == 128
    assert max_global_labels(Card(1, 163_839)) == 64
    assert max_global_labels(Card(1, 73_728)) == 64
    assert max_global_labels(Card(1, 73_727)) == 32
    assert max_global_labels(Card(1, 0)) == 0


def test_properties_are_read_from_the_gpu(monkeypatch):
    properties = types.SimpleNamespace(
        multi_processor_count=58, shared_memory_per_block=48 * KIB, shared_memory_per_block_optin=99 * KIB
    )
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    card_of.cache_clear()
    assert card_of(torch.device("cuda", 0)) == Card(58, 99 * KIB)
    card_of.cache_clear()
    assert card_of(torch.device("cpu")) == H200


def test_mean_field_takes_no_more_labels_than_the_card(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setattr("diffusion_mf.ops.backends.has_triton", lambda: True)
    monkeypatch.setattr(mean_field, "card_of", lambda device: Card(58, 99 * KIB))
    scores = torch.zeros(1, 2, 65), torch.zeros(65, 65), [2], 1
    with pytest.raises(ValueError, match="at most 64 labels here, found 65"):
        mean_field.mean_field(*scores, backend="triton")
    assert mean_field.mean_field(*scores, backend="auto").shape == (1, 2, 65)
