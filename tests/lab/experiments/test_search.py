"""The staged search, mostly with processes that only pretend to train; on SQLite and on a real PostgreSQL server."""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from experiment_files import attempts_of, write_plan

from diffusion_mf.errors import InputError
from diffusion_mf.evaluation.terminal import Display
from diffusion_mf.lab.experiments.folders import ExperimentFolder, Outcome, RunPlace
from diffusion_mf.lab.experiments.processes import Claim
from diffusion_mf.lab.experiments.scheduler import SchedulerOptions, run_jobs
from diffusion_mf.lab.experiments.search import Search, default_storage, open_storage, selected_text, without_password
from diffusion_mf.lab.experiments.search_plan import load_search

optuna = pytest.importorskip("optuna")

PLAN = """
systems = ["unigram", "lcrf", "diffusion-mf"]
seeds = [1]
[pruner]
startup_trials = 2
warmup_epochs = 0
[[stages]]
name = "optimisation"
trials = 3
[stages.space]
training.learning_rate = { low = 1e-4, high = 1e-2, log = true }
[[stages]]
name = "transitions"
trials = 3
only = ["lcrf", "diffusion-mf"]
[stages.space]
structure.transitions = ["local", "global"]
[[stages]]
name = "structure"
trials = 3
[stages.system.diffusion-mf]
structure.num_iterations = [1, 3, 5, 10]
"""
ONE_SYSTEM = PLAN.replace('["unigram", "lcrf", "diffusion-mf"]', '["diffusion-mf"]')


class PretendedProcess:
    """Ends at once with a score that follows from the settings: high learning rates, global transitions, 5 iterations."""

    started: ClassVar[list[str]] = []
    lock = threading.Lock()

    def __init__(self, place: RunPlace, *, claim: Claim, **_: Any) -> None:
        config = place.description()["config"]
        assert config["data"]["test"] is None
        structure = config["structure"]
        self.score = 1000 * config["training"]["learning_rate"] + config["seed"] / 100
        self.score += 5 * (structure["transitions"] == "global") - abs(structure["num_iterations"] - 5)
        self.place = place
        self.claim, self.device, self.seconds = claim, "cpu", 0.0
        self.is_stopped = False
        self.exit_status: int | None = 0
        entry = {"event": "evaluation", "epoch": 1, "score": self.score}
        place.log.write_text(json.dumps(entry) + "\n")
        with self.lock:
            self.started.append(place.name)
        self.num_looks = 0

    def outcome(self) -> Outcome | None:
        self.num_looks += 1
        if self.num_looks == 1:
            return None  # time to be pruned
        self.place.save_result({"dev": {"f1": self.score}, "metric": "f1", "decoders": {}})
        return Outcome.COMPLETE

    def described_status(self) -> str:
        return "exit status 0"

    def stop(self) -> None:
        self.is_stopped = True

    def kill(self) -> None:
        self.is_stopped = True


def make_search(tmp_path: Path, *, storage: Any = None, text: str = PLAN) -> Search:
    PretendedProcess.started = []
    plan = load_search(write_plan(tmp_path, text) if not (tmp_path / "plan.toml").exists() else tmp_path / "plan.toml")
    folder = tmp_path / "out"
    folder.mkdir(exist_ok=True)
    # In memory where nothing has to last: SQLite waits for the disk.
    opened = storage if storage is not None else open_storage(default_storage(folder))
    return Search(plan, opened, ExperimentFolder(folder))


def finish(search: Search, *, start: Any = PretendedProcess, time_limit: float = 60, **more: Any) -> bool:
    options = SchedulerOptions(start=start, time_limit=time_limit, **more)
    search.run(options, Display())
    return all(search.is_finished(subject) for subject in search.plan.subjects)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diffusion_mf.lab.experiments.scheduler.SECONDS_BETWEEN_LOOKS", 0.01)
    monkeypatch.setattr("diffusion_mf.lab.experiments.scheduler.SECONDS_BETWEEN_LOOKS_AT_OTHERS", 0.02)


def check_outcome(search: Search) -> None:
    for subject in search.plan.subjects:
        assert sum(len(search.counted(subject, number)) for number in range(len(subject.stages))) == 9
    diffusion = search.plan.subjects[-1]
    assert [stage.trials for stage in diffusion.stages] == [3, 2, 4]
    assert search.best_settings(diffusion, 1) == {"structure.transitions": "global"}
    assert search.best_settings(diffusion, 2) == {"structure.num_iterations": 5}
    rates = [trial.params["training.learning_rate"] for trial in search.counted(diffusion, 0)]
    assert len(set(rates)) == 3
    assert search.best_settings(diffusion, 0) == {"training.learning_rate": max(rates)}


