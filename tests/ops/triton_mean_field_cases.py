"""Cases for Mean-Field's Triton kernels; run in Triton's interpreter and on a GPU by the test modules beside this file."""

from __future__ import annotations

import chain_problems
import invariances
import pytest
import second_order
import torch
from chain_problems import gradients, random_problem, random_weights
from triton_checks import check_mean_field, extreme_problem

from diffusion_mf.ops.mean_field import ILLEGAL_TRANSITION, mean_field
from diffusion_mf.ops.mean_field import triton as mean_field_kernels

RAGGED = [4, 1, 3]


@pytest.mark.parametrize("is_local", [False, True])
@pytest.mark.parametrize(
    ("num_labels", "dtype"),
    [(1, torch.float32), (2, torch.float32), (3, torch.float64), (5, torch.float32), (17, torch.float32)],
)
def test_mean_field_equals_reference(device, num_labels, dtype, is_local):
    problem = random_problem(num_labels, 3, 4, num_labels, is_local=is_local, lengths=RAGGED)
    check_mean_field(problem, device, dtype)


@pytest.mark.parametrize(("num_labels", "is_local"), [(33, False), (70, False), (128, False), (33, True)])
def test_mean_field_with_many_labels(device, num_labels, is_local):
    problem = random_problem(1, 2, 3, num_labels, is_local=is_local, lengths=[3, 2])
    check_mean_field(problem, device, torch.float32, num_iterations=2)


@pytest.mark.parametrize("is_local", [False, True])
@pytest.mark.parametrize("num_iterations", [0, 1, 2, 6])
def test_mean_field_iterations(device, is_local, num_iterations):
    """An even and an odd number of updates, and none: they pass through two buffers."""
    problem = random_problem(2, 2, 4, 3, is_local=is_local, lengths=[4, 3])
    check_mean_field(problem, device, torch.float64, num_iterations=num_iterations)


