"""Models that do not fit on a device: what is said."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from diffusion_mf.errors import DiffusionMFError
from diffusion_mf.memory import placed

GPU = torch.device("cuda", 0)


def model() -> nn.Module:
    layers = nn.Sequential(nn.Linear(1000, 1000, bias=False), nn.Linear(1000, 1000, bias=False))
    layers[0].requires_grad_(False)
    return layers


@pytest.mark.parametrize(
    ("is_trained", "needed"),
    # 2 million weights of 4 bytes; in training twice, and 16 more for each of the million that is adjusted.
    [(False, 8_000_000), (True, 32_000_000)],
)
def test_a_gpu_that_is_too_small(monkeypatch: pytest.MonkeyPatch, is_trained: bool, needed: int) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (needed - 1, 10**12))
    with pytest.raises(DiffusionMFError, match=r"2 million parameters and needs 0\.0 GB .*more than cuda:0 has free"):
        placed(model(), GPU, is_trained=is_trained)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (needed, 10**12))
    monkeypatch.setattr(nn.Module, "to", lambda self, device: self)
    assert isinstance(placed(model(), GPU, is_trained=is_trained), nn.Sequential)


def test_memory_that_runs_out_on_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    def to(self: nn.Module, device: torch.device) -> nn.Module:
        raise torch.OutOfMemoryError("no memory")

    monkeypatch.setattr(nn.Module, "to", to)
    with pytest.raises(DiffusionMFError, match="choose a smaller encoder or size"):
        placed(model(), torch.device("cpu"))


def test_other_errors_stay_what_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    def to(self: nn.Module, device: torch.device) -> nn.Module:
        raise RuntimeError("something else")

    monkeypatch.setattr(nn.Module, "to", to)
    with pytest.raises(RuntimeError, match="something else"):
        placed(model(), torch.device("cpu"))
