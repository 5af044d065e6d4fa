"""A run that is resumed continues from the state that was saved, and from no other."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch

from diffusion_mf.errors import InputError
from diffusion_mf.training.checkpoint import read_checkpoint, read_state, write_checkpoint
from diffusion_mf.training.resumption import begun_run

STATE = {"training": {"step": 12, "epoch": 3, "best_score": 91.25, "best_decoder": "argmax"}, "labels": ["O", "Ä"]}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    written = tmp_path / "run" / "checkpoint"
    write_checkpoint(written, STATE, {"weights/a": torch.arange(6.0)})
    return written


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('"step": 12', '"step": 13'),
        ('"epoch": 3', '"epoch": 2'),
        ("91.25", "99.25"),
        ("91.25", "NaN"),
        ("argmax", "viterbi"),
    ],
)
def test_an_edited_state_is_refused(folder: Path, before: str, after: str) -> None:
    path = folder / "state.json"
    text = path.read_text(encoding="utf-8")
    assert before in text
    path.write_text(text.replace(before, after), encoding="utf-8")
    for read in (read_checkpoint, read_state, lambda folder: begun_run(folder.parent)):
        with pytest.raises(InputError, match=r"state\.json: the checkpoint is damaged \(") as caught:
            read(folder)
        assert "\n" not in str(caught.value)


def test_a_flipped_bit_is_refused_or_changes_nothing(folder: Path) -> None:
    path = folder / "state.json"
    original = path.read_bytes()
    for position in range(len(original)):
        for bit in range(8):
            damaged = bytearray(original)
            damaged[position] ^= 1 << bit
            path.write_bytes(damaged)
            try:
                assert read_state(folder) == STATE
            except InputError:
                continue


def test_a_state_without_its_checksum_is_refused(folder: Path) -> None:
    path = folder / "state.json"
    manifest = json.loads(path.read_text(encoding="utf-8"))
    del manifest["checksum"]
    path.write_text(json.dumps(manifest))
    with pytest.raises(InputError, match=r"state\.json: the checkpoint is damaged \(its checksum"):
        read_checkpoint(folder)


@pytest.mark.parametrize("name", ["state.json", "tensors-a.safetensors"])
def test_what_is_no_regular_file_is_refused(folder: Path, name: str) -> None:
    (folder / name).unlink()
    os.mkfifo(folder / name)
    with pytest.raises(InputError, match="not a regular file"):
        read_checkpoint(folder)


def test_numbers_that_json_cannot_hold_are_not_written(folder: Path) -> None:
    with pytest.raises(ValueError, match="JSON"):
        write_checkpoint(folder, {"best_score": float("nan")}, {"weights/a": torch.ones(6)})
    found = read_checkpoint(folder)
    assert found is not None
    assert found.state == STATE
