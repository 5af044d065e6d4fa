from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from random_chains import ChainProblem, chain_problems, make_problem
from torch import Tensor

from diffusion_mf.structures import LinearChain, MeanField, Unigram
from oracles import mean_field_loops

BACKENDS = ["reference", "torch"]


def close(found: Tensor, expected: Tensor, tolerance: float = 1e-9) -> None:
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


def folded(problem: ChainProblem, sentence: int) -> list[list[float]]:
    """Unary scores of one sentence with start, end and clamps in them, by hand."""
    length = int(problem.lengths[sentence])
    rows = problem.unary[sentence, :length].tolist()
    for position, row in enumerate(rows):
        for label in range(len(row)):
            if problem.start is not None and position == 0:
                row[label] += float(problem.start[label])
            if problem.end is not None and position == length - 1:
                row[label] += float(problem.end[label])
            if problem.allowed is not None and not problem.allowed[sentence, position, label]:
                row[label] = -math.inf
    return rows


def oracle_beliefs(problem: ChainProblem, sentence: int, num_iterations: int) -> tuple[list[list[float]], float]:
    table = problem.transition if problem.transition.dim() == 2 else problem.transition[sentence]
    table = table.tolist()

    def transition(position: int, before: int, after: int) -> float:
        return (table if problem.transition.dim() == 2 else table[position])[before][after]

    unary = folded(problem, sentence)
    beliefs = mean_field_loops.beliefs(unary, transition, num_iterations)
    return beliefs, mean_field_loops.lower_bound(unary, transition, beliefs)


@pytest.mark.parametrize("backend", BACKENDS)
@given(problem=chain_problems(), num_iterations=st.integers(0, 4))
def test_mean_field_equals_double_loops(backend: str, problem: ChainProblem, num_iterations: int) -> None:
    field = MeanField(*problem.scores, num_iterations, **problem.options, backend=backend)
    bound = field.evidence_lower_bound()
    exact = LinearChain(*problem.scores, **problem.options).log_partition()
    for sentence, length in enumerate(problem.lengths.tolist()):
        beliefs, lower_bound = oracle_beliefs(problem, sentence, num_iterations)
        expected = torch.tensor(beliefs, dtype=torch.float64)
        close(field.marginals()[sentence, :length], expected)
        close(field.log_marginals()[sentence, :length].exp(), expected)
        close(field.entropy()[sentence], torch.special.entr(expected).sum())
        assert field.mode()[sentence, :length].tolist() == expected.argmax(-1).tolist()
        # Where illegal pairs have a tiny probability, the penalty may or may not underflow: the bound is −∞ or nearly so.
        if math.isfinite(lower_bound):
            assert bound[sentence].item() == pytest.approx(lower_bound, abs=1e-8)
    assert bool((bound <= exact + 1e-9).all())
    assert not field.marginals()[~problem.is_unit()].any()
    assert not field.log_marginals()[~problem.is_unit()].any()


@given(problem=chain_problems())
def test_the_bound_is_tight_where_the_chain_is_factorised(problem: ChainProblem) -> None:
    transition = torch.where(problem.transition.isfinite(), torch.zeros(()), problem.transition.nan_to_num(neginf=0.0))
    field = MeanField(problem.unary, transition, problem.lengths, 2, **problem.options)
    exact = LinearChain(problem.unary, transition, problem.lengths, **problem.options)
    close(field.evidence_lower_bound(), exact.log_partition())
    close(field.entropy(), exact.entropy())


def test_the_bound_is_minus_infinity_where_beliefs_allow_the_impossible() -> None:
    transition = torch.tensor([[0.0, -math.inf], [0.0, 0.0]], requires_grad=True)
    unary = torch.zeros(2, 2, 2, requires_grad=True)
    field = MeanField(unary, transition, torch.tensor([2, 1]), 0)
    bound = field.evidence_lower_bound()
    assert bound.tolist() == [-math.inf, pytest.approx(math.log(2))]
    grads = torch.autograd.grad(bound[1] + bound[0].clamp(min=-5), [unary, transition])
    assert all(bool(grad.isfinite().all()) for grad in grads)


@given(problem=chain_problems(dtype=torch.float32), num_iterations=st.integers(0, 5))
def test_zero_transitions_reduce_to_unigram_exactly(problem: ChainProblem, num_iterations: int) -> None:
    unigram = Unigram(problem.unary, problem.lengths, allowed=problem.allowed)
    zeros = torch.zeros_like(problem.transition)
    field = MeanField(*(problem.unary, zeros, problem.lengths), num_iterations, allowed=problem.allowed)
    for result in ("marginals", "log_marginals", "entropy", "mode"):
        assert torch.equal(getattr(field, result)(), getattr(unigram, result)())
    assert torch.equal(field.log_prob(problem.gold), unigram.log_prob(problem.gold))
    chain = LinearChain(problem.unary, zeros, problem.lengths, allowed=problem.allowed)
    close(chain.marginals(), unigram.marginals(), 1e-6)
    assert torch.equal(chain.mode(), unigram.mode())


