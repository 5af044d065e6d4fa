"""Runs of a plan, several at a time, until all are finished, time is up, or a signal comes.

Any number of runners may work on one folder. Each takes the next run that nobody else has claimed; finished runs are never
run again, interrupted ones continue from their checkpoint, failed ones are tried again a few times, diverged ones are not.
"""

from __future__ import annotations

import contextlib
import datetime
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from diffusion_mf.lab.experiments.claims import SECONDS_UNTIL_STALE, Claims
from diffusion_mf.lab.experiments.folders import ExperimentFolder, Outcome, RunPlace, RunState
from diffusion_mf.lab.experiments.plan import Plan, Run
from diffusion_mf.lab.experiments.processes import RunProcess, num_cores
from diffusion_mf.training.signals import stop_signals

if TYPE_CHECKING:
    from rich.table import Table


SECONDS_BETWEEN_LOOKS = 0.1
SECONDS_BETWEEN_LOOKS_AT_OTHERS = 2.0


@dataclass(frozen=True, kw_only=True)
class RunnerOptions:
    """How to run a plan."""

    workers: int = 1
    devices: Sequence[str] = ("auto",)
    """runs are spread over them"""
    time_limit: float | None = None
    """seconds until runs are told to stop"""
    grace: float = 90.0
    """seconds they have for their checkpoints then"""
    retry_failed: bool = False
    """forget failures of earlier invocations"""
    only: Collection[str] | None = None
    """names of the runs to run; None: all of the plan's"""
    stale_after: float = SECONDS_UNTIL_STALE
    command: str = "dmf experiment run"
    """as it goes into results"""


@dataclass
class PlanStanding:
    """Where a plan stands."""

    states: dict[str, RunState]
    running: list[RunProcess] = field(default_factory=list)
    elsewhere: set[str] = field(default_factory=set)
    """claimed by other runners"""
    seconds: float = 0.0

    def counts(self) -> Counter[str]:
        """How many runs are in which state; those that run are no longer pending."""
        busy = {process.place.name for process in self.running} | self.elsewhere
        counts = Counter(state.value for name, state in self.states.items() if name not in busy)
        counts["running"] = len(self.running)
        counts["elsewhere"] = len(self.elsewhere)
        return counts

    @property
    def is_complete(self) -> bool:
        """Whether every run is finished."""
        return all(state is RunState.COMPLETE for state in self.states.values())


class RunDisplay(Protocol):
    """Where the standing of a plan goes."""

    def update(self, standing: PlanStanding) -> None:
        """Show the standing, now or later."""
        ...

    def note(self, message: str) -> None:
        """Show a message at once."""
        ...


def run_plan(plan: Plan, folder: ExperimentFolder, options: RunnerOptions, display: RunDisplay) -> PlanStanding:
    """Run what is left of ``plan``; returns where it stands afterwards."""
    runner = _Runner(plan, folder, options, display)
    with runner.signals():
        try:
            runner.run()
        finally:
            runner.end_all()
    return runner.standing


