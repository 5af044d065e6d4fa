"""Which backend runs, and that a choice which cannot be had is an error, in every operation."""

from __future__ import annotations

import functools

import pytest
import torch

from diffusion_mf.ops import backends, forward_backward, mean_field, viterbi
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


def test_auto_takes_the_cpu_path_on_a_cpu():
    assert choose_backend("auto", torch.zeros(2, 3, 4)) == "cpu"


def test_auto_takes_triton_on_a_gpu_where_it_can(monkeypatch):
    monkeypatch.setattr(backends, "has_triton", lambda: True)
    assert choose_backend("auto", OnGPU(MAX_TRITON_LABELS)) == "triton"
    assert choose_backend("auto", OnGPU(MAX_TRITON_LABELS + 1)) == "cpu"
    monkeypatch.setattr(backends, "has_triton", lambda: False)
    assert choose_backend("auto", OnGPU(4)) == "cpu"


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_plain_paths_can_always_be_had(backend):
    assert choose_backend(backend, torch.zeros(1, 1, 1000)) == backend


def test_triton_takes_at_most_256_labels(monkeypatch):
    monkeypatch.setattr(backends, "has_triton", lambda: True)
    assert MAX_TRITON_LABELS == 256
    assert choose_backend("triton", OnGPU(256)) == "triton"
    with pytest.raises(ValueError, match="at most 256 labels, found 257"):
        choose_backend("triton", OnGPU(257))


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
    with pytest.raises(ValueError, match="backend must be auto, reference, cpu or triton"):
        operation(*arguments, backend=name)


@pytest.mark.parametrize("operation", OPERATIONS, ids=NAMES)
def test_auto_gives_what_cpu_gives(operation, arguments):
    unary = torch.randn(2, 3, 2, generator=torch.Generator().manual_seed(0))
    found, expected = (operation(unary, *arguments[1:], backend=name) for name in ("auto", "cpu"))
    if isinstance(found, torch.Tensor):
        found, expected = (found,), (expected,)
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
