"""Outputs: whole or not at all, links and pipes left what they are."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from diffusion_mf.data.files import make_folder, open_output
from diffusion_mf.errors import InputError


def test_an_output_appears_only_when_all_went_well(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("before")

    def fail_halfway() -> None:
        with open_output(path) as stream:
            stream.write(b"half")
            raise RuntimeError("stopped")

    with pytest.raises(RuntimeError, match="stopped"):
        fail_halfway()
    assert path.read_text() == "before"
    with open_output(path) as stream:
        stream.write(b"whole")
        stream.flush()
        assert path.read_text() == "before"
    assert path.read_text() == "whole"
    assert os.listdir(tmp_path) == ["a"]


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    target, link = tmp_path / "folder" / "target", tmp_path / "link"
    target.write_text("before")
    link.symlink_to(target)
    with open_output(link) as stream:
        stream.write(b"after")
    assert link.is_symlink()
    assert target.read_text() == "after"
    assert os.listdir(tmp_path / "folder") == ["target"]


def test_a_pipe_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    """The same holds for devices: a rename onto one would put a file in its place."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    received: list[bytes] = []
    reader = threading.Thread(target=lambda: received.append(pipe.read_bytes()), daemon=True)
    reader.start()
    with open_output(pipe) as stream:
        stream.write(b"through")
    reader.join(10)
    assert received == [b"through"]
    assert stat.S_ISFIFO(os.stat(pipe).st_mode)
    assert os.listdir(tmp_path) == ["pipe"]


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be written"), open_output(tmp_path / "no" / "a"):
        pass


def test_a_folder_that_cannot_be_created(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"file/folder: the folder cannot be created \(.+\); choose another folder"):
        make_folder(tmp_path / "file" / "folder")
    make_folder(tmp_path / "a" / "b")
    make_folder(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()


@pytest.mark.parametrize("suffix", [".bz2", ".zip", ".GZ"])
def test_a_name_that_promises_another_compression(suffix: str, tmp_path: Path) -> None:
    with (
        pytest.raises(InputError, match=rf"files ending in \{suffix} cannot be written; choose a name ending in \.gz"),
        open_output(tmp_path / f"a.tsv{suffix}"),
    ):
        pass
    assert os.listdir(tmp_path) == []
