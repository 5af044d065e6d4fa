"""The scheduler: executes runs, several at a time, until all are finished, time is up, or a signal arrives.

Plans submit all their runs at the beginning; a search adds a run whenever a worker is free. Any number of schedulers may work on
one folder. Each takes the next run that no other has claimed. Finished runs are never repeated, interrupted ones continue from
their checkpoint, failed ones are retried a few times, diverged ones are not.
"""

from __future__ import annotations

import datetime
import shutil
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from diffusion_mf.evaluation.terminal import Display, described_seconds
from diffusion_mf.lab.experiments.folders import ExperimentFolder, Outcome, RunPlace, RunState
from diffusion_mf.lab.experiments.plan import Plan
from diffusion_mf.lab.experiments.processes import Claim, RunProcess
from diffusion_mf.lab.experiments.same_data import data_files
from diffusion_mf.lab.results import num_cores
from diffusion_mf.training.signals import stop_signals

if TYPE_CHECKING:
    from rich.table import Table


SECONDS_BETWEEN_LOOKS = 0.1
SECONDS_BETWEEN_LOOKS_AT_OTHERS = 2.0


@dataclass(frozen=True, kw_only=True)
class SchedulerOptions:
    """Options of the scheduler."""

    workers: int = 1
    devices: Sequence[str] = ("auto",)
    """runs are spread over them"""
    time_limit: float | None = None
    """seconds until runs are asked to stop"""
    grace: float = 90.0
    """seconds allowed for writing checkpoints after that"""
    retry_failed: bool = False
    """forget failures of earlier invocations"""
    start: Callable[..., RunProcess] = RunProcess
    """starts a run's process"""


@dataclass(frozen=True, kw_only=True)
class Job:
    """A run to execute, and the callbacks of its caller."""

    name: str
    description: Mapping[str, Any]
    """its ``run.json``"""
    is_hopeless: Callable[[], bool] = lambda: False
    """called while it runs; True aborts it"""
    on_end: Callable[[RunState], None] = lambda state: None
    """called with its final state, unless the scheduler stops first"""


@dataclass
class RunTable:
    """The states of all runs, and which of them are running."""

    states: dict[str, RunState] = field(default_factory=dict)
    running: list[RunProcess] = field(default_factory=list)
    elsewhere: set[str] = field(default_factory=set)
    """claimed by other schedulers"""
    started: float = field(default_factory=time.monotonic)
    stopped_by: BaseException | None = None
    """what the signal that stopped the scheduler raises"""

    @property
    def is_complete(self) -> bool:
        """Whether every run is finished."""
        return all(state is RunState.COMPLETE for state in self.states.values())

    def counts(self) -> str:
        """The number of runs in each state; running ones do not count as pending.

        >>> RunTable({"a": RunState.COMPLETE, "b": RunState.PENDING}).counts()
        '1 of 2 runs complete, 1 pending'
        """
        running = [process.place.name for process in self.running]
        busy = {*running, *self.elsewhere}
        counts = Counter(state.value for name, state in [*self.states.items()] if name not in busy)
        counts.update(running=len(running), elsewhere=len(self.elsewhere))
        order = ("running", "elsewhere", "pending", "interrupted", "pruned", "failed", "diverged")
        rest = [f"{counts[name]} {name}" for name in order if counts[name]]
        return ", ".join([f"{counts['complete']} of {len(self.states)} runs complete", *rest])

    def __str__(self) -> str:
        parts = [self.counts()]
        for process in self.running:
            epoch, _, score = run_progress(process.place)
            parts.append(f"{process.place.name} epoch {epoch}" + (f" dev {score}" if score else ""))
        return "; ".join(parts)

    def __rich__(self) -> Table:
        """A table of the running runs, followed by the counts of all."""
        from rich import box
        from rich.table import Table
        from rich.text import Text

        seconds = described_seconds(time.monotonic() - self.started)
        caption = f"{self.counts()}; {seconds}"
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, caption=caption, caption_justify="left")
        for column in ("run", "epoch", "loss", "dev", "seconds"):
            is_name = column == "run"
            # On narrow terminals the names are shortened, which end in hashes, rather than the numbers.
            table.add_column(column, justify="left" if is_name else "right", no_wrap=not is_name, overflow="ellipsis")
        for process in [*self.running]:
            row = (process.place.name, *run_progress(process.place), f"{process.seconds:.0f}")
            table.add_row(*(Text(cell) for cell in row))
        return table


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


