"""Mean-Field: scalar loops → reference → torch path, values and gradients."""

from __future__ import annotations

import math

import hypothesis
import pytest
import torch
from chain_problems import (
    assert_close,
    assert_padding_is_zero,
    gradients,
    poisoned,
    problems,
    random_problem,
    random_weights,
)
from hypothesis import strategies as st

from diffusion_mf.ops.mean_field import ILLEGAL_TRANSITION, mean_field
from oracles import mean_field_updates

BACKENDS = ("reference", "torch")
EXACT = 1e-9


def beliefs_of(problem, num_iterations, backend):
    log_beliefs = mean_field(*problem.folded, num_iterations, backend=backend, is_log=True)
    return {
        "beliefs": mean_field(*problem.folded, num_iterations, backend=backend),
        "log_beliefs": log_beliefs.clamp(min=-100.0),
    }


def looped(problem, num_iterations):
    unary, transition, lengths = problem.folded
    N, K = unary.shape[1:]
    rows = []
    for sentence, length in enumerate(lengths.tolist()):
        own = transition if transition.dim() == 2 else transition[sentence]
        beliefs = mean_field_updates.mean_field(
            unary[sentence], own, length, num_iterations, illegal_transition=ILLEGAL_TRANSITION
        )
        rows.append(torch.cat([beliefs, torch.zeros(N - length, K, dtype=torch.float64)]))
    beliefs = torch.stack(rows)
    is_unit = problem.is_unit[..., None]
    # exp(−100) is far above what float64 loses, and far below what counts.
    return {"beliefs": beliefs, "log_beliefs": torch.where(is_unit, beliefs.clamp(min=math.exp(-100)).log(), 0)}


def check_against_loops(problem, num_iterations, backend):
    problem = problem.with_gradients()
    found, expected = beliefs_of(problem, num_iterations, backend), looped(problem, num_iterations)
    assert_close(found, expected, tolerance=EXACT)
    weights = random_weights(expected)
    found_gradients = gradients(found, found, problem, weights)
    assert_padding_is_zero(problem, found_gradients)
    expected_gradients = gradients(expected, expected, problem, weights)
    # Steps multiply gradients by the transitions: rounding is relative to the largest.
    scale = max(1.0, *(float(tensor.abs().max()) for tensor in expected_gradients.values() if tensor.numel()))
    assert_close(found_gradients, expected_gradients, tolerance=EXACT, scale=scale)


