"""An exported model is the one that was exported, and anything else is refused in one sentence."""

from __future__ import annotations

import io
import json
import os
import pathlib
import shutil
from typing import Any

import numpy as np
import pytest
from small_models import small_model

from diffusion_mf.data.files import checksum_of_entries
from diffusion_mf.errors import InputError

pytest.importorskip("onnx.defs", reason="the extra onnx is not installed")
pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")

from diffusion_mf import onnx
from diffusion_mf.onnx import folder as folders
from diffusion_mf.onnx.export import export_model


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("exported") / "model"
    export_model(small_model("unigram"), folder)
    return folder


@pytest.fixture
def folder(exported: pathlib.Path, tmp_path: pathlib.Path) -> pathlib.Path:
    return pathlib.Path(shutil.copytree(exported, tmp_path / "model"))


def refused(folder: pathlib.Path) -> str:
    with pytest.raises(InputError) as caught:
        onnx.Tagger.load(folder, threads=1)
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 400
    return message


def test_a_flipped_bit_is_refused_or_changes_nothing(folder: pathlib.Path) -> None:
    expected = folders.read_folder(folder).manifest
    for name in ("manifest.json", "vocabulary.json"):
        original = (folder / name).read_bytes()
        for position in range(len(original)):
            damaged = bytearray(original)
            damaged[position] ^= 1 << (position % 8)
            (folder / name).write_bytes(damaged)
            try:
                found = folders.read_folder(folder).manifest
            except InputError:
                continue
            assert found == expected
        (folder / name).write_bytes(original)


def test_an_edited_manifest_is_refused(folder: pathlib.Path) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["temperature"] = 3.0
    (folder / "manifest.json").write_text(json.dumps(manifest))
    assert refused(folder) == (
        f"{folder / 'manifest.json'}: damaged or changed since it was exported; export the model again with dmf export."
    )


@pytest.mark.parametrize("name", ["manifest.json", "vocabulary.json", "arrays.npz", "words.onnx", "scores.onnx"])
def test_what_is_no_regular_file_is_refused(folder: pathlib.Path, tmp_path: pathlib.Path, name: str) -> None:
    path = folder / name
    path.rename(tmp_path / name)
    for make in (
        lambda: os.mkfifo(path),
        lambda: path.symlink_to("/dev/zero"),
        lambda: path.symlink_to(tmp_path / name),
        path.mkdir,
    ):
        make()
        assert str(path) in refused(folder)
        path.rmdir() if path.is_dir() else path.unlink()
    shutil.copy(tmp_path / name, path)
    os.truncate(path, 20 * 10**9)
    assert f"{name}: has 20,000,000,000 bytes, but may have" in refused(folder)


def _compressed(arrays: bytes) -> bytes:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, x=np.zeros(10**6))
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("vocabulary.json", lambda content: b"[" * 100_000),
        ("vocabulary.json", lambda content: b"[]"),
        ("vocabulary.json", lambda content: b'{"forms": 3, "characters": []}'),
        ("arrays.npz", lambda content: b""),
        ("arrays.npz", _compressed),
        ("words.onnx", lambda content: content[:100]),
        ("scores.onnx", lambda content: b""),
    ],
)
def test_contents_that_no_export_has_are_refused(folder: pathlib.Path, name: str, change: Any) -> None:
    """With correct checksums, as somebody would write them who means it."""
    (folder / name).write_bytes(content := change((folder / name).read_bytes()))
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["files"][name] = {"bytes": len(content), "sha256": folders.hashlib.sha256(content).hexdigest()}
    write_manifest(folder, manifest)
    assert "not an exported model that can be used" in refused(folder)


def write_manifest(folder: pathlib.Path, manifest: Any) -> None:
    manifest["checksum"] = checksum_of_entries(manifest)
    (folder / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("files", None),
        ("files", {}),
        ("files", {"../x": {}}),
        ("labels", 3),
        ("scheme", "x"),
        ("temperature", 0),
        ("temperature", "x"),
        ("vector_width", 10**12),
        ("schedule", [1.5, 0]),
    ],
)
def test_manifests_that_no_export_has_are_refused(folder: pathlib.Path, key: str, value: Any) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    write_manifest(folder, manifest | {key: value})
    assert refused(folder)


@pytest.mark.parametrize("text", ["", "[]", "3", "[" * 100_000, '{"format": "diffusion-mf onnx"}', '{"format": NaN}'])
def test_what_is_no_manifest_is_refused(folder: pathlib.Path, text: str) -> None:
    (folder / "manifest.json").write_text(text)
    assert refused(folder)


@pytest.mark.parametrize("sentences", [None, 5, "ab", [None], [5], [["a", None]], [[""]], ["ab"]])
def test_what_is_no_sentence_is_refused(exported: pathlib.Path, sentences: Any) -> None:
    with pytest.raises(InputError):
        onnx.Tagger.load(exported, threads=1).tag(sentences)
