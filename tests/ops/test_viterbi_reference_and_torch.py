"""Viterbi: enumeration → reference → torch path; labels, scores and ties."""

from __future__ import annotations

import hypothesis
import pytest
import torch
from chain_problems import Problem, problems, random_problem
from hypothesis import strategies as st

from diffusion_mf.ops.viterbi import viterbi
from oracles.chain_enumeration import Enumerated, sequence_score

BACKENDS = ("reference", "torch")


def check_labels_and_scores(problem, backend):
    """The very sequence enumeration puts first, ties included: for scores whose sums are exact."""
    found = viterbi(*problem.folded, backend=backend)
    assert found.labels.dtype == torch.int64
    for sentence, arguments in enumerate(problem.sentences()):
        length = arguments[2]
        assert (found.labels[sentence, length:] == 0).all()
        best = Enumerated(*arguments).best()
        if not best:
            assert found.scores[sentence] == -torch.inf
            continue
        labels, score = best[0]
        assert tuple(found.labels[sentence, :length].tolist()) == labels
        assert float(found.scores[sentence]) == score


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@hypothesis.given(problem=problems(whole_numbers=True))
def test_equal_enumeration_and_ties(problem, dtype, backend):
    check_labels_and_scores(problem.to(dtype), backend)


@pytest.mark.parametrize("backend", BACKENDS)
@hypothesis.given(problem=problems())
def test_the_score_is_the_largest_and_that_of_the_labels(problem, backend):
    found = viterbi(*problem.folded, backend=backend)
    zeros = torch.zeros(problem.unary.shape[-1], dtype=torch.float64)
    for sentence, (unary, transition, length, start, end, allowed) in enumerate(problem.sentences()):
        best = Enumerated(unary, transition, length, start, end, allowed).best()
        if not best:
            assert found.scores[sentence] == -torch.inf
            continue
        start, end = (zeros if side is None else side for side in (start, end))
        labels = found.labels[sentence, :length].tolist()
        own = sequence_score(unary, transition, start, end, labels)
        torch.testing.assert_close(found.scores[sentence], own, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(float(own), best[0][1], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("is_local", [False, True])
def test_all_scores_equal(backend, is_local):
    """Of equals the smallest labels, everywhere."""
    transition = torch.zeros(2, 4, 3, 3) if is_local else torch.zeros(3, 3)
    found = viterbi(torch.ones(2, 5, 3), transition, torch.tensor([5, 2]), backend=backend)
    assert (found.labels == 0).all()
    assert found.scores.tolist() == [5, 2]


@pytest.mark.parametrize("backend", BACKENDS)
def test_ties_are_decided_from_the_end(backend):
    """(1, 0) and (0, 1) are equally good: the one whose last label is smaller."""
    transition = torch.tensor([[-1.0, 0.0], [0.0, -1.0]])
    found = viterbi(torch.zeros(1, 2, 2), transition, torch.tensor([2]), backend=backend)
    assert found.labels.tolist() == [[1, 0]]


@hypothesis.given(
    seed=st.integers(0, 10**6),
    size=st.tuples(st.integers(1, 5), st.integers(1, 30), st.integers(1, 40)),
    is_local=st.booleans(),
    dtype=st.sampled_from([torch.float64, torch.float32, torch.bfloat16]),
    has_holes=st.booleans(),
)
def test_cpu_equals_reference(seed, size, is_local, dtype, has_holes):
    """To the bit, beyond the sizes that can be enumerated."""
    problem = random_problem(seed, *size, is_local=is_local, holes=0.2 * has_holes, scale=3).to(dtype)
    found, expected = (viterbi(*problem.folded, backend=backend) for backend in ("torch", "reference"))
    assert torch.equal(found.scores, expected.scores)
    is_legal = expected.scores > -torch.inf
    assert torch.equal(found.labels[is_legal], expected.labels[is_legal])


@pytest.mark.parametrize("is_local", [False, True])
@pytest.mark.parametrize("offset", [0.0, 1e4])
def test_4096_units(is_local, offset):
    """A constant added to all scores changes no label, however large float32 sums of it are."""
    problem = random_problem(6, 2, 4096, 3, is_local=is_local, lengths=[4096, 3000], scale=2).to(torch.float32)
    problem = Problem(problem.unary + offset, problem.transition, problem.lengths)
    found, expected = (viterbi(*problem.folded, backend=backend) for backend in ("torch", "reference"))
    assert torch.equal(found.labels, expected.labels)
    assert torch.equal(found.scores, expected.scores)


@pytest.mark.parametrize("backend", BACKENDS)
def test_4096_units_alternate(backend):
    """The answer is known: staying costs 1e4, changing nothing, and a start score decides how it begins."""
    N = 4096
    unary = torch.zeros(1, N, 2)
    unary[0, 0, 1] = 0.5
    transition = torch.tensor([[-1e4, 0.0], [0.0, -1e4]])
    found = viterbi(unary, transition, torch.tensor([N]), backend=backend)
    assert torch.equal(found.labels[0], (torch.arange(N) + 1) % 2)
    assert float(found.scores) == 0.5


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("is_local", [False, True])
@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 1, 4), (3, 5, 1), (1, 6, 2)])
def test_smallest_sizes(backend, is_local, shape):
    problem = random_problem(1, *shape, is_local=is_local, has_start=True, has_end=True, whole_numbers=True, scale=3)
    check_labels_and_scores(problem, backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_no_gradient_is_recorded(backend):
    unary = torch.zeros(1, 2, 2, requires_grad=True)
    found = viterbi(unary, torch.zeros(2, 2, requires_grad=True), torch.tensor([2]), backend=backend)
    assert not found.scores.requires_grad
