from __future__ import annotations

import math
from typing import Any

import numpy
import pytest
import torch
from random_chains import make_problem

from diffusion_mf.decoding import k_best
from diffusion_mf.errors import NoLegalSequenceError
from diffusion_mf.ops import forward_backward
from diffusion_mf.ops.chain_scores import fold_scores
from diffusion_mf.ops.mean_field import mean_field
from diffusion_mf.ops.viterbi import viterbi
from diffusion_mf.structures import (
    STRUCTURES,
    Factorised,
    InferenceSettings,
    LinearChain,
    MeanField,
    Potentials,
    Unigram,
)


@pytest.mark.usefixtures("without_annotations")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"unary_scores": torch.zeros(2, 3)}, r"unary_scores must be \(B, N, K\)"),
        ({"unary_scores": torch.zeros(2, 0, 4)}, "no dimension of size 0"),
        ({"unary_scores": torch.zeros(2, 3, 4, dtype=torch.long)}, "floating-point"),
        (
            {"transition_scores": torch.zeros(2, 3, 4, 4)},
            r"transition_scores must be \(4, 4\) or \(2, 2, 4, 4\) .* found \(2, 3, 4, 4\)",
        ),
        ({"transition_scores": torch.zeros(4, 5)}, r"found \(4, 5\)"),
        ({"lengths": torch.tensor([1])}, r"lengths must be \(2,\)"),
        ({"lengths": torch.tensor([1.0, 2.0])}, r"lengths must be of an integer type, found torch\.float32"),
        ({"lengths": [1]}, r"lengths must be \(2,\) for unary_scores \(2, 3, 4\), found \(1,\)"),
        ({"lengths": 3}, r"lengths must be \(2,\) .* found \(\)"),
        ({"lengths": [[3, 1]]}, r"lengths must be \(2,\) .* found \(1, 2\)"),
        ({"lengths": [3.0, 1.0]}, r"lengths must be of an integer type, found torch\.float64"),
        ({"lengths": [True, False]}, r"lengths must be of an integer type, found torch\.bool"),
        ({"lengths": [[3], [1, 2]]}, r"lengths must have one integer for each sentence, found \[\[3\], \[1, 2\]\]"),
        ({"lengths": ["3", "1"]}, r"lengths must have one integer for each sentence, found \['3', '1'\]"),
        ({"lengths": None}, "lengths must have one integer for each sentence, found None"),
        ({"lengths": [3, 0]}, "lengths must be in 1…3, found 0 for sentence 1 of the batch"),
        ({"lengths": numpy.array([4, 1])}, "lengths must be in 1…3, found 4 for sentence 0 of the batch"),
        ({"start_scores": torch.zeros(3)}, r"start_scores must be \(4,\)"),
        ({"end_scores": torch.zeros(4, 1)}, r"end_scores must be \(4,\)"),
        ({"allowed": torch.ones(2, 3, dtype=torch.bool)}, r"allowed must be \(2, 3, 4\)"),
        ({"allowed": torch.ones(2, 3, 4)}, "allowed must be boolean"),
    ],
)
def test_shapes_that_do_not_fit_are_named(change: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {
        "unary_scores": torch.zeros(2, 3, 4),
        "transition_scores": torch.zeros(4, 4),
        "lengths": torch.tensor([3, 1]),
    }
    for structure in (LinearChain, MeanField):
        structure(**arguments)
        with pytest.raises(ValueError, match=message):
            structure(**(arguments | change))
    del arguments["transition_scores"]
    if not change.keys() & {"transition_scores", "start_scores", "end_scores"}:
        with pytest.raises(ValueError, match=message):
            Unigram(**(arguments | change))


@pytest.mark.parametrize("kind", [list, tuple, numpy.array, lambda lengths: numpy.array(lengths[::-1], "uint16")[::-1]])
@pytest.mark.parametrize("backend", ["reference", "torch"])
def test_lengths_need_not_be_a_tensor(kind: Any, backend: Any) -> None:
    problem = make_problem([3, 2], 3, seed=1)
    lengths = problem.lengths
    given = kind(lengths.tolist())
    unary, transition = problem.unary, problem.transition
    start, end = torch.randn(3, dtype=unary.dtype), torch.randn(3, dtype=unary.dtype)
    settings = InferenceSettings(backend=backend)
    for name, scores in (
        ("unigram", Potentials(unary)),
        ("mean-field", Potentials(unary, transition, start, end)),
        ("linear-chain", Potentials(unary, transition, start, end)),
    ):
        found, expected = (
            STRUCTURES[name].from_potentials(scores, chosen, settings=settings) for chosen in (given, lengths)
        )
        assert torch.equal(found.lengths, lengths)
        assert torch.equal(found.marginals(), expected.marginals())
        assert torch.equal(found.mode(), expected.mode())
        assert torch.equal(found.entropy(), expected.entropy())
        assert torch.equal(found.sample(torch.Generator()), expected.sample(torch.Generator()))
    unary = fold_scores(unary, given, start_scores=start, end_scores=end)
    for operation in (
        lambda chosen: forward_backward.log_partition(unary, transition, chosen, backend=backend),
        lambda chosen: forward_backward.forward_backward(unary, transition, chosen, backend=backend).marginals,
        lambda chosen: forward_backward.pair_marginals(unary, transition, chosen, backend=backend),
        lambda chosen: mean_field(unary, transition, chosen, 2, backend=backend),
        lambda chosen: viterbi(unary, transition, chosen, backend=backend).labels,
        lambda chosen: k_best(unary, transition, chosen, 2).scores,
    ):
        assert torch.equal(operation(given), operation(lengths))


@pytest.mark.usefixtures("without_annotations")
@pytest.mark.parametrize("kind", [list, numpy.array, torch.tensor])
def test_operations_name_lengths_that_do_not_fit(kind: Any) -> None:
    unary, transition = torch.zeros(2, 3, 4), torch.zeros(4, 4)
    for operation in (
        lambda lengths: forward_backward.log_partition(unary, transition, lengths),
        lambda lengths: forward_backward.forward_backward(unary, transition, lengths),
        lambda lengths: forward_backward.pair_marginals(unary, transition, lengths),
        lambda lengths: mean_field(unary, transition, lengths, 2),
        lambda lengths: viterbi(unary, transition, lengths),
        lambda lengths: k_best(unary, transition, lengths, 2),
        lambda lengths: fold_scores(unary, lengths, end_scores=torch.zeros(4)),
    ):
        with pytest.raises(ValueError, match=r"lengths must be \(2,\) for unary_scores \(2, 3, 4\), found \(1,\)"):
            operation(kind([3]))
        with pytest.raises(ValueError, match="lengths must be of an integer type"):
            operation(kind([3.0, 2.0]))
        if kind is not torch.tensor:  # to look at a tensor's values may mean to wait for a GPU
            with pytest.raises(ValueError, match="lengths must be in 1…3, found 9 for sentence 1 of the batch"):
                operation(kind([3, 9]))


@pytest.mark.parametrize("length", [0, 4])
def test_lengths_out_of_range(length: int) -> None:
    unary, lengths = torch.zeros(2, 3, 4), torch.tensor([3, length])
    for build in (
        lambda: Unigram(unary, lengths),
        lambda: MeanField(unary, torch.zeros(4, 4), lengths),
        lambda: LinearChain(unary, torch.zeros(4, 4), lengths),
    ):
        with pytest.raises(ValueError, match=rf"lengths must be in 1…3, found {length} for sentence 1 of the batch"):
            build()


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_scores_that_are_no_scores(bad: float) -> None:
    unary = torch.zeros(2, 3, 2)
    unary[1, 1, 0] = bad
    lengths = torch.tensor([3, 2])
    good, transition, local = torch.zeros(2, 3, 2), torch.zeros(2, 2), torch.zeros(2, 2, 2, 2)
    transition[0, 1] = bad
    local[1, 0, 0, 0] = bad
    with pytest.raises(ValueError, match="scores of sentence 1 of the batch contain NaN or"):
        Unigram(unary, lengths)
    for structure in (LinearChain, MeanField):
        with pytest.raises(ValueError, match="scores of sentence 1 of the batch contain NaN or"):
            structure(unary, torch.zeros(2, 2), lengths)
        with pytest.raises(ValueError, match="transition_scores contain NaN or"):
            structure(good, transition, lengths)
        with pytest.raises(ValueError, match="scores of sentence 1 of the batch contain NaN or"):
            structure(good, local, lengths)


def test_no_legal_sequence_names_the_sentence() -> None:
    lengths = torch.tensor([2, 3])
    # Nothing may follow anything: a sentence of one unit is fine, one of two is not.
    with pytest.raises(NoLegalSequenceError, match="sentence 0 of the batch has no legal label sequence"):
        LinearChain(torch.zeros(2, 3, 2), torch.full((2, 2), -math.inf), lengths)
    LinearChain(torch.zeros(2, 3, 2), torch.full((2, 2), -math.inf), torch.tensor([1, 1]))
    allowed = torch.ones(2, 3, 2, dtype=torch.bool)
    allowed[0, 2] = False  # past the length
    allowed[1, 1] = False
    with pytest.raises(NoLegalSequenceError, match="sentence 1"):
        LinearChain(torch.zeros(2, 3, 2), torch.zeros(2, 2), lengths, allowed=allowed)
    with pytest.raises(NoLegalSequenceError, match="sentence 1 of the batch has no label left at position 1"):
        MeanField(torch.zeros(2, 3, 2), torch.zeros(2, 2), lengths, allowed=allowed)
    with pytest.raises(NoLegalSequenceError, match="sentence 1 of the batch has no label left at position 1"):
        Unigram(torch.zeros(2, 3, 2), lengths, allowed=allowed)
    # Clamps that contradict transitions only together.
    transition = torch.tensor([[0.0, -math.inf], [-math.inf, 0.0]])
    allowed = torch.ones(2, 3, 2, dtype=torch.bool)
    allowed[1, 0, 1] = allowed[1, 2, 0] = False
    with pytest.raises(NoLegalSequenceError, match="sentence 1"):
        LinearChain(torch.zeros(2, 3, 2), transition, lengths, allowed=allowed)


@pytest.mark.parametrize("backend", ["reference", "torch"])
def test_without_checks_no_legal_sequence_gives_no_nan(backend: str) -> None:
    unary = torch.zeros(2, 3, 2, requires_grad=True)
    transition = torch.zeros(2, 2, 2, 2, requires_grad=True)
    allowed = torch.ones(2, 3, 2, dtype=torch.bool)
    allowed[1, 1] = False
    lengths = torch.tensor([3, 3])
    labels = torch.zeros(2, 3, dtype=torch.long)
    chain = LinearChain(unary, transition, lengths, allowed=allowed, backend=backend, check=False)  # type: ignore[arg-type]
    assert chain.log_partition().tolist() == [pytest.approx(3 * math.log(2)), -math.inf]
    assert chain.log_prob(labels).tolist() == [pytest.approx(-3 * math.log(2)), -math.inf]
    assert not chain.marginals()[1].any()
    assert chain.entropy().tolist()[0] == pytest.approx(3 * math.log(2))
    field = MeanField(unary, transition, lengths, allowed=allowed, backend=backend, check=False)  # type: ignore[arg-type]
    unigram = Unigram(unary, lengths, allowed=allowed, check=False)
    for distribution in (chain, field, unigram):
        assert not distribution.marginals()[1, 1].any()
        loss = distribution.marginals().square().sum() + distribution.entropy().sum()
        loss = loss + distribution.log_prob(labels).clamp(min=-1e3).sum()
        grads = torch.autograd.grad(loss, [unary, transition], allow_unused=True)
        assert bool(loss.isfinite())
        assert all(grad is None or bool(grad.isfinite().all()) for grad in grads)


@pytest.mark.parametrize("structure", [Unigram, LinearChain])
def test_labels_of_another_shape(structure: Any) -> None:
    scores = [torch.zeros(2, 3, 4), *([torch.zeros(4, 4)] if structure is LinearChain else [])]
    with pytest.raises(ValueError, match=r"labels must have the shape \(2, 3\), found \(2, 2\)"):
        structure(*scores, torch.tensor([3, 2])).log_prob(torch.zeros(2, 2, dtype=torch.long))


def test_labels_that_are_none() -> None:
    problem = make_problem([3, 2], 3, seed=0)
    bad = problem.gold.clone()
    bad[1, 1] = 3
    for check in (True, False):
        for distribution in (
            Unigram(problem.unary, problem.lengths, check=check),
            MeanField(*problem.scores, check=check),
            LinearChain(*problem.scores, check=check),
        ):
            if check:
                with pytest.raises(ValueError, match=r"0…2, found 3 at position 1 of sentence 1 of the batch"):
                    distribution.log_prob(bad)
            else:
                found = distribution.log_prob(bad)
                assert found[1] == -math.inf
                assert found[0] == distribution.log_prob(problem.gold)[0]


def test_negative_iterations() -> None:
    with pytest.raises(ValueError, match="num_iterations must not be negative, found -1"):
        MeanField(torch.zeros(1, 1, 1), torch.zeros(1, 1), torch.tensor([1]), -1)


def test_the_smallest_problem() -> None:
    unary, lengths = torch.tensor([[[3.0]]]), torch.tensor([1])
    for transition in (torch.zeros(1, 1), torch.zeros(1, 0, 1, 1)):
        for distribution in (
            Unigram(unary, lengths),
            MeanField(unary, transition, lengths),
            LinearChain(unary, transition, lengths),
        ):
            assert distribution.marginals().tolist() == [[[1.0]]]
            assert distribution.log_prob(torch.tensor([[0]])).tolist() == [0.0]
            assert distribution.entropy().tolist() == [0.0]
            assert distribution.mode().tolist() == distribution.sample().tolist() == [[0]]
        chain = LinearChain(unary, transition, lengths)
        assert chain.log_partition().tolist() == [3.0]
        assert chain.pair_marginals().shape == (1, 0, 1, 1)
        assert MeanField(unary, transition, lengths).evidence_lower_bound().tolist() == [3.0]


def test_structures_are_built_from_the_table() -> None:
    assert list(STRUCTURES) == ["unigram", "mean-field", "linear-chain"]
    problem = make_problem([3, 2], 3, seed=0, has_ends=True)
    settings = InferenceSettings(num_iterations=2, backend="reference")
    allowed = torch.ones(2, 3, 3, dtype=torch.bool)
    allowed[0, 1, 2] = False
    for structure in STRUCTURES.values():
        potentials = Potentials(*problem.scores[:2], problem.start, problem.end)
        if not structure.uses_transitions:
            with pytest.raises(ValueError, match="no transition, start or end scores"):
                structure.from_potentials(potentials, problem.lengths)
            potentials = Potentials(problem.unary)
        elif structure is not Unigram:
            with pytest.raises(ValueError, match="needs transition scores"):
                structure.from_potentials(Potentials(problem.unary), problem.lengths)
        distribution = structure.from_potentials(potentials, problem.lengths, allowed=allowed, settings=settings)
        assert distribution.marginals()[0, 1, 2] == 0
    field = MeanField.from_potentials(
        Potentials(*problem.scores[:2], problem.start, problem.end), problem.lengths, settings=settings
    )
    own = MeanField(*problem.scores, 2, start_scores=problem.start, end_scores=problem.end, backend="reference")
    assert torch.equal(field.marginals(), own.marginals())
    assert (field.num_iterations, field.backend) == (2, "reference")
    assert isinstance(field, Factorised)


def test_unary_scores_decide_the_type_of_results() -> None:
    problem = make_problem([3, 2], 3, seed=0, has_ends=True)
    for structure in (LinearChain, MeanField):
        distribution = structure(
            problem.unary.float(),
            problem.transition,
            problem.lengths,
            start_scores=problem.start,
            end_scores=problem.end,
        )
        assert distribution.marginals().dtype == distribution.log_prob(problem.gold).dtype == torch.float32
        assert distribution.entropy().dtype == torch.float32