def run_plan(
    plan: Plan,
    folder: ExperimentFolder,
    options: SchedulerOptions,
    display: Display,
    *,
    only: Collection[str] | None = None,
    command: str = "dmf experiment run",
) -> RunTable:
    """Execute the unfinished runs of ``plan``, or of ``only``; ``command`` is stored in results."""
    folder.save_plan(plan.record())
    evaluation = plan.evaluation.model_dump(mode="json")
    # Variants may have the same settings, but each run is executed once.
    runs = {run.name: run for run in plan.runs if only is None or run.name in only}
    jobs = [
        Job(
            name=name,
            description={
                "coordinates": run.coordinates(),
                "source": run.source,
                "config": run.config.model_dump(mode="json"),
                "data": plan.digests.of(data_files(run.config)),
                "evaluation": evaluation,
                "keep": plan.settings.keep,
                "command": command,
            },
        )
        for name, run in runs.items()
    ]
    return run_jobs(jobs, folder, options, display)


def run_jobs(
    jobs: Iterable[Job],
    folder: ExperimentFolder,
    options: SchedulerOptions,
    display: Display,
    *,
    more: Iterator[Job | None] | None = None,
) -> RunTable:
    """Execute ``jobs`` and, whenever a worker is free, the jobs that ``more`` yields (None if there is none at present).

    SIGINT and SIGTERM stop all runs after their checkpoints; a second signal stops them at once.
    """
    scheduler = _Scheduler(folder, options, display, iter(()) if more is None else more)
    with stop_signals(scheduler.request_stop):
        try:
            for job in jobs:
                scheduler.add(job)
            scheduler.run()
        finally:
            scheduler.kill_all()
    return scheduler.table