def test_stages_fix_what_they_choose_and_all_systems_get_as_many_trials(tmp_path: Path) -> None:
    search = make_search(tmp_path, storage=optuna.storages.InMemoryStorage())
    assert finish(search)
    check_outcome(search)
    unigram, lcrf, _ = search.plan.subjects
    # Nothing to vary for Unigram but the learning rate; LCRF has two transitions, and gives back what is left.
    assert [(stage.name, stage.trials) for stage in unigram.stages] == [("optimisation", 9)]
    assert [(stage.name, stage.trials) for stage in lcrf.stages] == [("optimisation", 7), ("transitions", 2)]
    pruned = [t for s in search.plan.subjects for n in range(len(s.stages)) for t in search.counted(s, n)]
    assert any(trial.state.name == "PRUNED" for trial in pruned)
    assert {tuple(attempts) for attempts in attempts_of(search.folder.root).values()} == {("complete",), ("pruned",)}
    # The last stage had the choices of the first two.
    diffusion = search.plan.subjects[2]
    best = search.best_settings(diffusion, 0)["training.learning_rate"]
    values = [trial.value for trial in search.counted(diffusion, 2) if trial.state.name == "COMPLETE"]
    assert max(values) == pytest.approx(1000 * best + 0.01 + 5)
    chosen = tomllib.loads(selected_text(search))["exceptions"][2]
    assert chosen["where"]["system"] == "diffusion-mf"
    assert chosen["set"]["structure.num_iterations"] == 5


def test_searches_with_the_same_seed_draw_the_same(tmp_path: Path) -> None:
    draws = []
    for number in range(2):
        (tmp_path / str(number)).mkdir()
        search = make_search(tmp_path / str(number), storage=optuna.storages.InMemoryStorage(), text=ONE_SYSTEM)
        assert finish(search)
        subject = search.plan.subjects[0]
        draws.append([trial.params for stage in range(3) for trial in search.counted(subject, stage)])
    assert draws[0] == draws[1]


def test_finished_search_starts_nothing_and_an_unfinished_one_goes_on(tmp_path: Path) -> None:
    first = make_search(tmp_path, text=ONE_SYSTEM)
    stop_after = 4

    class Stopping(PretendedProcess):
        def __init__(self, place: RunPlace, **more: Any) -> None:
            super().__init__(place, **more)
            if len(self.started) == stop_after:
                os.kill(os.getpid(), signal.SIGTERM)

        def outcome(self) -> Outcome | None:
            if len(self.started) < stop_after:
                return super().outcome()
            return Outcome.INTERRUPTED if self.is_stopped else None

    assert not finish(first, start=Stopping)
    assert "not finished: this is the best so far" in selected_text(first)
    lost = PretendedProcess.started[-1]
    second = make_search(tmp_path)
    assert finish(second)
    check_outcome(second)
    assert "not finished" not in selected_text(second)
    assert PretendedProcess.started[0] == lost, "what was interrupted continues first"
    third = make_search(tmp_path)
    assert finish(third)
    assert PretendedProcess.started == []


def test_trials_of_a_search_that_was_killed_come_back_when_their_heartbeats_have_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("diffusion_mf.lab.experiments.search.SECONDS_BETWEEN_HEARTBEATS", 1)
    monkeypatch.setattr("diffusion_mf.lab.experiments.search.SECONDS_UNTIL_STALE", 2)
    text = PLAN.replace('["unigram", "lcrf", "diffusion-mf"]', '["unigram"]').replace("trials = 3", "trials = 1")
    killed = make_search(tmp_path, text=text).jobs()
    lost = next(killed)
    assert lost is not None
    # As long as it is watched it is not lost.
    second = make_search(tmp_path)

    class Watching(PretendedProcess):
        def __init__(self, place: RunPlace, **more: Any) -> None:
            super().__init__(place, **more)
            self.end = time.monotonic() + 4

        def outcome(self) -> Outcome | None:
            lost.is_hopeless()
            return None if time.monotonic() < self.end else super().outcome()

    assert not finish(second, start=Watching, time_limit=3.5)
    assert lost.name not in PretendedProcess.started
    third = make_search(tmp_path)
    assert finish(third)
    assert lost.name in PretendedProcess.started


