from __future__ import annotations

import datetime
import json
import multiprocessing
import pathlib
import re
import subprocess

import pytest

from diffusion_mf import __version__
from diffusion_mf.errors import InputError
from diffusion_mf.lab import results
from diffusion_mf.lab.results import provenance, write_rows


def rows_of(path: pathlib.Path) -> list[dict]:
    return json.loads(path.read_text(encoding="utf-8"))


def test_provenance_names_everything() -> None:
    import torch

    found = provenance("dmf benchmark ops", packages=["pytest", "no-such-distribution"])
    assert list(found) == ["command", "commit", "hardware", "versions", "date"]
    assert found["command"] == "dmf benchmark ops"
    assert re.search(r", \d+ cores", found["hardware"])
    versions = found["versions"]
    assert set(versions) == {"python", "diffusion-mf", "torch", "triton", "numpy", "pytest", "no-such-distribution"}
    assert (versions["diffusion-mf"], versions["pytest"]) == (__version__, pytest.__version__)
    assert torch.__version__.startswith(versions["torch"].split("+")[0])
    assert versions["no-such-distribution"] is None
    date = datetime.datetime.fromisoformat(found["date"])
    assert date.utcoffset() == datetime.timedelta(0)
    assert abs(datetime.datetime.now(datetime.UTC) - date) < datetime.timedelta(minutes=1)
    assert json.loads(json.dumps(found)) == found


@pytest.fixture
def checkout(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """A repository of its own, that holds the module as far as `commit` can tell."""
    module = tmp_path / "package" / "results.py"
    module.parent.mkdir()
    module.write_text("first\n")
    for arguments in (
        ["init", "--quiet"],
        ["add", "."],
        ["-c", "user.name=n", "-c", "user.email=e", "commit", "--quiet", "-m", "first"],
    ):
        subprocess.run(["git", "-C", str(tmp_path), *arguments], check=True)
    monkeypatch.setattr(results, "PACKAGE", module.parent)
    monkeypatch.setattr(results, "__file__", str(module))
    monkeypatch.delenv(results.COMMIT_VARIABLE, raising=False)
    return module


def test_commit_of_a_clean_and_a_changed_checkout(checkout: pathlib.Path) -> None:
    clean = results.commit()
    assert clean is not None
    assert re.fullmatch(r"[0-9a-f]{40}", clean)
    (checkout.parent.parent / "elsewhere.txt").write_text("not measured\n")
    assert results.commit() == clean
    (checkout.parent / "new.py").write_text("measured\n")
    assert results.commit() == f"{clean}-dirty"
    assert results.commit(measured=["results.py"]) == clean
    checkout.write_text("changed\n")
    assert results.commit(measured=[checkout]) == f"{clean}-dirty"


def test_no_commit_outside_a_checkout_or_in_one_of_something_else(
    checkout: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = checkout.parent / "site-packages" / "results.py"
    installed.parent.mkdir()
    installed.write_text("installed, not tracked\n")
    monkeypatch.setattr(results, "PACKAGE", installed.parent)
    monkeypatch.setattr(results, "__file__", str(installed))
    assert results.commit() is None
    monkeypatch.setenv(results.COMMIT_VARIABLE, "abc123")
    assert results.commit() == "abc123"


def test_rows_are_merged_in_place(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "results" / "ops.json"
    write_rows(path, [{"op": "a", "k": 1, "ms": 1}, {"op": "b", "k": [1, 2], "ms": 2}], replace_by=["op", "k"])
    write_rows(path, [{"op": "b", "k": [1, 2], "ms": 3}, {"op": "a", "k": 2, "ms": 4}], replace_by=["op", "k"])
    write_rows(path, [{"op": "a", "k": 1, "ms": 5, "é": None}], replace_by=["op", "k"])
    assert rows_of(path) == [
        {"op": "a", "k": 1, "ms": 5, "é": None},
        {"op": "b", "k": [1, 2], "ms": 3},
        {"op": "a", "k": 2, "ms": 4},
    ]
    assert "é" in path.read_text(encoding="utf-8")


def test_all_rows_of_one_key_make_way_for_all_new_ones(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "rows.json"
    old = [{"op": "a", "ms": 1}, {"op": "b", "ms": 2}, {"op": "a", "ms": 3}, {"ms": 4}]
    write_rows(path, old, replace_by=["op", "ms"])
    write_rows(path, [{"op": "a", "ms": 5}, {"op": "a", "ms": 6}], replace_by=["op"])
    assert [row["ms"] for row in rows_of(path)] == [5, 6, 2, 4]


@pytest.mark.parametrize("text", ['{"op": 1}', "[1, 2]", '[{"op": 1},', "", "[" * 100_000, f"[{'9' * 5000}]"])
def test_what_is_no_result_file_is_left_alone(tmp_path: pathlib.Path, text: str) -> None:
    path = tmp_path / "rows.json"
    path.write_text(text)
    with pytest.raises(InputError, match=r"rows\.json.*repair the file"):
        write_rows(path, [{"op": "a"}], replace_by=["op"])
    assert path.read_text() == text


def test_a_failure_leaves_the_file_whole(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "rows.json"
    write_rows(path, [{"op": "a"}], replace_by=["op"])
    before = path.read_bytes()
    for bad in ({"op": "b", "ms": float("nan")}, {"op": "b", "ms": object()}):
        with pytest.raises((ValueError, TypeError)):
            write_rows(path, [bad], replace_by=["op"])
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["rows.json"]


def _add_rows(path: pathlib.Path, writer: int) -> None:
    for number in range(20):
        write_rows(path, [{"writer": writer, "number": number}], replace_by=["writer", "number"])


def test_writers_lose_nothing_of_each_other(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "rows.json"
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_add_rows, args=(path, writer)) for writer in range(3)]
    for process in writers:
        process.start()
    for process in writers:
        process.join(60)
        assert process.exitcode == 0
    assert len(rows_of(path)) == 60
