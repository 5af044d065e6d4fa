"""The small functions all chain operations share."""

from __future__ import annotations

import math

import pytest
import torch

from diffusion_mf.ops.chain_scores import accumulation_dtype, blank_padding, fold_scores, logsumexp, softmax, unit_mask


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        (torch.float64, torch.float64),
        (torch.float32, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.float16, torch.float32),
    ],
)
def test_sums_are_never_kept_below_float32(dtype, expected):
    assert accumulation_dtype(dtype) == expected


def test_unit_mask():
    assert unit_mask(torch.tensor([2, 3, 1]), 3).tolist() == [
        [True, True, False],
        [True, True, True],
        [True, False, False],
    ]


def test_fold_scores_puts_each_score_in_its_place():
    unary = torch.zeros(2, 3, 2)
    lengths = torch.tensor([3, 1])
    allowed = torch.ones(2, 3, 2, dtype=torch.bool)
    allowed[0, 1, 0] = False
    folded = fold_scores(
        unary, lengths, start_scores=torch.tensor([1.0, 2.0]), end_scores=torch.tensor([10.0, 20.0]), allowed=allowed
    )
    assert folded[0].tolist() == [[1, 2], [-math.inf, 0], [10, 20]]
    assert folded[1, 0].tolist() == [11, 22]  # the only unit is first and last


def test_fold_scores_is_differentiable_in_all_scores():
    generator = torch.Generator().manual_seed(0)
    unary, start, end = (
        torch.randn(shape, generator=generator, dtype=torch.float64, requires_grad=True) for shape in [(2, 3, 2), 2, 2]
    )
    lengths = torch.tensor([3, 2])
    allowed = torch.tensor([True, True, False, True, True, True] * 2).view(2, 3, 2)

    def run(unary, start, end):
        folded = fold_scores(unary, lengths, start_scores=start, end_scores=end, allowed=allowed)
        return folded[folded > -torch.inf]

    assert torch.autograd.gradcheck(run, (unary, start, end))


def test_fold_scores_adds_in_float32():
    """bfloat16 holds 256 and 1, but not their sum."""
    folded = fold_scores(
        torch.full((1, 1, 1), 256.0, dtype=torch.bfloat16),
        torch.tensor([1]),
        start_scores=torch.ones(1, dtype=torch.bfloat16),
    )
    assert folded.item() == 257


def test_nothing_to_fold_changes_nothing():
    unary = torch.randn(1, 2, 3)
    assert fold_scores(unary, torch.tensor([2])) is unary


@pytest.mark.parametrize("is_local", [False, True])
def test_blank_padding(is_local):
    unary = torch.full((2, 3, 2), torch.nan)
    unary[0], unary[1, 0] = 1.0, 2.0
    transition = torch.full((2, 2, 2, 2), torch.nan)
    transition[0] = 3.0
    transition = transition if is_local else torch.full((2, 2), 3.0)
    blank_unary, blank_transition = blank_padding(unary, transition, torch.tensor([3, 1]))
    assert torch.equal(blank_unary[0], unary[0])
    assert blank_unary[1].tolist() == [[2, 2], [0, 0], [0, 0]]
    assert torch.equal(blank_transition[0], transition[0])
    if is_local:
        assert (blank_transition[1] == 0).all()


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_logsumexp_and_its_gradient(dim):
    scores = torch.tensor([[0.5, -math.inf, 1e4], [-math.inf, -math.inf, -1e4], [2.0, -math.inf, -3.0]]).double()
    scores.requires_grad_()
    found, expected = logsumexp(scores, dim), torch.logsumexp(scores, dim)
    torch.testing.assert_close(found, expected)
    (gradient,) = torch.autograd.grad(found.sum(), scores)
    is_empty = (scores == -math.inf).all(dim, keepdim=True)
    probabilities = torch.where(is_empty, 0, torch.softmax(scores, dim))
    torch.testing.assert_close(gradient, probabilities)


def test_softmax_and_its_gradient():
    scores = torch.tensor([[0.5, -math.inf, 1.0], [-math.inf] * 3]).double().requires_grad_()
    found = softmax(scores)
    torch.testing.assert_close(found[0], torch.softmax(scores[0], -1))
    assert (found[1] == 0).all()
    (gradient,) = torch.autograd.grad((found * torch.tensor([1.0, 2.0, 3.0])).sum(), scores)
    assert (gradient[1] == 0).all()
    assert not gradient.isnan().any()
    assert gradient[0, 0] < 0 < gradient[0, 2]
