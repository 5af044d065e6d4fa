"""The fused attention equals the masked one, in values and gradients."""

from __future__ import annotations

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from diffusion_mf.batches.layouts import Rotation
from diffusion_mf.ops.attention import packed_attention


def _problem(lengths, *, num_heads, width, device, dtype=torch.float32, longest=None):  # type: ignore[no-untyped-def]
    generator = torch.Generator().manual_seed(len(lengths))
    inputs = torch.randn(sum(lengths), 3, num_heads, width, generator=generator).to(device, dtype).requires_grad_()
    boundaries = torch.tensor([0, *lengths]).cumsum(0).int().to(device)
    rotation = Rotation.of_positions(torch.arange(longest or max(lengths), device=device), width)
    return inputs, boundaries, rotation.cosine[:, 0], rotation.sine[:, 0]


def _check(problem, *, tolerance):  # type: ignore[no-untyped-def]
    inputs = problem[0]
    weights = torch.randn(
        inputs.shape[0], *inputs.shape[2:], generator=torch.Generator().manual_seed(0), dtype=torch.float32
    ).to(inputs)
    found = {}
    for backend in ("triton", "reference"):
        output = packed_attention(*problem, backend=backend)
        (gradient,) = torch.autograd.grad((output * weights).sum(), inputs)
        found[backend] = output, gradient
    for one, other in zip(*found.values(), strict=True):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("width", [8, 40, 64])
@pytest.mark.parametrize("lengths", [[1], [5, 3], [16, 1, 0, 7], [17, 30], [0, 40, 64]])
def test_attention_equals_reference(device, lengths, width):  # type: ignore[no-untyped-def]
    _check(_problem(lengths, num_heads=2, width=width, device=device), tolerance=2e-5)


def test_attention_of_long_sentences_with_more_angles_than_units(device):  # type: ignore[no-untyped-def]
    # In half precision, which takes a GPU a fraction of the time to compile.
    problem = _problem([100, 9], num_heads=1, width=16, device=device, dtype=torch.float16, longest=128)
    _check(problem, tolerance=2e-2)


def test_attention_in_half_precision(device):  # type: ignore[no-untyped-def]
    _check(_problem([12, 3, 16], num_heads=2, width=40, device=device, dtype=torch.float16), tolerance=2e-2)


def test_a_sentence_hears_of_no_other(device):  # type: ignore[no-untyped-def]
    problem = _problem([5, 4], num_heads=2, width=8, device=device)
    before = packed_attention(*problem, backend="triton")
    with torch.no_grad():
        problem[0][5:] += 1
    after = packed_attention(*problem, backend="triton")
    assert torch.equal(before[:5], after[:5])
    assert not torch.allclose(before[5:], after[5:])


@pytest.mark.parametrize("lengths", [[5, 3], [17, 1, 0, 7]])
def test_a_penalty_on_gradients_of_attention(device, lengths):  # type: ignore[no-untyped-def]
    problem = _problem(lengths, num_heads=2, width=8, device=device)
    found = []
    for backend in ("triton", "reference"):
        with sdpa_kernel(SDPBackend.MATH):  # the others that PyTorch has refuse second derivatives
            output = packed_attention(*problem, backend=backend)
            (first,) = torch.autograd.grad(output.pow(2).sum(), problem[0], create_graph=True)
            (second,) = torch.autograd.grad(first.pow(2).sum(), problem[0], create_graph=True)
            (third,) = torch.autograd.grad(second.pow(2).sum(), problem[0])
        found.append((first, second, third))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3 * float(other.detach().abs().max()))