@given(problem=chain_problems())
def test_unigram_equals_enumeration_without_transitions(problem: ChainProblem) -> None:
    unigram = Unigram(problem.unary, problem.lengths, allowed=problem.allowed)
    problem.transition, problem.start, problem.end = torch.zeros_like(problem.transition), None, None
    N, K = problem.unary.shape[1:]
    oracles = problem.enumerated()
    for sentence, oracle in enumerate(oracles):
        close(unigram.marginals()[sentence, : oracle.length], oracle.marginals())
        close(unigram.entropy()[sentence], oracle.entropy())
        assert unigram.mode()[sentence, : oracle.length].tolist() == list(oracle.best()[0][0])
    known = [dict(zip(oracle.paths, torch.log_softmax(oracle.scores, 0).tolist(), strict=True)) for oracle in oracles]
    for path in itertools.product(range(K), repeat=N):
        labels = torch.tensor(path).expand(len(oracles), N).masked_fill(~problem.is_unit(), -1)
        expected = [
            log_probs.get(path[: oracle.length], -math.inf) for log_probs, oracle in zip(known, oracles, strict=True)
        ]
        assert unigram.log_prob(labels).tolist() == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("result", ["log_prob", "marginals", "log_marginals", "entropy", "evidence_lower_bound"])
@pytest.mark.parametrize("is_local", [False, True])
@pytest.mark.parametrize("backend", BACKENDS)
def test_mean_field_gradcheck(backend: str, is_local: bool, result: str) -> None:
    problem = make_problem([3, 1, 2], 2, seed=4, is_local=is_local, has_ends=True)
    problem.unary.nan_to_num_(0.0)
    problem.transition.nan_to_num_(0.0)

    def compute(unary: Tensor, transition: Tensor, start: Tensor, end: Tensor) -> Tensor:
        field = MeanField(
            unary, transition, problem.lengths, 3, start_scores=start, end_scores=end, backend=backend, check=False
        )
        return field.log_prob(problem.gold) if result == "log_prob" else getattr(field, result)()

    problem.require_grad()
    assert torch.autograd.gradcheck(compute, tuple(problem.leaves))


@pytest.mark.parametrize("result", ["log_prob", "marginals", "log_marginals", "entropy"])
def test_unigram_gradcheck(result: str) -> None:
    problem = make_problem([3, 1, 2], 3, seed=4)
    unary = problem.unary.nan_to_num(0.0).requires_grad_()

    def compute(unary: Tensor) -> Tensor:
        unigram = Unigram(unary, problem.lengths)
        return unigram.log_prob(problem.gold) if result == "log_prob" else getattr(unigram, result)()

    assert torch.autograd.gradcheck(compute, (unary,))


@given(problem=chain_problems())
def test_gradients_are_never_nan_and_zero_past_lengths(problem: ChainProblem) -> None:
    problem.require_grad()
    distributions = [
        Unigram(problem.unary, problem.lengths, allowed=problem.allowed),
        MeanField(*problem.scores, 3, **problem.options),
    ]
    for distribution in distributions:
        loss = distribution.log_prob(problem.gold).sum() + distribution.entropy().sum()
        loss = loss + distribution.marginals().square().sum()
        grads = torch.autograd.grad(loss, problem.leaves, allow_unused=True)
        assert all(grad is None or bool(grad.isfinite().all()) for grad in grads)
        assert grads[0] is not None
        assert not grads[0][~problem.is_unit()].any()


def test_gold_labels_keep_their_gradient_when_their_probability_underflows() -> None:
    unary = torch.tensor([[[500.0, 0.0], [0.0, 0.0]]], requires_grad=True)
    for distribution in (
        Unigram(unary, torch.tensor([2])),
        MeanField(unary, torch.zeros(2, 2), torch.tensor([2]), 2),
    ):
        assert distribution.marginals()[0, 0, 1] == 0
        loss = -distribution.log_prob(torch.tensor([[1, 0]]))
        assert loss.item() == pytest.approx(500 + math.log(2))
        (grad,) = torch.autograd.grad(loss.sum(), unary)
        assert grad[0, 0].tolist() == pytest.approx([1.0, -1.0])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_small_types_are_accumulated_in_float32(dtype: torch.dtype) -> None:
    problem = make_problem([5, 3], 4, seed=8, is_local=True, dtype=dtype)
    exact = MeanField(problem.unary.double(), problem.transition.double(), problem.lengths)
    found = MeanField(*problem.scores)
    for result in ("marginals", "log_marginals", "entropy", "evidence_lower_bound"):
        assert getattr(found, result)().dtype == torch.float32
        close(getattr(found, result)().double(), getattr(exact, result)(), 3e-6)
    unigram = Unigram(problem.unary, problem.lengths)
    assert unigram.marginals().dtype == torch.float32
    close(
        unigram.log_prob(problem.gold).double(),
        Unigram(problem.unary.double(), problem.lengths).log_prob(problem.gold),
        3e-6,
    )
