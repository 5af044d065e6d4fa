from __future__ import annotations

import pytest
import torch

from diffusion_mf.ops.gelu import GELU, gelu


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_both_ways_are_pytorchs_function(dtype: torch.dtype) -> None:
    values = torch.cat([torch.linspace(-30, 30, 1001), torch.tensor([0.0, -0.0, 1e30, -1e30])]).to(dtype)
    before = values.clone()
    expected = torch.nn.functional.gelu(values, approximate="tanh")
    with torch.no_grad():
        torch.testing.assert_close(gelu(values), expected, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(GELU()(values), expected, rtol=1e-5, atol=1e-6)
    assert torch.equal(values, before)
    assert torch.equal(gelu(values), expected)


def test_it_has_its_gradient() -> None:
    values = torch.linspace(-3, 3, 13, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(gelu, (values,))
