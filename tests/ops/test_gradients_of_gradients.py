"""Second derivatives: those of every operation are right on every backend, or an error; never silently zero."""

from __future__ import annotations

import chain_problems
import hypothesis
import pytest
import torch
from chain_problems import problems, random_problem
from second_order import RESULTS, check_numerically, check_penalty, clamped_problem
from torch.nn.attention import SDPBackend, sdpa_kernel

from diffusion_mf.batches.layouts import PackedLayout, Rotation
from diffusion_mf.ops.attention import packed_attention
from diffusion_mf.ops.forward_backward import log_partition
from diffusion_mf.ops.gelu import gelu
from diffusion_mf.ops.viterbi import viterbi
from diffusion_mf.structures import LinearChain, MeanField, Unigram, linear_chain

BACKENDS = pytest.mark.parametrize("backend", ["reference", "torch"])
KINDS = pytest.mark.parametrize("is_local", [False, True], ids=["global", "local"])
EVERY_RESULT = pytest.mark.parametrize("result", RESULTS)


@EVERY_RESULT
@BACKENDS
@KINDS
def test_numerical_derivatives(result, backend, is_local):
    check_numerically(result, backend, "cpu", is_local=is_local)


@EVERY_RESULT
@BACKENDS
@KINDS
def test_numerical_derivatives_beside_minus_infinity(result, backend, is_local):
    check_numerically(result, backend, "cpu", is_local=is_local, holes=0.2, fast_mode=True)


@EVERY_RESULT
@BACKENDS
@KINDS
def test_numerical_derivatives_of_one_unit(result, backend, is_local):
    check_numerically(result, backend, "cpu", is_local=is_local, num_units=1)


@EVERY_RESULT
@hypothesis.given(problem=problems())
@hypothesis.settings(max_examples=25)
def test_a_penalty_on_gradients_equals_the_reference(result, problem):
    """Scores of every kind: −∞, clamps, sentences without a legal sequence, and NaN past each length."""
    check_penalty(result, problem, "torch", tolerance=1e-7)


@KINDS
def test_a_penalty_on_the_gradients_of_log_partition_equals_enumeration(is_local):
    problem = random_problem(5, 2, 3, 3, is_local=is_local, lengths=[3, 2], has_start=True, has_end=True)
    problem = problem.with_gradients()
    found = log_partition(*problem.folded, backend="torch")
    expected = chain_problems.enumerated(problem)["log_partition"]
    both = []
    for value in (found, expected):
        (gradient,) = torch.autograd.grad(value.sum(), problem.unary, create_graph=True)
        both.append(torch.autograd.grad(gradient.pow(2).sum(), list(problem.scores.values())))
    for one, other in zip(*both, strict=True):
        torch.testing.assert_close(one, other)


@EVERY_RESULT
@BACKENDS
@KINDS
def test_no_nan_where_all_labels_but_one_are_forbidden(result, backend, is_local):
    found = check_penalty(result, clamped_problem(is_local=is_local), backend)
    # With one sequence left nothing can move: there the penalty is flat.
    assert found["unary"][0].abs().max() < 1e-12


@EVERY_RESULT
@KINDS
def test_a_penalty_in_single_precision(result, is_local):
    problem = random_problem(4, 3, 5, 4, is_local=is_local, lengths=[5, 1, 3], has_start=True, has_end=True)
    check_penalty(result, problem.to(torch.float32), "torch", tolerance=1e-5)


@EVERY_RESULT
@BACKENDS
def test_gradients_have_a_graph_whatever_is_differentiated(result, backend):
    """A plain sum: its own gradient is a constant, and all that depends on scores is the operation's gradient."""
    problem = random_problem(1, 2, 3, 3, lengths=[3, 2]).with_gradients()
    found = RESULTS[result](*problem.folded, backend=backend)
    total = sum(value.sum() for value in (found if isinstance(found, tuple) else (found,)))
    scores = list(problem.scores.values())
    assert all(gradient.requires_grad for gradient in torch.autograd.grad(total, scores, create_graph=True))
    assert not any(gradient.requires_grad for gradient in torch.autograd.grad(total, scores))


