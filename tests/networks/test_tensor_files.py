from __future__ import annotations

import os
import pathlib
import stat

import pytest
import torch
from safetensors.torch import load_file

from diffusion_mf.networks.tensor_files import write_tensors


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600)])
def test_permissions_are_those_of_any_new_file(tmp_path: pathlib.Path, umask: int, mode: int) -> None:
    before = os.umask(umask)
    try:
        write_tensors(tmp_path / "weights.safetensors", {"a": torch.arange(3.0)})
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "weights.safetensors").stat().st_mode) == mode


def test_what_is_written_is_read_back_over_an_older_file(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "weights.safetensors"
    path.write_bytes(b"something longer than the tensors that replace it" * 20)
    write_tensors(path, {"a": torch.arange(3.0)}, metadata={"format": "pt"})
    assert load_file(path)["a"].tolist() == [0.0, 1.0, 2.0]
