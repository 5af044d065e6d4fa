"""Checks of gradients of gradients, for every operation on chains, backend and device."""

from __future__ import annotations

import chain_problems
import torch
from chain_problems import assert_close, assert_padding_is_zero, random_problem, random_weights

from diffusion_mf.ops.chain_scores import fold_scores
from diffusion_mf.ops.forward_backward import forward_backward, log_partition, pair_marginals
from diffusion_mf.ops.mean_field import mean_field

LOWEST_LOG_BELIEF = -100.0


def log_beliefs(*arguments, backend):
    """Mean-Field's, without −∞: a weighted sum of −∞ has no gradient worth comparing."""
    return mean_field(*arguments, 2, backend=backend, is_log=True).clamp(min=LOWEST_LOG_BELIEF)


CHAIN = {
    "log_partition": log_partition,
    "marginals": lambda *arguments, backend: forward_backward(*arguments, backend=backend).marginals,
    "pairs": pair_marginals,
    "both": lambda *arguments, backend: forward_backward(*arguments, backend=backend)[:2],
}
MEAN_FIELD = {
    "beliefs": lambda *arguments, backend: mean_field(*arguments, 2, backend=backend),
    "log_beliefs": log_beliefs,
}
RESULTS = CHAIN | MEAN_FIELD


def check_numerically(result, backend, device, *, is_local, holes=0.0, num_units=4, fast_mode=False):
    """`gradcheck` and `gradgradcheck` in all scores; some of them −∞."""
    lengths = [num_units, (num_units + 1) // 2]
    problem = random_problem(7, 2, num_units, 3, is_local=is_local, lengths=lengths, has_start=True, has_end=True)
    # Numerical differences need finite numbers: padding is blank, and −∞ comes in by masks.
    problem = chain_problems.poisoned(problem, 0.0).to(device).with_gradients()
    generator = torch.Generator().manual_seed(1)
    allowed = (torch.rand(problem.unary.shape, generator=generator) >= holes).to(device)
    illegal = (torch.rand(problem.transition.shape, generator=generator) < holes).to(device)

    def run(unary, transition, start, end):
        unary = fold_scores(unary, problem.lengths, start_scores=start, end_scores=end, allowed=allowed)
        transition = transition.masked_fill(illegal, -torch.inf)
        return RESULTS[result](unary, transition, problem.lengths, backend=backend)

    inputs = tuple(problem.scores.values())
    assert torch.autograd.gradcheck(run, inputs, fast_mode=fast_mode)
    assert torch.autograd.gradgradcheck(run, inputs, fast_mode=fast_mode)


def penalty_gradients(result, problem, backend):
    """Of Σ ‖∂ result/∂ scores‖², along random weights where the result has many entries, in all scores."""
    problem = problem.with_gradients()
    found = RESULTS[result](*problem.folded, backend=backend)
    found = dict(enumerate(found if isinstance(found, tuple) else (found,)))
    weights = random_weights(found)
    # What no legal sequence allows is −∞ and has no gradient.
    total = sum((torch.where(value > -torch.inf, value, 0) * weights[name]).sum() for name, value in found.items())
    scores = problem.scores
    first = torch.autograd.grad(total, list(scores.values()), create_graph=True, allow_unused=True)
    penalty = sum(gradient.pow(2).sum() for gradient in first if gradient is not None)
    second = torch.autograd.grad(penalty, list(scores.values()), allow_unused=True, materialize_grads=True)
    assert all(gradient.dtype == tensor.dtype for gradient, tensor in zip(second, scores.values(), strict=True))
    return dict(zip(scores, second, strict=True))


def check_penalty(result, problem, backend, *, tolerance=1e-9):
    """A penalty on gradients has the reference's gradients; none of them is NaN, and those of padding are 0."""
    found = penalty_gradients(result, problem, backend)
    wide = problem.map(lambda tensor: tensor.double())
    expected = penalty_gradients(result, wide, "reference")
    assert_padding_is_zero(problem, found)
    scale = max(1.0, *(float(tensor.abs().max()) for tensor in expected.values() if tensor.numel()))
    assert_close(found, expected, tolerance=tolerance, scale=scale)
    return found


def clamped_problem(*, is_local, num_sentences=2):
    """Every label but one forbidden at every unit of the first sentence, and at one unit of the others."""
    problem = random_problem(
        3, num_sentences, 4, 3, is_local=is_local, lengths=[4, 3][:num_sentences], has_start=True, has_end=True
    )
    allowed = torch.ones_like(problem.unary, dtype=torch.bool)
    allowed[0] = torch.nn.functional.one_hot(torch.tensor([0, 2, 1, 1]), 3).bool()
    allowed[1:, 1] = torch.tensor([False, False, True])
    return chain_problems.Problem(
        problem.unary, problem.transition, problem.lengths, problem.start, problem.end, allowed
    )
