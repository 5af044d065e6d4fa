"""How runs stand, from their files alone, who may work on them, and what is said about them."""

from __future__ import annotations

import errno
import io
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from experiment_files import write_plan
from rich.console import Console
from typer.testing import CliRunner

from diffusion_mf.cli import app
from diffusion_mf.errors import InputError
from diffusion_mf.lab.experiments.folders import ExperimentFolder, Outcome, RunPlace, RunState
from diffusion_mf.lab.experiments.plan import load_plan
from diffusion_mf.lab.experiments.processes import Claim
from diffusion_mf.lab.experiments.scheduler import RunTable

FAILED, DIVERGED, REFUSED, STOPPED = Outcome.FAILED, Outcome.DIVERGED, Outcome.REFUSED, Outcome.INTERRUPTED


@pytest.mark.parametrize(
    ("outcomes", "state"),
    [
        ([], RunState.PENDING),
        ([STOPPED, STOPPED, STOPPED], RunState.INTERRUPTED),
        ([FAILED], RunState.INTERRUPTED),
        ([FAILED, STOPPED, FAILED], RunState.FAILED),
        ([FAILED, FAILED, Outcome.FORGIVEN, FAILED], RunState.INTERRUPTED),
        ([REFUSED], RunState.FAILED),
        ([REFUSED, Outcome.FORGIVEN], RunState.PENDING),
        ([FAILED, DIVERGED], RunState.DIVERGED),
    ],
)
def test_states_of_unfinished_runs(tmp_path: Path, outcomes: list[Outcome], state: RunState) -> None:
    place = RunPlace(tmp_path)
    for outcome in outcomes:
        place.add_attempt(outcome)
    assert place.state() is state


def test_finished_run_is_complete_if_it_has_the_scores_asked_for(tmp_path: Path) -> None:
    place = RunPlace(tmp_path)
    place.add_attempt(FAILED)
    place.save_result({"dev": {"f1": 1.0}, "process": "categorical", "schedules": {"calls=5": {}}})
    assert place.state() is RunState.COMPLETE
    assert place.state({"calls": [5], "bases": []}) is RunState.COMPLETE
    assert place.state({"calls": [5, 20]}) is RunState.INTERRUPTED
    # Direct systems make one call, whatever a plan asks for.
    place.save_result({"dev": {"f1": 1.0}, "process": "direct"})
    assert place.state({"calls": [5, 20]}) is RunState.COMPLETE
    (tmp_path / "result.json").write_text("{")
    assert place.state() is RunState.INTERRUPTED


def test_last_entries_of_a_log_that_is_being_written(tmp_path: Path) -> None:
    place = RunPlace(tmp_path)
    assert place.last_entries() == []
    place.log.write_text('{"event": "step", "step": 1}\n{"event": "step", "step": 2}\n{"event": "st')
    assert [entry["step"] for entry in place.last_entries()] == [1, 2]
    assert [entry["step"] for entry in place.last_entries(num_bytes=50)] == [2]


def test_a_claim_is_taken_once_and_held_by_the_process_that_inherits_it(tmp_path: Path) -> None:
    place = RunPlace(tmp_path / "run")
    claim = Claim.take(place)
    assert claim is not None
    assert Claim.take(place) is None
    assert Claim.take(RunPlace(tmp_path / "run.other")) is not None
    waits = [sys.executable, "-c", "input()"]
    process = subprocess.Popen(waits, stdin=subprocess.PIPE, pass_fds=[claim.handle])
    claim.release()
    # As after the death of the runner: its run goes on, and nobody else may have it.
    assert Claim.take(place) is None
    process.kill()
    process.communicate()
    last = Claim.take(place)
    assert last is not None
    assert not os.get_inheritable(last.handle)


def test_a_file_system_without_locks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", refuse)
    with pytest.raises(
        InputError, match=r"run: its file system cannot lock files \(No locks available\); choose a folder"
    ):
        Claim.take(RunPlace(tmp_path / "run"))


