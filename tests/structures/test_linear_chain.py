from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given
from random_chains import ChainProblem, chain_problems, make_problem
from torch import Tensor

from diffusion_mf.structures import LinearChain
from diffusion_mf.structures import linear_chain as linear_chain_module

BACKENDS = ["reference", "torch"]


def close(found: Tensor, expected: Tensor, tolerance: float = 1e-9) -> None:
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("backend", BACKENDS)
@given(problem=chain_problems())
def test_values_equal_enumeration(backend: str, problem: ChainProblem) -> None:
    chain = LinearChain(*problem.scores, **problem.options, backend=backend)
    marginals, pairs, entropy = chain.marginals(), chain.pair_marginals(), chain.entropy()
    best = chain.best_sequence()
    for sentence, oracle in enumerate(problem.enumerated()):
        length = oracle.length
        close(chain.log_partition()[sentence], oracle.log_partition)
        close(marginals[sentence, :length], oracle.marginals())
        close(pairs[sentence, : length - 1], oracle.pairs())
        close(entropy[sentence], oracle.entropy())
        close(chain.log_marginals()[sentence, :length].exp(), oracle.marginals())
        labels, score = oracle.best()[0]
        assert chain.mode()[sentence].tolist() == [*labels, *[0] * (problem.unary.shape[1] - length)]
        assert float(best.scores[sentence]) == pytest.approx(score, abs=1e-9)
    is_padding = ~problem.is_unit()
    assert not marginals[is_padding].any()
    assert not pairs[is_padding[:, 1:]].any()
    assert not chain.log_marginals()[is_padding].any()
    assert not chain.mode()[is_padding].any()


@pytest.mark.parametrize("backend", BACKENDS)
@given(problem=chain_problems())
def test_log_prob_of_every_sequence_equals_enumeration(backend: str, problem: ChainProblem) -> None:
    chain = LinearChain(*problem.scores, **problem.options, backend=backend)
    oracles = problem.enumerated()
    known = [dict(zip(oracle.paths, torch.log_softmax(oracle.scores, 0).tolist(), strict=True)) for oracle in oracles]
    N, K = problem.unary.shape[1:]
    for path in itertools.product(range(K), repeat=N):
        labels = torch.tensor(path).expand(len(oracles), N).masked_fill(~problem.is_unit(), 99)
        expected = [
            log_probs.get(path[: oracle.length], -math.inf) for log_probs, oracle in zip(known, oracles, strict=True)
        ]
        assert chain.log_prob(labels).tolist() == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("backend", BACKENDS)
@given(problem=chain_problems())
def test_conditionals_of_neighbours_equal_enumeration(backend: str, problem: ChainProblem) -> None:
    chain = LinearChain(*problem.scores, **problem.options, backend=backend)
    labels = chain.mode()
    found = chain.log_conditionals(labels)
    for sentence, oracle in enumerate(problem.enumerated()):
        marginals, pairs = oracle.marginals(), oracle.pairs()
        path = labels[sentence].tolist()
        for index in range(oracle.length - 1):
            expected = pairs[index, path[index], path[index + 1]] / marginals[index, path[index]]
            close(found[sentence, index].exp(), expected)
        assert not found[sentence, oracle.length - 1 :].any()