@BACKENDS
@KINDS
@pytest.mark.parametrize("result", ["log_partition", "both", "beliefs"])
def test_scores_that_depend_on_each_other(result, backend, is_local):
    """A path from one argument to another is not the operation's, and counts once."""
    unary = torch.randn(2, 3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    lengths = torch.tensor([3, 2])

    def run(unary):
        transition = unary[:, :-1, :, None] * unary[:, 1:, None, :]
        return RESULTS[result](unary, transition if is_local else transition.sum((0, 1)), lengths, backend=backend)

    assert torch.autograd.gradgradcheck(run, (unary,))


@pytest.mark.parametrize("result", ["log_partition", "both", "beliefs"])
@pytest.mark.parametrize("wanted", ["unary", "transition"])
def test_only_some_scores_have_gradients(result, wanted):
    problem = random_problem(1, 2, 3, 3, lengths=[3, 2])
    problem = chain_problems.poisoned(problem, 0.0)
    scores = problem.scores

    def run(tensor):
        unary, transition = (scores | {wanted: tensor}).values()
        return RESULTS[result](unary, transition, problem.lengths, backend="torch")

    assert torch.autograd.gradgradcheck(run, (scores[wanted].clone().requires_grad_(),))


@EVERY_RESULT
@BACKENDS
def test_results_may_be_changed_in_place(result, backend):
    problem = random_problem(1, 2, 3, 3, lengths=[3, 2]).with_gradients()
    scores = list(problem.scores.values())
    found = []
    for factor in (1, 2):
        value = RESULTS[result](*problem.folded, backend=backend)
        value = value[0] if isinstance(value, tuple) else value
        value = value[..., 0].mul_(factor) if factor > 1 else value[..., 0]
        first = torch.autograd.grad(value.sum(), scores, create_graph=True)
        found.append([*first, *torch.autograd.grad(sum(gradient.pow(2).sum() for gradient in first), scores)])
    once, twice = found
    for index, (one, other) in enumerate(zip(once, twice, strict=True)):
        torch.testing.assert_close(one * (2 if index < len(scores) else 4), other)


@pytest.mark.parametrize("result", ["log_partition", "marginals", "beliefs"])
def test_third_derivatives(result):
    problem = random_problem(1, 1, 3, 2, lengths=[3]).with_gradients()
    found = []
    for backend in ("torch", "reference"):
        value = RESULTS[result](*problem.folded, backend=backend)[..., :1].pow(2).sum()
        for _ in range(3):
            value = sum(
                gradient.pow(2).sum()
                for gradient in torch.autograd.grad(value, list(problem.scores.values()), create_graph=True)
            )
        found.append(value)
    assert found[0] > 1e-6
    torch.testing.assert_close(*found)


@KINDS
@pytest.mark.parametrize("at_once", [1, 1 << 24])
def test_structures(monkeypatch, is_local, at_once):
    """Penalties on gradients of what structures compute, entropy in pieces included."""
    monkeypatch.setattr(linear_chain, "MAX_PAIRS_AT_ONCE", at_once)
    problem = random_problem(2, 2, 3, 3, is_local=is_local, lengths=[3, 2], has_start=True, has_end=True)
    labels = torch.zeros(2, 3, dtype=torch.long)
    found = {}
    for backend in ("torch", "reference"):
        leaves = problem.with_gradients()
        options = {"start_scores": leaves.start, "end_scores": leaves.end, "backend": backend}
        chain = LinearChain(leaves.unary, leaves.transition, problem.lengths, **options)
        field = MeanField(leaves.unary, leaves.transition, problem.lengths, 2, **options)
        values = [chain.entropy(), chain.log_prob(labels), chain.log_marginals(), chain.log_partition()]
        values += [field.entropy(), field.log_prob(labels), field.evidence_lower_bound()]
        values += [Unigram(leaves.unary, problem.lengths).log_prob(labels)]
        scores = list(leaves.scores.values())
        first = torch.autograd.grad(sum(value.sum() for value in values), scores, create_graph=True)
        found[backend] = torch.autograd.grad(sum(gradient.pow(2).sum() for gradient in first), scores)
    for one, other in zip(*found.values(), strict=True):
        assert not one.isnan().any()
        torch.testing.assert_close(one, other)


@BACKENDS
def test_viterbi_has_no_gradient(backend):
    scores = torch.randn(1, 3, 2, requires_grad=True)
    best = viterbi(scores, torch.randn(2, 2, requires_grad=True), torch.tensor([3]), backend=backend)
    assert not best.scores.requires_grad


def test_gelu():
    values = torch.linspace(-3, 3, 7, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(gelu, (values,))


def test_attention_in_plain_pytorch():
    """PyTorch's kernels of attention refuse second derivatives; its plain formula has them, in float64."""
    inputs = torch.randn(
        5, 3, 2, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True
    )
    rotation = Rotation.of_positions(torch.arange(3), 4)
    arguments = torch.tensor([0, 3, 5]).int(), rotation.cosine[:, 0], rotation.sine[:, 0]

    def run(inputs):
        return packed_attention(inputs, *arguments, backend="reference")

    assert run(inputs).dtype == torch.float64
    assert torch.autograd.gradcheck(run, (inputs,))
    with sdpa_kernel(SDPBackend.MATH):
        assert torch.autograd.gradgradcheck(run, (inputs,))
    (gradient,) = torch.autograd.grad(run(inputs).pow(2).sum(), inputs, create_graph=True)
    with pytest.raises(RuntimeError, match=r"derivative .* not implemented"):
        gradient.pow(2).sum().backward()


def test_packed_units():
    """What is put back into the rectangle, padding not looked at."""
    is_unit = torch.tensor([[True, True, True], [True, False, False]])
    layout = PackedLayout(
        places=torch.tensor([0, 1, 2, 3]),
        pair_places=torch.tensor([0, 1, 3, 3]),
        units=torch.tensor([[0, 1, 2], [3, 0, 0]]),
        sentences=torch.tensor([0, 0, 0, 1]),
        positions=torch.tensor([0, 1, 2, 0]),
        boundaries=torch.tensor([0, 3, 4]).int(),
        longest=3,
    )
    values = torch.randn(4, 2, dtype=torch.float64, requires_grad=True)

    def run(values):
        return layout.unpack(values)[is_unit].pow(3)

    assert torch.autograd.gradcheck(run, (values,))
    assert torch.autograd.gradgradcheck(run, (values,))
