"""The layout of the torch paths' loops, and the same lines with PyTorch's operations in NumPy's place."""

from __future__ import annotations

import pytest
import torch
from chain_problems import assert_close, computed, gradients, random_problem, random_weights

from diffusion_mf.ops.forward_backward import forward_backward, pytorch
from diffusion_mf.ops.length_order import arrays, batch_major, by_length, length_order, time_major
from diffusion_mf.ops.viterbi import pytorch as viterbi_pytorch
from diffusion_mf.ops.viterbi import viterbi

LENGTHS = [[3], [2, 2], [1, 4, 2, 4], [4, 3, 2, 1]]


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_there_and_back(lengths: list[int], dtype: torch.dtype) -> None:
    B, N = len(lengths), max(lengths)
    layout = length_order(torch.tensor(lengths, dtype=dtype), N)
    values = torch.arange(B * N * 2.0).view(B, N, 2)
    laid_out = time_major(values, layout)
    assert layout.counts == [sum(length > position for length in lengths) for position in range(N)]
    assert layout.is_ragged == (min(lengths) < N)
    order = layout.order.tolist()
    assert [lengths[sentence] for sentence in order] == sorted(lengths, reverse=True)
    for position in range(N):
        for rank, sentence in enumerate(order):
            unit = min(position, lengths[sentence] - 1)
            assert torch.equal(laid_out[position, rank], values[sentence, unit])
    returned = batch_major(laid_out, layout)
    ends = laid_out.view(-1, 2)[layout.last]
    for sentence, length in enumerate(lengths):
        assert torch.equal(returned[sentence, :length], values[sentence, :length])
        assert torch.equal(ends[sentence], values[sentence, length - 1])
    local = torch.randn(B, N - 1, 2, 2)
    assert torch.equal(by_length(local, layout), local[order])


def test_arrays_share_memory() -> None:
    tensor = torch.zeros(3, requires_grad=True)
    for use_numpy in (True, False):
        _, array = arrays(tensor, use_numpy=use_numpy)
        assert isinstance(array, torch.Tensor) != use_numpy
        array += 1
    assert tensor.tolist() == [2, 2, 2]


@pytest.fixture
def with_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pytorch, "_SMALL_PRODUCT", -1)
    monkeypatch.setattr(pytorch, "_SMALL_VECTOR_PRODUCT", -1)
    monkeypatch.setattr(viterbi_pytorch, "arrays", lambda *tensors: arrays(*tensors, use_numpy=False))


@pytest.mark.parametrize("is_local", [False, True])
@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.usefixtures("with_torch")
def test_torch_operations_give_the_same(lengths: list[int], is_local: bool) -> None:
    # Scores wide enough that states are scaled on the way.
    problem = random_problem(
        3, len(lengths), max(lengths), 3, is_local=is_local, lengths=lengths, scale=12, holes=0.1
    ).with_gradients()
    with torch.no_grad():
        assert pytorch.messages(*problem.folded) is not None  # else the reference would stand in
    found, expected = computed(problem, "torch"), computed(problem, "reference")
    assert_close(found, expected, tolerance=1e-9)
    weights = random_weights(expected)
    for names in (["log_partition"], ["marginals"], ["pairs"]):
        assert_close(
            gradients(found, names, problem, weights), gradients(expected, names, problem, weights), tolerance=1e-9
        )
    best, reference = (viterbi(*problem.folded, backend=backend) for backend in ("torch", "reference"))
    is_legal = reference.scores > -torch.inf
    assert torch.equal(best.scores, reference.scores)
    assert torch.equal(best.labels[is_legal], reference.labels[is_legal])


@pytest.mark.parametrize("is_local", [False, True])
def test_no_sentences(is_local: bool) -> None:
    unary = torch.zeros(0, 4, 3, requires_grad=True)
    transition = torch.zeros((0, 3, 3, 3) if is_local else (3, 3), requires_grad=True)
    lengths = torch.zeros(0, dtype=torch.long)
    found = forward_backward(unary, transition, lengths, backend="torch")
    (found.log_partition.sum() + found.marginals.sum()).backward()
    assert found.log_partition.shape == (0,)
    assert transition.grad is not None
    assert not transition.grad.any()
    assert viterbi(unary, transition, lengths, backend="torch").labels.shape == (0, 4)


@pytest.mark.parametrize("is_local", [False, True])
def test_products_large_enough_for_torch(is_local: bool) -> None:
    problem = random_problem(1, 26, 3, 104, is_local=is_local).with_gradients()
    assert not pytorch._is_small(problem.unary[:, 0], problem.transition)
    results = {backend: forward_backward(*problem.folded, backend=backend) for backend in ("torch", "reference")}
    found, expected = ({"log_partition": both.log_partition, "marginals": both.marginals} for both in results.values())
    assert_close(found, expected, tolerance=1e-9)
    weights = random_weights(expected)
    names = ["log_partition", "marginals"]
    assert_close(
        gradients(found, names, problem, weights), gradients(expected, names, problem, weights), tolerance=1e-9
    )
