"""The torch paths' loops run in NumPy on a CPU and in PyTorch elsewhere: the same lines, with PyTorch's functions."""

from __future__ import annotations

import pytest
import torch
from chain_problems import assert_close, computed, gradients, random_problem, random_weights

from diffusion_mf.ops import length_order
from diffusion_mf.ops.forward_backward import pytorch as forward_backward_pytorch
from diffusion_mf.ops.viterbi import pytorch as viterbi_pytorch
from diffusion_mf.ops.viterbi import viterbi


@pytest.fixture
def in_pytorch(monkeypatch):
    """What `arrays` gives for tensors on another device."""

    def arrays(*tensors, use_numpy=True):
        return length_order.arrays(*tensors, use_numpy=False)

    for module in (forward_backward_pytorch, viterbi_pytorch):
        monkeypatch.setattr(module, "arrays", arrays)


@pytest.mark.parametrize("is_local", [False, True])
@pytest.mark.parametrize("holes", [0.0, 0.2])
def test_chain(in_pytorch, is_local, holes):
    problem = random_problem(1, 4, 9, 3, is_local=is_local, holes=holes, has_end=True, scale=3).with_gradients()
    assert forward_backward_pytorch.messages(*(tensor.detach() for tensor in problem.folded)) is not None
    found, expected = (computed(problem, backend) for backend in ("torch", "reference"))
    assert_close(found, expected, tolerance=1e-9)
    weights = random_weights(expected)
    assert_close(*(gradients(results, results, problem, weights) for results in (found, expected)), tolerance=1e-9)


@pytest.mark.parametrize("is_local", [False, True])
def test_viterbi(in_pytorch, is_local):
    problem = random_problem(2, 4, 9, 3, is_local=is_local, whole_numbers=True, scale=2)
    found, expected = (viterbi(*problem.folded, backend=backend) for backend in ("torch", "reference"))
    assert torch.equal(found.labels, expected.labels)
    assert torch.equal(found.scores, expected.scores)
