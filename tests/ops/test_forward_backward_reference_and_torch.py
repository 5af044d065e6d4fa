"""Log-partition, marginals and pair marginals: enumeration → reference → torch path, values and gradients.

Numerical derivatives, first and second, are in `test_gradients_of_gradients`.
"""

from __future__ import annotations

import chain_problems
import hypothesis
import pytest
import torch
from chain_problems import (
    assert_close,
    assert_padding_is_zero,
    computed,
    enumerated,
    gradients,
    problems,
    random_problem,
    random_weights,
)

from diffusion_mf.ops.forward_backward import forward_backward, log_partition
from oracles.chain_enumeration import Enumerated

BACKENDS = ("reference", "torch")
COMBINATIONS = [("log_partition",), ("marginals",), ("pairs",), ("log_partition", "marginals"), chain_problems.RESULTS]
EXACT = 1e-9


def check_against_enumeration(problem, backend, *, tolerance=EXACT):
    """Values, and gradients of every combination of results, in all score tensors."""
    problem = problem.with_gradients()
    oracle = problem.map(lambda tensor: tensor.detach().double().requires_grad_())
    found, expected = computed(problem, backend), enumerated(oracle)
    assert_close(found, expected, tolerance=tolerance)
    weights = random_weights(expected)
    for names in COMBINATIONS:
        found_gradients = gradients(found, names, problem, weights)
        assert_padding_is_zero(problem, found_gradients)
        assert_close(found_gradients, gradients(expected, names, oracle, weights), tolerance=tolerance)


@pytest.mark.parametrize("backend", BACKENDS)
@hypothesis.given(problem=problems())
def test_equal_enumeration(problem, backend):
    check_against_enumeration(problem, backend)


@pytest.mark.parametrize("backend", BACKENDS)
@hypothesis.given(problem=problems())
def test_log_partition_alone_is_that_of_forward_backward(problem, backend):
    problem = problem.with_gradients()
    alone = {"log_partition": log_partition(*problem.folded, backend=backend)}
    both = {"log_partition": forward_backward(*problem.folded, backend=backend).log_partition}
    assert torch.equal(alone["log_partition"], both["log_partition"])
    weights = random_weights(alone)
    assert_close(
        gradients(alone, ["log_partition"], problem, weights),
        gradients(both, ["log_partition"], problem, weights),
        tolerance=1e-12,
    )


