"""The staged search: Optuna proposes settings, the scheduler runs them, and dev scores decide."""

from __future__ import annotations

import contextlib
import copy
import datetime
import glob
import os
import re
import statistics
import tempfile
import time
import warnings
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from diffusion_mf.config.errors import toml_value
from diffusion_mf.errors import InputError
from diffusion_mf.evaluation.terminal import Display
from diffusion_mf.lab.experiments.folders import ExperimentFolder, Outcome, RunPlace, RunState
from diffusion_mf.lab.experiments.plan import fingerprint
from diffusion_mf.lab.experiments.same_data import check_data, check_unchanged, data_files
from diffusion_mf.lab.experiments.scheduler import Job, RunTable, SchedulerOptions, run_jobs
from diffusion_mf.lab.experiments.search_plan import Range, SearchPlan, Subject

try:
    import optuna
    import sqlalchemy
except ImportError:
    raise InputError("the search needs Optuna", remedy="pip install 'diffusion-mf[experiments]'") from None
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler
from optuna.trial import FrozenTrial, TrialState

# Heartbeats have been "experimental" for years.
warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)

RETRIED = "failed_trial"
"""Optuna's attribute of trials that repeat a lost trial"""


def first_number(trial: FrozenTrial) -> int:
    """The number of a trial, or of the lost trial that it repeats."""
    return int(trial.system_attrs.get(RETRIED, trial.number))


class CombinationSampler(BaseSampler):
    """Draws every combination once, in random order: the r-th trial that is not a retry takes the r-th combination.

    A retry takes that of the trial it repeats.
    Optuna's own samplers of combinations may draw the same one in two concurrent searches, and work only in Optuna's loop.
    """

    def __init__(self, name: str, combinations: Sequence[dict[str, Any]]) -> None:
        self._order = sorted(combinations, key=lambda each: zlib.crc32(f"{name}/{sorted(each.items())}".encode()))

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """Empty, because each setting is looked up separately."""
        return {}

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Empty, because each setting is looked up separately."""
        return {}

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """The setting's value in the trial's combination."""
        trials = study.get_trials(deepcopy=False)
        rank = sum(other.number < first_number(trial) and RETRIED not in other.system_attrs for other in trials)
        return self._order[rank % len(self._order)][param_name]


SECONDS_BETWEEN_HEARTBEATS = 20
SECONDS_UNTIL_STALE = 120

WITHOUT_HEARTBEAT = sqlalchemy.text(
    "SELECT trials.trial_id FROM trials JOIN studies ON studies.study_id = trials.study_id "
    "LEFT JOIN trial_heartbeats ON trial_heartbeats.trial_id = trials.trial_id "
    "WHERE studies.study_name = :study AND trials.state = 'RUNNING' AND trial_heartbeats.trial_id IS NULL"
)
"""the running trials of a study whose process was killed, or is about to send its first heartbeat"""


def retry_trial() -> Callable[[optuna.Study, FrozenTrial], None]:
    """The callback that puts a lost trial back into the queue; its run continues from its checkpoint."""
    return optuna.storages.RetryHeartbeatStaleTrialCallback()


def open_storage(url: str) -> Any:
    """The database of the search; ``postgresql://`` uses psycopg 3."""
    # Stopped and pruned trials need no log messages.
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    if url.startswith(("postgresql://", "postgres://")):
        url = "postgresql+psycopg://" + url.partition("://")[2]
    try:
        if url.startswith("sqlite:///"):
            _create_database(Path(url.removeprefix("sqlite:///")))
        return optuna.storages.RDBStorage(
            url,
            heartbeat_interval=SECONDS_BETWEEN_HEARTBEATS,
            grace_period=SECONDS_UNTIL_STALE,
            heartbeat_stale_trial_callback=retry_trial(),
            engine_kwargs={"connect_args": {"timeout": 60}} if url.startswith("sqlite") else {"pool_pre_ping": True},
        )
    except ImportError:
        raise InputError(
            f"the database {without_password(url)} needs a driver", remedy="pip install 'psycopg[binary]'"
        ) from None
    except Exception as error:  # SQLAlchemy's errors have no common root that every version exports
        reason = str(error).strip().splitlines()[0]
        raise InputError(
            f"the database {without_password(url)} cannot be used ({reason})", remedy="check --storage"
        ) from None


def _create_database(path: Path) -> None:
    """Create a database under another name first: one in which only some tables have been created when it ends is of no use."""
    if path.exists():
        return
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as temporary:
        new = Path(temporary, path.name)
        optuna.storages.RDBStorage(f"sqlite:///{new}").engine.dispose()
        try:
            os.link(new, path)
        except FileExistsError:
            pass  # another search was faster
        except OSError:
            new.rename(path)  # a file system without links