class _Scheduler:
    def __init__(
        self, folder: ExperimentFolder, options: SchedulerOptions, display: Display, more: Iterator[Job | None]
    ) -> None:
        self.folder, self.options, self.display, self.more = folder, options, display, more
        self.table = RunTable()
        self.processes = self.table.running
        self.jobs: dict[str, list[Job]] = {}
        """the jobs of each open run; trials with the same settings share a run"""
        self.has_more = True
        self.is_stopping = False
        self.stopped_at: float | None = None
        self.looked_at_others = self.asked_for_more = -SECONDS_BETWEEN_LOOKS_AT_OTHERS

    def request_stop(self, error: BaseException, restore: Callable[[], None]) -> None:
        """What a signal does."""
        if self.is_stopping:
            raise error
        self.is_stopping = True
        self.table.stopped_by = error

    def add(self, job: Job) -> None:
        """Queue a job; a run that is already finished or cannot succeed ends at once."""
        waiting = self.jobs.setdefault(job.name, [])
        waiting.append(job)
        if len(waiting) > 1:
            return  # it is in the queue, or running
        place = self.folder.run(job.name)
        # Bad input may have been corrected since, and a run that one trial aborted may be good enough for another.
        is_forgiven = place.outcomes()[-1:] in ([Outcome.REFUSED], [Outcome.PRUNED])
        if is_forgiven or (self.options.retry_failed and self._state(job.name) is RunState.FAILED):
            place.add_attempt(Outcome.FORGIVEN)
        self._update_state(job.name)

    def run(self) -> None:
        """Execute runs until nothing is left to do or it is time to stop."""
        while True:
            self._reap()
            self._check_time()
            if not self.is_stopping:
                self._ask_for_more()
                self._start_runs()
            elif self._has_stopped():
                return
            self.display.update(self.table)
            if not (self.jobs or self.has_more or self.is_stopping):
                return
            time.sleep(SECONDS_BETWEEN_LOOKS)

    def _state(self, name: str) -> RunState:
        evaluation = self.jobs[name][0].description["evaluation"]
        return self.folder.run(name).state(evaluation)

    def _update_state(self, name: str) -> RunState:
        """Update the state of the run from its files, and notify its callers if it is closed."""
        state = self.table.states[name] = self._state(name)
        if not state.is_open:
            for job in self.jobs.pop(name):
                job.on_end(state)
        return state

    def _check_time(self) -> None:
        limit = self.options.time_limit
        if limit is not None and not self.is_stopping and time.monotonic() - self.table.started >= limit:
            self.display.note(f"the time limit of {limit:g} s was reached")
            self.is_stopping = True

    def _has_stopped(self) -> bool:
        """Ask runs to stop, and wait for their checkpoints within the time allowed."""
        now = time.monotonic()
        if self.stopped_at is None:
            self.stopped_at = now
            if self.processes:
                count = len(self.processes)
                runs = "1 run; it continues" if count == 1 else f"{count} runs; they continue"
                self.display.note(f"stopping {runs} from this point next time")
            for process in self.processes:
                process.stop()
        elif now - self.stopped_at > self.options.grace:
            self.kill_all()
        return not self.processes

    def _ask_for_more(self) -> None:
        now = time.monotonic()
        if now - self.asked_for_more < SECONDS_BETWEEN_LOOKS_AT_OTHERS:
            return
        while self.has_more and len(self.jobs) < self.options.workers:
            try:
                job = next(self.more)
            except StopIteration:
                self.has_more = False
                return
            if job is None:
                self.asked_for_more = now
                return
            self.add(job)

    def _start_runs(self) -> None:
        now = time.monotonic()
        look_at_others = now - self.looked_at_others >= SECONDS_BETWEEN_LOOKS_AT_OTHERS
        if look_at_others:
            self.looked_at_others = now
        running = {process.place.name for process in self.processes}
        for name in [name for name in self.jobs if name not in running]:
            if len(self.processes) >= self.options.workers:
                return
            if look_at_others or name not in self.table.elsewhere:
                self._start(name)

    def _start(self, name: str) -> None:
        place = self.folder.run(name)
        claim = Claim.take(place)
        self.table.elsewhere.discard(name)
        job = self.jobs[name][0]
        # Another scheduler may have finished or aborted the run before it released it.
        if not self._update_state(name).is_open:
            if claim is not None:
                claim.release()
            return
        if claim is None:
            self.table.elsewhere.add(name)
            return
        place.describe(job.description)
        busy = Counter(process.device for process in self.processes)
        device = min(self.options.devices, key=lambda each: busy[each])
        threads = max(1, num_cores() // self.options.workers)
        self.processes.append(self.options.start(place, claim=claim, device=device, threads=threads))

    def _reap(self) -> None:
        for process in list(self.processes):
            outcome = process.outcome()
            waiting = () if outcome is not None or process.is_stopped else self.jobs[process.place.name]
            if any(job.is_hopeless() for job in waiting):
                process.kill()
                for remains in (process.place.checkpoint, process.place.model):
                    shutil.rmtree(remains, ignore_errors=True)
                outcome = Outcome.PRUNED
            if outcome is not None:
                self.processes.remove(process)
                self.asked_for_more = -SECONDS_BETWEEN_LOOKS_AT_OTHERS
                self._note_end(process, outcome)

    def _note_end(self, process: RunProcess, outcome: Outcome) -> None:
        place, name = process.place, process.place.name
        details: dict[str, Any] = {"seconds": round(process.seconds, 1), "exit_status": process.exit_status}
        details["date"] = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        if outcome in (Outcome.FAILED, Outcome.REFUSED, Outcome.DIVERGED):
            lines = place.last_lines()
            # A process that was killed could not write a message.
            is_killed = (process.exit_status or 0) < 0
            details["lines"] = [*lines, process.described_status()] if is_killed or not lines else lines
        place.add_attempt(outcome, **details)
        process.claim.release()
        if outcome is Outcome.COMPLETE:
            self.display.note(f"{name}: complete, {described_scores(place)}")
        elif "lines" in details:
            again = "; it will be retried" if self._state(name).is_open else ""
            self.display.note(f"{name}: {outcome.value} ({details['lines'][-1]}){again}")
        self._update_state(name)

    def kill_all(self) -> None:
        """Kill all running processes; the last checkpoints are kept."""
        for process in self.processes:
            process.kill()
        self._reap()


def described_scores(place: RunPlace) -> str:
    """A finished run's dev score and time, for a message."""
    result = place.result() or {}
    metric = result.get("metric", "")
    score = (result.get("dev") or {}).get(metric)
    shown = "" if score is None else f"dev {metric} {score:.2f} ({result.get('decoder')}), "
    return f"{shown}{result.get('seconds', 0):.0f} s"
