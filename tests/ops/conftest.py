"""Settings of the tests of operations: memory that nobody wrote is NaN, and where Triton's kernels run."""

from __future__ import annotations

import os

import pytest
import torch


def _filled(tensor):
    """The tensor full of what no result may hold: NaN, or the largest integer."""
    if tensor.is_floating_point():
        return tensor.fill_(torch.nan)
    return tensor.fill_(True if tensor.dtype == torch.bool else torch.iinfo(tensor.dtype).max)


@pytest.fixture(autouse=True, scope="module")
def unwritten_memory_is_nan():
    """An output that is allocated but not written shows."""
    empty, empty_like = torch.empty, torch.empty_like
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "empty", lambda *sizes, **options: _filled(empty(*sizes, **options)))
        patch.setattr(torch, "empty_like", lambda tensor, **options: _filled(empty_like(tensor, **options)))
        yield


@pytest.fixture(scope="session")
def device():
    """Where kernels run: in Triton's interpreter on the CPU if it was asked for, else on a GPU."""
    if os.environ.get("TRITON_INTERPRET") == "1":
        return "cpu"
    if torch.cuda.is_available():
        return "cuda"
    raise RuntimeError("these cases need a CUDA GPU or TRITON_INTERPRET=1")
