"""Samplers whose draws follow from a trial's number: workers that share a study never draw the same by accident.

A sampler with a generator of its own would begin anew in every process and after every interruption.
"""

from __future__ import annotations

import glob
import shutil
import threading
import time
import warnings
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import optuna
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler
from optuna.trial import FrozenTrial

from diffusion_mf.errors import InputError
from diffusion_mf.lab.experiments.claims import Claim, Claims
from diffusion_mf.lab.experiments.folders import ExperimentFolder, Outcome, RunPlace
from diffusion_mf.lab.experiments.plan import fingerprint, toml_value
from diffusion_mf.lab.experiments.processes import RunProcess
from diffusion_mf.lab.experiments.search_plan import Range, SearchPlan, Stage, Subject

if TYPE_CHECKING:
    import optuna


FIXED = "fixed_params"
"""Optuna's name for the settings of trials that were enqueued"""


class NumberedSampler(BaseSampler):
    """Draws for each trial with a sampler made for its number: ``make(seed)``."""

    def __init__(self, name: str, make: Callable[[int], BaseSampler]) -> None:
        self._name, self._make = name, make
        self._current: tuple[int, BaseSampler] | None = None

    def _for(self, trial: FrozenTrial) -> BaseSampler:
        if self._current is None or self._current[0] != trial.number:
            seed = zlib.crc32(f"{self._name}/{trial.number}".encode())
            self._current = (trial.number, self._make(seed))
        return self._current[1]

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """As the sampler of the trial's number does."""
        return self._for(trial).infer_relative_search_space(study, trial)

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """As the sampler of the trial's number does."""
        return self._for(trial).sample_relative(study, trial, search_space)

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """As the sampler of the trial's number does."""
        return self._for(trial).sample_independent(study, trial, param_name, param_distribution)


