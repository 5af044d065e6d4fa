"""Checkpoints are whole or not there, and say in a sentence what is wrong with them."""

from __future__ import annotations

import errno
import json
import resource
from pathlib import Path
from typing import Any

import pytest
import torch

from diffusion_mf.data.files import checksum_of_entries
from diffusion_mf.errors import InputError
from diffusion_mf.training import checkpoint
from diffusion_mf.training.checkpoint import has_checkpoint, read_checkpoint, write_checkpoint

TENSORS = {"weights/a": torch.arange(6.0).view(2, 3), "optimizer/step/a": torch.tensor(3.0)}
NEWER = {"weights/a": torch.ones(2, 3), "optimizer/step/a": torch.tensor(4.0)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    written = tmp_path / "checkpoint"
    write_checkpoint(written, {"step": 3, "name": "Ä"}, TENSORS)
    return written


def _tensor_file(folder: Path) -> Path:
    return next(folder.glob("*.safetensors"))


def _assert_is_first(folder: Path) -> None:
    found = read_checkpoint(folder)
    assert found is not None
    assert found.state == {"step": 3, "name": "Ä"}
    assert set(found.tensors) == set(TENSORS)
    assert all(torch.equal(found.tensors[name], TENSORS[name]) for name in TENSORS)


def test_what_was_written_is_read(folder: Path) -> None:
    _assert_is_first(folder)


def test_a_new_checkpoint_replaces_the_old_one(folder: Path) -> None:
    for step in range(4, 7):
        write_checkpoint(folder, {"step": step}, {**NEWER, "optimizer/step/a": torch.tensor(float(step))})
        found = read_checkpoint(folder)
        assert found is not None
        assert found.state == {"step": step}
        assert found.tensors["optimizer/step/a"].item() == step
        assert len(list(folder.iterdir())) == 2, "nothing but the state and its tensors may stay"


def test_no_checkpoint_is_none(tmp_path: Path) -> None:
    assert read_checkpoint(tmp_path / "nothing") is None
    assert not has_checkpoint(tmp_path / "nothing")


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5])


def _flip_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("damage", [_truncate, _flip_bit, Path.unlink])
def test_damaged_tensors_are_told(folder: Path, damage: Any) -> None:
    damage(_tensor_file(folder))
    with pytest.raises(InputError, match=r"safetensors: the checkpoint is damaged .*; restore it"):
        read_checkpoint(folder)


def test_tensors_of_another_program_are_told(folder: Path) -> None:
    """The checksum fits, but the file is no safetensors."""
    path = _tensor_file(folder)
    path.write_bytes(b"PK\x03\x04 a zip file of another program")
    manifest = json.loads((folder / "state.json").read_text())
    manifest["sha256"] = checkpoint._checksum(path)
    manifest["checksum"] = checksum_of_entries(manifest)
    (folder / "state.json").write_text(json.dumps(manifest))
    with pytest.raises(InputError, match="the checkpoint is damaged"):
        read_checkpoint(folder)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not JSON"),
        (b'{"kind": "diffusion-mf checkp', "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[]", "not a checkpoint of diffusion-mf"),
        (b'{"epoch": 3}', "not a checkpoint of diffusion-mf"),
        (b'{"kind": "diffusion-mf checkpoint", "format_version": 99}', "has format 99, but this version reads 1"),
        (b'{"kind": "diffusion-mf checkpoint", "format_version": 1}', "entries are missing"),
        (
            b'{"kind": "diffusion-mf checkpoint", "format_version": 1, "tensors": "../../secret", "state": {}}',
            "entries are missing",
        ),
    ],
)
def test_bad_states_are_told(folder: Path, content: bytes, message: str) -> None:
    (folder / "state.json").write_bytes(content)
    with pytest.raises(InputError, match=message):
        read_checkpoint(folder)


def _full_disk(*arguments: object, **options: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("writer", ["safetensors.torch.save_file", "open_output", "_checksum"])
def test_a_full_disk_leaves_the_earlier_checkpoint(folder: Path, monkeypatch: pytest.MonkeyPatch, writer: str) -> None:
    with monkeypatch.context() as patched:
        if writer == "safetensors.torch.save_file":
            patched.setattr(checkpoint.safetensors.torch, "save_file", _full_disk)
        else:
            patched.setattr(checkpoint, writer, _full_disk)
        with pytest.raises(InputError, match=r"the checkpoint cannot be written \(No space left on device\)"):
            write_checkpoint(folder, {"step": 4}, NEWER)
    _assert_is_first(folder)
    assert len(list(folder.iterdir())) == 2, "half a file may not stay on a full disk"


def test_a_real_limit_on_file_size_leaves_the_earlier_checkpoint(folder: Path) -> None:
    """What the library for tensors raises when the system refuses bytes, not what we think it raises."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(InputError, match="the checkpoint cannot be written") as caught:
            write_checkpoint(folder, {"step": 4}, {"weights/a": torch.zeros(100_000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "\n" not in str(caught.value)
    _assert_is_first(folder)


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="the checkpoint cannot be written"):
        write_checkpoint(tmp_path / "file" / "checkpoint", {}, TENSORS)


def test_a_kill_before_the_last_rename_leaves_the_earlier_checkpoint(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    def kill(*arguments: object) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(checkpoint, "open_output", kill)
        with pytest.raises(Killed):
            write_checkpoint(folder, {"step": 4}, NEWER)
    assert len(list(folder.glob("*.safetensors"))) == 2, "the kill must come after the new tensors were written"
    _assert_is_first(folder)
    write_checkpoint(folder, {"step": 4}, NEWER)
    found = read_checkpoint(folder)
    assert found is not None
    assert found.state == {"step": 4}
