"""The folder of an exported model: names, manifest, verified contents."""

from __future__ import annotations

import hashlib
import io
import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from diffusion_mf.data.files import StrPath
from diffusion_mf.errors import InputError

FORMAT = "diffusion-mf onnx"
FORMAT_VERSION = 2
"""Increased whenever older runtimes could not read a folder."""

MANIFEST, VOCABULARY, ARRAYS = "manifest.json", "vocabulary.json", "arrays.npz"
WORDS, SCORES, ENCODER, STEP = "words.onnx", "scores.onnx", "encoder.onnx", "step.onnx"

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
    if not (path / MANIFEST).is_file():
        raise InputError("not an exported model", path=path, remedy="name a folder that dmf export wrote")
    try:
        manifest = json.loads((path / MANIFEST).read_bytes())
        is_manifest = manifest["format"] == FORMAT and isinstance(manifest["files"], dict)
    except (ValueError, KeyError, TypeError):
        is_manifest = False
    if not is_manifest:
        raise InputError("not the manifest of an exported model", path=path / MANIFEST, remedy=_EXPORT_AGAIN)
    if manifest["format_version"] != FORMAT_VERSION:
        raise InputError(
            f"written by diffusion-mf {manifest.get('written_by')}, in another format",
            path=path,
            remedy="install that version, or export the model again",
        )
    files = {}
    for name, entry in manifest["files"].items():
        if name not in (VOCABULARY, ARRAYS, WORDS, SCORES, ENCODER, STEP):
            raise InputError(f"lists the unknown file {name!r}", path=path / MANIFEST, remedy=_EXPORT_AGAIN)
        try:
            files[name] = (path / name).read_bytes()
        except OSError as error:
            raise InputError(f"cannot be read ({error.strerror})", path=path / name, remedy=_EXPORT_AGAIN) from None
        if hashlib.sha256(files[name]).hexdigest() != entry["sha256"]:
            raise InputError("damaged or changed since it was exported", path=path / name, remedy=_EXPORT_AGAIN)
    vocabulary = json.loads(files.pop(VOCABULARY))
    with np.load(io.BytesIO(files.pop(ARRAYS)), allow_pickle=False) as stored:
        arrays = dict(stored)
    # Ids start after padding (0) and unknown (1).
    form_ids, character_ids = (
        {text: number for number, text in enumerate(vocabulary[kind], 2)} for kind in ("forms", "characters")
    )
    return ExportedModel(manifest, form_ids, character_ids, arrays, files)