@pytest.mark.parametrize("backend", BACKENDS)
@given(problem=chain_problems())
def test_gradients_equal_those_of_enumeration(backend: str, problem: ChainProblem) -> None:
    problem.require_grad()
    generator = torch.Generator().manual_seed(1)
    N = problem.unary.shape[1]
    chain = LinearChain(*problem.scores, **problem.options, backend=backend)
    marginals, pairs = chain.marginals(), chain.pair_marginals()
    weights = torch.randn(len(problem.lengths), 2, generator=generator, dtype=torch.float64)
    marginal_weights = torch.randn(marginals.shape, generator=generator, dtype=torch.float64)
    pair_weights = torch.randn(pairs.shape, generator=generator, dtype=torch.float64)
    found = (weights[:, 0] * chain.log_prob(problem.gold) + weights[:, 1] * chain.entropy()).sum()
    found = found + (marginal_weights * marginals).sum() + (pair_weights * pairs).sum()
    found_grads = torch.autograd.grad(found, problem.leaves, allow_unused=True)

    expected = torch.zeros((), dtype=torch.float64)
    for sentence, oracle in enumerate(problem.enumerated()):
        length = oracle.length
        gold = oracle.paths.index(tuple(problem.gold[sentence, :length].tolist()))
        expected = expected + weights[sentence, 0] * torch.log_softmax(oracle.scores, 0)[gold]
        expected = expected + weights[sentence, 1] * oracle.entropy()
        expected = expected + (marginal_weights[sentence, :length] * oracle.marginals()).sum()
        expected = expected + (pair_weights[sentence, : length - 1] * oracle.pairs()).sum()
    expected_grads = torch.autograd.grad(expected, problem.leaves, allow_unused=True)

    close(found.detach(), expected.detach())
    for leaf, found_grad, expected_grad in zip(problem.leaves, found_grads, expected_grads, strict=True):
        nothing = torch.zeros_like(leaf)
        close(nothing if found_grad is None else found_grad, nothing if expected_grad is None else expected_grad, 1e-8)
    assert found_grads[0] is not None
    assert not found_grads[0][~problem.is_unit()].any()
    if problem.transition.dim() == 4 and N > 1:
        assert found_grads[1] is not None
        assert not found_grads[1][~problem.is_unit()[:, 1:]].any()


@pytest.mark.parametrize("result", ["log_prob", "marginals", "log_marginals", "entropy", "pair_marginals"])
@pytest.mark.parametrize("is_local", [False, True])
@pytest.mark.parametrize("backend", BACKENDS)
def test_gradcheck(backend: str, is_local: bool, result: str) -> None:
    problem = make_problem([3, 1, 2], 2, seed=3, is_local=is_local, has_ends=True)
    problem.unary.nan_to_num_(0.0)
    problem.transition.nan_to_num_(0.0)

    def compute(unary: Tensor, transition: Tensor, start: Tensor, end: Tensor) -> Tensor:
        chain = LinearChain(
            unary, transition, problem.lengths, start_scores=start, end_scores=end, backend=backend, check=False
        )
        return chain.log_prob(problem.gold) if result == "log_prob" else getattr(chain, result)()

    problem.require_grad()
    assert torch.autograd.gradcheck(compute, tuple(problem.leaves))


