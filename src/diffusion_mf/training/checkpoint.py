"""Checkpoints: safetensors and JSON, either complete or absent, without anything that could run code.

A folder holds ``state.json`` and the tensor file that it names, with a checksum. New tensors are written to another file than
the one the current state names; then ``state.json`` is replaced by an atomic rename, which makes the new checkpoint valid. So a
kill or a full disk at any moment leaves either the old checkpoint or the new one.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import safetensors
import safetensors.torch
from torch import Tensor

from diffusion_mf.data.files import open_output
from diffusion_mf.errors import InputError
from diffusion_mf.networks.tensor_files import write_tensors

STATE_FILE = "state.json"
KIND = "diffusion-mf checkpoint"
FORMAT_VERSION = 1

_TENSOR_FILES = ("tensors-a.safetensors", "tensors-b.safetensors")
_READ_BYTES = 1 << 20


class Checkpoint(NamedTuple):
    """The contents of a checkpoint: JSON values, and tensors by name (on the CPU)."""

    state: dict[str, Any]
    tensors: dict[str, Tensor]


def write_checkpoint(folder: Path, state: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Replace the checkpoint in ``folder``; if that fails, `InputError`, and the earlier one stays unchanged."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(folder, error) from None
    current = _named_file(folder)
    target = folder / next(name for name in _TENSOR_FILES if name != current)
    try:
        _write_tensors(target, {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()})
        manifest = {
            "kind": KIND,
            "format_version": FORMAT_VERSION,
            "tensors": target.name,
            "sha256": _checksum(target),
            "state": dict(state),
        }
        with open_output(folder / STATE_FILE) as stream:
            stream.write((json.dumps(manifest, indent=2, ensure_ascii=False) + "\n").encode())
            stream.flush()
            os.fsync(stream.fileno())
    except (OSError, safetensors.SafetensorError) as error:
        _remove(target)
        raise _unwritable(folder, error) from None
    except InputError:
        _remove(target)
        raise
    for name in _TENSOR_FILES:
        if name != target.name:
            _remove(folder / name)


def read_checkpoint(folder: Path) -> Checkpoint | None:
    """The checkpoint in ``folder``, None if there is none; `InputError` if it is damaged or of another program."""
    path = folder / STATE_FILE
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror})", path=path, remedy="check its permissions") from None
    try:
        manifest = json.loads(text)
    except ValueError:
        raise damaged(path, "it is not JSON") from None
    if not isinstance(manifest, dict) or manifest.get("kind") != KIND:
        raise InputError(
            "not a checkpoint of diffusion-mf", path=path, remedy="name the --output folder of an earlier run"
        )
    if manifest.get("format_version") != FORMAT_VERSION:
        raise InputError(
            f"the checkpoint has format {manifest.get('format_version')}, but this version reads {FORMAT_VERSION}",
            path=path,
            remedy="resume with the version of diffusion-mf that wrote it",
        )
    name, state = manifest.get("tensors"), manifest.get("state")
    if name not in _TENSOR_FILES or not isinstance(state, dict):
        raise damaged(path, "entries are missing")
    tensor_path = folder / str(name)
    try:
        if _checksum(tensor_path) != manifest.get("sha256"):
            raise damaged(tensor_path, "its checksum differs from the recorded one")
        return Checkpoint(state, safetensors.torch.load_file(tensor_path))
    except FileNotFoundError:
        raise damaged(tensor_path, "the file is missing") from None
    except (OSError, safetensors.SafetensorError) as error:
        raise damaged(tensor_path, str(error)) from None


def has_checkpoint(folder: Path) -> bool:
    """Whether ``folder`` has a checkpoint, complete or damaged."""
    return (folder / STATE_FILE).exists()


def damaged(path: Path, why: str) -> InputError:
    """The error for a checkpoint that is not as it was written."""
    return InputError(
        f"the checkpoint is damaged ({why})", path=path, remedy="restore it, or train into another folder"
    )


def _named_file(folder: Path) -> str | None:
    """The tensor file that the current state names; None if it cannot be determined."""
    try:
        return json.loads((folder / STATE_FILE).read_bytes())["tensors"]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _write_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    write_tensors(path, tensors)
    with open(path, "rb") as stream:
        os.fsync(stream.fileno())


def _checksum(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as stream:
        while block := stream.read(_READ_BYTES):
            digest.update(block)
    return digest.hexdigest()


def _unwritable(folder: Path, error: Exception) -> InputError:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return InputError(
        f"the checkpoint cannot be written ({reason})",
        path=folder,
        remedy="check the free space and permissions, then continue with --resume",
    )


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()