def without_password(url: str) -> str:
    """The address without its password, which may be shown.

    >>> without_password("postgresql://me:secret@host/name")
    'postgresql://…@host/name'
    >>> without_password("postgresql://host/name?user=me&password=secret")
    'postgresql://host/name?user=me&password=…'
    """
    url = re.sub(r"([?&]\w*pass(?:word|wd)?=)[^&]*", r"\1…", url, flags=re.IGNORECASE)
    head, _, place = url.rpartition("@")
    return url if not head else f"{head.partition('://')[0]}://…@{place}"


def default_storage(folder: Path) -> str:
    """SQLite, in the folder of the search."""
    return f"sqlite:///{(folder / 'search.db').resolve()}"


REASON = "reason"
"""the attribute of trials that count although they have no score"""


@dataclass
class _OpenTrial:
    """A trial of this process, whose seeds run one after the other."""

    trial: optuna.Trial
    study: optuna.Study
    subject: Subject
    stage: int
    settings: Mapping[str, Any]
    scores: list[float] = field(default_factory=list)
    """of the seeds finished so far"""
    is_running: bool = False
    """whether a seed's run is in the queue"""
    reported: int = 0
    """the last epoch reported to Optuna"""


class Search:
    """A search, in progress or finished: Optuna proposes trials, the scheduler runs them."""

    def __init__(
        self,
        plan: SearchPlan,
        storage: Any,
        folder: ExperimentFolder,
        *,
        note: Callable[[str], None] = lambda message: None,
        command: str = "dmf search",
    ) -> None:
        self.plan, self.storage, self.folder, self.note, self.command = plan, storage, folder, note, command
        self._studies: dict[tuple[str, int], optuna.Study] = {}
        self._open: list[_OpenTrial] = []
        self._last_heartbeat = time.monotonic()

    def run(self, options: SchedulerOptions, display: Display) -> RunTable:
        """Search until all trials are done or it is time to stop; returns the states of the runs."""
        self._check_data()
        try:
            return run_jobs((), self.folder, options, display, more=self.jobs())
        finally:
            for each in self._open:
                # While this process was suspended, another may have declared the trial lost and ended it.
                with contextlib.suppress(ValueError):
                    retry_trial()(each.study, each.study.tell(each.trial, state=TrialState.FAIL))

    def _check_data(self) -> None:
        """Raise `InputError` if trials were made with other data: their scores are in the database."""
        for subject in self.plan.subjects:
            files = data_files(self.plan.config(subject, {}, self.plan.file.seeds[0])[0])
            runs = self.folder.root.glob(f"runs/{glob.escape(subject.name)}.seed*")
            remedy = "choose another folder with --output, and another database if you name one with --storage"
            check_data(self.folder, {run.name: files for run in sorted(runs)}, self.plan.digests, remedy=remedy)

    def jobs(self) -> Iterator[Job | None]:
        """Yield the next runs until every stage of every subject is complete; None while other processes run the last ones."""
        while not all(self.is_finished(subject) for subject in self.plan.subjects):
            self._beat()
            found = next((each for each in self._open if not each.is_running), None) or self._ask()
            if found is None:
                yield None
            elif (job := self._job(found)) is not None:
                yield job

    def study(self, subject: Subject, number: int) -> optuna.Study:
        """The study of a subject's stage."""
        if (subject.name, number) in self._studies:
            return self._studies[subject.name, number]
        stage, file = subject.stages[number], self.plan.file
        pruner = optuna.pruners.MedianPruner(
            n_startup_trials=file.pruner.startup_trials, n_warmup_steps=file.pruner.warmup_epochs
        )
        try:
            study = self._studies[subject.name, number] = optuna.create_study(
                storage=self.storage,
                study_name=f"{self.plan.name}/{subject.name}/{number}-{stage.name}",
                direction="maximize",
                pruner=pruner,
                load_if_exists=True,
            )
        except optuna.exceptions.StorageInternalError as error:
            raise InputError(f"the database cannot be used ({error})", remedy="check --storage") from None
        return study

    def sampler(self, subject: Subject, number: int, trial: FrozenTrial) -> BaseSampler:
        """The sampler of one trial of a stage, seeded with its number; a retry has the number of the trial it repeats.

        Searches that share a study then never draw the same values by accident, whereas one sampler for all trials would start
        over in every process and after every interruption.
        """
        stage, name = subject.stages[number], f"0/{subject.name}/{number}"
        combinations = stage.combinations()
        if combinations is not None:
            return CombinationSampler(name, combinations)
        seed = zlib.crc32(f"{name}/{first_number(trial)}".encode())
        return optuna.samplers.TPESampler(seed=seed, n_startup_trials=max(2, stage.trials // 3))

    def counted(self, subject: Subject, number: int) -> list[Any]:
        """The trials of a stage that count, in order and at most as many as planned: finished, pruned, failed or diverged."""
        trials = [
            trial
            for trial in self.study(subject, number).get_trials(deepcopy=False)
            if trial.state in (TrialState.COMPLETE, TrialState.PRUNED)
            or (trial.state == TrialState.FAIL and REASON in trial.user_attrs)
        ]
        return trials[: subject.stages[number].trials]

    def best_settings(self, subject: Subject, number: int) -> dict[str, Any]:
        """The settings that a stage chooses; empty if no trial has finished."""
        complete = [trial for trial in self.counted(subject, number) if trial.state == TrialState.COMPLETE]
        # Of equal ones the first; a retry counts as the trial it repeats, so that an interruption changes nothing.
        best = max(complete, key=lambda trial: (trial.value, -first_number(trial)), default=None)
        return {} if best is None else dict(best.params)

    def is_finished(self, subject: Subject) -> bool:
        """Whether every stage is complete."""
        return all(len(self.counted(subject, n)) >= stage.trials for n, stage in enumerate(subject.stages))

    def _ask(self) -> _OpenTrial | None:
        """A new trial of a subject with few trials running, because samplers learn from finished ones."""
        under_way = Counter(each.subject.name for each in self._open)
        for subject in sorted(self.plan.subjects, key=lambda each: under_way[each.name]):
            settings: dict[str, Any] = {}
            for number, stage in enumerate(subject.stages):
                num_counted = len(self.counted(subject, number))
                if num_counted >= stage.trials:
                    settings |= self.best_settings(subject, number)
                    continue
                study = self.study(subject, number)
                # Other processes may run the last trials; if they die, their heartbeats stop and this process takes over.
                self._watch(study)
                optuna.storages.fail_stale_trials(study)
                num_given_up = self._repeat_given_up(study)
                running = study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
                if num_counted + len(running) + num_given_up >= stage.trials:
                    break
                with warnings.catch_warnings():
                    # Optuna expects heartbeats to be sent by its own loop, which is not used here.
                    warnings.simplefilter("ignore")
                    trial = study.ask()
                study.sampler = self.sampler(subject, number, study.get_trials(deepcopy=False)[trial.number])
                chosen = {name: _suggest(trial, name, values) for name, values in stage.space.items()}
                self._open.append(_OpenTrial(trial, study, subject, number, {**settings, **chosen}))
                self._beat(at_once=True)
                return self._open[-1]
        return None

    def _watch(self, study: optuna.Study) -> None:
        """Send a first heartbeat for trials whose process has sent none, since Optuna never takes those for lost."""
        if isinstance(self.storage, optuna.storages.RDBStorage):
            with self.storage.engine.connect() as connection:
                unwatched = list(connection.execute(WITHOUT_HEARTBEAT, {"study": study.study_name}).scalars())
            for trial in unwatched:
                self.storage.record_heartbeat(trial)

    def _repeat_given_up(self, study: optuna.Study) -> int:
        """Repeat trials whose process was killed between giving them up and repeating them; returns how many may yet be repeated.

        That takes a moment, so that whoever gave up a trial long ago is gone.
        """
        last = {first_number(trial): trial for trial in study.get_trials(deepcopy=False)}
        num_fresh = 0
        for trial in last.values():
            if trial.state is not TrialState.FAIL or REASON in trial.user_attrs or trial.datetime_complete is None:
                continue
            if 0 <= (datetime.datetime.now() - trial.datetime_complete).total_seconds() < SECONDS_UNTIL_STALE:
                num_fresh += 1
            else:
                retry_trial()(study, copy.deepcopy(trial))
        return num_fresh

    def _beat(self, *, at_once: bool = False) -> None:
        """Send heartbeats for the running trials, so that they do not count as lost."""
        now = time.monotonic()
        if not at_once and now - self._last_heartbeat < SECONDS_BETWEEN_HEARTBEATS:
            return
        self._last_heartbeat = now
        if isinstance(self.storage, optuna.storages.RDBStorage):
            for each in self._open:
                study_id = self.storage.get_study_id_from_name(each.study.study_name)
                self.storage.record_heartbeat(
                    self.storage.get_trial_id_from_study_id_trial_number(study_id, each.trial.number)
                )

    def _job(self, open_trial: _OpenTrial) -> Job | None:
        """The run of the trial's next seed; None if its settings are invalid, which ends the trial."""
        subject, seed = open_trial.subject, self.plan.file.seeds[len(open_trial.scores)]
        try:
            config, source = self.plan.config(subject, open_trial.settings, seed)
        except InputError as error:
            # Incompatible candidates, such as a width and a number of heads.
            open_trial.trial.set_user_attr(REASON, str(error))
            self._tell(open_trial, state=TrialState.FAIL)
            return None
        place = self.folder.run(f"{subject.name}.seed{seed}.{fingerprint(config)}")
        open_trial.trial.set_user_attr(f"run_seed{seed}", place.name)
        open_trial.is_running = True
        return Job(
            name=place.name,
            description={
                "coordinates": {**subject.coordinates(), "variant": "search", "seed": seed},
                "source": source,
                "config": config.model_dump(mode="json"),
                "data": self.plan.digests.of(data_files(config)),
                "evaluation": {"analysis": False},
                "keep": "scores",
                "command": self.command,
            },
            is_hopeless=lambda: self._is_hopeless(open_trial, place),
            on_end=lambda state: self._end(open_trial, place, state),
        )

    def _is_hopeless(self, open_trial: _OpenTrial, place: RunPlace) -> bool:
        self._beat()
        return self._report(open_trial, place) and open_trial.trial.should_prune()

    def _report(self, open_trial: _OpenTrial, place: RunPlace) -> bool:
        """Report the dev scores of the first seed's epochs to Optuna; returns whether there were new ones."""
        if open_trial.scores:
            return False  # only the first seed can be pruned: the others complete a mean
        before = open_trial.reported
        for entry in place.last_entries():
            if entry.get("event") == "evaluation" and entry.get("epoch", 0) > open_trial.reported:
                open_trial.reported = int(entry["epoch"])
                open_trial.trial.report(float(entry["score"]), open_trial.reported)
        return open_trial.reported > before

    def _end(self, open_trial: _OpenTrial, place: RunPlace, state: RunState) -> None:
        """Handle the end of a seed's run: start the next seed, or end the trial."""
        open_trial.is_running = False
        if state is RunState.COMPLETE:
            self._report(open_trial, place)
            result = place.result() or {}
            open_trial.scores.append(float(result["dev"][result["metric"]]))
            if len(open_trial.scores) == len(self.plan.file.seeds):
                self._tell(open_trial, value=statistics.fmean(open_trial.scores))
            return
        if state is not RunState.PRUNED:
            # Otherwise every trial would fail from now on.
            check_unchanged(place)
            last = (place.failure_lines() or ["no output"])[-1]
            results = self.folder.root.glob(f"runs/{glob.escape(open_trial.subject.corpus)}.*/result.json")
            if place.outcomes()[-1:] == [Outcome.REFUSED] and not any(results):
                # The input is bad rather than these settings, so every trial would fail and none must count.
                raise InputError(
                    f"{place.name} was refused ({last})", remedy="correct the input, then run the search again"
                )
            open_trial.trial.set_user_attr(REASON, f"{state.value}: {last}")
        self._tell(open_trial, state=TrialState.FAIL if state is RunState.FAILED else TrialState.PRUNED)

    def _tell(self, open_trial: _OpenTrial, *, value: float | None = None, state: Any = None) -> None:
        """End the trial."""
        self._open.remove(open_trial)
        # If this process was suspended, another may have declared the trial lost.
        trial = open_trial.study.tell(open_trial.trial, value, state, skip_if_finished=True)
        subject, number = open_trial.subject, open_trial.stage
        stage, count = subject.stages[number], len(self.counted(subject, number))
        self.note(f"{subject.name}, {stage.name}: {count} of {stage.trials} trials; {_described(trial)}")


def _described(trial: Any) -> str:
    """How a trial ended, and with which settings."""
    settings = " ".join(f"{name}={value}" for name, value in trial.params.items())
    value = "" if trial.value is None else f" {trial.value:.2f}"
    reason = f" ({trial.user_attrs[REASON]})" if REASON in trial.user_attrs else ""
    return f"{trial.state.name.lower().replace('fail', 'failed')}{value}{reason}: {settings}"


def _suggest(trial: Any, name: str, values: list[Any] | Range) -> Any:
    if isinstance(values, Range):
        return trial.suggest_float(name, values.low, values.high, log=values.is_log)
    return trial.suggest_categorical(name, values)


def selected_text(search: Search) -> str:
    """The chosen settings as exceptions for a plan."""
    lines = ["# Chosen by dmf search; each block is an exception for a plan."]
    if not all(search.is_finished(subject) for subject in search.plan.subjects):
        lines.append("# The search is not finished: this is the best so far.")
    lines.append("")
    for subject in search.plan.subjects:
        settings: dict[str, Any] = {}
        for number in range(len(subject.stages)):
            settings |= search.best_settings(subject, number)
        if settings:
            where = ", ".join(f"{key} = {toml_value(value)}" for key, value in subject.coordinates().items())
            chosen = ", ".join(f"{toml_value(key)} = {toml_value(value)}" for key, value in settings.items())
            lines += ["[[exceptions]]", f"where = {{ {where} }}", f"set = {{ {chosen} }}", ""]
    return "\n".join(lines)