@pytest.fixture
def table(tmp_path: Path) -> RunTable:
    place = RunPlace(tmp_path / "conll2003.lcrf.scratch.seed1.abc")
    place.describe({"config": {"training": {"epochs": 50}}})
    entries: list[dict[str, Any]] = [
        {"event": "evaluation", "epoch": 7, "score": 81.237},
        {"event": "evaluation", "epoch": 8, "score": 80.0},
        {"event": "step", "epoch": 8, "loss": 0.5},
    ]
    place.log.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    states = {place.name: RunState.PENDING, "b": RunState.COMPLETE, "c": RunState.DIVERGED, "d": RunState.PENDING}
    running: Any = [SimpleNamespace(place=place, seconds=12.3)]
    return RunTable(states, running=running, elsewhere={"d"}, started=time.monotonic() - 75.5)


def test_line_counts_each_run_once(table: RunTable) -> None:
    assert str(table) == (
        "1 of 4 runs complete, 1 running, 1 elsewhere, 1 diverged; conll2003.lcrf.scratch.seed1.abc epoch 8/50 dev 81.24"
    )
    assert not table.is_complete


def test_table_on_a_narrow_terminal_keeps_the_figures(table: RunTable) -> None:
    console = Console(width=50, record=True, file=io.StringIO())
    console.print(table)
    text = console.export_text()
    for figure in ("8/50", "0.500", "81.24", "12", "1 of 4 runs complete", "1:15"):
        assert figure in text


def test_failures_with_the_same_reason_are_told_once(tmp_path: Path) -> None:
    path = write_plan(tmp_path, 'systems = ["unigram", "lcrf"]\nseeds = [1, 2]\n')
    folder = ExperimentFolder(tmp_path / "out")
    for number, run in enumerate(load_plan(path).runs):
        folder.run(run.name).root.mkdir(parents=True)
        folder.run(run.name).add_attempt(Outcome.REFUSED, lines=["one thing" if number else "another"])
    result = CliRunner().invoke(app, ["experiment", "run", str(path), "--output", str(folder.root), "--dry-run"])
    assert result.exit_code == 0
    assert result.stderr.count("one thing") == result.stderr.count("another") == 1
    assert "and 2 more for the same reason failed; the end of" in result.stderr


def test_variants_are_shown_where_there_are_several(tmp_path: Path) -> None:
    text = 'systems = ["unigram"]\nseeds = [1]\n'
    path = write_plan(tmp_path, text)
    assert "variant" not in CliRunner().invoke(app, ["experiment", "run", str(path), "--dry-run"]).stdout
    path = write_plan(tmp_path, text + "[grid]\nencoder.layers = [1, 2]\n")
    shown = CliRunner().invoke(app, ["experiment", "run", str(path), "--dry-run"]).stdout
    assert "layers=1" in shown
    assert "layers=2" in shown


def test_a_dry_run_names_the_corpora_that_are_not_there(tmp_path: Path) -> None:
    path = write_plan(tmp_path, 'systems = ["unigram", "lcrf"]\nseeds = [1]\n')
    arguments = ["experiment", "run", str(path), "--output", str(tmp_path / "out"), "--dry-run"]
    assert CliRunner().invoke(app, arguments).exit_code == 0
    dev = tmp_path / "corpus" / "ner" / "dev.txt"
    dev.unlink()
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
    assert result.stdout.count("tiny.") == 2
    assert result.stderr.count("the corpus tiny is missing") == 1
    assert f"{dev}: no such file; give its path" in result.stderr


@pytest.mark.parametrize("devices", ["cuda:99", "cpu,cuda:99", "gpu"])
def test_devices_that_are_not_there_are_refused_before_any_run(tmp_path: Path, devices: str) -> None:
    path = write_plan(tmp_path, 'systems = ["unigram"]\nseeds = [1]\n')
    arguments = ["experiment", "run", str(path), "--output", str(tmp_path / "out"), "--devices", devices]
    result = CliRunner().invoke(app, arguments)
    assert isinstance(result.exception, InputError)
    assert "; choose among cpu" in str(result.exception)
    assert not (tmp_path / "out").exists()
