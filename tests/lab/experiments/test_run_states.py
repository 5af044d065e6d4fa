"""How a run stands, from its files alone, and who may work on it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from diffusion_mf.lab.experiments.folders import Outcome, RunPlace, RunState
from diffusion_mf.lab.experiments.processes import Claim

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
    assert place.state(retries=1) is state


def test_finished_run_is_complete_if_it_has_the_scores_asked_for(tmp_path: Path) -> None:
    place = RunPlace(tmp_path)
    place.add_attempt(FAILED)
    place.add_attempt(FAILED)
    place.save_result({"dev": {"f1": 1.0}, "process": "categorical", "schedules": {"calls=5": {}}})
    assert place.state(retries=0) is RunState.COMPLETE
    assert place.state(retries=9, evaluation={"calls": [5], "bases": []}) is RunState.COMPLETE
    assert place.state(retries=9, evaluation={"calls": [5, 20]}) is RunState.INTERRUPTED
    # Direct systems make one call, whatever a plan asks for.
    place.save_result({"dev": {"f1": 1.0}, "process": "direct"})
    assert place.state(retries=0, evaluation={"calls": [5, 20]}) is RunState.COMPLETE
    (tmp_path / "result.json").write_text("{")
    assert place.state(retries=1) is RunState.FAILED


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
