"""Agreement with two public CRF libraries on random problems."""

from __future__ import annotations

import pytest
import torch
import torch_struct
import torchcrf
from random_chains import ChainProblem, make_problem
from torch import Tensor

from diffusion_mf.structures import LinearChain

LENGTHS = [9, 2, 5, 9, 7]


def clean(problem: ChainProblem) -> ChainProblem:
    """The same with zeros past each length: the other libraries read what stands there."""
    is_padding = ~problem.is_unit()
    problem.unary[is_padding] = 0.0
    problem.gold[is_padding] = 0
    if problem.transition.dim() == 4:
        problem.transition[is_padding[:, 1:]] = 0.0
    return problem


@pytest.mark.parametrize("seed", range(3))
def test_pytorch_crf(seed: int) -> None:
    problem = clean(make_problem(LENGTHS, 6, seed=seed, has_ends=True, dtype=torch.float32))
    mask = problem.is_unit()
    other = torchcrf.CRF(6, batch_first=True)
    assert problem.start is not None
    assert problem.end is not None
    with torch.no_grad():
        other.transitions.copy_(problem.transition)
        other.start_transitions.copy_(problem.start)
        other.end_transitions.copy_(problem.end)
    unary = problem.unary.clone().requires_grad_()
    expected = other(unary, problem.gold, mask=mask, reduction="none")
    parameters = [unary, other.transitions, other.start_transitions, other.end_transitions]
    expected_grads = torch.autograd.grad(expected.sum(), parameters)

    problem.require_grad()
    chain = LinearChain(*problem.scores, **problem.options)
    found = chain.log_prob(problem.gold)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-4)
    found_grads = torch.autograd.grad(found.sum(), problem.leaves)
    for grad, expected_grad in zip(found_grads, expected_grads, strict=True):
        torch.testing.assert_close(grad, expected_grad, rtol=1e-4, atol=1e-5)

    for sentence, labels in enumerate(other.decode(problem.unary.detach(), mask=mask)):
        assert chain.mode()[sentence, : LENGTHS[sentence]].tolist() == labels


def torch_struct_potentials(problem: ChainProblem) -> Tensor:
    """edges[b, i, next, previous] holds a transition, the unary scores it leads to and, at first, those it comes from."""
    steps = problem.transition if problem.transition.dim() == 4 else problem.transition.expand(len(LENGTHS), 8, -1, -1)
    edges = steps.transpose(-1, -2) + problem.unary[:, 1:, :, None]
    first = edges[:, :1] + problem.unary[:, :1, None, :]
    return torch.cat([first, edges[:, 1:]], 1)


@pytest.mark.parametrize("is_local", [False, True])
@pytest.mark.parametrize("seed", range(2))
def test_torch_struct(seed: int, is_local: bool) -> None:
    problem = clean(make_problem(LENGTHS, 4, seed=seed, is_local=is_local))
    other = torch_struct.LinearChainCRF(torch_struct_potentials(problem), lengths=problem.lengths)
    chain = LinearChain(*problem.scores)
    torch.testing.assert_close(chain.log_partition(), other.partition)
    pairs = other.marginals.transpose(-1, -2)
    torch.testing.assert_close(chain.pair_marginals(), pairs)
    torch.testing.assert_close(chain.marginals()[:, :-1], torch.cat([pairs.sum(-1)[:, :1], pairs.sum(-2)[:, :-1]], 1))
    torch.testing.assert_close(chain.entropy(), other.entropy)
    best = other.argmax.transpose(-1, -2)
    is_pair = problem.is_unit()[:, 1:]
    after = best.sum(-2).argmax(-1)
    assert torch.equal(chain.mode()[:, 1:][is_pair], after[is_pair])
    assert torch.equal(chain.mode()[:, 0], best[:, 0].sum(-1).argmax(-1))
    torch.testing.assert_close(chain.best_sequence().scores, other.max)
