"""Full disks, folders without permission and pipes that nobody reads: a sentence, and what was there before is there still."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import small_runs
from child_processes import (
    close_pipe,
    cut_network,
    drop_rights,
    fill_disk,
    holds_in_child,
    in_child,
    run_command,
    status_of,
)
from small_models import small_model, write_model

from diffusion_mf.data.annotations import read_brat
from diffusion_mf.data.files import open_output, read_chunks
from diffusion_mf.errors import InputError
from diffusion_mf.model.storage import load_model, save_model
from diffusion_mf.training.loop import train

ONE_STEP = {"system": "unigram", "training": {"epochs": 1, "max_steps": 1, "budget": 2000, "threads": 1}}


def _replace(path: Path) -> None:
    with open_output(path) as stream:
        stream.write(b"new" * 20_000)


def _is_refused(call: Callable[[], object], reason: str) -> bool:
    try:
        call()
    except InputError as error:
        return reason in str(error) and "\n" not in str(error)
    return False


def _contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != ".dmf.lock"}


@pytest.fixture
def calls(tmp_path: Path) -> list[Callable[[], object]]:
    """What replaces a file, replaces a model, and trains."""
    (tmp_path / "file").write_bytes(b"old")
    write_model(tmp_path / "model", "unigram", seed=1)
    config = small_runs.small_config(small_runs.write_small_corpus(tmp_path), ONE_STEP)
    train(config, output=tmp_path / "first", device="cpu")  # imports what somebody else may not be able to read
    return [
        lambda: _replace(tmp_path / "file"),
        lambda: save_model(tmp_path / "model", small_model("unigram", seed=2)),
        lambda: train(config, output=tmp_path / "run", device="cpu"),
    ]


@pytest.mark.parametrize("num_bytes", [0, 1000, 20_000])
def test_a_full_disk(calls: list[Callable[[], object]], tmp_path: Path, num_bytes: int) -> None:
    before = _contents(tmp_path)
    for call in calls:
        assert holds_in_child(lambda: _is_refused(call, "File too large"), lambda: fill_disk(num_bytes))  # noqa: B023
        remaining = {path: data for path, data in _contents(tmp_path).items() if tmp_path / "run" not in path.parents}
        assert remaining == before
    calls[2]()
    assert load_model(tmp_path / "run" / "model")


def test_a_read_only_folder(calls: list[Callable[[], object]], tmp_path: Path) -> None:
    """For root permissions do not count, so that a process of another user tries."""
    for folder in (tmp_path, *tmp_path.parents):
        if os.geteuid() == 0 and folder.stat().st_uid == 0:
            folder.chmod(folder.stat().st_mode | 0o055)
    before = _contents(tmp_path)
    tmp_path.chmod(0o555)
    try:
        for call in calls:
            assert holds_in_child(lambda: _is_refused(call, "Permission denied"), drop_rights)  # noqa: B023
        assert _contents(tmp_path) == before
        assert holds_in_child(lambda: bool(load_model(tmp_path / "model")), drop_rights)
    finally:
        tmp_path.chmod(0o755)


def test_a_folder_that_cannot_be_listed_is_not_left_out(tmp_path: Path) -> None:
    for folder in (tmp_path, *tmp_path.parents):
        if os.geteuid() == 0 and folder.stat().st_uid == 0:
            folder.chmod(folder.stat().st_mode | 0o055)
    (tmp_path / "a.txt").write_text("Ada sings.")
    (tmp_path / "closed").mkdir(mode=0o000)
    read = lambda: list(read_brat(tmp_path))  # noqa: E731
    assert holds_in_child(lambda: _is_refused(read, "closed: cannot be read (Permission denied)"), drop_rights)


def test_a_disk_that_cannot_be_read() -> None:
    """The first page of a process's memory gives the error of a broken disk."""
    assert _is_refused(
        lambda: list(read_chunks("/proc/self/mem")), "/proc/self/mem: cannot be read (Input/output error)"
    )


@pytest.mark.parametrize("name", ["a\0b", "\ud800"])
def test_names_that_no_file_can_have(name: str) -> None:
    assert _is_refused(lambda: list(read_chunks(name)), "no such file")
    assert _is_refused(lambda: open_output(name).__enter__(), "no file can have this name")


def test_a_pipe_that_nobody_reads(tmp_path: Path) -> None:
    corpus, model = small_runs.write_small_corpus(tmp_path), write_model(tmp_path / "model", "unigram")
    commands = [
        ("tag", model, corpus / "dev.txt", "--format", "columns", "--device", "cpu"),
        ("data", "stats", corpus / "dev.txt", "--task", "ner"),
    ]
    errors = tmp_path / "errors"
    for arguments in commands:
        assert status_of(in_child(lambda: (close_pipe(), run_command(*arguments, stderr=errors)))) == 1  # noqa: B023
        assert "Traceback" not in errors.read_text()


def test_without_a_network(tmp_path: Path) -> None:
    corpus, model = small_runs.write_small_corpus(tmp_path), write_model(tmp_path / "model", "unigram")
    if status_of(in_child(cut_network)) != 0:
        pytest.skip("the system does not let processes leave its network")
    command = ("tag", model, corpus / "dev.txt", "--output", tmp_path / "tagged.txt", "--device", "cpu")
    assert status_of(in_child(lambda: (cut_network(), run_command(*command, stderr=tmp_path / "errors")))) == 0