@pytest.mark.parametrize("backend", BACKENDS)
@hypothesis.given(problem=problems(), num_iterations=st.integers(0, 3))
def test_equal_loops(problem, num_iterations, backend):
    check_against_loops(problem, num_iterations, backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("is_local", [False, True])
@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 1, 4), (3, 5, 1), (1, 6, 2)])
def test_smallest_sizes(backend, is_local, shape):
    check_against_loops(random_problem(3, *shape, is_local=is_local), 2, backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("is_local", [False, True])
def test_beliefs_sum_to_one(backend, is_local):
    problem = random_problem(5, 4, 9, 6, is_local=is_local, scale=3, holes=0.1)
    beliefs = mean_field(*problem.folded, 15, backend=backend)
    torch.testing.assert_close(beliefs.sum(-1), problem.is_unit.double(), rtol=1e-12, atol=0)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("is_local", [False, True])
@pytest.mark.parametrize("num_iterations", [0, 1, 3])
def test_gradcheck(backend, is_local, num_iterations):
    problem = random_problem(8, 2, 4, 3, is_local=is_local, lengths=[4, 2])
    problem = poisoned(problem, 0.0).with_gradients()

    def run(unary, transition):
        return mean_field(unary, transition, problem.lengths, num_iterations, backend=backend)

    assert torch.autograd.gradcheck(run, (problem.unary, problem.transition))


@hypothesis.given(
    seed=st.integers(0, 10**6),
    size=st.tuples(st.integers(1, 5), st.integers(1, 30), st.integers(1, 40)),
    is_local=st.booleans(),
    holes=st.sampled_from([0.0, 0.1]),
    num_iterations=st.integers(0, 15),
)
def test_cpu_equals_reference(seed, size, is_local, holes, num_iterations):
    problem = random_problem(seed, *size, is_local=is_local, holes=holes).with_gradients()
    found, expected = (beliefs_of(problem, num_iterations, backend) for backend in ("torch", "reference"))
    assert_close(found, expected, tolerance=1e-7)
    weights = random_weights(found)
    expected_gradients = gradients(expected, expected, problem, weights)
    scale = max(1.0, *(float(tensor.abs().max()) for tensor in expected_gradients.values() if tensor.numel()))
    assert_close(gradients(found, found, problem, weights), expected_gradients, tolerance=1e-7, scale=scale)


@pytest.mark.parametrize("is_local", [False, True])
def test_float32_of_the_cpu_path(is_local):
    problem = random_problem(4, 4, 12, 17, is_local=is_local).to(torch.float32).with_gradients()
    wide = problem.map(lambda tensor: tensor.detach().double().requires_grad_())
    found, expected = beliefs_of(problem, 5, "torch"), beliefs_of(wide, 5, "reference")
    assert found["beliefs"].dtype == torch.float32
    assert_close(found, expected, tolerance=1e-5)
    weights = random_weights(expected)
    assert_close(
        gradients(found, found, problem, weights), gradients(expected, expected, wide, weights), tolerance=1e-4
    )


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("is_local", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_inputs_give_float32_results_of_the_rounded_scores(backend, is_local, dtype):
    problem = random_problem(1, 3, 6, 5, is_local=is_local, holes=0.2).to(dtype).with_gradients()
    single = problem.map(lambda tensor: tensor.detach().float().requires_grad_())
    found, expected = beliefs_of(problem, 5, backend), beliefs_of(single, 5, backend)
    assert found["beliefs"].dtype == torch.float32
    assert_close(found, expected, tolerance=1e-5)
    weights = random_weights(expected)
    found_gradients = gradients(found, found, problem, weights)
    assert all(tensor.dtype == dtype for tensor in found_gradients.values())
    expected_gradients = gradients(expected, expected, single, weights)
    scale = max(float(tensor.abs().max()) for tensor in expected_gradients.values())
    assert_close(found_gradients, expected_gradients, tolerance=torch.finfo(dtype).eps, scale=0.1 * scale)


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_penalty_is_not_rounded_with_the_scores(backend):
    """bfloat16 has no 10,000, only 9,984; a belief of e⁻⁷ in an illegal label makes that felt."""
    unary = torch.tensor([[[0.0, -7.0], [0.0, 0.0]]])
    transition = torch.tensor([[0.0, 0.0], [-torch.inf, 0.0]])
    lengths = torch.tensor([2])
    expected = torch.sigmoid(ILLEGAL_TRANSITION * torch.softmax(unary[0, 0], -1)[1])
    for dtype in (torch.float32, torch.bfloat16):
        beliefs = mean_field(unary.to(dtype), transition.to(dtype), lengths, 1, backend=backend)
        torch.testing.assert_close(beliefs[0, 1, 0], expected, rtol=1e-4, atol=0)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("is_local", [False, True])
def test_an_illegal_transition_is_a_penalty_without_gradient(backend, is_local):
    problem = random_problem(12, 2, 4, 3, is_local=is_local, lengths=[4, 3])
    transition = problem.transition.clone()
    transition[..., 1, 2] = -torch.inf
    transition = transition.requires_grad_()
    beliefs = mean_field(problem.unary, transition, problem.lengths, 3, backend=backend)
    penalised = transition.detach().masked_fill(transition == -torch.inf, ILLEGAL_TRANSITION)
    assert torch.equal(beliefs.detach(), mean_field(problem.unary, penalised, problem.lengths, 3, backend=backend))
    (gradient,) = torch.autograd.grad(beliefs[..., 0].sum(), transition)
    assert (gradient[..., 1, 2] == 0).all()
    assert (gradient != 0).any()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("is_local", [False, True])
def test_a_position_without_labels_has_no_belief_and_says_nothing(backend, is_local):
    problem = random_problem(2, 1, 3, 3, is_local=is_local, lengths=[3])
    unary = problem.unary.clone()
    unary[0, 1] = -torch.inf
    unary = unary.requires_grad_()
    beliefs = mean_field(unary, problem.transition, problem.lengths, 4, backend=backend)
    assert (beliefs[0, 1] == 0).all()
    torch.testing.assert_close(beliefs[0, [0, 2]], torch.softmax(unary[0, [0, 2]], -1))
    (gradient,) = torch.autograd.grad(beliefs[..., 0].sum(), unary)
    assert (gradient[0, 1] == 0).all()
    assert not gradient.isnan().any()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("is_local", [False, True])
def test_gradients_of_padded_beliefs_are_ignored(backend, is_local):
    """A masked logarithm of the zeros past a length sends NaN backwards; it must stop here."""
    problem = random_problem(9, 3, 5, 3, is_local=is_local, lengths=[5, 1, 3]).with_gradients()
    found = beliefs_of(problem, 3, backend)
    weights = random_weights(found)
    clean = gradients(found, found, problem, weights)
    weights["beliefs"] = weights["beliefs"].masked_fill(~problem.is_unit[..., None], torch.nan)
    dirty = gradients(found, found, problem, weights)
    assert all(torch.equal(dirty[name], clean[name]) for name in clean)


@pytest.mark.parametrize("is_local", [False, True])
def test_4096_units(is_local):
    problem = random_problem(4, 2, 4096, 3, is_local=is_local, lengths=[4096, 3000]).with_gradients()
    found, expected = (beliefs_of(problem, 5, backend) for backend in ("torch", "reference"))
    assert_close(found, expected, tolerance=EXACT)
    weights = random_weights(found)
    found_gradients = gradients(found, found, problem, weights)
    assert_padding_is_zero(problem, found_gradients)
    assert_close(found_gradients, gradients(expected, expected, problem, weights), tolerance=EXACT)
