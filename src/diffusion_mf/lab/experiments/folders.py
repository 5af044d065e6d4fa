"""The folder of an experiment, and the state of its runs as recorded in files.

| in the folder | what |
|---|---|
| `plans/NAME.json` | which runs a plan consists of |
| `runs/RUN/lock` | locked while a process works on the run |
| `runs/RUN/run.json` | the run's configuration, digests of its data, and the scores to compute |
| `runs/RUN/result.json` | the scores of a finished run |
| `runs/RUN/attempts.json` | how every attempt ended |
| `runs/RUN/output.txt` | what the run printed |
| `runs/RUN/{checkpoint,model,log.jsonl}` | as written by `dmf train` |
"""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diffusion_mf.data.files import make_folder, write_json

if TYPE_CHECKING:
    from diffusion_mf.config import Config

RETRIES = 1
"""how often a failed run is tried again"""
NUM_LINES_SHOWN = 8
"""of a failed run's output"""


class RunState(enum.StrEnum):
    """The state of a run according to its files."""

    PENDING = "pending"
    INTERRUPTED = "interrupted"
    """begun, and to be continued"""
    COMPLETE = "complete"
    DIVERGED = "diverged"
    FAILED = "failed"
    """and has no attempts left"""
    PRUNED = "pruned"
    """pruned by a search"""

    @property
    def is_open(self) -> bool:
        """Whether the run still has to be finished."""
        return self in (RunState.PENDING, RunState.INTERRUPTED)


class Outcome(enum.StrEnum):
    """How an attempt ended."""

    COMPLETE = "complete"
    INTERRUPTED = "interrupted"
    DIVERGED = "diverged"
    PRUNED = "pruned"
    """pruned by a search"""
    REFUSED = "refused"
    """bad input: another attempt would fail too"""
    FAILED = "failed"
    FORGIVEN = "forgiven"
    """not an attempt, but a mark that earlier attempts no longer count, so that the run may be tried again"""


def without_test(config: Config) -> Config:
    """The configuration of a run that must not see its test data."""
    return config.model_copy(update={"data": config.data.model_copy(update={"test": None})})


class RunPlace:
    """The folder of a run."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.name = root.name
        self.model = root / "model"
        self.checkpoint = root / "checkpoint"
        self.log = root / "log.jsonl"
        self.output = root / "output.txt"
        # Of python-crfsuite in learning curves over sizes, which has no checkpoints.
        self.regularisation = root / "regularisation.json"

    def description(self) -> dict[str, Any]:
        """The description of the run."""
        return read_object(self.root / "run.json") or {}

    def describe(self, values: Mapping[str, Any]) -> None:
        """Write the description of the run."""
        make_folder(self.root)
        write_json(self.root / "run.json", values)

    def result(self) -> dict[str, Any] | None:
        """The scores, if the run is finished."""
        return read_object(self.root / "result.json")

    def save_result(self, values: Mapping[str, Any]) -> None:
        """Write the scores, which makes the run finished."""
        write_json(self.root / "result.json", values)

    def data(self) -> dict[str, str]:
        """The digests of the files, by split, that the run was made with; empty if nothing was kept, or by an earlier version."""
        result = self.result()
        if result is not None:
            return dict(result.get("data") or {})
        is_closed = self.outcomes()[-1:] in ([Outcome.DIVERGED], [Outcome.PRUNED])
        if not is_closed and not any(path.exists() for path in (self.checkpoint, self.model, self.regularisation)):
            return {}
        # Test data are not used before the run is scored.
        begun = self.description().get("data") or {}
        return {split: digest for split, digest in begun.items() if split != "test"}

    def attempts(self) -> list[dict[str, Any]]:
        """How every attempt so far ended, oldest first."""
        found = (read_object(self.root / "attempts.json") or {}).get("attempts", [])
        return [attempt for attempt in found if isinstance(attempt, dict)]

    def add_attempt(self, outcome: Outcome, **details: Any) -> None:
        """Record how an attempt ended; only the holder of the run's claim may do so."""
        attempts = [*self.attempts(), {"outcome": outcome.value, **details}]
        write_json(self.root / "attempts.json", {"attempts": attempts})

    def outcomes(self) -> list[str]:
        """How the attempts that count ended."""
        found = [str(attempt.get("outcome")) for attempt in self.attempts()]
        while Outcome.FORGIVEN in found:
            found = found[found.index(Outcome.FORGIVEN) + 1 :]
        return found

    def state(self, evaluation: Mapping[str, Any] | None = None) -> RunState:
        """The state of the run; a finished run must have all the scores that ``evaluation`` asks for."""
        result = self.result()
        if result is not None and covers(result, evaluation or {}):
            return RunState.COMPLETE
        outcomes = self.outcomes()
        if outcomes and outcomes[-1] in (Outcome.DIVERGED, Outcome.PRUNED):
            return RunState(outcomes[-1])
        if (outcomes and outcomes[-1] == Outcome.REFUSED) or outcomes.count(Outcome.FAILED) > RETRIES:
            return RunState.FAILED
        return RunState.INTERRUPTED if outcomes or self.checkpoint.exists() else RunState.PENDING

    def last_lines(self) -> list[str]:
        """The end of the run's output."""
        try:
            text = self.output.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return []
        return [line for line in text.splitlines() if line.strip()][-NUM_LINES_SHOWN:]

    def failure_lines(self) -> list[str]:
        """The reason recorded for the last failed attempt."""
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
            except (ValueError, RecursionError):
                continue  # an incomplete line at either end
        return found


def covers(result: Mapping[str, Any], evaluation: Mapping[str, Any]) -> bool:
    """Whether a result contains all the scores that a plan's ``evaluation`` asks for.

    A missing error analysis does not count, since the model it would need may have been deleted.
    """
    if result.get("dev") is None:
        return False
    wanted = schedule_names(evaluation, process=result.get("process", "direct"))
    return all(name in result.get("schedules", {}) for name in wanted)


def schedule_names(evaluation: Mapping[str, Any], *, process: str = "categorical") -> dict[str, dict[str, Any]]:
    """What ``evaluation`` asks for in addition to a model's own inference: names in a result, and settings of ``inference``.

    Direct systems have no schedule, and bit diffusion has no reading of the posterior.

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
        self.plans = root / "plans"

    def run(self, name: str) -> RunPlace:
        """The folder of a run."""
        return RunPlace(self.root / "runs" / name)

    def save_plan(self, record: Mapping[str, Any]) -> None:
        """Record which runs a plan consists of."""
        make_folder(self.plans)
        write_json(self.plans / f"{record['name']}.json", record)

    def plan_records(self) -> dict[str, dict[str, Any]]:
        """The plans that were run here, by name."""
        found = {path.stem: read_object(path) for path in sorted(self.plans.glob("*.json"))}
        return {name: record for name, record in found.items() if record is not None}


def read_object(path: Path) -> dict[str, Any] | None:
    """The JSON object in a file; None if the file is missing or does not contain one."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
