"""Checkpoints: safetensors and JSON, either complete or absent, without anything that could run code.

A folder holds ``state.json`` and the tensor file that it names, with checksums of both. New tensors are written to another file than
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

from diffusion_mf.data.files import CHECKSUM, checksum_of_entries, open_output, open_regular, refuse_constant
from diffusion_mf.errors import InputError
from diffusion_mf.networks.tensor_files import write_tensors

STATE_FILE = "state.json"
KIND = "diffusion-mf checkpoint"
FORMAT_VERSION = 1

_TENSOR_FILES = ("tensors-a.safetensors", "tensors-b.safetensors")
_REMEDY = "restore it, or train into another folder"

MOST_STATE_BYTES, MOST_TENSOR_BYTES = 1 << 28, 1 << 37
"""sizes beyond which files are not read"""


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
        write_tensors(target, {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()})
        with open(target, "rb") as stream:
            os.fsync(stream.fileno())
        manifest = {
            "kind": KIND,
            "format_version": FORMAT_VERSION,
            "tensors": target.name,
            "sha256": _checksum(target),
            "state": dict(state),
        }
        manifest[CHECKSUM] = checksum_of_entries(manifest)
        with open_output(folder / STATE_FILE) as stream:
            stream.write((json.dumps(manifest, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode())
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
    manifest = _read_manifest(folder)
    if manifest is None:
        return None
    path = folder / manifest["tensors"]
    if not os.path.lexists(path):
        raise damaged(path, "the file is missing")
    try:
        if _checksum(path) != manifest.get("sha256"):
            raise damaged(path, "its checksum differs from the recorded one")
        return Checkpoint(manifest["state"], safetensors.torch.load_file(path))
    except (OSError, safetensors.SafetensorError) as error:
        raise damaged(path, str(error)) from None


def read_state(folder: Path) -> dict[str, Any] | None:
    """The JSON values of the checkpoint in ``folder``, without its tensors; otherwise as `read_checkpoint`."""
    manifest = _read_manifest(folder)
    return None if manifest is None else manifest["state"]


def _read_manifest(folder: Path) -> dict[str, Any] | None:
    path = folder / STATE_FILE
    if not os.path.lexists(path):
        return None
    with open_regular(path, limit=MOST_STATE_BYTES, remedy=_REMEDY) as stream:
        text = stream.read()
    try:
        manifest = json.loads(text, parse_constant=refuse_constant)
    except (ValueError, RecursionError):
        raise damaged(path, "it is not JSON") from None
    if not isinstance(manifest, dict) or manifest.get("kind") != KIND:
        raise InputError(
            "not a checkpoint of diffusion-mf", path=path, remedy="give the --output folder of an earlier run"
        )
    if manifest.get("format_version") != FORMAT_VERSION:
        raise InputError(
            f"the checkpoint has format {manifest.get('format_version')}, but this version reads {FORMAT_VERSION}",
            path=path,
            remedy="resume with the version of diffusion-mf that wrote it",
        )
    if manifest.get("tensors") not in _TENSOR_FILES or not isinstance(manifest.get("state"), dict):
        raise damaged(path, "entries are missing")
    if manifest.get(CHECKSUM) != checksum_of_entries(manifest):
        raise damaged(path, "its checksum differs from the recorded one")
    return manifest


def has_checkpoint(folder: Path) -> bool:
    """Whether ``folder`` has a checkpoint, complete or damaged."""
    return (folder / STATE_FILE).exists()


def damaged(path: Path, why: str) -> InputError:
    """The error for a checkpoint that is not as it was written."""
    return InputError(f"the checkpoint is damaged ({why})", path=path, remedy=_REMEDY)


def _named_file(folder: Path) -> str | None:
    """The tensor file that the current state names; None if it cannot be determined."""
    try:
        manifest = _read_manifest(folder)
    except InputError:
        return None
    return None if manifest is None else manifest["tensors"]


def _checksum(path: Path) -> str:
    with open_regular(path, limit=MOST_TENSOR_BYTES, remedy=_REMEDY) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


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
