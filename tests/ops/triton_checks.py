"""How Triton's results are held against the reference, on whichever device the kernels run."""

from __future__ import annotations

import chain_problems
import torch
from chain_problems import assert_close, assert_padding_is_zero, computed, gradients, random_weights

from diffusion_mf.ops.mean_field import mean_field
from diffusion_mf.ops.viterbi import viterbi

# Relative to the largest entry, which is what rounding is relative to in sums over sentences and positions.
VALUE_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-5, torch.bfloat16: 1e-5}
GRADIENT_TOLERANCE = {torch.float64: 1e-8, torch.float32: 5e-5, torch.bfloat16: 1e-2}


def prepared(problem, device, dtype):
    """The problem as Triton gets it, and the same rounded scores in float64 for the reference."""
    narrow = problem.to(dtype).to(device)
    return narrow.with_gradients(), narrow.map(lambda tensor: tensor.double()).with_gradients()


def largest(tensors):
    return max([1.0, *(float(tensor.detach().abs().max()) for tensor in tensors.values() if tensor.numel())])


def check_results(
    results_of,
    problem,
    device,
    dtype,
    *,
    tolerance=None,
    gradient_tolerance=None,
    combinations=None,
    backend="triton",
):
    """Values and gradients of ``results_of(problem, backend)``."""
    narrow, wide = prepared(problem, device, dtype)
    found, expected = results_of(narrow, backend), results_of(wide, "reference")
    result_type = torch.float64 if dtype == torch.float64 else torch.float32
    assert all(tensor.dtype == result_type for tensor in found.values())
    assert_close(found, expected, tolerance=tolerance or VALUE_TOLERANCE[dtype])
    weights = random_weights(expected)
    for names in combinations or [tuple(found)]:
        found_gradients = gradients(found, names, narrow, weights)
        expected_gradients = gradients(expected, names, wide, weights)
        assert all(tensor.dtype == dtype for tensor in found_gradients.values())
        assert_padding_is_zero(narrow, found_gradients)
        assert_close(
            found_gradients,
            expected_gradients,
            tolerance=gradient_tolerance or GRADIENT_TOLERANCE[dtype],
            scale=largest(expected_gradients),
        )


def check_chain(problem, device, dtype, **options):
    check_results(computed, problem, device, dtype, **options)


LOWEST_LOG_BELIEF = -100.0


def check_mean_field(problem, device, dtype, *, num_iterations=3, **options):
    def results_of(problem, backend):
        log_beliefs = mean_field(*problem.folded, num_iterations, backend=backend, is_log=True)
        # Weighted sums of −∞ have no gradient worth comparing.
        return {
            "beliefs": mean_field(*problem.folded, num_iterations, backend=backend),
            "log_beliefs": log_beliefs.clamp(min=LOWEST_LOG_BELIEF),
        }

    check_results(results_of, problem, device, dtype, **options)


def check_viterbi(problem, device, dtype):
    """The reference's labels and scores, for scores whose sums are exact in ``dtype``."""
    narrow = problem.to(dtype).to(device)
    found = viterbi(*narrow.folded, backend="triton")
    expected = viterbi(*narrow.folded, backend="reference")
    is_legal = expected.scores > -torch.inf
    assert found.labels.dtype == torch.int64
    assert (found.labels[~narrow.is_unit] == 0).all()
    assert torch.equal(found.labels[is_legal], expected.labels[is_legal])
    assert torch.equal(found.scores, expected.scores)


def opposed_ends(gap, *, is_local=False):
    """Two labels that never change; what the first unit all but rules out, a later one asks for.

    The pairs between the two lie far below the best of either side; those after them do not.
    """
    transition = torch.tensor([[0.0, -torch.inf], [-torch.inf, 0.0]])
    if is_local:
        transition = transition.expand(2, 3, 2, 2).clone()
    unary = torch.zeros(2, 4, 2)
    unary[:, 0, 1] = -gap
    unary[0, 1, 0] = -gap
    unary[1, 2, 0] = -gap - 1
    problem = chain_problems.Problem(unary, transition, torch.tensor([4, 3]))
    return chain_problems.poisoned(problem, torch.nan)


def extreme_problem(seed, num_labels, *, is_local):
    """Scores of ±1e4 and 0 that differ by small whole numbers besides, so that no one label has it all."""
    generator = torch.Generator().manual_seed(seed)

    def scores(*shape):
        large = 1e4 * torch.randint(-1, 2, shape, generator=generator)
        return large.double() + torch.randint(-1, 2, shape, generator=generator)

    transition = scores(2, 3, num_labels, num_labels) if is_local else scores(num_labels, num_labels)
    problem = chain_problems.Problem(scores(2, 4, num_labels), transition, torch.tensor([4, 3]))
    return chain_problems.poisoned(problem, torch.nan)