class CombinationSampler(BaseSampler):
    """Every combination once, in an order of chance: the r-th trial that is no repetition takes the r-th of them."""

    def __init__(self, name: str, combinations: Sequence[dict[str, Any]]) -> None:
        self._order = sorted(combinations, key=lambda each: zlib.crc32(f"{name}/{sorted(each.items())}".encode()))

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """Nothing: each setting is looked up on its own."""
        return {}

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Nothing: each setting is looked up on its own."""
        return {}

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """The setting's value in the trial's combination."""
        trials = study.get_trials(deepcopy=False)
        rank = sum(other.number < trial.number and FIXED not in other.system_attrs for other in trials)
        return self._order[rank % len(self._order)][param_name]


SECONDS_BETWEEN_HEARTBEATS = 20
SECONDS_UNTIL_STALE = 120


def import_optuna() -> Any:
    """Optuna, quiet; one sentence where it is not installed."""
    try:
        import optuna
    except ImportError:
        raise InputError("the search needs Optuna", remedy="pip install 'diffusion-mf[experiments]'") from None
    # Trials that are stopped or given up are no news.
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


def open_storage(url: str) -> Any:
    """The database of the search; ``postgresql://`` uses psycopg 3."""
    optuna = import_optuna()
    if url.startswith(("postgresql://", "postgres://")):
        url = "postgresql+psycopg://" + url.partition("://")[2]
    try:
        with warnings.catch_warnings():
            # Heartbeats have been "experimental" for years.
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            return optuna.storages.RDBStorage(
                url,
                heartbeat_interval=SECONDS_BETWEEN_HEARTBEATS,
                grace_period=SECONDS_UNTIL_STALE,
                engine_kwargs={"connect_args": {"timeout": 60}}
                if url.startswith("sqlite")
                else {"pool_pre_ping": True},
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


def without_password(url: str) -> str:
    """An address that may be shown.

    >>> without_password("postgresql://me:secret@host/name")
    'postgresql://…@host/name'
    """
    head, _, place = url.rpartition("@")
    return url if not head else f"{head.partition('://')[0]}://…@{place}"


def default_storage(folder: Path) -> str:
    """SQLite, in the folder of the search."""
    return f"sqlite:///{(folder / 'search.db').resolve()}"


SECONDS_BETWEEN_LOOKS = 0.2
REASON = "reason"
"""the attribute of trials that count although they have no score"""


class Stopped(Exception):  # noqa: N818 (nothing went wrong)
    """The search was told to stop; the trial will be continued."""


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """How to search."""

    device: str = "auto"
    threads: int = 1
    keep_checkpoints: bool = False
    command: str = "dmf search"


class Search:
    """A search in progress, or finished."""

    def __init__(
        self,
        plan: SearchPlan,
        storage: Any,
        folder: ExperimentFolder,
        options: SearchOptions,
        *,
        note: Callable[[str], None] = lambda message: None,
        start: Callable[..., RunProcess] = RunProcess,
    ) -> None:
        self.plan, self.storage, self.folder, self.options, self.note = plan, storage, folder, options, note
        self.stop = threading.Event()
        self._start = start
        self._claims = Claims(folder.claims)
        self._optuna = import_optuna()

    def work(self, offset: int = 0) -> None:
        """Advance every subject until all are finished, beginning with the one at ``offset``; may run in many threads."""
        subjects = self.plan.subjects
        start = offset % len(subjects)
        for subject in (*subjects[start:], *subjects[:start]):
            settings: dict[str, Any] = {}
            for number, stage in enumerate(subject.stages):
                self._finish_stage(subject, number, stage, settings)
                if self.stop.is_set():
                    return
                settings |= self.best_settings(subject, number)

    def study(self, subject: Subject, number: int) -> optuna.Study:
        """The study of a subject's stage."""

        stage, file = subject.stages[number], self.plan.file
        samplers = self._optuna.samplers
        name = f"{file.sampler_seed}/{subject.name}/{number}"
        combinations = stage.combinations()
        if combinations is not None:
            sampler: Any = CombinationSampler(name, combinations)
        elif file.sampler == "random":
            sampler = NumberedSampler(name, lambda seed: samplers.RandomSampler(seed=seed))
        else:
            startup = max(2, stage.trials // 3)
            sampler = NumberedSampler(name, lambda seed: samplers.TPESampler(seed=seed, n_startup_trials=startup))
        pruner = self._optuna.pruners.NopPruner()
        if file.pruner.enabled:
            pruner = self._optuna.pruners.MedianPruner(
                n_startup_trials=file.pruner.startup_trials, n_warmup_steps=file.pruner.warmup_epochs
            )
        try:
            return self._optuna.create_study(
                storage=self.storage,
                study_name=f"{self.plan.name}/{subject.name}/{number}-{stage.name}",
                direction="maximize",
                sampler=sampler,
                pruner=pruner,
                load_if_exists=True,
            )
        except self._optuna.exceptions.StorageInternalError as error:
            raise InputError(f"the database cannot be used ({error})", remedy="check --storage") from None

    def counted(self, subject: Subject, number: int) -> list[Any]:
        """The trials of a stage that count, in order, no more than planned: finished, given up, failed or diverged."""
        states = self._optuna.trial.TrialState
        trials = [
            trial
            for trial in self.study(subject, number).get_trials(deepcopy=False)
            if trial.state in (states.COMPLETE, states.PRUNED)
            or (trial.state == states.FAIL and REASON in trial.user_attrs)
        ]
        return trials[: subject.stages[number].trials]

    def best_settings(self, subject: Subject, number: int) -> dict[str, Any]:
        """What a stage chooses; nothing where no trial came to an end."""
        complete = [
            trial
            for trial in self.counted(subject, number)
            if trial.value is not None and trial.state.name == "COMPLETE"
        ]
        best = max(complete, key=lambda trial: trial.value, default=None)
        return {} if best is None else dict(best.params)

    def best_trial(self, subject: Subject) -> Any | None:
        """The best of all stages."""
        trials = [trial for number in range(len(subject.stages)) for trial in self.counted(subject, number)]
        complete = [trial for trial in trials if trial.state.name == "COMPLETE"]
        return max(complete, key=lambda trial: trial.value, default=None)

    def is_finished(self, subject: Subject) -> bool:
        """Whether every stage has had its trials."""
        return all(len(self.counted(subject, n)) >= stage.trials for n, stage in enumerate(subject.stages))

    def _finish_stage(self, subject: Subject, number: int, stage: Stage, settings: Mapping[str, Any]) -> None:
        study = self.study(subject, number)
        states = self._optuna.trial.TrialState
        while not self.stop.is_set() and len(self.counted(subject, number)) < stage.trials:
            self._continue_lost_trials(study)
            running = sum(trial.state == states.RUNNING for trial in study.get_trials(deepcopy=False))
            if len(self.counted(subject, number)) + running >= stage.trials:
                # Others are at the last ones; if they are lost, their heartbeats stop, and it is our turn.
                self._fail_stale(study)
                self.stop.wait(5 * SECONDS_BETWEEN_LOOKS)
                continue
            try:
                study.optimize(
                    lambda trial: self._trial(trial, subject, stage, settings),
                    n_trials=1,
                    catch=(_Failed,),
                    callbacks=[lambda _, trial: self._note_end(trial, subject, number)],
                )
            except Stopped:
                return

    def _note_end(self, trial: Any, subject: Subject, number: int) -> None:
        stage, count = subject.stages[number], len(self.counted(subject, number))
        self.note(f"{subject.name}, {stage.name}: {count} of {stage.trials} trials; {_described(trial)}")

    def _fail_stale(self, study: Any) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", self._optuna.exceptions.ExperimentalWarning)
            self._optuna.storages.fail_stale_trials(study)

    def _continue_lost_trials(self, study: Any) -> None:
        """Settings of trials that were stopped or killed come first again; their checkpoints are still there."""
        states = self._optuna.trial.TrialState
        trials = study.get_trials(deepcopy=False)
        known = [_params(trial) for trial in trials if trial.state != states.FAIL or REASON in trial.user_attrs]
        for trial in trials:
            params = _params(trial)
            if trial.state == states.FAIL and REASON not in trial.user_attrs and params and params not in known:
                study.enqueue_trial(params)
                known.append(params)

    def _trial(self, trial: Any, subject: Subject, stage: Stage, settings: Mapping[str, Any]) -> float:
        chosen = {**settings, **{name: _suggest(trial, name, values) for name, values in stage.space.items()}}
        scores: list[float] = []
        for seed in self.plan.file.seeds:
            scores.append(self._seed_score(trial, subject, chosen, seed, scores))
        return sum(scores) / len(scores)

    def _seed_score(
        self, trial: Any, subject: Subject, settings: Mapping[str, Any], seed: int, earlier: list[float]
    ) -> float:
        try:
            config, source = self.plan.config(subject, settings, seed)
        except InputError as error:
            # Candidates that do not go together, such as a width and a number of heads.
            trial.set_user_attr(REASON, str(error))
            raise _Failed from None
        place = self.folder.run(f"{subject.name}.seed{seed}.{fingerprint(config)}")
        coordinates = {"corpus": subject.corpus, "system": subject.system, "encoder": subject.encoder}
        trial.set_user_attr(f"run_seed{seed}", place.name)
        claim = self._claim(place.name)
        try:
            result = place.result()
            if result is None:
                place.describe(
                    {
                        "coordinates": {**coordinates, "variant": "search", "seed": seed},
                        "source": source,
                        "config": config.model_dump(mode="json"),
                        "evaluation": {"analysis": False},
                        "checkpoint_every": 300.0,
                        "keep": "all" if self.options.keep_checkpoints else "scores",
                        "command": self.options.command,
                    }
                )
                result = self._run(trial, place, claim, earlier)
        finally:
            claim.release()
        return float(result["dev"][result["metric"]])

    def _claim(self, name: str) -> Claim:
        """Wait until nobody else works on the same settings."""
        while not self.stop.is_set():
            claim = self._claims.take(name)
            if claim is not None:
                return claim
            self.stop.wait(5 * SECONDS_BETWEEN_LOOKS)
        raise Stopped

    def _run(self, trial: Any, place: RunPlace, claim: Claim, earlier: list[float]) -> dict[str, Any]:
        process = self._start(place, claim=claim, device=self.options.device, threads=self.options.threads)
        try:
            reported = 0
            while (outcome := process.outcome()) is None:
                time.sleep(SECONDS_BETWEEN_LOOKS)
                if self.stop.is_set() and not process.is_stopped:
                    process.stop()
                before, reported = reported, self._report(trial, place, earlier, reported)
                if reported > before and not process.is_stopped and trial.should_prune():
                    process.kill()
                    for remains in (place.checkpoint, place.model):
                        shutil.rmtree(remains, ignore_errors=True)
                    raise self._optuna.TrialPruned
        finally:
            if process.exit_status is None:
                process.kill()
        result = place.result()
        if outcome is Outcome.COMPLETE and result is not None:
            self._report(trial, place, earlier, reported)
            return result
        if self.stop.is_set() or outcome is Outcome.INTERRUPTED:
            raise Stopped
        last = place.last_lines(1)
        if outcome is Outcome.REFUSED and not self._has_results(place.description()["coordinates"]["corpus"]):
            # Not these settings, but the input: no trial would fare better, and none must count.
            raise InputError(f"{place.name} was refused ({last[0] if last else 'no output'})", remedy="correct that")
        trial.set_user_attr(REASON, f"{outcome.value}: {last[0] if last else 'no output'}")
        if outcome is Outcome.DIVERGED:
            raise self._optuna.TrialPruned
        raise _Failed

    def _has_results(self, corpus: str) -> bool:
        return any(self.folder.root.glob(f"runs/{glob.escape(corpus)}.*/result.json"))

    def _report(self, trial: Any, place: RunPlace, earlier: list[float], reported: int) -> int:
        """Tell Optuna the dev scores of the first seed's epochs; returns the last epoch told."""
        if earlier:
            return reported  # only the first seed can be given up: the others complete a mean
        for entry in place.last_entries():
            if entry.get("event") == "evaluation" and entry.get("epoch", 0) > reported:
                reported = int(entry["epoch"])
                trial.report(float(entry["score"]), reported)
        return reported


class _Failed(Exception):  # noqa: N818 (counted, not handled)
    """A trial that counts, but has no score."""


def _params(trial: Any) -> dict[str, Any]:
    """A trial's settings, also those that are only enqueued."""
    return dict(trial.system_attrs.get("fixed_params", trial.params))


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


def run_search(search: Search, *, workers: int, time_limit: float | None, has_stopped: Callable[[], bool]) -> bool:
    """Search with so many trials at a time; whether all subjects are finished afterwards."""
    errors: list[BaseException] = []

    def work(offset: int) -> None:
        try:
            search.work(offset)
        except BaseException as error:
            errors.append(error)
            search.stop.set()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(workers)]
    start = time.monotonic()
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        time.sleep(SECONDS_BETWEEN_LOOKS)
        is_late = time_limit is not None and time.monotonic() - start >= time_limit
        if (is_late or has_stopped()) and not search.stop.is_set():
            search.note("stopping; what was begun continues another time")
            search.stop.set()
    if errors:
        raise errors[0]
    return all(search.is_finished(subject) for subject in search.plan.subjects)


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
            place = {"corpus": subject.corpus, "system": subject.system, "encoder": subject.encoder}
            where = ", ".join(f"{key} = {toml_value(value)}" for key, value in place.items())
            chosen = ", ".join(f"{toml_value(key)} = {toml_value(value)}" for key, value in settings.items())
            lines += ["[[exceptions]]", f"where = {{ {where} }}", f"set = {{ {chosen} }}", ""]
    return "\n".join(lines)