class _Runner:
    def __init__(self, plan: Plan, folder: ExperimentFolder, options: RunnerOptions, display: RunDisplay) -> None:
        self.plan, self.folder, self.options, self.display = plan, folder, options, display
        folder.save_plan(plan.record())
        # Variants may stand for the same settings: a run is run once.
        self.runs: dict[str, Run] = {
            run.name: run for run in plan.runs if options.only is None or run.name in options.only
        }
        self.claims = Claims(folder.claims, stale_after=options.stale_after)
        self.evaluation = plan.evaluation.model_dump(mode="json")
        self.started = time.monotonic()
        self.is_stopping = False
        self.stopped_at: float | None = None
        self.looked_at_others = -SECONDS_BETWEEN_LOOKS_AT_OTHERS
        self.threads = max(1, num_cores() // options.workers)
        self.processes: list[RunProcess] = []
        for name in self.runs:
            # What was wrong with the input may have been mended since.
            is_refused = self._place(name).outcomes()[-1:] == [Outcome.REFUSED]
            if is_refused or (options.retry_failed and self._state(name) is RunState.FAILED):
                self._place(name).forgive()
        self.standing = PlanStanding({name: self._state(name) for name in self.runs}, running=self.processes)

    def _place(self, name: str) -> RunPlace:
        return self.folder.run(name)

    def _state(self, name: str) -> RunState:
        return self._place(name).state(retries=self.plan.settings.retries, evaluation=self.evaluation)

    def signals(self) -> contextlib.AbstractContextManager[None]:
        """SIGINT and SIGTERM stop all runs after their checkpoints; a second one does so at once."""
        return stop_signals(self._request_stop)

    def _request_stop(self, restore: Callable[[], None]) -> None:
        if self.is_stopping:
            raise KeyboardInterrupt
        self.is_stopping = True

    def run(self) -> None:
        """Run until nothing is left to do, or it is time to stop."""
        while True:
            self._reap()
            self._check_time()
            if not self.is_stopping:
                self._start_runs()
            elif self._has_stopped():
                return
            self.standing.seconds = time.monotonic() - self.started
            self.display.update(self.standing)
            if not self.processes and not self.is_stopping and not self._open_runs():
                return
            time.sleep(SECONDS_BETWEEN_LOOKS)

    def _open_runs(self) -> list[str]:
        """Runs that somebody still has to finish."""
        return [
            name
            for name, state in self.standing.states.items()
            if state in (RunState.PENDING, RunState.INTERRUPTED) and not self._is_running(name)
        ]

    def _is_running(self, name: str) -> bool:
        return any(process.place.name == name for process in self.processes)

    def _check_time(self) -> None:
        limit = self.options.time_limit
        if limit is not None and not self.is_stopping and time.monotonic() - self.started >= limit:
            self.display.note(f"the time limit of {limit:g} s is reached")
            self.is_stopping = True

    def _has_stopped(self) -> bool:
        """Tell runs to stop, and wait for their checkpoints as long as they may take."""
        now = time.monotonic()
        if self.stopped_at is None:
            self.stopped_at = now
            if self.processes:
                count = len(self.processes)
                runs = "1 run; it continues" if count == 1 else f"{count} runs; they continue"
                self.display.note(f"stopping {runs} from here another time")
            for process in self.processes:
                process.stop()
        elif now - self.stopped_at > self.options.grace:
            self.end_all()
        return not self.processes

    def _start_runs(self) -> None:
        now = time.monotonic()
        if len(self.processes) >= self.options.workers:
            return
        look_at_others = now - self.looked_at_others >= SECONDS_BETWEEN_LOOKS_AT_OTHERS
        if look_at_others:
            self.looked_at_others = now
        for name in self._open_runs():
            if len(self.processes) >= self.options.workers:
                return
            if name in self.standing.elsewhere and not look_at_others:
                continue
            self._start(name)

    def _start(self, name: str) -> None:
        claim = self.claims.take(name)
        # Another runner may have finished it, or given it up, before it let go.
        self.standing.states[name] = state = self._state(name)
        if state not in (RunState.PENDING, RunState.INTERRUPTED):
            self.standing.elsewhere.discard(name)
            if claim is not None:
                claim.release()
            return
        if claim is None:
            self.standing.elsewhere.add(name)
            return
        self.standing.elsewhere.discard(name)
        run, place = self.runs[name], self._place(name)
        place.describe(self._description(run))
        busy = Counter(process.device for process in self.processes)
        device = min(self.options.devices, key=lambda each: busy[each])
        self.processes.append(RunProcess(place, claim=claim, device=device, threads=self.threads))

    def _description(self, run: Run) -> dict[str, Any]:
        return {
            "coordinates": run.coordinates(),
            "source": run.source,
            "config": run.config.model_dump(mode="json"),
            "evaluation": self.evaluation,
            "checkpoint_every": self.plan.settings.checkpoint_every,
            "keep": self.plan.settings.keep,
            "command": self.options.command,
        }

    def _reap(self) -> None:
        for process in list(self.processes):
            outcome = process.outcome()
            if outcome is None:
                continue
            self.processes.remove(process)
            self._note_end(process, outcome)

    def _note_end(self, process: RunProcess, outcome: Outcome) -> None:
        place, name = process.place, process.place.name
        if process.claim is not None and not process.claim.is_held():
            self.display.note(f"{name}: another runner has taken it over")
            return
        details: dict[str, Any] = {"seconds": round(process.seconds, 1), "exit_status": process.exit_status}
        details["date"] = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        if outcome not in (Outcome.COMPLETE, Outcome.INTERRUPTED):
            lines = place.last_lines()
            # Who was killed said nothing about it.
            is_killed = (process.exit_status or 0) < 0
            details["lines"] = [*lines, process.described_status()] if is_killed or not lines else lines
        place.add_attempt(outcome, **details)
        if process.claim is not None:
            process.claim.release()
        self.standing.states[name] = state = self._state(name)
        if outcome is Outcome.COMPLETE:
            self.display.note(f"{name}: complete, {described_scores(place)}")
        elif outcome is not Outcome.INTERRUPTED:
            last = details["lines"][-1]
            again = "; it will be tried again" if state is RunState.INTERRUPTED else ""
            self.display.note(f"{name}: {outcome.value} ({last}){again}")

    def end_all(self) -> None:
        """End whatever still runs."""
        for process in list(self.processes):
            process.kill()
        self._reap()


def described_scores(place: RunPlace) -> str:
    """A finished run's dev score and time, for a line."""
    result = place.result() or {}
    metric = result.get("metric", "")
    score = (result.get("dev") or {}).get(metric)
    shown = "" if score is None else f"dev {metric} {score:.2f} ({result.get('decoder')}), "
    return f"{shown}{result.get('seconds', 0):.0f} s"


SECONDS_BETWEEN_LINES = 60.0
SECONDS_BETWEEN_TABLES = 1.0

_ORDER = ("complete", "running", "elsewhere", "pending", "interrupted", "failed", "diverged")


def described_counts(standing: PlanStanding) -> str:
    """How many runs are in which state.

    >>> from diffusion_mf.lab.experiments.folders import RunState
    >>> described_counts(PlanStanding({"a": RunState.COMPLETE, "b": RunState.PENDING}))
    '1 of 2 runs complete, 1 pending'
    """
    counts = standing.counts()
    rest = [f"{counts[name]} {name}" for name in _ORDER[1:] if counts[name]]
    return ", ".join([f"{counts['complete']} of {len(standing.states)} runs complete", *rest])


def run_progress(place: RunPlace) -> tuple[str, str, str]:
    """Epoch, loss and best dev score of a run, from its log."""
    entries = place.last_entries()
    epochs = place.description().get("config", {}).get("training", {}).get("epochs", "?")
    epoch = max((entry.get("epoch", 0) for entry in entries), default=None)
    losses = [entry["loss"] for entry in entries if entry.get("event") == "step" and "loss" in entry]
    scores = [entry["score"] for entry in entries if entry.get("event") == "evaluation" and "score" in entry]
    return (
        "starting" if epoch is None else f"{epoch}/{epochs}",
        f"{losses[-1]:.3f}" if losses else "",
        f"{max(scores):.2f}" if scores else "",
    )


class LineRunDisplay:
    """A line a minute, and one for every run that ends."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last = clock()

    def update(self, standing: PlanStanding) -> None:
        """A line, if the last one is a minute old."""
        now = self._clock()
        if now - self._last < SECONDS_BETWEEN_LINES:
            return
        self._last = now
        parts = []
        for process in standing.running:
            epoch, _, score = run_progress(process.place)
            parts.append(f"{process.place.name} epoch {epoch}" + (f" dev {score}" if score else ""))
        self.note("; ".join([described_counts(standing), *parts]))

    def note(self, message: str) -> None:
        """A line on stderr."""
        print(f"dmf: {message}", file=sys.stderr, flush=True)


class TableRunDisplay:
    """A table of the runs under way that is drawn anew every second."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        from rich.console import Console
        from rich.live import Live

        self._clock = clock
        self._last = -SECONDS_BETWEEN_TABLES
        self._live = Live(console=Console(stderr=True), auto_refresh=False, transient=True)
        self._live.start()

    def update(self, standing: PlanStanding) -> None:
        """Draw the table, if it is a second old."""
        now = self._clock()
        if now - self._last < SECONDS_BETWEEN_TABLES:
            return
        self._last = now
        self._live.update(standing_table(standing), refresh=True)

    def note(self, message: str) -> None:
        """A line above the table."""
        self._live.console.print(f"dmf: {message}", markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        """Take the table away."""
        self._live.stop()


def standing_table(standing: PlanStanding) -> Table:
    """Runs under way, and below them the counts of all."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    minutes, seconds = divmod(int(standing.seconds), 60)
    table = Table(
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        caption=f"{described_counts(standing)}; {minutes}:{seconds:02}",
        caption_justify="left",
    )
    for column in ("run", "epoch", "loss", "dev", "seconds"):
        is_name = column == "run"
        # On narrow terminals the names give way, which end in hashes, and not the figures.
        table.add_column(column, justify="left" if is_name else "right", no_wrap=not is_name, overflow="ellipsis")
    for process in standing.running:
        row = (process.place.name, *run_progress(process.place), f"{process.seconds:.0f}")
        table.add_row(*(Text(cell) for cell in row))
    return table


@contextlib.contextmanager
def shown_runs() -> Iterator[RunDisplay]:
    """A live table where stderr is a terminal, lines elsewhere."""
    if not sys.stderr.isatty():
        yield LineRunDisplay()
        return
    display = TableRunDisplay()
    try:
        yield display
    finally:
        display.close()