@pytest.mark.parametrize(
    "space",
    ["structure.num_iterations = [1, 3, 5, 10]", "training.learning_rate = { low = 1e-4, high = 1e-2, log = true }"],
    ids=["combinations", "range"],
)
def test_a_search_killed_before_the_first_heartbeat_of_a_trial_goes_on_as_if_nothing_had_happened(
    space: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("diffusion_mf.lab.experiments.search.SECONDS_BETWEEN_HEARTBEATS", 1)
    monkeypatch.setattr("diffusion_mf.lab.experiments.search.SECONDS_UNTIL_STALE", 5)
    text = ONE_SYSTEM[: ONE_SYSTEM.index("[[stages]]")]
    text += f'[[stages]]\nname = "only"\ntrials = 1\n[stages.space]\n{space}\n'
    undisturbed, killed = tmp_path / "undisturbed", tmp_path / "killed"
    for folder in (undisturbed, killed):
        folder.mkdir()
    expected = make_search(undisturbed, text=text, storage=optuna.storages.InMemoryStorage())
    assert finish(expected)
    first = make_search(killed, text=text)
    subject = first.plan.subjects[0]
    with pytest.warns(UserWarning, match="Heartbeat"):
        first.study(subject, 0).ask()
    second = make_search(killed)
    assert finish(second, time_limit=120)
    assert second.best_settings(subject, 0) == expected.best_settings(subject, 0) != {}


def test_a_search_killed_between_giving_up_a_trial_and_repeating_it_repeats_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("diffusion_mf.lab.experiments.search.SECONDS_UNTIL_STALE", 1)
    text = ONE_SYSTEM[: ONE_SYSTEM.index("[[stages]]")]
    text += '[[stages]]\nname = "only"\ntrials = 2\n[stages.space]\nstructure.num_iterations = [1, 3, 5, 10]\n'
    undisturbed, killed = tmp_path / "undisturbed", tmp_path / "killed"
    for folder in (undisturbed, killed):
        folder.mkdir()
    expected = make_search(undisturbed, text=text, storage=optuna.storages.InMemoryStorage())
    assert finish(expected)
    storage = optuna.storages.InMemoryStorage()
    first = make_search(killed, text=text, storage=storage)
    assert next(first.jobs()) is not None
    first._open[0].study.tell(first._open[0].trial, state=optuna.trial.TrialState.FAIL)
    second = make_search(killed, storage=storage)
    assert finish(second)
    subject = second.plan.subjects[0]

    def drawn(search: Search) -> set[int]:
        return {trial.params["structure.num_iterations"] for trial in search.counted(subject, 0)}

    assert drawn(second) == drawn(expected)
    assert second.best_settings(subject, 0) == expected.best_settings(subject, 0)


def test_a_kill_while_the_database_is_created_leaves_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def end(*paths: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(os, "link", end)
        with pytest.raises(KeyboardInterrupt):
            open_storage(default_storage(tmp_path))
    assert list(tmp_path.iterdir()) == []
    open_storage(default_storage(tmp_path))
    assert len(list(tmp_path.iterdir())) == 1


def test_of_equal_trials_the_first_is_chosen_also_if_it_was_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    search = make_search(tmp_path, storage=optuna.storages.InMemoryStorage())
    complete = {"state": optuna.trial.TrialState.COMPLETE, "value": 5.0}
    trials = [
        SimpleNamespace(number=1, params={"a": "second"}, system_attrs={}, **complete),
        SimpleNamespace(number=2, params={"a": "first"}, system_attrs={"failed_trial": 0}, **complete),
    ]
    monkeypatch.setattr(Search, "counted", lambda *_: trials)
    assert search.best_settings(search.plan.subjects[0], 0) == {"a": "first"}


def test_a_trial_that_is_stopped_between_two_seeds_goes_on_at_once(tmp_path: Path) -> None:
    text = PLAN.replace('["unigram", "lcrf", "diffusion-mf"]', '["unigram"]').replace("seeds = [1]", "seeds = [1, 2]")
    search = make_search(tmp_path, text=text.replace("trials = 3", "trials = 1"))

    class Stopping(PretendedProcess):
        def outcome(self) -> Outcome | None:
            found = super().outcome()
            if found is not None:
                os.kill(os.getpid(), signal.SIGTERM)
            return found

    assert not finish(search, start=Stopping)
    (first,) = PretendedProcess.started
    again = make_search(tmp_path)
    assert finish(again)
    assert first not in PretendedProcess.started
    second = PretendedProcess.started[0]
    assert second.startswith(first.partition(".seed1.")[0] + ".seed2.")
    scores = [(search.folder.run(name).result() or {})["dev"]["f1"] for name in (first, second)]
    assert again.counted(again.plan.subjects[0], 0)[0].value == pytest.approx(sum(scores) / 2)


def test_runs_that_do_not_stop_in_time_are_ended_and_count_for_nothing(tmp_path: Path) -> None:
    class Stubborn(PretendedProcess):
        is_killed = False

        def outcome(self) -> Outcome | None:
            return Outcome.INTERRUPTED if self.is_killed else None

        def kill(self) -> None:
            self.is_killed = True

    search = make_search(tmp_path, storage=optuna.storages.InMemoryStorage(), text=ONE_SYSTEM)
    assert not finish(search, start=Stubborn, time_limit=0.1, grace=0.1)
    assert list(attempts_of(search.folder.root).values()) == [["interrupted"]]
    assert all(Claim.take(RunPlace(run)) is not None for run in (search.folder.root / "runs").iterdir())
    assert search.counted(search.plan.subjects[0], 0) == []


def test_trials_with_the_same_settings_share_a_run(tmp_path: Path) -> None:
    search = make_search(tmp_path, storage=optuna.storages.InMemoryStorage(), text=ONE_SYSTEM)
    job = next(search.jobs())
    assert job is not None
    ends: list[str] = []
    jobs = [dataclasses.replace(job, on_end=ends.append) for _ in range(2)]
    options = SchedulerOptions(workers=2, start=PretendedProcess)
    table = run_jobs(jobs, search.folder, options, Display())
    assert PretendedProcess.started == [job.name]
    assert ends == ["complete", "complete"]
    # Once it is known, nothing is run for whoever asks again.
    run_jobs(jobs[:1], search.folder, options, Display())
    assert PretendedProcess.started == [job.name]
    assert len(ends) == 3
    assert table.is_complete


def test_without_optuna_one_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    monkeypatch.delitem(sys.modules, Search.__module__)
    with pytest.raises(InputError, match=r"needs Optuna; pip install 'diffusion-mf\[experiments\]'"):
        importlib.import_module(Search.__module__)


def test_several_workers_share_the_trials(tmp_path: Path) -> None:
    search = make_search(tmp_path, text=ONE_SYSTEM)
    assert finish(search, workers=4)
    check_outcome(search)
    assert len(PretendedProcess.started) == len(set(PretendedProcess.started))


def test_failed_and_diverged_trials_count_and_say_why(tmp_path: Path) -> None:
    class Failing(PretendedProcess):
        def outcome(self) -> Outcome | None:
            return Outcome.DIVERGED if self.score > 6 else Outcome.FAILED

    text = PLAN.replace('["unigram", "lcrf", "diffusion-mf"]', '["unigram"]')
    search = make_search(tmp_path, storage=optuna.storages.InMemoryStorage(), text=text)
    assert finish(search, start=Failing)
    trials = search.counted(search.plan.subjects[0], 0)
    assert len(trials) == 9
    assert {trial.state.name for trial in trials} == {"PRUNED", "FAIL"}
    assert all(trial.user_attrs["reason"].startswith(("diverged", "failed")) for trial in trials)
    # Failures are tried again, as those of a plan are.
    assert {tuple(attempts) for attempts in attempts_of(search.folder.root).values()} == {
        ("diverged",),
        ("failed", "failed"),
    }
    assert search.best_settings(search.plan.subjects[0], 0) == {}


def test_input_that_no_trial_can_read_stops_the_search_and_counts_for_nothing(tmp_path: Path) -> None:
    class Refused(PretendedProcess):
        def outcome(self) -> Outcome | None:
            self.place.output.write_text("train.txt, line 2: two columns\n")
            return Outcome.REFUSED

    storage = optuna.storages.InMemoryStorage()
    search = make_search(tmp_path, storage=storage, text=ONE_SYSTEM)
    with pytest.raises(InputError, match=r"refused \(train\.txt, line 2: two columns\)"):
        finish(search, start=Refused)
    assert search.counted(search.plan.subjects[0], 0) == []
    mended = make_search(tmp_path, storage=storage)
    assert finish(mended)
    check_outcome(mended)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (('"lcrf", ', '"crf", '), "systems must be chosen from"),
        (('only = ["lcrf"', 'only = ["crf"'), "no system 'crf'"),
        (('["local", "global"]', '"local"'), "not a list of values"),
        (("low = 1e-4, high = 1e-2", "low = 1e-2, high = 1e-4"), "not a range"),
        (('name = "optimisation"', 'name = "optimisation"\nonly = ["lcrf"]'), "nothing to vary for unigram"),
    ],
)
def test_bad_search_files_are_refused(tmp_path: Path, change: tuple[str, str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        load_search(write_plan(tmp_path, PLAN.replace(*change)))


def test_unusable_database_is_one_sentence_without_the_password() -> None:
    with pytest.raises(InputError, match="cannot be used") as caught:
        open_storage("postgresql://me:secret@127.0.0.1:1/nothing")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://host/db?user=me&password=secret", "postgresql://host/db?user=me&password=…"),
        ("postgresql://host/db?password=s@cret&user=me", "postgresql://host/db?password=…&user=me"),
        ("postgresql://me:secret@host/db?sslpassword=secret", "postgresql://…@host/db?sslpassword=…"),
        ("mysql://host/db?passwd=secret", "mysql://host/db?passwd=…"),
        ("sqlite:///search.db", "sqlite:///search.db"),
    ],
)
def test_passwords_are_not_shown_wherever_they_stand(url: str, shown: str) -> None:
    assert without_password(url) == shown