@pytest.mark.parametrize("backend", BACKENDS)
@hypothesis.given(problem=problems(max_units=7, max_labels=9), other=problems())
def test_float32_equals_float64_up_to_rounding(problem, other, backend):
    for chosen in (problem, other):
        narrow = chosen.to(torch.float32)
        wide = narrow.to(torch.float64)
        found, expected = computed(narrow, backend), computed(wide, "reference")
        assert all(tensor.dtype == torch.float32 for tensor in found.values())
        assert_close(found, expected, tolerance=2e-6)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("is_local", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_inputs_give_float32_results_of_the_rounded_scores(backend, is_local, dtype):
    problem = random_problem(
        1, 3, 6, 5, is_local=is_local, scale=3, holes=0.1, has_start=True, has_end=True, clamps=0.3
    )
    rounded = problem.to(dtype).with_gradients()
    single = rounded.map(lambda tensor: tensor.detach().float().requires_grad_())
    found, expected = computed(rounded, backend), computed(single, backend)
    assert all(tensor.dtype == torch.float32 for tensor in found.values())
    assert_close(found, expected, tolerance=1e-6)
    weights = random_weights(expected)
    found_gradients = gradients(found, chain_problems.RESULTS, rounded, weights)
    assert all(tensor.dtype == dtype for tensor in found_gradients.values())
    precision = torch.finfo(dtype).eps
    assert_close(
        found_gradients, gradients(expected, chain_problems.RESULTS, single, weights), tolerance=precision, scale=0.1
    )


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("is_local", [False, True])
@pytest.mark.parametrize("obstacle", ["unary", "row", "clamp", "column of the last step"])
def test_no_legal_sequence(backend, is_local, obstacle):
    """−∞, zeros and zero gradients for that sentence; its neighbours in the batch are as they were."""
    problem = random_problem(5, 3, 4, 3, is_local=is_local, lengths=[4, 3, 4])
    legal = enumerated(problem)
    unary, transition = problem.unary.clone(), problem.transition.clone()
    allowed = torch.ones(unary.shape, dtype=torch.bool)
    if obstacle == "unary":
        unary[1, 2] = -torch.inf
    elif obstacle == "clamp":
        allowed[1, 0] = False
    elif obstacle == "row":
        # Sentence 1 must begin with label 0, from which nothing leads on; the others must not.
        transition[..., 0, :] = -torch.inf
        allowed[1, 0] = torch.tensor([True, False, False])
    else:
        transition[..., :, 1] = -torch.inf
        allowed[1, 2] = torch.tensor([False, True, False])
    changed = chain_problems.Problem(unary, transition, problem.lengths, allowed=allowed).with_gradients()
    found = computed(changed, backend)
    assert found["log_partition"][1] == -torch.inf
    assert (found["marginals"][1] == 0).all()
    assert (found["pairs"][1] == 0).all()
    check_against_enumeration(changed, backend)
    if obstacle in ("unary", "clamp"):
        others = torch.tensor([0, 2])
        assert_close(
            {name: tensor[others] for name, tensor in found.items()},
            {name: tensor[others] for name, tensor in legal.items()},
            tolerance=EXACT,
        )
    weights = {name: torch.zeros_like(tensor) for name, tensor in found.items()}
    for name in weights:
        weights[name][1] = 1.7
    for gradient in gradients(found, chain_problems.RESULTS, changed, weights).values():
        assert (gradient == 0).all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_everything_minus_infinity(backend):
    problem = chain_problems.Problem(
        torch.full((2, 3, 2), -torch.inf), torch.full((2, 2), -torch.inf), torch.tensor([3, 1])
    ).with_gradients()
    found = computed(problem, backend)
    assert (found["log_partition"] == -torch.inf).all()
    assert (found["marginals"] == 0).all()
    assert (found["pairs"] == 0).all()
    for gradient in gradients(found, chain_problems.RESULTS, problem, random_weights(found)).values():
        assert (gradient == 0).all()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("is_local", [False, True])
@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 1, 4), (3, 5, 1), (1, 6, 2)])
def test_smallest_sizes(backend, is_local, shape):
    problem = random_problem(11, *shape, is_local=is_local, has_start=True, has_end=True)
    assert problem.transition.dim() == (4 if is_local else 2)
    check_against_enumeration(problem, backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("is_local", [False, True])
def test_clamped_to_one_sequence(backend, is_local):
    """Every label known: log Z is that sequence's score and the marginals are the sequence."""
    problem = random_problem(2, 2, 4, 3, is_local=is_local, lengths=[4, 3], has_start=True, has_end=True)
    labels = torch.tensor([[0, 2, 1, 1], [2, 2, 0, 0]])
    one_hot = torch.nn.functional.one_hot(labels, 3)
    clamped = chain_problems.Problem(
        problem.unary, problem.transition, problem.lengths, problem.start, problem.end, one_hot.bool()
    )
    found = computed(clamped, backend)
    for sentence, arguments in enumerate(problem.sentences()):
        length = arguments[2]
        table = Enumerated(*arguments)
        score = table.scores[table.paths.index(tuple(labels[sentence, :length].tolist()))]
        torch.testing.assert_close(found["log_partition"][sentence], score)
        assert torch.equal(found["marginals"][sentence, :length], one_hot[sentence, :length].double())


@pytest.mark.parametrize("backend", BACKENDS)
@hypothesis.given(problem=problems())
def test_messages_are_what_lies_on_either_side(problem, backend):
    """exp(forward + unary + backward) is proportional to the marginals, and no gradient flows through messages."""
    problem = problem.with_gradients()
    unary = problem.folded[0]
    both = forward_backward(*problem.folded, backend=backend)
    assert not both.forward_messages.requires_grad
    assert not both.backward_messages.requires_grad
    is_unit = problem.is_unit
    score = (both.forward_messages + unary + both.backward_messages).detach()[is_unit]
    expected = enumerated(problem)["marginals"].detach()[is_unit]
    is_legal = expected.sum(-1) > 0
    torch.testing.assert_close(torch.softmax(score[is_legal], -1), expected[is_legal], rtol=EXACT, atol=EXACT)


@pytest.mark.parametrize("is_local", [False, True])
@pytest.mark.parametrize("shape", [(3, 30, 17), (32, 4, 17), (24, 4, 40), (16, 3, 70), (2, 3, 200)])
def test_cpu_equals_reference_at_sizes_of_use(shape, is_local):
    """Small and large products take different ways."""
    problem = random_problem(6, *shape, is_local=is_local, scale=2, holes=0.05).with_gradients()
    found, expected = (computed(problem, backend) for backend in ("torch", "reference"))
    assert_close(found, expected, tolerance=EXACT)
    weights = random_weights(expected)
    for names in (["log_partition"], ["marginals"], chain_problems.RESULTS):
        found_gradients = gradients(found, names, problem, weights)
        assert_padding_is_zero(problem, found_gradients)
        assert_close(found_gradients, gradients(expected, names, problem, weights), tolerance=EXACT, scale=10)


@pytest.mark.parametrize("is_local", [False, True])
def test_4096_units(is_local):
    """The torch path against the reference, gradients through marginals too, with a ragged batch."""
    problem = random_problem(4, 2, 4096, 2, is_local=is_local, lengths=[4096, 3000], scale=2).with_gradients()
    found, expected = (
        forward_backward(*problem.folded, backend=backend)._asdict() for backend in ("torch", "reference")
    )
    found, expected = ({name: r[name] for name in ("log_partition", "marginals")} for r in (found, expected))
    assert_close(found, expected, tolerance=EXACT)
    weights = random_weights(found)
    found_gradients = gradients(found, found, problem, weights)
    assert_padding_is_zero(problem, found_gradients)
    assert_close(found_gradients, gradients(expected, expected, problem, weights), tolerance=1e-8)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("is_local", [False, True])
def test_gradients_of_padded_marginals_are_ignored(backend, is_local):
    """A masked logarithm of the zeros past a length sends NaN backwards; it must stop here."""
    problem = random_problem(9, 3, 5, 3, is_local=is_local, lengths=[5, 1, 3]).with_gradients()
    found = computed(problem, backend)
    weights = random_weights(found)
    clean = gradients(found, chain_problems.RESULTS, problem, weights)
    is_padding = ~problem.is_unit
    weights["marginals"] = weights["marginals"].masked_fill(is_padding[..., None], torch.nan)
    weights["pairs"] = weights["pairs"].masked_fill(is_padding[:, 1:, None, None], torch.nan)
    dirty = gradients(found, chain_problems.RESULTS, problem, weights)
    assert all(torch.equal(dirty[name], clean[name]) for name in clean)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("is_local", [False, True])
def test_layout_of_the_inputs_does_not_matter(backend, is_local):
    """Transposed scores, and strided lengths of a smaller integer type."""
    problem = random_problem(13, 3, 4, 3, is_local=is_local, lengths=[4, 2, 3])
    transposed = problem.unary.transpose(1, 2).contiguous().transpose(1, 2)
    lengths = torch.stack([problem.lengths, problem.lengths], 1).int()[:, 0]
    moved = chain_problems.Problem(transposed, problem.transition.mT.contiguous().mT, lengths)
    assert not moved.unary.is_contiguous()
    assert not moved.transition.is_contiguous()
    assert_close(computed(moved, backend), computed(problem, backend), tolerance=1e-12)
