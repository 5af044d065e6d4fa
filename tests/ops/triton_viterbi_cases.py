"""Cases for Viterbi's Triton kernel; run in Triton's interpreter and on a GPU by the test modules beside this file."""

from __future__ import annotations

import chain_problems
import invariances
import pytest
import torch
from chain_problems import random_problem
from triton_checks import check_viterbi, extreme_problem

from diffusion_mf.ops.viterbi import viterbi

RAGGED = [5, 1, 3]


@pytest.mark.parametrize("is_local", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("num_labels", [1, 2, 3, 5, 17, 33])
def test_viterbi_equals_reference(device, num_labels, dtype, is_local):
    """Whole numbers: with many ties, and sums that are exact."""
    problem = random_problem(
        num_labels, 3, 5, num_labels, is_local=is_local, lengths=RAGGED, scale=2, whole_numbers=True
    )
    check_viterbi(problem, device, dtype)


@pytest.mark.parametrize("is_local", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_viterbi_with_folded_scores(device, is_local, seed):
    problem = random_problem(
        seed, 3, 5, 4, is_local=is_local, whole_numbers=True, holes=0.2, has_start=True, has_end=True, clamps=0.4
    )
    check_viterbi(problem, device, torch.float32)


@pytest.mark.parametrize("is_local", [False, True])
def test_viterbi_with_rows_and_columns_of_minus_infinity(device, is_local):
    problem = random_problem(1, 3, 5, 4, is_local=is_local, whole_numbers=True, lines=True)
    check_viterbi(problem, device, torch.float32)


@pytest.mark.parametrize("is_local", [False, True])
def test_viterbi_with_extreme_scores(device, is_local):
    check_viterbi(extreme_problem(3, 5, is_local=is_local), device, torch.float32)


@pytest.mark.parametrize("is_local", [False, True])
def test_viterbi_of_one_unit(device, is_local):
    problem = random_problem(2, 2, 1, 5, is_local=is_local, whole_numbers=True)
    check_viterbi(problem, device, torch.float32)


@pytest.mark.parametrize("is_local", [False, True])
def test_viterbi_does_not_tire(device, is_local):
    """A constant on every score changes no label: 300 units of 1e4 leave float32 sums no fractions."""
    problem = random_problem(6, 1, 300, 3, is_local=is_local, lengths=[300])
    problem = problem.map(lambda scores: (scores * 256).round() / 256).to(torch.float32)
    shifted = chain_problems.Problem(problem.unary + 1e4, problem.transition, problem.lengths).to(device)
    found = viterbi(*shifted.folded, backend="triton").labels
    assert torch.equal(found.cpu(), viterbi(*problem.folded, backend="reference").labels)


def test_viterbi_without_a_legal_sequence(device):
    problem = random_problem(5, 3, 4, 3, lengths=[4, 3, 4], whole_numbers=True)
    problem.unary[1, 2] = -torch.inf
    check_viterbi(problem, device, torch.float32)


@pytest.mark.parametrize("is_local", [False, True])
def test_viterbi_ignores_padding(device, is_local):
    problem = random_problem(7, 3, 5, 3, is_local=is_local, lengths=RAGGED).to(torch.float32).to(device)
    invariances.check_garbage(invariances.viterbi_results, problem, "triton")


@pytest.mark.parametrize("is_local", [False, True])
def test_viterbi_in_other_company(device, is_local):
    problem = random_problem(7, 3, 5, 3, is_local=is_local, lengths=RAGGED, holes=0.1).to(torch.float32).to(device)
    invariances.check_batching(invariances.viterbi_results, problem, "triton", tolerance=1e-5)


@pytest.mark.parametrize("is_local", [False, True])
def test_viterbi_takes_any_layout(device, is_local):
    problem = random_problem(13, 3, 4, 3, is_local=is_local, lengths=[4, 2, 3], whole_numbers=True)
    moved = chain_problems.Problem(
        problem.unary.transpose(1, 2).contiguous().transpose(1, 2),
        problem.transition.mT.contiguous().mT,
        torch.stack([problem.lengths, problem.lengths * 0], 1).int()[:, 0],
    )
    check_viterbi(moved, device, torch.float32)
