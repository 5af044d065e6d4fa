"""The folder of an experiment, and what the files of a run say about it.

| in the folder | what |
|---|---|
| `plans/NAME.json` | which runs a plan consists of |
| `claims/` | who works on which run, see `claims` |
| `runs/RUN/run.json` | the run's configuration and what is to be scored |
| `runs/RUN/result.json` | the scores of a finished run |
| `runs/RUN/attempts.json` | how every attempt ended |
| `runs/RUN/output.txt` | what the run printed |
| `runs/RUN/{checkpoint,model,log.jsonl}` | those of `dmf train` |
"""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from diffusion_mf.data.files import open_output
from diffusion_mf.errors import InputError

NUM_LINES_SHOWN = 8
"""of a failed run's output"""


class RunState(enum.StrEnum):
    """How a run stands, as far as its files tell."""

    PENDING = "pending"
    INTERRUPTED = "interrupted"
    """begun, and to be continued"""
    COMPLETE = "complete"
    DIVERGED = "diverged"
    FAILED = "failed"
    """as often as it may"""
    PRUNED = "pruned"
    """given up by a search"""

    @property
    def is_open(self) -> bool:
        """Whether somebody still has to finish it."""
        return self in (RunState.PENDING, RunState.INTERRUPTED)


class Outcome(enum.StrEnum):
    """How an attempt ended."""

    COMPLETE = "complete"
    INTERRUPTED = "interrupted"
    DIVERGED = "diverged"
    PRUNED = "pruned"
    """given up by a search"""
    REFUSED = "refused"
    """bad input: another attempt would be refused, too"""
    FAILED = "failed"
    FORGIVEN = "forgiven"
    """no attempt: those before it no longer count"""


class RunPlace:
    """The folder of a run."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.name = root.name
        self.model = root / "model"
        self.checkpoint = root / "checkpoint"
        self.log = root / "log.jsonl"
        self.output = root / "output.txt"

    def description(self) -> dict[str, Any]:
        """What the run is."""
        return read_object(self.root / "run.json") or {}

    def describe(self, values: Mapping[str, Any]) -> None:
        """Say what the run is."""
        self.root.mkdir(parents=True, exist_ok=True)
        write_json(self.root / "run.json", values)

    def result(self) -> dict[str, Any] | None:
        """The scores, if the run is finished."""
        return read_object(self.root / "result.json")

    def save_result(self, values: Mapping[str, Any]) -> None:
        """Declare the run finished."""
        write_json(self.root / "result.json", values)

    def attempts(self) -> list[dict[str, Any]]:
        """How every attempt so far ended, oldest first."""
        found = (read_object(self.root / "attempts.json") or {}).get("attempts", [])
        return [attempt for attempt in found if isinstance(attempt, dict)]

    def add_attempt(self, outcome: Outcome, **details: Any) -> None:
        """Note how an attempt ended; only the holder of the run's claim may."""
        attempts = [*self.attempts(), {"outcome": outcome.value, **details}]
        write_json(self.root / "attempts.json", {"attempts": attempts})

    def forgive(self) -> None:
        """Let failures so far no longer count, so that the run may be tried again."""
        self.add_attempt(Outcome.FORGIVEN)

    def outcomes(self) -> list[str]:
        """How the attempts that count ended."""
        found = [str(attempt.get("outcome")) for attempt in self.attempts()]
        while Outcome.FORGIVEN in found:
            found = found[found.index(Outcome.FORGIVEN) + 1 :]
        return found

    def state(self, *, retries: int, evaluation: Mapping[str, Any] | None = None) -> RunState:
        """How the run stands; finished ones must have all the scores that ``evaluation`` asks for."""
        result = self.result()
        if result is not None and covers(result, evaluation or {}):
            return RunState.COMPLETE
        outcomes = self.outcomes()
        if outcomes and outcomes[-1] in (Outcome.DIVERGED, Outcome.PRUNED):
            return RunState(outcomes[-1])
        if (outcomes and outcomes[-1] == Outcome.REFUSED) or outcomes.count(Outcome.FAILED) > retries:
            return RunState.FAILED
        return RunState.INTERRUPTED if outcomes or self.checkpoint.exists() else RunState.PENDING

    def last_lines(self, count: int = NUM_LINES_SHOWN) -> list[str]:
        """The end of what the run printed."""
        try:
            text = self.output.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return []
        return [line for line in text.splitlines() if line.strip()][-count:]

    def failure_lines(self) -> list[str]:
        """What the last attempt that failed said at its end."""
        return next((each["lines"] for each in reversed(self.attempts()) if each.get("lines")), self.last_lines())

    def last_entries(self, num_bytes: int = 1 << 14) -> list[dict[str, Any]]:
        """The newest entries of the training log."""
        try:
            with self.log.open("rb") as stream:
                stream.seek(0, 2)
                stream.seek(max(0, stream.tell() - num_bytes))
                lines = stream.read().decode("utf-8", errors="replace").splitlines()
        except OSError:
            return []
        found = []
        for line in lines:
            try:
                found.append(json.loads(line))
            except ValueError:
                continue  # half a line, at either end
        return found


