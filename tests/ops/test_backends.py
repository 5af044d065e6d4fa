"""Which backend runs, and that a choice which cannot be had is an error, in every operation."""

from __future__ import annotations

import functools

import pytest
import torch

from diffusion_mf.ops import attention, backends, forward_backward, mean_field, viterbi
from diffusion_mf.ops.backends import MAX_TRITON_LABELS, choose_backend

OPERATIONS = [
    functools.partial(forward_backward.log_partition),
    functools.partial(forward_backward.forward_backward),
    functools.partial(forward_backward.pair_marginals),
    functools.partial(viterbi.viterbi),
    functools.partial(mean_field.mean_field, num_iterations=2),
]
NAMES = ["log_partition", "forward_backward", "pair_marginals", "viterbi", "mean_field"]


class OnGPU:
    """Scores as a GPU holds them, as far as the choice looks at them."""

    is_cuda = True

    def __init__(self, num_labels):
        self.shape = (2, 3, num_labels)


@pytest.fixture
def arguments():
    return torch.zeros(2, 3, 2), torch.zeros(2, 2), torch.tensor([3, 1])


@pytest.fixture
def compiling(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)


def test_auto_takes_the_torch_path_on_a_cpu():
    assert choose_backend("auto", torch.zeros(2, 3, 4)) == "torch"


def test_auto_takes_triton_on_a_gpu_where_it_can(monkeypatch):
    monkeypatch.setattr(backends, "has_triton", lambda: True)
    assert choose_backend("auto", OnGPU(MAX_TRITON_LABELS)) == "triton"
    assert choose_backend("auto", OnGPU(MAX_TRITON_LABELS + 1)) == "torch"
    monkeypatch.setattr(backends, "has_triton", lambda: False)
    assert choose_backend("auto", OnGPU(4)) == "torch"


@pytest.mark.parametrize("backend", ["reference", "torch"])
def test_plain_paths_can_always_be_had(backend):
    assert choose_backend(backend, torch.zeros(1, 1, 1000)) == backend


def test_triton_takes_at_most_256_labels(monkeypatch):
    monkeypatch.setattr(backends, "has_triton", lambda: True)
    assert MAX_TRITON_LABELS == 256
    assert choose_backend("triton", OnGPU(256)) == "triton"
    with pytest.raises(ValueError, match="at most 256 labels here, found 257: choose 'auto' or 'torch'"):
        choose_backend("triton", OnGPU(257))


@pytest.mark.parametrize(("num_labels", "is_local"), [(129, False), (256, False), (257, True)])
def test_more_labels_than_mean_field_has_kernels_for(monkeypatch, num_labels, is_local):
    """An explicit choice is never replaced silently; ``auto`` is."""
    monkeypatch.setattr(backends, "has_triton", lambda: True)
    monkeypatch.setattr(backends, "is_interpreting", lambda: True)
    unary, transition = torch.zeros(1, 2, num_labels), torch.zeros(num_labels, num_labels)
    if is_local:
        transition = transition[None, None]
    with pytest.raises(
        ValueError, match=f"supports at most {256 if is_local else 128} labels here, found {num_labels}"
    ):
        mean_field.mean_field(unary, transition, [2], 1, backend="triton")
    assert mean_field.mean_field(unary, transition, [2], 1, backend="auto").shape == (1, 2, num_labels)


def test_attention_refuses_what_it_cannot_have(compiling, monkeypatch):
    inputs, boundaries = torch.zeros(3, 3, 2, 4), torch.tensor([0, 3], dtype=torch.int32)
    angles = torch.ones(3, 2), torch.zeros(3, 2)
    with pytest.raises(RuntimeError, match="needs a CUDA GPU, the triton package and sentences of at most 128 units"):
        attention.packed_attention(inputs, boundaries, *angles, backend="triton")
    with pytest.raises(ValueError, match="backend must be auto, reference, torch or triton, found 'numpy'"):
        attention.packed_attention(inputs, boundaries, *angles, backend="numpy")
    results = [attention.packed_attention(inputs, boundaries, *angles, backend=name) for name in ("auto", "torch")]
    assert torch.equal(*results)
    monkeypatch.setattr(attention, "_HAS_TRITON", False)
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    with pytest.raises(RuntimeError, match="the triton package"):
        attention.packed_attention(inputs, boundaries, *angles, backend="triton")


def test_triton_that_is_not_installed(monkeypatch):
    monkeypatch.setattr(backends, "has_triton", lambda: False)
    with pytest.raises(RuntimeError, match="not installed"):
        choose_backend("triton", OnGPU(4))


@pytest.mark.parametrize("operation", OPERATIONS, ids=NAMES)
def test_triton_on_a_cpu_is_an_error(operation, arguments, compiling, monkeypatch):
    monkeypatch.setattr(backends, "has_triton", lambda: True)
    with pytest.raises(RuntimeError, match="CUDA GPU"):
        operation(*arguments, backend="triton")


@pytest.mark.parametrize("operation", OPERATIONS, ids=NAMES)
@pytest.mark.parametrize("name", ["cuda", "Triton", "", "numpy"])
def test_an_unknown_name_is_an_error(operation, arguments, name):
    with pytest.raises(ValueError, match="backend must be auto, reference, torch or triton"):
        operation(*arguments, backend=name)


@pytest.mark.parametrize("operation", OPERATIONS, ids=NAMES)
def test_auto_gives_what_torch_gives(operation, arguments):
    unary = torch.randn(2, 3, 2, generator=torch.Generator().manual_seed(0))
    found, expected = (operation(unary, *arguments[1:], backend=name) for name in ("auto", "torch"))
    if isinstance(found, torch.Tensor):
        found, expected = (found,), (expected,)
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