@pytest.mark.parametrize("is_local", [False, True])
def test_entropy_in_pieces_equals_entropy_at_once(is_local: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = make_problem([4, 1, 3, 2, 4], 3, seed=5, is_local=is_local, impossible=0.3).require_grad()
    whole = LinearChain(*problem.scores).entropy()
    whole_grads = torch.autograd.grad(whole.sum(), problem.leaves)
    for limit in (4 * 9 * 2, 1):
        monkeypatch.setattr(linear_chain_module, "MAX_PAIRS_AT_ONCE", limit)
        pieces = LinearChain(*problem.scores).entropy()
        close(pieces, whole)
        for grad, expected in zip(torch.autograd.grad(pieces.sum(), problem.leaves), whole_grads, strict=True):
            close(grad, expected)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("scale", [1e2, 1e4])
def test_extreme_scores_stay_finite(backend: str, scale: float) -> None:
    problem = make_problem([4, 2, 3], 3, seed=11, is_local=True, scale=scale, dtype=torch.float32).require_grad()
    chain = LinearChain(*problem.scores, backend=backend)
    loss = chain.log_prob(problem.gold).sum() + chain.entropy().sum() + chain.log_marginals().sum()
    grads = torch.autograd.grad(loss, problem.leaves)
    assert all(bool(grad.isfinite().all()) for grad in grads)
    for sentence, oracle in enumerate(problem.enumerated()):
        expected = pytest.approx(oracle.log_partition.item(), rel=1e-5)
        assert chain.log_partition()[sentence].item() == expected
        close(chain.marginals()[sentence, : oracle.length].double(), oracle.marginals(), 1e-4)
    assert bool((chain.entropy() >= 0).all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_small_types_are_accumulated_in_float32(dtype: torch.dtype) -> None:
    problem = make_problem([6, 4], 3, seed=2, has_ends=True, dtype=dtype)
    chain = LinearChain(*problem.scores, **problem.options)
    exact = LinearChain(
        problem.unary.double(),
        problem.transition.double(),
        problem.lengths,
        start_scores=problem.start.double() if problem.start is not None else None,
        end_scores=problem.end.double() if problem.end is not None else None,
    )
    for result in ("log_partition", "marginals", "log_marginals", "pair_marginals", "entropy"):
        found = getattr(chain, result)()
        assert found.dtype == torch.float32
        close(found.double(), getattr(exact, result)(), 2e-6)
    assert chain.log_prob(problem.gold).dtype == torch.float32
    close(chain.log_prob(problem.gold).double(), exact.log_prob(problem.gold), 5e-6)
    assert torch.equal(chain.mode(), exact.mode())


def test_marginals_and_log_prob_share_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    original = linear_chain_module.forward_backward
    monkeypatch.setattr(
        linear_chain_module,
        "forward_backward",
        lambda *scores, **options: calls.append(1) or original(*scores, **options),
    )
    monkeypatch.setattr(linear_chain_module, "log_partition", lambda *scores, **options: pytest.fail("a second pass"))
    problem = make_problem([3, 2], 3, seed=1).require_grad()
    chain = LinearChain(*problem.scores)
    (chain.marginals().square().sum() + chain.log_prob(problem.gold).sum() + chain.log_partition().sum()).backward()
    chain.sample(torch.Generator())
    assert calls == [1]


def test_results_made_without_gradients_do_not_stand_in_for_others() -> None:
    problem = make_problem([3, 2], 3, seed=1).require_grad()
    chain = LinearChain(*problem.scores)
    with torch.no_grad():
        assert not chain.marginals().requires_grad
        assert not chain.log_prob(problem.gold).requires_grad
    assert chain.marginals().requires_grad
    assert chain.log_prob(problem.gold).requires_grad
    with torch.no_grad():
        assert not chain.marginals().requires_grad
        assert chain.marginals() is chain.marginals()


def test_log_marginals_are_floored_not_infinite() -> None:
    chain = LinearChain(torch.tensor([[[0.0, -200.0]]]), torch.zeros(2, 2), torch.tensor([1]))
    assert chain.log_marginals()[0, 0].tolist() == pytest.approx([0.0, math.log(1.1754944e-30)])


def test_very_long_sentences() -> None:
    N, K = 4096, 5
    generator = torch.Generator().manual_seed(0)
    unary = torch.randn(2, N, K, generator=generator)
    transition = torch.randn(K, K, generator=generator)
    lengths = torch.tensor([N, N - 7])
    unary.requires_grad_()
    chain = LinearChain(unary, transition, lengths)
    # The textbook recursion in float64.
    with torch.no_grad():
        for sentence, length in enumerate(lengths.tolist()):
            state = unary[sentence, 0].double()
            for position in range(1, length):
                state = torch.logsumexp(state[:, None] + transition.double(), 0) + unary[sentence, position].double()
            assert chain.log_partition()[sentence].item() == pytest.approx(state.logsumexp(0).item(), rel=1e-6)
    is_unit = torch.arange(N) < lengths[:, None]
    torch.testing.assert_close(chain.marginals().sum(-1), is_unit.float(), rtol=1e-5, atol=1e-5)
    expected_score = (chain.marginals() * unary).sum((1, 2)) + (chain.pair_marginals() * transition).sum((1, 2, 3))
    torch.testing.assert_close(chain.entropy(), chain.log_partition() - expected_score, rtol=1e-4, atol=1e-2)
    assert chain.log_prob(chain.mode()).max().item() < 0
    (grad,) = torch.autograd.grad(chain.entropy().sum() + chain.log_partition().sum(), unary)
    assert bool(grad.isfinite().all())
    assert not grad[~is_unit].any()
    assert chain.sample(torch.Generator().manual_seed(0)).shape == (2, N)
