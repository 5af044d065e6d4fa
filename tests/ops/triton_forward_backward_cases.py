"""Cases for the chain's Triton kernels; run in Triton's interpreter and on a GPU by the test modules beside this file."""

from __future__ import annotations

import chain_problems
import invariances
import pytest
import second_order
import torch
from chain_problems import gradients, random_problem, random_weights
from triton_checks import check_chain, extreme_problem, opposed_ends

from diffusion_mf.ops.device_limits import Card
from diffusion_mf.ops.forward_backward import forward_backward, log_partition
from diffusion_mf.ops.forward_backward import triton as chain_kernels

RAGGED = [4, 1, 3]
EVERYTHING = {"holes": 0.1, "has_start": True, "has_end": True, "clamps": 0.3}


@pytest.mark.parametrize("is_local", [False, True])
@pytest.mark.parametrize(
    ("num_labels", "dtype"),
    [(1, torch.float32), (2, torch.float32), (3, torch.float64), (5, torch.float32), (17, torch.float32)],
)
def test_chain_equals_reference(device, num_labels, dtype, is_local):
    check_chain(random_problem(num_labels, 3, 4, num_labels, is_local=is_local, lengths=RAGGED, scale=2), device, dtype)


@pytest.mark.parametrize("is_local", [False, True])
@pytest.mark.parametrize("num_labels", [33, 70])
def test_chain_with_many_labels(device, num_labels, is_local):
    check_chain(random_problem(1, 2, 3, num_labels, is_local=is_local, lengths=[3, 2]), device, torch.float32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_chain_with_many_labels_without_products(device, monkeypatch, dtype):
    """As on a card for which Triton compiles none, and in float64 on any."""
    monkeypatch.setattr(chain_kernels, "card_of", lambda device: Card(8, 163 * 1024))
    problem = random_problem(1, 2, 18, 66, lengths=[18, 5])
    check_chain(problem, device, dtype, combinations=[("log_partition",), ("log_partition", "marginals")])


@pytest.mark.parametrize("is_local", [False, True])
@pytest.mark.parametrize("seed", [0, 1])
def test_chain_with_folded_scores(device, is_local, seed):
    problem = random_problem(seed, 3, 4, 5, is_local=is_local, lengths=RAGGED, **EVERYTHING)
    check_chain(problem, device, torch.float64 if seed else torch.float32)


@pytest.mark.parametrize("is_local", [False, True])
def test_chain_with_rows_and_columns_of_minus_infinity(device, is_local):
    problem = random_problem(4, 3, 4, 3, is_local=is_local, lengths=RAGGED, lines=True, holes=0.1)
    check_chain(problem, device, torch.float32)


@pytest.mark.parametrize("is_local", [False, True])
def test_chain_differentiated_by_each_result_alone(device, is_local):
    """Other kernels are compiled for each."""
    problem = random_problem(6, 2, 4, 3, is_local=is_local, lengths=[4, 3])
    alone = [("log_partition",), ("marginals",), ("pairs",)]
    check_chain(problem, device, torch.float64, combinations=alone)


@pytest.mark.parametrize("is_local", [False, True])
def test_chain_log_partition_alone(device, is_local):
    problem = random_problem(8, 3, 4, 3, is_local=is_local, lengths=RAGGED).to(device).with_gradients()
    found, expected = (
        {"log_partition": log_partition(*problem.folded, backend=backend)} for backend in ("triton", "reference")
    )
    chain_problems.assert_close(found, expected, tolerance=1e-9)
    weights = random_weights(expected)
    chain_problems.assert_close(
        *(gradients(results, results, problem, weights) for results in (found, expected)), tolerance=1e-9
    )


@pytest.mark.parametrize("is_local", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_chain_with_extreme_scores(device, dtype, is_local):
    # At 1e4, float32 resolves a thousandth; a wrong path would be wrong by a whole number.
    loose = {} if dtype == torch.float64 else {"tolerance": 5e-3, "gradient_tolerance": 1e-2}
    check_chain(extreme_problem(2, 3, is_local=is_local), device, dtype, **loose)


@pytest.mark.parametrize("is_local", [False, True])
@pytest.mark.parametrize("gap", [55.0, 80.0, 5000.0])
def test_chain_with_opposed_ends(device, gap, is_local):
    # Float32 resolves 2⁻¹¹ at 5000.
    tolerance = max(1e-5, gap * 2**-22)
    problem = opposed_ends(gap, is_local=is_local)
    check_chain(problem, device, torch.float32, tolerance=tolerance, gradient_tolerance=10 * tolerance)


@pytest.mark.parametrize("is_local", [False, True])
def test_chain_with_large_gradients_at_a_far_place(device, is_local):
    """Weights beside places that are almost as far as products allow: nothing may overflow next to a score of −∞."""
    problem = opposed_ends(59.0, is_local=is_local).to(torch.float32).to(device).with_gradients()
    value = log_partition(*problem.folded, backend="triton")
    (gradient,) = torch.autograd.grad(value, problem.transition, torch.full_like(value, 1e14))
    reference = log_partition(*problem.folded, backend="reference")
    (expected,) = torch.autograd.grad(reference, problem.transition, torch.full_like(reference, 1e14))
    torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=1e9)


@pytest.mark.parametrize(("num_units", "num_labels", "is_local"), [(10, 2, True), (18, 144, False)])
def test_chain_with_more_than_a_program_takes(device, num_units, num_labels, is_local):
    """A second, unfinished group of positions, and for many labels a second and third group of labels."""
    lengths = [num_units, 8] if is_local else [num_units]
    problem = random_problem(3, len(lengths), num_units, num_labels, is_local=is_local, lengths=lengths)
    check_chain(problem, device, torch.float32)


@pytest.mark.parametrize("is_local", [False, True])
def test_chain_with_bfloat16_scores(device, is_local):
    problem = random_problem(5, 2, 4, 3, is_local=is_local, lengths=[4, 2], holes=0.1)
    check_chain(problem, device, torch.bfloat16)


@pytest.mark.parametrize("is_local", [False, True])
def test_chain_of_one_unit(device, is_local):
    problem = random_problem(5, 2, 1, 3, is_local=is_local, has_start=True, has_end=True)
    check_chain(problem, device, torch.float32)


@pytest.mark.parametrize("is_local", [False, True])
def test_chain_without_a_legal_sequence(device, is_local):
    problem = random_problem(5, 3, 4, 3, is_local=is_local, lengths=[4, 3, 4])
    problem.unary[1, 2] = -torch.inf
    problem.unary[2, 0] = -torch.inf
    check_chain(problem, device, torch.float32)
    found = forward_backward(*problem.to(device).folded, backend="triton")
    assert (found.log_partition[1:] == -torch.inf).all()
    assert (found.marginals[1:] == 0).all()


def test_chain_of_minus_infinity_only(device):
    problem = chain_problems.Problem(
        torch.full((2, 3, 2), -torch.inf), torch.full((2, 2), -torch.inf), torch.tensor([3, 1])
    )
    check_chain(problem, device, torch.float32)


@pytest.mark.parametrize("is_local", [False, True])
def test_chain_numerical_derivatives_first_and_second(device, is_local):
    options = {"is_local": is_local, "holes": 0.2, "num_units": 3, "fast_mode": True}
    second_order.check_numerically("both", "triton", device, **options)


@pytest.mark.parametrize("is_local", [False, True])
@pytest.mark.parametrize("result", second_order.CHAIN)
def test_a_penalty_on_gradients_of_the_chain(device, result, is_local):
    problem = random_problem(3, 3, 4, 3, is_local=is_local, lengths=RAGGED, **EVERYTHING).to(device)
    second_order.check_penalty(result, problem, "triton", tolerance=1e-8)
    second_order.check_penalty(result, problem.to(torch.float32), "triton", tolerance=1e-4)
    second_order.check_penalty(
        result, second_order.clamped_problem(is_local=is_local).to(device), "triton", tolerance=1e-8
    )


@pytest.mark.parametrize("is_local", [False, True])
def test_a_penalty_on_gradients_of_one_unit(device, is_local):
    problem = random_problem(5, 2, 1, 3, is_local=is_local, has_start=True, has_end=True).to(device)
    second_order.check_penalty("both", problem, "triton", tolerance=1e-8)


@pytest.mark.parametrize("is_local", [False, True])
def test_chain_ignores_padding(device, is_local):
    problem = random_problem(7, 2, 4, 3, is_local=is_local, lengths=[4, 2]).to(torch.float32).to(device)
    invariances.check_garbage(invariances.chain_results, problem, "triton", garbage=(torch.nan, torch.inf))


@pytest.mark.parametrize("is_local", [False, True])
def test_chain_ignores_gradients_of_padding(device, is_local):
    problem = random_problem(9, 3, 4, 3, is_local=is_local, lengths=[4, 1, 3]).to(device).with_gradients()
    found = chain_problems.computed(problem, "triton")
    weights = random_weights(found)
    clean = gradients(found, found, problem, weights)
    is_padding = ~problem.is_unit
    weights["marginals"] = weights["marginals"].masked_fill(is_padding[..., None], torch.nan)
    weights["pairs"] = weights["pairs"].masked_fill(is_padding[:, 1:, None, None], torch.nan)
    dirty = gradients(found, found, problem, weights)
    assert all(torch.equal(dirty[name], clean[name]) for name in clean)


@pytest.mark.parametrize("is_local", [False, True])
def test_chain_in_other_company(device, is_local):
    problem = random_problem(7, 2, 4, 3, is_local=is_local, lengths=[4, 3], holes=0.1).to(torch.float32).to(device)
    invariances.check_batching(invariances.chain_results, problem, "triton", tolerance=1e-5)


@pytest.mark.parametrize("is_local", [False, True])
def test_chain_takes_any_layout(device, is_local):
    """Transposed scores, and strided lengths of a smaller integer type."""
    problem = random_problem(13, 3, 4, 3, is_local=is_local, lengths=[4, 2, 3]).to(device)
    moved = chain_problems.Problem(
        problem.unary.transpose(1, 2).contiguous().transpose(1, 2),
        problem.transition.mT.contiguous().mT,
        torch.stack([problem.lengths, problem.lengths * 0], 1).int()[:, 0],
    )
    assert not moved.lengths.is_contiguous()
    chain_problems.assert_close(
        chain_problems.computed(moved, "triton"), chain_problems.computed(problem, "triton"), tolerance=1e-12
    )
