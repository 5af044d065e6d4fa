"""The folder of an exported model: names, manifest, verified contents."""

from __future__ import annotations

import hashlib
import io
import json
import os
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from diffusion_mf.data.files import CHECKSUM, StrPath, checksum_of_entries, open_regular, refuse_constant
from diffusion_mf.errors import InputError, quoted

FORMAT = "diffusion-mf onnx"
FORMAT_VERSION = 2
"""Increased whenever older runtimes could not read a folder."""

MANIFEST, VOCABULARY, ARRAYS = "manifest.json", "vocabulary.json", "arrays.npz"
WORDS, SCORES, ENCODER, STEP = "words.onnx", "scores.onnx", "encoder.onnx", "step.onnx"

MOST_MANIFEST_BYTES, MOST_BYTES = 1 << 24, 1 << 31
"""sizes beyond which the manifest and the other files are not read"""

LIMITS = {
    "temperature": (0.01, 100),
    "distance_temperature": (1e-6, 1e6),
    "max_characters": (1, 1 << 16),
    "vector_width": (1, 1 << 20),
    "batch_units": (1, 1 << 24),
    "num_samples": (1, 1 << 16),
    "eta": (0, 1e9),
}
"""of numbers in the manifest, those of `Config` or wider: beyond, tagging would fail or never end"""
LONGEST_SCHEDULE = 1 << 17

Manifest = dict[str, Any]

_EXPORT_AGAIN = "export the model again with dmf export"


class ExportedModel(NamedTuple):
    """The contents of a folder; graphs are still bytes."""

    manifest: Manifest
    form_ids: dict[str, int]
    character_ids: dict[str, int]
    arrays: dict[str, np.ndarray]
    graphs: dict[str, bytes]


def read_folder(folder: StrPath) -> ExportedModel:
    """Read and verify a folder that ``dmf export`` wrote; `InputError` if it is none, or damaged."""
    path = Path(folder)
    if not os.path.lexists(path / MANIFEST):
        raise InputError("not an exported model", path=path, remedy="use a folder that dmf export wrote")
    try:
        manifest = json.loads(_content(path, MANIFEST, MOST_MANIFEST_BYTES), parse_constant=refuse_constant)
        is_manifest = manifest["format"] == FORMAT
    except (ValueError, KeyError, TypeError, RecursionError):
        is_manifest = False
    if not is_manifest:
        raise InputError("not the manifest of an exported model", path=path / MANIFEST, remedy=_EXPORT_AGAIN)
    if manifest.get("format_version") != FORMAT_VERSION:
        raise InputError(
            f"written by diffusion-mf {quoted(manifest.get('written_by'))}, in another format",
            path=path,
            remedy="install that version, or export the model again",
        )
    if manifest.get(CHECKSUM) != checksum_of_entries(manifest):
        raise _changed(path / MANIFEST)
    try:
        return _verified(path, manifest)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError, zipfile.BadZipFile):
        raise unusable(path) from None


def unusable(path: StrPath) -> InputError:
    """The error for contents that no export has, though their checksums are right."""
    return InputError("not an exported model that can be used", path=path, remedy=_EXPORT_AGAIN)


def _verified(path: Path, manifest: Manifest) -> ExportedModel:
    for name, (least, most) in LIMITS.items():
        if type(value := manifest.get(name, least)) not in (int, float) or not least <= value <= most:
            raise ValueError(name)
    schedule = manifest.get("schedule", ())
    if len(schedule) > LONGEST_SCHEDULE or not all(type(t) is int for t in schedule):
        raise ValueError("schedule")
    files = {}
    for name, entry in manifest["files"].items():
        if name not in (VOCABULARY, ARRAYS, WORDS, SCORES, ENCODER, STEP):
            raise InputError(f"lists the unknown file {quoted(name)}", path=path / MANIFEST, remedy=_EXPORT_AGAIN)
        files[name] = _content(path, name, MOST_BYTES, size=entry["bytes"])
        if hashlib.sha256(files[name]).hexdigest() != entry["sha256"]:
            raise _changed(path / name)
    vocabulary = json.loads(files.pop(VOCABULARY))
    packed = io.BytesIO(files.pop(ARRAYS))
    with zipfile.ZipFile(packed) as archive:
        # Only what is compressed can be larger than the bytes it comes from.
        if any(entry.compress_type != zipfile.ZIP_STORED for entry in archive.infolist()):
            raise ValueError("compressed arrays")
    with np.load(packed, allow_pickle=False) as stored:
        arrays = dict(stored)
    # Ids start after padding (0) and unknown (1).
    form_ids, character_ids = (
        {text: number for number, text in enumerate(vocabulary[kind], 2)} for kind in ("forms", "characters")
    )
    return ExportedModel(manifest, form_ids, character_ids, arrays, files)


def _content(folder: Path, name: str, limit: int, *, size: object = None) -> bytes:
    """A regular file inside of the folder, of the size that is known, if one is."""
    path = folder / name
    if not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder)):
        raise InputError("a link to a file outside of the folder", path=path, remedy="put the file in its place")
    with open_regular(path, limit=limit, remedy=_EXPORT_AGAIN) as stream:
        # Compared before reading: a damaged file may be much larger than what fits into memory.
        found = os.fstat(stream.fileno()).st_size
        if size is not None and found != size:
            raise _changed(path)
        return stream.read(found)


def _changed(path: Path) -> InputError:
    return InputError("damaged or changed since it was exported", path=path, remedy=_EXPORT_AGAIN)
