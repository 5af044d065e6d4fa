from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from random_chains import ChainProblem, make_problem
from torch import Tensor

from diffusion_mf.structures import LabelDistribution, LinearChain, MeanField, Unigram

Build = Callable[[ChainProblem], LabelDistribution]
STRUCTURES: dict[str, Build] = {
    "unigram": lambda problem: Unigram(problem.unary, problem.lengths, allowed=problem.allowed),
    "mean-field": lambda problem: MeanField(*problem.scores, 4, **problem.options),
    "mean-field reference": lambda problem: MeanField(*problem.scores, 4, **problem.options, backend="reference"),
    "linear-chain": lambda problem: LinearChain(*problem.scores, **problem.options),
    "linear-chain reference": lambda problem: LinearChain(*problem.scores, **problem.options, backend="reference"),
}


def results(distribution: LabelDistribution, gold: Tensor) -> dict[str, Tensor]:
    found = {
        "log_prob": distribution.log_prob(gold),
        "marginals": distribution.marginals(),
        "log_marginals": distribution.log_marginals(),
        "entropy": distribution.entropy(),
        "mode": distribution.mode(),
        "sample": distribution.sample(torch.Generator().manual_seed(0)),
    }
    if isinstance(distribution, LinearChain):
        found |= {"log_partition": distribution.log_partition(), "pair_marginals": distribution.pair_marginals()}
    if isinstance(distribution, MeanField):
        found["evidence_lower_bound"] = distribution.evidence_lower_bound()
    return found


def gradients(build: Build, problem: ChainProblem) -> list[Tensor]:
    problem.require_grad()
    found = results(build(problem), problem.gold)
    loss = sum(value.sum() for name, value in found.items() if value.is_floating_point())
    assert isinstance(loss, Tensor)
    grads = torch.autograd.grad(loss, problem.leaves, allow_unused=True)
    return [torch.zeros_like(leaf) if grad is None else grad for leaf, grad in zip(problem.leaves, grads, strict=True)]


def fill_padding(problem: ChainProblem, value: float, *, label: int, is_allowed: bool) -> ChainProblem:
    is_padding = ~problem.is_unit()
    problem.unary[is_padding] = value
    problem.gold[is_padding] = label
    if problem.transition.dim() == 4:
        problem.transition[is_padding[:, 1:]] = value
    if problem.allowed is not None:
        problem.allowed[is_padding] = is_allowed
    return problem


@pytest.mark.parametrize("name", STRUCTURES)
@pytest.mark.parametrize("is_local", [False, True])
def test_what_stands_past_a_length_changes_no_bit(name: str, is_local: bool) -> None:
    build = STRUCTURES[name]
    fillings = [(float("nan"), -100, False), (0.0, 0, True), (float("inf"), 10**6, True), (-1e30, -1, False)]
    found, grads = [], []
    for value, label, is_allowed in fillings:
        problem = make_problem(
            [5, 2, 1, 4], 3, seed=31, is_local=is_local, has_ends=True, is_clamped=True, dtype=torch.float32
        )
        fill_padding(problem, value, label=label, is_allowed=is_allowed)
        found.append(results(build(problem), problem.gold))
        grads.append(gradients(build, problem))
        is_padding = ~problem.is_unit()
        assert not grads[-1][0][is_padding].any()
        if is_local:
            assert not grads[-1][1][is_padding[:, 1:]].any()
    for other, other_grads in zip(found[1:], grads[1:], strict=True):
        for key, value in found[0].items():
            assert torch.equal(value, other[key]), key
        for grad, other_grad in zip(grads[0], other_grads, strict=True):
            assert torch.equal(grad, other_grad)


@pytest.mark.parametrize("name", STRUCTURES)
@pytest.mark.parametrize("is_local", [False, True])
def test_batches_order_and_padding_change_no_mode_and_values_little(name: str, is_local: bool) -> None:
    build = STRUCTURES[name]
    whole = make_problem([17, 3, 30, 1, 9], 5, seed=32, is_local=is_local, scale=2.0, dtype=torch.float32)
    expected = results(build(whole), whole.gold)
    order = [3, 0, 4, 2, 1]
    for sentences, num_units in [(order, 30), (order, 41), *[([index], int(whole.lengths[index])) for index in order]]:
        part = resized(whole, sentences, num_units)
        found = results(build(part), part.gold)
        for key, value in found.items():
            if key == "sample":  # its noise belongs to the batch
                continue
            for row, sentence in enumerate(sentences):
                length = int(whole.lengths[sentence])
                size = length - 1 if key == "pair_marginals" else length
                left, right = value[row], expected[key][sentence]
                if left.dim() > 0:
                    left, right = left[:size], right[:size]
                if key == "mode":
                    assert torch.equal(left, right)
                else:
                    torch.testing.assert_close(left, right, rtol=1e-5, atol=1e-5)


def resized(problem: ChainProblem, sentences: list[int], num_units: int) -> ChainProblem:
    """Some of the sentences in a new order, padded to another length with NaN."""
    B, N, K = problem.unary.shape
    unary = torch.full((B, max(N, num_units), K), float("nan"), dtype=problem.unary.dtype)
    unary[:, :N] = problem.unary
    transition = problem.transition
    if transition.dim() == 4:
        transition = torch.full((B, max(N, num_units) - 1, K, K), float("nan"), dtype=transition.dtype)
        transition[:, : N - 1] = problem.transition
        transition = transition[sentences, : num_units - 1]
    gold = torch.full((B, max(N, num_units)), -100)
    gold[:, :N] = problem.gold
    return ChainProblem(
        unary[sentences, :num_units],
        transition,
        problem.lengths[sentences],
        None,
        None,
        None,
        gold[sentences, :num_units],
    )
