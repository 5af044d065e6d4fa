"""The torch path works on probabilities: what it cannot hold it must hand to the reference, and be right either way.

Oracles that need no enumeration: with transitions that only allow a label to stay, the constant sequences are the only legal
ones, so log Z = logsumexp over labels of their sums, and every position's marginals are the softmax of those sums.
"""

from __future__ import annotations

import pytest
import torch
from chain_problems import (
    Problem,
    assert_close,
    computed,
    enumerated,
    gradients,
    poisoned,
    random_problem,
    random_weights,
)

from diffusion_mf.ops.forward_backward import forward_backward, pytorch

RESULTS = ("log_partition", "marginals")


def is_taken(problem):
    """Whether the torch path does the work itself."""
    with torch.no_grad():
        return pytorch.messages(*problem.folded) is not None


def staying(unary, lengths, *, is_local=False):
    """Labels never change; staying costs nothing."""
    B, N, K = unary.shape
    transition = torch.full((K, K), -torch.inf, dtype=unary.dtype).fill_diagonal_(0)
    if is_local:
        transition = transition.expand(B, N - 1, K, K).clone()
    return poisoned(Problem(unary, transition, torch.tensor(lengths)), torch.nan).with_gradients()


def constant_sequences(problem):
    """Log-partition and marginals of a `staying` problem, differentiable in unary scores (staying has no other choice)."""
    is_unit = problem.is_unit[..., None]
    sums = torch.where(is_unit, problem.unary.double(), 0).sum(1)
    return {
        "log_partition": torch.logsumexp(sums, -1),
        "marginals": torch.softmax(sums, -1)[:, None] * is_unit,
    }


def check_constant_sequences(problem, *, tolerance):
    found = forward_backward(*problem.folded, backend="torch")._asdict()
    found = {name: found[name] for name in RESULTS}
    expected = constant_sequences(problem)
    assert_close(found, expected, tolerance=tolerance)
    weights = random_weights(found)
    for names in (["log_partition"], ["marginals"], RESULTS):
        own, other = (gradients(results, names, problem, weights)["unary"] for results in (found, expected))
        assert_close({"unary": own}, {"unary": other}, tolerance=tolerance, scale=problem.unary.shape[1])


@pytest.mark.parametrize("is_local", [False, True])
@pytest.mark.parametrize("num_units", [20, 100, 190, 240, 400, 1000])
def test_separate_blocks_drift_apart_and_meet_again(is_local, num_units):
    """Label 0 gains 3 nats on label 1 at every unit of the first half, and loses them in the second: both count equally."""
    unary = torch.zeros(2, num_units, 3, dtype=torch.float64)
    unary[:, : num_units // 2, 0] = 3.0
    unary[:, num_units // 2 :, 1] = 3.0
    unary[:, 0, 2] = 0.25
    problem = staying(unary, [num_units, num_units - 1], is_local=is_local)
    # 3 · 50 nats are no danger, 3 · 200 are: the path must not be the same at both ends.
    if num_units <= 100:
        assert is_taken(problem)
    if num_units >= 400:
        assert not is_taken(problem)
    check_constant_sequences(problem, tolerance=1e-9)


@pytest.mark.parametrize("is_local", [False, True])
@pytest.mark.parametrize("gap", [1.0, 100.0, 149.0, 151.0, 290.0, 299.9, 300.1, 350.0, 700.0, 750.0, 1e4])
@pytest.mark.parametrize("num_units", [2, 3, 40])
def test_opposed_ends(is_local, gap, num_units):
    """What one end all but rules out, the other end asks for: shares of products far below either end's best."""
    unary = torch.zeros(1, num_units, 2, dtype=torch.float64)
    unary[0, 0, 1] = -gap
    unary[0, -1, 0] = -gap + 0.5
    check_constant_sequences(staying(unary, [num_units], is_local=is_local), tolerance=1e-9)


@pytest.mark.parametrize("is_local", [False, True])
@pytest.mark.parametrize("offset", [50.0, 290.0, 310.0, -1e3, 1e6])
def test_constant_offsets(is_local, offset):
    """A constant on all unary scores adds length × constant to log Z and changes nothing else, in a ragged batch."""
    problem = random_problem(3, 3, 4, 3, is_local=is_local, lengths=[4, 1, 2])
    shifted = Problem(problem.unary + offset, problem.transition, problem.lengths).with_gradients()
    found, expected = computed(shifted, "torch"), enumerated(problem)
    expected["log_partition"] = expected["log_partition"] + offset * problem.lengths
    assert_close(found, expected, tolerance=1e-8)


@pytest.mark.parametrize("is_local", [False, True])
@pytest.mark.parametrize("scale", [20.0, 40.0, 60.0, 80.0, 120.0, 200.0, 400.0, 2e3])
def test_on_both_sides_of_the_border(is_local, scale):
    """Scores grow until the path changes: every result and gradient is right below, at and above that point."""
    for seed in range(4):
        problem = random_problem(seed, 3, 4, 3, is_local=is_local, scale=scale, holes=0.1 * (seed % 2)).with_gradients()
        found, expected = computed(problem, "torch"), enumerated(problem)
        assert_close(found, expected, tolerance=1e-9)
        weights = random_weights(found)
        for names in (["log_partition"], ["marginals"], ["pairs"], list(found)):
            assert_close(
                gradients(found, names, problem, weights), gradients(expected, names, problem, weights), tolerance=1e-9
            )


@pytest.mark.parametrize("is_local", [False, True])
def test_the_border_is_between_ordinary_and_extreme_scores(is_local):
    """Ordinary scores stay on the fast path, with constraints too; extreme ones leave it."""
    ordinary = random_problem(0, 8, 32, 17, is_local=is_local, scale=5.0, holes=0.2)
    assert is_taken(ordinary)
    assert not is_taken(random_problem(0, 8, 32, 17, is_local=is_local, scale=1e4))


@pytest.mark.parametrize("is_local", [False, True])
def test_a_label_fades_over_4096_units_and_is_asked_for_at_the_end(is_local):
    """Label 1 loses a nat per unit, until the last unit allows nothing else: it has all the probability."""
    N = 4096
    unary = torch.zeros(1, N, 2, dtype=torch.float64)
    unary[0, :, 1] = -1.0
    unary[0, -1, 0] = -torch.inf
    problem = staying(unary, [N], is_local=is_local)
    found = forward_backward(*problem.folded, backend="torch")
    torch.testing.assert_close(found.log_partition, torch.tensor([-float(N)], dtype=torch.float64))
    assert torch.equal(found.marginals[0], torch.tensor([0.0, 1.0], dtype=torch.float64).expand(N, 2))


def test_one_extreme_sentence_does_not_harm_its_neighbours():
    problem = random_problem(1, 2, 4, 3, lengths=[4, 4])
    unary = problem.unary.clone()
    unary[1] *= 1e5
    both = Problem(unary, problem.transition, problem.lengths)
    assert not is_taken(both)
    assert is_taken(problem)
    assert_close(computed(both, "torch"), enumerated(both), tolerance=1e-9)