def test_search_with_real_processes(tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from diffusion_mf.cli import app

    text = """
systems = ["lcrf"]
[[stages]]
name = "transitions"
trials = 1
[stages.space]
structure.transitions = ["local", "global"]
"""
    arguments = [
        "search",
        str(write_plan(tmp_path, text)),
        "--output",
        str(tmp_path / "out"),
        "--device",
        "cpu",
        "--json",
    ]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    row = json.loads(result.stdout)[0]
    assert (row["trials"], row["planned"], row["failed"]) == (1, 1, 0)
    assert row["best"] is not None
    assert "structure.transitions" in (tmp_path / "out/selected.toml").read_text()
    stored = json.loads(next((tmp_path / "out/runs").glob("*/result.json")).read_text())
    assert "test" not in stored


@pytest.fixture(scope="module")
def postgresql() -> Iterator[str]:
    """The address of an empty database on a server of our own."""
    pytest.importorskip("psycopg")
    initdb, server = shutil.which("initdb"), shutil.which("postgres")
    if initdb is None or server is None:
        pytest.skip("PostgreSQL's initdb and postgres are not installed")
    # It refuses to be run by root.
    user = "nobody" if os.geteuid() == 0 else None
    folder = Path(tempfile.mkdtemp(prefix="pg"))
    if user is not None:
        os.chown(folder, pwd.getpwnam(user).pw_uid, -1)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    options: dict[str, Any] = {"user": user, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": folder}
    subprocess.run([initdb, "-D", folder / "data", "-U", "tester", "-A", "trust", "--no-sync"], check=True, **options)
    settings = ["-c", f"port={port}", "-c", f"unix_socket_directories={folder}", "-c", "fsync=off"]
    process = subprocess.Popen([server, "-D", folder / "data", *settings], **options)
    try:
        _wait_for_server(port)
        yield f"postgresql://tester@127.0.0.1:{port}/postgres"
    finally:
        # A fast shutdown, which does not wait for clients.
        process.send_signal(signal.SIGINT)
        process.wait(timeout=30)
        shutil.rmtree(folder, ignore_errors=True)


def _wait_for_server(port: int) -> None:
    import psycopg

    end = time.monotonic() + 30
    while True:
        try:
            psycopg.connect(f"postgresql://tester@127.0.0.1:{port}/postgres").close()
        except psycopg.OperationalError:
            if time.monotonic() > end:
                raise
            time.sleep(0.1)
        else:
            return


def test_two_searches_share_a_postgresql_database(tmp_path: Path, postgresql: str) -> None:
    first, second = (make_search(tmp_path, storage=open_storage(postgresql), text=ONE_SYSTEM) for _ in range(2))
    finished: list[bool] = []
    threads = [threading.Thread(target=lambda s=s: finished.append(finish(s))) for s in (first, second)]  # type: ignore[misc]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert finished == [True, True]
    check_outcome(first)
    assert len(PretendedProcess.started) == len(set(PretendedProcess.started))
