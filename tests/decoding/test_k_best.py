from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from diffusion_mf.data.label_schemes import LabelScheme
from diffusion_mf.decoding import DECODERS, DecoderInput, Legality, k_best
from diffusion_mf.structures import LinearChain, Potentials
from oracles.chain_enumeration import Enumerated


@given(
    lengths=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    num_labels=st.integers(1, 3),
    k=st.sampled_from([1, 2, 5, 100]),
    is_local=st.booleans(),
    has_options=st.booleans(),
    is_tied=st.booleans(),
    seed=st.integers(0, 10**6),
)
def test_k_best_equals_enumeration(
    lengths: list[int], num_labels: int, k: int, is_local: bool, has_options: bool, is_tied: bool, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    B, N, K = len(lengths), 4, num_labels

    def scores(*shape: int) -> torch.Tensor:
        values = torch.randn(shape, generator=generator, dtype=torch.float64)
        # Small integers add up without rounding, so that equal scores are equal.
        values = values.round() if is_tied else values
        return values.masked_fill(torch.rand(shape, generator=generator) < 0.15, -math.inf)

    unary = scores(B, N, K)
    transition = scores(B, N - 1, K, K) if is_local else scores(K, K)
    start, end = (scores(K), scores(K)) if has_options else (None, None)
    allowed = torch.rand((B, N, K), generator=generator) < 0.8 if has_options else None
    for sentence, length in enumerate(lengths):
        unary[sentence, length:] = math.nan
        if is_local:
            transition[sentence, length - 1 :] = math.nan
    found = k_best(unary, transition, torch.tensor(lengths), k, start_scores=start, end_scores=end, allowed=allowed)
    assert found.labels.shape == (B, k, N)
    for sentence, length in enumerate(lengths):
        own = transition[sentence, : length - 1] if is_local else transition
        clamps = None if allowed is None else allowed[sentence]
        expected = Enumerated(unary[sentence, :length], own, length, start, end, clamps).best(k)
        padded = [[*path, *[0] * (N - length)] for path, _ in expected] + [[0] * N] * (k - len(expected))
        assert found.labels[sentence].tolist() == padded
        assert found.scores[sentence].tolist() == pytest.approx(
            [score for _, score in expected] + [-math.inf] * (k - len(expected))
        )


def test_the_first_of_the_best_is_the_mode() -> None:
    generator = torch.Generator().manual_seed(0)
    unary = torch.randn(4, 30, 7, generator=generator)
    transition = torch.randn(7, 7, generator=generator)
    lengths = torch.tensor([30, 12, 1, 29])
    found = k_best(unary, transition, lengths, 3)
    chain = LinearChain(unary, transition, lengths)
    assert torch.equal(found.labels[:, 0], chain.mode())
    torch.testing.assert_close(found.scores[:, 0], chain.best_sequence().scores)
    # Each is as good as it says, and they are different.
    for rank in range(3):
        torch.testing.assert_close(found.scores[:, rank], chain.log_score(found.labels[:, rank]), rtol=1e-5, atol=1e-4)
    assert not (found.labels[:, 0] == found.labels[:, 1]).all(1).any()
    assert bool((found.scores.diff(dim=1) <= 0).all())


def test_constraints_hold_for_all_of_them() -> None:
    names = ["B-X", "E-X", "S-X"]
    legality = Legality.of_scheme(names, LabelScheme.BMES)
    unary = torch.randn(2, 4, 3, generator=torch.Generator().manual_seed(0))
    lengths = torch.tensor([4, 3])
    found = k_best(unary, torch.zeros(3, 3), lengths, 8, legality=legality)
    # Words of one or two units: five ways to fill four units, three ways to fill three.
    assert found.scores.isfinite().sum(1).tolist() == [5, 3]
    for rank in range(3):
        assert legality.permits(found.labels[:, rank], lengths).all()
    decoder_input = DecoderInput(lengths=lengths, unary_scores=unary, potentials=Potentials(unary), legality=legality)
    assert torch.equal(found.labels[:, 0], DECODERS["mask-viterbi"](decoder_input))


def test_bad_k() -> None:
    with pytest.raises(ValueError, match="k must be at least 1, found 0"):
        k_best(torch.zeros(1, 2, 2), torch.zeros(2, 2), torch.tensor([2]), 0)