@pytest.mark.parametrize("is_local", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_mean_field_with_folded_scores(device, is_local, dtype):
    problem = random_problem(
        3, 3, 4, 5, is_local=is_local, lengths=RAGGED, holes=0.1, has_start=True, has_end=True, clamps=0.3
    )
    # A penalty of 1e4 on float32 scores leaves them a thousandth.
    loose = {} if dtype == torch.float64 else {"tolerance": 5e-3, "gradient_tolerance": 5e-3}
    check_mean_field(problem, device, dtype, **loose)


@pytest.mark.parametrize("is_local", [False, True])
def test_mean_field_with_rows_and_columns_of_minus_infinity(device, is_local):
    problem = random_problem(4, 3, 4, 3, is_local=is_local, lengths=RAGGED, lines=True)
    check_mean_field(problem, device, torch.float64)


@pytest.mark.parametrize("is_local", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_mean_field_with_extreme_scores(device, dtype, is_local):
    loose = {} if dtype == torch.float64 else {"tolerance": 1e-2, "gradient_tolerance": 2e-2}
    check_mean_field(extreme_problem(2, 3, is_local=is_local), device, dtype, num_iterations=2, **loose)


@pytest.mark.parametrize("is_local", [False, True])
@pytest.mark.parametrize("lengths", [[66, 64], [130, 65]])
def test_mean_field_with_more_positions_than_a_tile(device, is_local, lengths):
    """Neighbours stand in another tile; sentences end at its border and just past it."""
    problem = random_problem(3, 2, lengths[0], 2, is_local=is_local, lengths=lengths)
    check_mean_field(problem, device, torch.float32)


@pytest.mark.parametrize("lengths", [[20, 1, 7, 20, 3], [16, 2]], ids=str)
def test_mean_field_of_many_labels_with_ragged_lengths(device, lengths):
    """More labels than a program sums transitions for: rows of zeros keep sentences apart in one long product."""
    problem = random_problem(23, len(lengths), lengths[0], 66, lengths=lengths, scale=0.5)
    torch.use_deterministic_algorithms(True, warn_only=True)  # fills new tensors with NaN
    try:
        check_mean_field(problem, device, torch.float32)
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("lengths", [[32, 31, 1], [33, 32, 17, 16], [70, 64, 65, 3]], ids=str)
@pytest.mark.parametrize("holes", [0.0, 0.1])
def test_mean_field_with_short_and_long_sentences(device, dtype, lengths, holes):
    """Some fill the rows of a tile, some a part of them, and some need two, in the same batch."""
    problem = random_problem(21, len(lengths), lengths[0], 3, is_local=True, lengths=lengths, holes=holes)
    # Penalties of 10⁴ leave three digits after the point.
    loose = {"tolerance": 1e-2, "gradient_tolerance": 2e-2} if holes else {}
    check_mean_field(problem, device, dtype, **loose)


@pytest.mark.parametrize("is_local", [False, True])
def test_mean_field_of_more_iterations_than_units(device, is_local):
    lengths = [20, 12, 13, 1]
    problem = random_problem(24, len(lengths), 20, 3, is_local=is_local, lengths=lengths, scale=0.5)
    check_mean_field(problem, device, torch.float32, num_iterations=13)


@pytest.mark.parametrize(
    ("num_units", "num_labels", "is_local"), [(40, 3, True), (40, 3, False), (5, 70, False), (70, 70, False)]
)
def test_mean_field_with_coarse_transitions(device, num_units, num_labels, is_local):
    """Scores of two types: what a network in bfloat16 gives that keeps its unary scores in float32."""
    lengths = [num_units, 2, num_units - 1]
    problem = random_problem(22, 3, num_units, num_labels, is_local=is_local, lengths=lengths, scale=0.5)
    problem = problem.to(torch.float32).to(device)
    coarse = problem.transition.bfloat16()
    found, expected = [], []
    for backend, transition, results in (("triton", coarse, found), ("reference", coarse.float(), expected)):
        unary, transition = problem.unary.clone().requires_grad_(), transition.clone().requires_grad_()
        beliefs = mean_field(unary, transition, problem.lengths, 3, backend=backend)
        results += [beliefs, *torch.autograd.grad((beliefs * problem.unary).sum(), [unary, transition])]
    assert found[2].dtype == torch.bfloat16
    for one, other, tolerance in zip(found, expected, (1e-5, 1e-5, 1e-2), strict=True):
        torch.testing.assert_close(one.float(), other.float(), atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("is_local", [False, True])
def test_mean_field_with_bfloat16_scores(device, is_local):
    check_mean_field(random_problem(5, 2, 4, 3, is_local=is_local, lengths=[4, 2]), device, torch.bfloat16)


@pytest.mark.parametrize("is_local", [False, True])
def test_mean_field_of_one_unit(device, is_local):
    check_mean_field(random_problem(5, 2, 1, 3, is_local=is_local), device, torch.float32)


@pytest.mark.parametrize("is_local", [False, True])
def test_mean_field_with_a_position_without_labels(device, is_local):
    problem = random_problem(2, 2, 3, 3, is_local=is_local, lengths=[3, 2])
    problem.unary[0, 1] = -torch.inf
    check_mean_field(problem, device, torch.float64)


@pytest.mark.parametrize("scale", [1e-6, 1e6])
@pytest.mark.parametrize("is_local", [False, True])
def test_mean_field_gradients_of_any_size(device, is_local, scale):
    """Gradients far outside half precision's range keep their digits."""
    problem = random_problem(2, 2, 4, 5, is_local=is_local, lengths=[4, 3]).to(torch.float32).to(device)
    problem = problem.with_gradients()
    found, expected = ({"beliefs": mean_field(*problem.folded, 3, backend=b)} for b in ("triton", "reference"))
    weights = {name: scale * tensor for name, tensor in random_weights(expected).items()}
    own, other = (gradients(results, results, problem, weights) for results in (found, expected))
    own, other = ({name: tensor / scale for name, tensor in part.items()} for part in (own, other))
    chain_problems.assert_close(own, other, tolerance=5e-5)


@pytest.mark.parametrize("is_everywhere", [True, False])
@pytest.mark.parametrize("is_local", [False, True])
def test_mean_field_gradients_that_are_hardly_numbers(device, is_local, is_everywhere):
    """A sure network sends gradients back whose reciprocals overflow: they count as zero, and nothing becomes NaN."""
    problem = random_problem(2, 2, 6, 5, is_local=is_local, lengths=[6, 4]).to(torch.float32).to(device)
    problem = problem.with_gradients()
    found, expected = ({"beliefs": mean_field(*problem.folded, 3, backend=b)} for b in ("triton", "reference"))
    weights = random_weights(expected)
    weights["beliefs"][:, slice(None) if is_everywhere else slice(2, None)] *= 1e-40
    own, other = (gradients(results, results, problem, weights) for results in (found, expected))
    chain_problems.assert_close(own, other, tolerance=5e-5)


@pytest.mark.parametrize("is_local", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_mean_field_penalty_of_an_illegal_transition(device, is_local, dtype):
    """The penalty is not rounded with the scores, and has no gradient."""
    unary = torch.tensor([[[0.0, -7.0], [0.0, 0.0]]], device=device, dtype=dtype)
    transition = torch.tensor([[0.0, 0.0], [-torch.inf, 0.0]], device=device, dtype=dtype)
    transition = (transition[None, None] if is_local else transition).clone().requires_grad_()
    beliefs = mean_field(unary, transition, torch.tensor([2], device=device), 1, backend="triton")
    expected = torch.sigmoid(ILLEGAL_TRANSITION * torch.softmax(unary[0, 0].float(), -1)[1])
    torch.testing.assert_close(beliefs[0, 1, 0], expected, rtol=2e-3, atol=0)
    (gradient,) = torch.autograd.grad(beliefs[0, 1, 0], transition)
    assert (gradient[..., 1, 0] == 0).all()
    assert (gradient[..., 0, 0] != 0).all()


@pytest.mark.parametrize("is_local", [False, True])
def test_mean_field_numerical_derivatives_first_and_second(device, is_local):
    options = {"is_local": is_local, "holes": 0.2, "num_units": 3, "fast_mode": True}
    second_order.check_numerically("beliefs", "triton", device, **options)


@pytest.mark.parametrize("is_local", [False, True])
@pytest.mark.parametrize("result", second_order.MEAN_FIELD)
def test_a_penalty_on_gradients_of_mean_field(device, result, is_local):
    problem = random_problem(3, 3, 4, 3, is_local=is_local, lengths=RAGGED, holes=0.2, has_start=True).to(device)
    assert (problem.transition == -torch.inf).any()
    second_order.check_penalty(result, problem, "triton", tolerance=1e-8)
    second_order.check_penalty(
        result, second_order.clamped_problem(is_local=is_local).to(device), "triton", tolerance=1e-8
    )
    # Without the penalty of an illegal transition, whose square is more than float32 can cancel.
    finite = random_problem(3, 3, 4, 3, is_local=is_local, lengths=RAGGED).to(torch.float32).to(device)
    second_order.check_penalty(result, finite, "triton", tolerance=1e-4)


@pytest.mark.parametrize("is_local", [False, True])
def test_mean_field_ignores_padding(device, is_local):
    problem = random_problem(7, 2, 4, 3, is_local=is_local, lengths=[4, 2]).to(torch.float32).to(device)
    invariances.check_garbage(invariances.mean_field_results, problem, "triton", garbage=(torch.nan, torch.inf))


@pytest.mark.parametrize("is_local", [False, True])
def test_mean_field_ignores_gradients_of_padding(device, is_local):
    problem = random_problem(9, 2, 4, 3, is_local=is_local, lengths=[4, 2]).to(device).with_gradients()
    found = invariances.mean_field_results(problem, "triton")
    weights = random_weights(found)
    clean = gradients(found, found, problem, weights)
    weights["beliefs"] = weights["beliefs"].masked_fill(~problem.is_unit[..., None], torch.nan)
    dirty = gradients(found, found, problem, weights)
    assert all(torch.equal(dirty[name], clean[name]) for name in clean)


@pytest.mark.parametrize("is_local", [False, True])
def test_mean_field_in_other_company(device, is_local):
    problem = random_problem(7, 3, 4, 3, is_local=is_local, lengths=RAGGED).to(torch.float32).to(device)
    invariances.check_batching(invariances.mean_field_results, problem, "triton", tolerance=1e-5)


@pytest.mark.parametrize("is_local", [False, True])
def test_mean_field_takes_any_layout(device, is_local):
    problem = random_problem(13, 3, 4, 3, is_local=is_local, lengths=[4, 2, 3])
    moved = chain_problems.Problem(
        problem.unary.transpose(1, 2).contiguous().transpose(1, 2),
        problem.transition.mT.contiguous().mT,
        torch.stack([problem.lengths, problem.lengths * 0], 1).int()[:, 0],
    )
    check_mean_field(moved, device, torch.float64)


@pytest.mark.parametrize(
    ("num_labels", "is_local"), [(3, False), (70, False), (3, True)], ids=["global-3", "global-70", "local-3"]
)
def test_mean_field_without_a_family(device, monkeypatch, num_labels, is_local):
    """Plain PyTorch does the work of a family that is missing, with the same results."""
    problem = random_problem(25, 2, 5, num_labels, is_local=is_local, holes=0.1, lengths=[5, 2])
    family = "local" if is_local else "global"
    assert mean_field_kernels.family_of(problem.transition) == family
    monkeypatch.setattr(mean_field_kernels, "FAMILIES", mean_field_kernels.FAMILIES - {family})
    assert mean_field_kernels.family_of(problem.transition) is None
    loose = {"tolerance": 1e-2, "gradient_tolerance": 2e-2}
    check_mean_field(problem, device, torch.float32, num_iterations=2, **loose)
