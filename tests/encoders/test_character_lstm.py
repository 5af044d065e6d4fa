from __future__ import annotations

import torch
from torch import nn

from diffusion_mf.data.spellings import shorten
from diffusion_mf.encoders.character_lstm import (
    CharacterLSTM,
    gathered_last_state,
    packed_last_state,
    states_with_scaled_gradients,
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


def test_scaling_gradients_changes_nothing_where_they_are_large_enough() -> None:
    torch.manual_seed(0)
    lstm, inputs = nn.LSTM(4, 6, batch_first=True), torch.randn(3, 5, 4, requires_grad=True)
    wanted = [inputs, *lstm.parameters()]
    expected = lstm(inputs)[0]
    found = states_with_scaled_gradients(lstm, inputs)
    assert torch.equal(found, expected)
    weights = torch.randn_like(expected)
    pairs = zip(*(torch.autograd.grad((out * weights).sum(), wanted) for out in (found, expected)), strict=True)
    for one, other in pairs:
        torch.testing.assert_close(one, other)
