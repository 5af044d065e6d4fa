from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from diffusion_mf.batches.batching import shorten
from diffusion_mf.networks.words import (
    CharacterLSTM,
    gathered_last_state,
    last_state_with_scaled_gradient,
    packed_last_state,
)


def padded(words: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    width = max(map(len, words))
    return torch.tensor([word + [0] * (width - len(word)) for word in words]), torch.tensor(list(map(len, words)))


def test_long_words_keep_both_ends() -> None:
    ids, lengths = padded([[1, 2, 3, 4, 5, 6, 7, 8], [1, 2, 3], [1, 2, 3, 4, 5, 6]])
    short, short_lengths = shorten(ids, lengths, 5)
    assert short[0].tolist() == [1, 2, 3, 7, 8]
    assert short[1, :3].tolist() == [1, 2, 3]
    assert short[2].tolist() == [1, 2, 3, 5, 6]
    assert short_lengths.tolist() == [5, 3, 5]
    same, _ = shorten(ids, lengths, 8)
    assert torch.equal(same, ids)


def test_both_ways_to_the_last_state_agree() -> None:
    torch.manual_seed(0)
    lstm = nn.LSTM(3, 4, batch_first=True)
    inputs, lengths = torch.randn(5, 6, 3), torch.tensor([6, 1, 3, 2, 6])
    torch.testing.assert_close(packed_last_state(lstm, inputs, lengths), gathered_last_state(lstm, inputs, lengths))


def test_words_are_read_from_both_ends_within_their_length() -> None:
    torch.manual_seed(0)
    network = CharacterLSTM(10, width=3, hidden=4, max_characters=20)
    words = [[4, 5, 6], [7], [2, 3, 4, 5, 6, 7]]
    found = network(*padded(words))
    for word, vector in zip(words, found, strict=True):
        embedded = network.embedding(torch.tensor(word))
        left, right = network.from_left(embedded)[0][-1], network.from_right(embedded.flip(0))[0][-1]
        torch.testing.assert_close(vector, torch.cat([left, right]))


def test_an_empty_row_is_allowed() -> None:
    network = CharacterLSTM(10, width=3, hidden=4, max_characters=20)
    assert network(torch.tensor([[0, 0], [2, 3]]), torch.tensor([0, 2])).isfinite().all()


@pytest.mark.parametrize("magnitude", [0.0, 1e-25, 1e-12, 1.0, 1e6, 1e25])
def test_scaling_gradients_changes_nothing_where_float32_is_used(magnitude: float) -> None:
    torch.manual_seed(0)
    lstm, inputs = nn.LSTM(4, 6, batch_first=True), torch.randn(3, 5, 4, requires_grad=True)
    lengths = torch.tensor([5, 1, 3])
    wanted = [inputs, *lstm.parameters()]
    expected = gathered_last_state(lstm, inputs, lengths)
    found = last_state_with_scaled_gradient(lstm, inputs, lengths)
    assert torch.equal(found, expected)
    weights = torch.randn_like(expected) * magnitude
    pairs = zip(*(torch.autograd.grad((out * weights).sum(), wanted) for out in (found, expected)), strict=True)
    for one, other in pairs:
        torch.testing.assert_close(one, other, atol=1e-6 * magnitude, rtol=1e-5)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_gradient_that_is_not_finite_stays_so(value: float) -> None:
    lstm, inputs = nn.LSTM(4, 6, batch_first=True), torch.randn(3, 5, 4)
    state = last_state_with_scaled_gradient(lstm, inputs, torch.tensor([5, 1, 3]))
    gradients = torch.autograd.grad(state.sum() * value, list(lstm.parameters()))
    assert not torch.stack([gradient.isfinite().all() for gradient in gradients]).all()


@pytest.mark.gpu
@pytest.mark.parametrize("num_words", [8, 1704])
@pytest.mark.parametrize("magnitude", [1e-12, 1e-8, 1e-4, 1.0, 1e3, 1e6])
def test_gradients_of_every_magnitude_survive_float16(num_words: int, magnitude: float) -> None:
    """Words of very different frequency; with few of them, each used often, a fixed scale of 4,096 overflowed from 1 on."""
    torch.manual_seed(0)
    network = CharacterLSTM(100, width=64, hidden=128, max_characters=20).cuda()
    ids, lengths = torch.randint(1, 100, (num_words, 20)).cuda(), torch.randint(1, 21, (num_words,)).cuda()
    weights = torch.randn(num_words, 256).cuda() * magnitude * torch.randn(num_words, 1).mul(2).exp().cuda()
    reference = copy.deepcopy(network).double()
    expected = torch.autograd.grad((reference(ids, lengths) * weights.double()).sum(), list(reference.parameters()))
    with torch.autocast("cuda", dtype=torch.bfloat16, cache_enabled=False):
        found = torch.autograd.grad((network(ids, lengths) * weights).sum(), list(network.parameters()))
    for (name, _), one, other in zip(network.named_parameters(), found, expected, strict=True):
        error = float((one.double() - other).norm() / other.norm())
        assert error < 0.01, f"{name}: {error:.2%}"
