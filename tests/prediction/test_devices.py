"""Which device is chosen, and what is said of one that is not there."""

from __future__ import annotations

import pytest
import torch

from diffusion_mf.errors import InputError
from diffusion_mf.prediction.devices import choose_device


def with_gpus(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)


@pytest.mark.parametrize(
    ("num_gpus", "name", "rank", "expected"),
    [
        (0, "auto", None, "cpu"), (0, "cpu", None, "cpu"), (0, "auto", 3, "cpu"), (2, "cpu", None, "cpu"),
        (2, "auto", None, "cuda:0"), (2, "cuda", None, "cuda:0"), (2, "cuda:1", None, "cuda:1"), (2, "auto", 1, "cuda:1"),
    ],
)  # fmt: skip
def test_what_is_there(
    monkeypatch: pytest.MonkeyPatch, num_gpus: int, name: str, rank: int | None, expected: str
) -> None:
    with_gpus(monkeypatch, num_gpus)
    assert choose_device(name, local_rank=rank) == torch.device(expected)
    assert choose_device(torch.device("cpu")) == torch.device("cpu")


def test_the_current_gpu_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    with_gpus(monkeypatch, 2)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    assert choose_device("cuda") == torch.device("cuda:1")


@pytest.mark.parametrize("name", ["banana", "cuda", "cuda:0", "xpu"])
def test_without_a_gpu_none_is_offered(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    with_gpus(monkeypatch, 0)
    with pytest.raises(InputError) as caught:
        choose_device(name)
    assert str(caught.value) == f"there is no device {name!r} here; choose auto or cpu (PyTorch finds no CUDA GPU)."


def test_the_gpus_that_are_there_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with_gpus(monkeypatch, 2)
    with pytest.raises(InputError, match="there is no device 'cuda:2' here; choose auto, cpu, cuda:0 or cuda:1"):
        choose_device("cuda:2")
    with pytest.raises(InputError, match=r"there is no device 'cuda:2' here; .*, or start fewer processes"):
        choose_device("auto", local_rank=2)
