"""One run at a time in a folder, nobody else's files in it, and nothing left of processes that were killed."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import small_runs
from small_models import write_model

from diffusion_mf.data.files import open_output
from diffusion_mf.errors import InputError
from diffusion_mf.model.storage import load_model
from diffusion_mf.training import loop
from diffusion_mf.training.loop import train
from diffusion_mf.training.resumption import RunFolder

ONE_STEP = {"training": {"epochs": 1, "max_steps": 1, "budget": 2000}}

HOLD_THE_LOCK = """
import sys, time
from pathlib import Path
from diffusion_mf.training.resumption import RunFolder
with RunFolder(Path(sys.argv[1])).locked(print):
    print("locked", flush=True)
    time.sleep(600)
"""

WRITE_AND_WAIT = """
import sys, time
from diffusion_mf.data.files import open_output
with open_output(sys.argv[1]) as stream:
    stream.write(b"half")
    stream.flush()
    print("written", flush=True)
    time.sleep(600)
"""


def _start(script: str, path: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", script, str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline().strip() in ("locked", "written")
    return process


def _ignore(message: str) -> None:
    pass


@pytest.mark.parametrize("resume", [False, True])
def test_a_second_run_is_refused_and_names_the_first(corpus: Path, tmp_path: Path, resume: bool) -> None:
    config = small_runs.small_config(corpus, ONE_STEP)
    with RunFolder(tmp_path / "run").locked(_ignore):
        with pytest.raises(InputError) as caught:
            train(config, output=tmp_path / "run", device="cpu", resume=resume)
        assert str(caught.value) == (
            f"{tmp_path / 'run'}: process {os.getpid()} on {os.uname().nodename} is training in this folder; wait until "
            "it has ended, or name another folder with --output."
        )
        assert sorted(os.listdir(tmp_path / "run")) == [".dmf.lock"]
    train(config, output=tmp_path / "run", device="cpu", resume=resume)
    assert load_model(tmp_path / "run" / "model")


@pytest.mark.parametrize("resume", [False, True])
def test_a_second_run_is_refused_before_its_data_are_read(
    corpus: Path, tmp_path: Path, resume: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "read_training_data", None)
    with (
        RunFolder(tmp_path / "run").locked(_ignore),
        pytest.raises(InputError, match="is training in this folder; wait until it has ended"),
    ):
        train(small_runs.small_config(corpus, ONE_STEP), output=tmp_path / "run", device="cpu", resume=resume)


def test_a_killed_process_leaves_no_lock(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    process = _start(HOLD_THE_LOCK, folder.root)
    try:
        with pytest.raises(InputError, match=f"process {process.pid} on"), folder.locked(_ignore):
            pass
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    with folder.locked(_ignore):
        assert folder.lock.read_text().startswith(f"process {os.getpid()} on ")


def test_without_locks_a_run_says_so_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(handle: int, operation: int) -> None:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", unsupported)
    notes: list[str] = []
    with RunFolder(tmp_path / "run").locked(notes.append):
        assert notes == [f"{tmp_path / 'run'} is on a file system without locks: do not start a second run there"]


@pytest.mark.parametrize("resume", [False, True])
def test_files_of_somebody_else_are_not_replaced(corpus: Path, tmp_path: Path, resume: bool) -> None:
    (tmp_path / "log.jsonl").write_text("mine\n")
    with pytest.raises(InputError) as caught:
        train(small_runs.small_config(corpus, ONE_STEP), output=tmp_path, device="cpu", resume=resume)
    assert str(caught.value) == (
        f"{tmp_path}: the folder is not empty, and not that of a run (it has log.jsonl); name a new folder with --output."
    )
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"log.jsonl": "mine\n"}


def test_a_run_that_ended_before_its_first_checkpoint_can_be_started_again(corpus: Path, tmp_path: Path) -> None:
    with RunFolder(tmp_path).locked(_ignore):
        (tmp_path / "log.jsonl").write_text("half a li")
    train(small_runs.small_config(corpus, ONE_STEP), output=tmp_path, device="cpu")
    assert small_runs.read_log(tmp_path, "start")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_what_a_killed_process_left_is_removed_by_the_next(tmp_path: Path, number: signal.Signals) -> None:
    path = tmp_path / "out.txt"
    others = {".out.txt.tmp", ".out.txt.short.tmp", ".other.txt.abcdefgh.tmp", "out.txt.abcdefgh.tmp"}
    for name in others:
        (tmp_path / name).touch()
    process = _start(WRITE_AND_WAIT, path)
    try:
        (temporary,) = {*os.listdir(tmp_path)} - others
        with open_output(path) as stream:
            stream.write(b"mine")
        assert (tmp_path / temporary).read_bytes() == b"half", "a process that is still writing was disturbed"
    finally:
        process.send_signal(number)
        process.communicate()
    assert {*os.listdir(tmp_path)} == {*others, temporary, "out.txt"}
    with open_output(path) as stream:
        stream.write(b"mine again")
    assert {*os.listdir(tmp_path)} == {*others, "out.txt"}
    assert path.read_bytes() == b"mine again"


def test_a_command_that_is_terminated_leaves_nothing_half_written(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "diffusion_mf.cli", "data", "convert", "-", str(tmp_path / "out.txt")]
    process = subprocess.Popen(
        [*command, "--from", "jsonl", "--to", "columns"], stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    process.stdin.write('{"units": ["Ada"], "labels": ["O"]}\n')
    process.stdin.flush()
    deadline = time.monotonic() + 60
    while not os.listdir(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert os.listdir(tmp_path), "nothing was begun"
    process.send_signal(signal.SIGTERM)
    process.wait(60)
    assert process.communicate()[1] == "dmf: terminated\n"
    assert process.returncode == 128 + signal.SIGTERM
    assert os.listdir(tmp_path) == []


def test_what_a_killed_save_left_is_removed_by_the_next(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", seed=1)
    for name in (".model.abcdefgh.tmp", ".model.in_use_1.tmp", ".model.mine.tmp"):
        (tmp_path / name / "new").mkdir(parents=True)
    handle = os.open(tmp_path / ".model.in_use_1.tmp", os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        write_model(folder, seed=2)
    finally:
        os.close(handle)
    assert {path.name for path in tmp_path.iterdir()} == {"model", ".model.in_use_1.tmp", ".model.mine.tmp"}