def covers(result: Mapping[str, Any], evaluation: Mapping[str, Any]) -> bool:
    """Whether a result holds all the scores that a plan's ``evaluation`` asks for.

    An analysis that is missing is no reason to use a model again, which may be gone.
    """
    if result.get("dev") is None:
        return False
    schedules = result.get("schedules", {})
    # Results of before the process was recorded tell diffusion from the rest.
    process = result.get("process") or ("categorical" if result.get("is_diffusion") else "direct")
    return all(name in schedules for name in schedule_names(evaluation, process=process))


def schedule_names(evaluation: Mapping[str, Any], *, process: str = "categorical") -> dict[str, dict[str, Any]]:
    """What ``evaluation`` asks for beside a model's own inference: names in a result, and settings of ``inference``.

    Direct systems have no schedule, and bits no reading of the posterior.

    >>> schedule_names({"calls": [5], "bases": [1.5]})
    {'calls=5': {'num_calls': 5}, 'base=1.5': {'num_calls': None, 'base': 1.5}}
    >>> list(schedule_names({"calls": [1, 5], "readings": ["product", "mixture"]}))
    ['posterior=product calls=1', 'posterior=product calls=5', 'posterior=mixture calls=1', 'posterior=mixture calls=5']
    """
    if process == "direct":
        return {}
    calls = {f"calls={number}": {"num_calls": number} for number in evaluation.get("calls", [])}
    bases = {f"base={base:g}": {"num_calls": None, "base": float(base)} for base in evaluation.get("bases", [])}
    schedules: dict[str, dict[str, Any]] = calls | bases
    readings = evaluation.get("readings", [])
    if not readings or process != "categorical":
        return schedules
    return {
        f"posterior={reading} {name}".strip(): {"posterior": reading, **changes}
        for reading in readings
        for name, changes in (schedules or {"": {}}).items()
    }


class ExperimentFolder:
    """The folder of an experiment."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.claims = root / "claims"
        self.plans = root / "plans"

    def run(self, name: str) -> RunPlace:
        """The folder of a run."""
        return RunPlace(self.root / "runs" / name)

    def save_plan(self, record: Mapping[str, Any]) -> None:
        """Remember which runs a plan consists of."""
        try:
            self.plans.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(
                f"cannot be written ({error.strerror})", path=self.root, remedy="name another folder with --output"
            ) from None
        write_json(self.plans / f"{record['name']}.json", record)

    def plan_records(self) -> dict[str, dict[str, Any]]:
        """The plans that were run here, by name."""
        found = {path.stem: read_object(path) for path in sorted(self.plans.glob("*.json"))}
        return {name: record for name, record in found.items() if record is not None}


def read_object(path: Path) -> dict[str, Any] | None:
    """A file's JSON object; None if there is no such file, or none in it."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    """Write an object; the file appears whole."""
    with open_output(path) as stream:
        stream.write((json.dumps(values, ensure_ascii=False, indent=1, allow_nan=False) + "\n").encode())
