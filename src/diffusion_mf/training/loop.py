"""One training run, from a configuration to a model folder.

    output/checkpoint/   the state of the run, see `checkpoint`
    output/model/        the best model so far, see `tagger.save_model`
    output/log.jsonl     the events of the run

A run that was killed continues with ``resume=True`` as if it had not been interrupted: on the CPU, with the same number of
threads, its final weights are the same to the last bit.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import torch

from diffusion_mf.config import Config
from diffusion_mf.data.files import StrPath
from diffusion_mf.errors import DiffusionMFError, DivergenceError
from diffusion_mf.evaluation import PRIMARY_METRICS
from diffusion_mf.model import Labeller
from diffusion_mf.model.core import TOTAL
from diffusion_mf.model.storage import StoredModel, legal_decoder, rounded
from diffusion_mf.model.transfer import start_from
from diffusion_mf.prediction.memory import MemoryGuard, placed
from diffusion_mf.prediction.precision import autocast_for, compile_blocks, half_weights_for, uses_packing
from diffusion_mf.prediction.predictor import Predictor
from diffusion_mf.training.corpora import Corpora, TrainingData, data_warnings, num_scored, read_training_data
from diffusion_mf.training.evaluation import (
    DecoderEvaluation,
    candidate_calls,
    candidate_decoders,
    evaluate,
    fewest_calls,
    num_calls,
    teacher_marginals,
)
from diffusion_mf.training.gradients import LossWindow, StepGradients
from diffusion_mf.training.optimizer import Learner
from diffusion_mf.training.processes import Interruption, Processes, connected, reproducible
from diffusion_mf.training.progress import Callbacks, JsonLinesLog, Progress, RunDisplay, SpeedMeter
from diffusion_mf.training.resumption import BestModel, Checkpoints, RunFolder, TrainingState
from diffusion_mf.training.steps import PackingSettings, StepPlan, StepPreparer

SECONDS_BETWEEN_CHECKPOINTS = 300.0
MOST_SKIPPED_IN_A_ROW = 25
"""steps in a row whose gradients are not finite, after which a run returns to its last checkpoint, once"""
RATE_AFTER_RETURN = 0.5
"""factor on the learning rate after that"""


FEWEST_SCORED = 10
"""labels or spans of dev, of which a model may miss all without having learnt nothing"""
NOTABLE_GAIN = 0.1
"""points by which the last epoch must beat those before it for more of them to be worth while"""


MOST_TIMED_STEPS = 40
MOST_TIMED_SENTENCES = 100
FEWEST_WHOLE_EPOCHS = 5
"""a run of a given time with fewer epochs ends within one"""


FEWEST_PLANNED = 0.25
"""share of the updates that were planned, below which a run of a given time is too short for a good model"""


class _TooManySkippedError(Exception):
    """Too many steps in a row were skipped for training to make progress."""


def train(
    config: Config,
    *,
    output: StrPath,
    resume: bool = False,
    device: str = "auto",
    checkpoint_every: float = SECONDS_BETWEEN_CHECKPOINTS,
    use_tensorboard: bool = False,
    display: RunDisplay | None = None,
    overrides: Sequence[str] = (),
    resume_command: str | None = None,
    planned_steps: int | None = None,
    corpora: Corpora | None = None,
    started: float | None = None,
) -> Path:
    """Train the model that ``config`` describes; returns the model's folder, for `Tagger.load`.

    ``overrides`` are those that ``config`` was read with, for `begun_run` to know. ``resume_command`` is what a user can type to
    continue the run, ``planned_steps`` the number of steps before `fit_to_time` reduced it. ``corpora`` are the files of ``config``
    if they have been read, ``started`` is the time (`time.monotonic`) of the user's command, for the log.
    ``checkpoint_every`` is in seconds; there is a checkpoint at the beginning and at the end, too. ``display`` shows notes and
    progress (default: notes go to Python's logging). Under torchrun every process calls this, and rank 0 writes.
    """
    interruption = Interruption()
    started = time.monotonic() if started is None else started
    with (
        connected(device) as processes,
        reproducible(processes.device, threads=config.training.threads),
        interruption.watched(),
    ):
        folder = RunFolder(Path(output))
        if processes.is_writer:
            folder.check_free(resume=resume)
        data = read_training_data(config, corpora=corpora)
        if not processes.is_writer:
            display = Callbacks(lambda message: None)  # rank 0 shows notes
        elif display is None:
            display = Callbacks(logging.getLogger("diffusion_mf").warning)
        for message in data.notes:
            display.note(message)
        run = _Run(
            config,
            data,
            folder,
            processes,
            display=display,
            interruption=interruption,
            checkpoint_every=checkpoint_every,
            overrides=overrides,
            resume_command=resume_command,
            planned_steps=planned_steps,
            started=started,
        )
        with folder.locked(display.note) if processes.is_writer else contextlib.nullcontext():
            run.begin(resume=resume, use_tensorboard=use_tensorboard)
            try:
                while not run.is_over():
                    try:
                        run.epoch()
                        run.select()
                    except _TooManySkippedError:
                        run.go_back()
                    run.stop_if_asked()
                    run.checkpoint_if_due()
                run.finish()
            finally:
                if run.log is not None:
                    run.log.close()
                run.best.wait()
    return run.folder.model


class FittedTime(NamedTuple):
    """How a run is made to fit into a time."""

    changes: dict[str, float]
    """settings by their dotted names"""
    line: str
    """about them, for the user"""
    planned_steps: int
    """the number of steps without a limit of time"""


def fit_to_time(
    config: Config,
    minutes: float,
    *,
    most_epochs: int | None = None,
    device: str = "auto",
    corpora: Corpora | None = None,
) -> FittedTime:
    """The settings by which a run takes no more than about ``minutes``, evaluations included.

    A few steps and an evaluation are timed and forgotten. What comes out are settings like any others, so that the run can be
    resumed and repeated. Where there is time, there may be ``most_epochs``, by default those of ``config``.
    """
    start = time.monotonic()
    settings = config.training
    # To plan one epoch is enough here.
    timed = config.model_copy(update={"training": settings.model_copy(update={"epochs": 1, "max_steps": None})})
    with connected(device) as processes, reproducible(processes.device, threads=settings.threads):
        run = _Run(
            timed,
            read_training_data(config, corpora=corpora),
            RunFolder(Path()),
            processes,
            display=Callbacks(lambda message: None),
            interruption=Interruption(),
            checkpoint_every=math.inf,
        )
        # All of this comes again in the run itself.
        preparation = time.monotonic() - start
        pace = run.measure_pace(at_most=0.05 * 60 * minutes)
        # The processes must agree on one number.
        total = torch.tensor([preparation, time.monotonic() - start, *pace], dtype=torch.float64)
        processes.sum(total)
        preparation, elapsed, of_step, of_evaluation = (total / processes.world_size).tolist()
    of_test = of_evaluation * len(run.data.test or ()) / max(1, len(run.data.dev or ()))
    with_calls = sum(candidate_calls(config)) / num_calls(config) * of_evaluation
    left = 60 * minutes - elapsed - preparation - of_test - with_calls
    most_epochs = most_epochs or settings.epochs
    steps_per_epoch = run.num_steps
    of_epoch = steps_per_epoch * of_step + of_evaluation / settings.evaluate_every
    num_wanted = most_epochs * steps_per_epoch
    if settings.max_steps is not None:
        num_wanted = min(num_wanted, settings.max_steps)
    needed = num_wanted * of_epoch / steps_per_epoch
    if needed <= left:
        needed = max(needed / 60, 0.1)
        line = f"time: all epochs take about {needed:.1f} of {minutes:g} min"
        return FittedTime({"training.epochs": most_epochs}, line, num_wanted)
    num_epochs = max(1, math.floor(left / of_epoch))
    num_steps = num_epochs * steps_per_epoch
    changes: dict[str, float] = {"training.epochs": num_epochs}
    if num_epochs < FEWEST_WHOLE_EPOCHS:
        # The rest of the time is too large a part of the whole to be left unused.
        num_steps = max(1, math.floor((left - of_evaluation * num_epochs) / of_step))
        changes = {"training.epochs": -(-num_steps // steps_per_epoch), "training.max_steps": num_steps}
    # What is counted in steps must not be longer than the run, nor must the moving average remember its beginning.
    changes["training.warmup_steps"] = min(settings.warmup_steps, num_steps // 10)
    changes["training.ema_decay"] = min(settings.ema_decay, max(0.9, round(1 - 5 / num_steps, 4)))
    overhead = minutes - left / 60
    line = f"time: {num_steps:,} of {num_wanted:,} steps fit into {minutes:g} min"
    if left <= 0:
        line = (
            f"time: {minutes:g} min are too short: preparing and evaluating alone take about {overhead:.1f} min; "
            f"{num_steps:,} of {num_wanted:,} steps will be trained"
        )
    elif overhead > minutes / 2:
        line += f", of which preparing and evaluating take {100 * overhead / minutes:.0f} %"
    return FittedTime(changes, line, num_wanted)


class _Run:
    def __init__(
        self,
        config: Config,
        data: TrainingData,
        folder: RunFolder,
        processes: Processes,
        *,
        display: RunDisplay,
        interruption: Interruption,
        checkpoint_every: float,
        overrides: Sequence[str] = (),
        resume_command: str | None = None,
        planned_steps: int | None = None,
        started: float = 0.0,
    ) -> None:
        self.resume_command, self.planned_steps = resume_command, planned_steps
        self.started = started
        self.first_step: float | None = None
        self.last_step = 0.0
        self.config, self.data, self.folder, self.processes = config, data, folder, processes
        self.display, self.interruption, self.checkpoint_every = display, interruption, checkpoint_every
        self.settings = config.training
        self.log: JsonLinesLog | None = None
        self.state = TrainingState()
        self.lengths = [len(sentence.units) for sentence in data.train]
        self.is_packed = uses_packing(
            processes.device, config.encoder.kind, layout=self.settings.layout, precision=self.settings.precision
        )
        torch.manual_seed(config.seed)
        with MemoryGuard() as guard:
            labeller = Labeller(config, data.vocabulary, data.scheme)
        if guard.ran_out:
            raise DiffusionMFError(
                "the model does not fit in memory; choose smaller widths, fewer layers or a smaller size."
            )
        if data.start is not None and config.data.start is not None:
            kept = start_from(labeller, data.vocabulary, data.start, path=config.data.start)
            display.note(kept.describe(config.data.start))
        self.labeller = placed(labeller, processes.device, is_trained=True)
        self.labeller.train()
        self.labeller.teacher = teacher_marginals(config, data, processes, note=display.note)
        for part in (data.train, data.dev, data.test):
            self.labeller.encoder.study(part or (), note=display.note)
        self.sizes = self.labeller.encoder.sizes(data.train)
        is_gpu = processes.device.type == "cuda"
        self.preparer = StepPreparer(
            data.train,
            data.vocabulary,
            processes,
            prepare_input=self.labeller.prepare_input,
            packing=PackingSettings(
                self.settings.budget, config.encoder.max_characters, is_flat=is_gpu and self.settings.use_graphs
            )
            if self.is_packed
            else None,
            recall=config.recall,
        )
        self.num_steps = self._count_steps()
        self.decoders = candidate_decoders(self.labeller)
        self.predictor = Predictor(self.labeller, config, processes.device)
        processes.broadcast(list(self.labeller.state_dict().values()))
        self.learner = Learner(self.labeller, self.settings, total_steps=self.num_steps)
        if self.settings.compile and is_gpu:
            compile_blocks(self.labeller)
        self.gradients = StepGradients(
            self.labeller,
            self.learner.optimizer,
            self.preparer,
            processes,
            seed=config.seed,
            autocast=autocast_for(processes.device, self.settings.precision),
            half_weights=half_weights_for(self.labeller, processes.device, self.settings.precision),
        )
        self.window = LossWindow(processes, list(self.learner.optimizer.parameters))
        self.checkpoints = Checkpoints(
            folder,
            config,
            data,
            self.learner,
            processes,
            is_packed=self.is_packed,
            encoder_digest=self.labeller.encoder.input_digest(data.train),
            overrides=overrides,
        )
        self.best = BestModel(folder, config, data, is_writer=processes.is_writer)
        self._evaluate = functools.partial(
            evaluate,
            config=config,
            vocabulary=data.vocabulary,
            scheme=data.scheme,
            processes=processes,
            source_scheme=data.source_scheme,
        )
        self.meter = SpeedMeter()
        self.last_loss: float | None = None
        self.last_speed: float | None = None
        self.dev_score: str | None = None
        self.seconds_before = 0.0
        self.skipped_before = 0
        self.last_checkpoint = time.monotonic()

    def begin(self, *, resume: bool, use_tensorboard: bool) -> None:
        """Prepare the folder and, if requested, resume the run that was started there."""
        resumed = None
        self.labeller.encoder.check_folder(self.folder.model)
        if not resume:
            self.folder.check_unused()
        else:
            resumed = self.checkpoints.load(self.display.note)
        if resumed is not None:
            self.state = resumed.state
            self.seconds_before = self.state.seconds
            self.skipped_before = self.state.num_skipped
            if self.state.best_score is not None:
                self.dev_score = self._describe(self.state.best_score, str(self.state.best_decoder))
            if self.is_over():
                self.display.note("the run is complete: there is nothing left to train")
            else:
                self.display.note(f"continuing after step {self.state.step:,}, in epoch {self.state.epoch + 1}")
        self._agree_on_position()
        if self.processes.is_writer:
            self.log = JsonLinesLog(
                self.folder.log,
                keep_bytes=0 if resumed is None else resumed.log_bytes,
                tensorboard=self.folder.tensorboard if use_tensorboard else None,
            )
        if resumed is None:
            if resume:
                self.display.note(f"{self.folder.root} has no checkpoint: starting from the beginning")
            if self.data.dev:
                # One sentence with every decoder, so that an unsuitable decoder is refused before training.
                self._evaluate(self.predictor, self.data.dev[:1], decoders=self.decoders)
            self._write_log("start", {"parameters": self.labeller.num_parameters()})
            for message in self.data.notes:
                self._write_log("note", {"message": message})
            for message in (*data_warnings(self.data, self.config), *self._schedule_warnings()):
                self.tell(message)
            # Now, and not after hours, is the time to find out that nothing can be written.
            self.checkpoint()

    def tell(self, message: str) -> None:
        """Show a message and write it to the log."""
        self.display.note(message)
        self._write_log("note", {"message": message})

    def _schedule_warnings(self) -> Iterator[str]:
        if self.settings.warmup_steps >= max(1, self.num_steps):
            shorter = self.num_steps // 10
            yield (
                f"the warm-up of {self.settings.warmup_steps:,} steps is longer than the run of {self.num_steps:,}: the learning "
                "rate never reaches its full value; "
                + (f"set training.warmup_steps={shorter}, or " if shorter else "")
                + "train for more epochs"
            )

    def _agree_on_position(self) -> None:
        total = torch.tensor([float(self.state.step)], dtype=torch.float64)
        self.processes.sum(total)
        if float(total) != self.state.step * self.processes.world_size:
            raise DiffusionMFError(
                "the processes found different checkpoints; the output folder must be shared by all of them."
            )

    def measure_pace(self, *, at_most: float) -> tuple[float, float]:
        """Seconds of a step and of an evaluation, from a few steps and dev sentences; the run is of no use afterwards."""
        plans = self._plan(0)
        seconds: list[float] = []
        start = before = time.monotonic()
        for prepared in self.preparer.stream(plans, 1):
            units = sum(self.lengths[index] for batch in prepared.plan for index in batch)
            self.gradients.compute(prepared, step=len(seconds), units=units, num_pieces=1)
            # Reading a number from the device waits for what was computed there.
            float(self.learner.update(len(seconds)).norm)
            now = time.monotonic()
            seconds.append(now - before)
            before = now
            if len(seconds) >= MOST_TIMED_STEPS or (len(seconds) >= 3 and now - start > at_most):
                break
        # The first steps also prepare what later ones have ready.
        timed = seconds[len(seconds) // 2 :]
        of_evaluation = 0.0
        if self.data.dev:
            sample = self.data.dev[:: -(-len(self.data.dev) // MOST_TIMED_SENTENCES)]
            self._evaluate(self.predictor, sample[:1], decoders=self.decoders)
            before = time.monotonic()
            self._evaluate(self.predictor, sample, decoders=self.decoders)
            of_evaluation = (time.monotonic() - before) * len(self.data.dev) / len(sample)
        return sum(timed) / len(timed), of_evaluation

    def is_over(self) -> bool:
        """Whether the epochs are over, or dev scores no longer rise."""
        state = self.state
        # A run that was stopped after the last step of its last epoch has not been evaluated since.
        has_all_steps = state.step >= self.num_steps and state.position == 0
        return state.is_stopped or state.epoch >= self.settings.epochs or has_all_steps

    def _is_last(self) -> bool:
        """Whether the epoch just finished is the last."""
        return self.state.epoch >= self.settings.epochs or self.state.step >= self.num_steps

    def checkpoint_if_due(self) -> None:
        """From time to time, but not while steps are being skipped: a run may have to return to this checkpoint."""
        is_time = self.checkpoint_every <= time.monotonic() - self.last_checkpoint
        if is_time and self.window.skipped_in_a_row() == 0:
            self.checkpoint()

    def stop_if_asked(self) -> None:
        """After a signal, write a checkpoint and end the run."""
        if self.interruption.error is not None:
            self.checkpoint()
            self.display.note(f"stopped by a signal after step {self.state.step:,}; --resume continues from there")
            raise self.interruption.error

    def _count_skipped(self) -> int:
        """How many steps were skipped since the last call; the first ones are reported."""
        before, self.state.num_skipped = self.state.num_skipped, self.skipped_before + self.window.num_skipped()
        if self.state.num_skipped and not before:
            self.display.note(
                f"a gradient was not finite at or before step {self.state.step:,} ({self.window.faulty_parameters()}): such steps are "
                "skipped, and counted here and in the log"
            )
        return self.state.num_skipped - before

    def _check_skipped(self) -> None:
        """`_TooManySkippedError` if the gradients of all recent steps were not finite."""
        # In a short run, half of the steps is already too many.
        if self.window.skipped_in_a_row() >= min(MOST_SKIPPED_IN_A_ROW, (self.num_steps + 1) // 2):
            raise _TooManySkippedError

    def go_back(self) -> None:
        """Continue from the last checkpoint with a lower learning rate; the second time, give up."""
        names = self.window.faulty_parameters()
        trouble = f"the gradient{f' of {names}' if names else ''} was not finite in {self.window.skipped_in_a_row()} steps in a row"
        if self.state.num_returns:
            self._give_up(trouble)
        best = {name: getattr(self.state, name) for name in ("best_score", "best_epoch", "best_decoder")}
        num_skipped = self.state.num_skipped
        resumed = self.checkpoints.load(self.display.note)
        if resumed is None:
            self._give_up(trouble)
        # A better model found since then is kept: it is on disk.
        self.state = dataclasses.replace(resumed.state, **best, num_skipped=num_skipped, num_returns=1)
        self._agree_on_position()
        self.window.begin_anew()
        self.display.note(
            f"{trouble}: returning to step {self.state.step:,}, to continue with {RATE_AFTER_RETURN:g} times the learning rate"
        )
        self._write_log("return", {"reason": trouble})

    def _rate(self) -> float:
        return RATE_AFTER_RETURN if self.state.num_returns else 1.0

    def _give_up(self, trouble: str) -> NoReturn:
        if self.state.best_decoder is None:
            self._keep_unselected()
        self.best.wait()
        found = "the model of the last good step"
        if self.state.best_score is not None:
            score = self._describe(self.state.best_score, str(self.state.best_decoder))
            found = f"the best model so far (dev {score}, epoch {self.state.best_epoch})"
        raise DivergenceError(
            f"{trouble} (by step {self.state.step:,}), again after returning to an earlier step with a lower learning rate; "
            "train again with a lower training.learning_rate or more training.warmup_steps; "
            f"{found} is in {self.folder.model} and can be used."
        )

    def _plan(self, epoch: int) -> list[StepPlan]:
        return self.preparer.plan_epoch(self.sizes, self.settings, seed=self.config.seed, epoch=epoch)

    def _count_steps(self) -> int:
        """Of all epochs, which differ by a few steps; the learning rate depends on their sum."""
        most = math.inf if self.settings.max_steps is None else self.settings.max_steps
        total = 0
        for epoch in range(self.settings.epochs):
            total += len(self._plan(epoch))
            if total >= most:
                return int(most)
        return total

    def epoch(self) -> None:
        """Run the remaining steps of the current epoch."""
        state = self.state
        plans = self._plan(state.epoch)
        if self.settings.max_steps is not None:
            plans = plans[: self.num_steps - (state.step - state.position)]
        self.first_step = self.first_step or time.monotonic()
        if state.position == 0:
            self._try_fewer_pieces()
        for prepared in self.preparer.stream(plans[state.position :], lambda: state.num_pieces):
            units = sum(self.lengths[index] for batch in prepared.plan for index in batch)
            sums, num_pieces = self.gradients.compute(
                prepared, step=state.step, units=units, num_pieces=state.num_pieces
            )
            update = self.learner.update(state.step, rate=self._rate())
            state.step += 1
            state.position += 1
            if num_pieces != state.num_pieces:
                state.num_pieces = num_pieces
                state.num_shortages += 1
                self.display.note(f"memory ran out in step {state.step}: batches are computed in {num_pieces} pieces")
                self._write_log("memory", {"num_pieces": num_pieces})
            self.window.add(sums, units=units, update=update)
            self.meter.count(sum(map(len, prepared.plan)))
            if state.step % self.settings.log_every == 0:
                self._log_step()
            self._show_progress(epoch=state.epoch + 1)
            self.stop_if_asked()
            self.interruption.is_immediate = False
            if state.position < len(plans):
                self.checkpoint_if_due()
        state.epoch += 1
        state.position = 0
        self.last_step = time.monotonic()

    def _try_fewer_pieces(self) -> None:
        """Double the size of the pieces, as other processes may have freed memory; after every shortage, half as often."""
        state = self.state
        interval = 2 ** min(max(state.num_shortages - 1, 0), 30)
        if state.num_pieces > 1 and state.epoch % interval == 0:
            state.num_pieces //= 2
            self.gradients.release_memory()
            self._write_log("memory", {"num_pieces": state.num_pieces})

    def _show_progress(self, *, epoch: int, at_once: bool = False) -> None:
        progress = Progress(
            epoch=epoch,
            num_epochs=self.settings.epochs,
            step=self.state.step,
            num_steps=self.num_steps,
            loss=self.last_loss,
            dev_score=self.dev_score,
            sentences_per_second=self.last_speed,
            seconds_left=self.meter.seconds_left(self.num_steps - self.state.step),
            num_skipped=self.state.num_skipped,
        )
        self.display.update(progress, at_once=at_once)

    def _log_step(self) -> None:
        losses, norm = self.window.read()
        self.last_loss, self.last_speed = losses.pop(TOTAL), self.meter.sentences_per_second()
        skipped = self._count_skipped()
        self._write_log(
            "step",
            {
                "loss": self.last_loss,
                "losses": losses,
                "learning_rate": self.settings.learning_rate
                * self.learner.learning_rate.factor(self.state.step - 1)
                * self._rate(),
                "gradient_norm": norm,
                "sentences_per_second": self.last_speed,
                **({"skipped_steps": skipped} if skipped else {}),
            },
        )
        self._check_skipped()

    def _write_log(self, event: str, values: Mapping[str, Any]) -> None:
        state = self.state
        state.seconds = self.seconds_before + self.meter.seconds
        position = {"step": state.step, "epoch": state.epoch, "seconds": round(state.seconds, 3)}
        if self.log is not None:
            self.log.write(event, {**position, **values})

    @contextlib.contextmanager
    def _weights_to_store(self) -> Iterator[None]:
        """The model with the weights that its folder will have: averaged, and rounded for ``training.storage``."""
        with self.learner.averaged():
            if self.settings.storage == "float32":
                yield
                return
            exact = {name: tensor.clone() for name, tensor in self.labeller.state_dict().items()}
            self.labeller.load_state_dict(rounded(exact, self.settings.storage))
            try:
                yield
            finally:
                self.labeller.load_state_dict(exact)

    def select(self) -> None:
        """Score the model on dev with every decoder; save it if it is the best so far, and check for early stopping."""
        state = self.state
        if state.epoch % self.settings.evaluate_every and not self._is_last():
            return
        if self.meter.has_new_steps:
            self._log_step()  # so that the loss shown with the score is that of the steps before it
        if not self.data.dev:
            return
        with self._weights_to_store():
            found = self._evaluate(self.predictor, self.data.dev, decoders=self.decoders)
            before = state.best_score
            is_best = before is None or found.score > before
            if is_best:
                state.best_score, state.best_epoch, state.best_decoder = found.score, state.epoch, found.decoder
                self.best.take(
                    self.labeller,
                    decoder=found.decoder,
                    legal_decoder=found.legal_decoder,
                    temperature=found.temperature,
                    span_calibration=found.span_calibration,
                    metrics={**_dev_metrics(found), **self._position()},
                )
        state.is_stopped = bool(self.settings.patience) and state.epoch - state.best_epoch >= self.settings.patience
        self.dev_score = self._describe(found.score, found.decoder)
        self._write_log(
            "evaluation",
            {
                "decoder": found.decoder,
                "legal_decoder": found.legal_decoder,
                "score": found.score,
                "is_best": is_best,
                "scores": found.scores,
            },
        )
        self._show_progress(epoch=state.epoch, at_once=True)
        if self._is_last():
            for message in self._score_warnings(found.score, before):
                self.tell(message)

    def _warn_of_zero(self) -> None:
        """Say that the best score is 0; not before the number of calls is chosen, as another may have a better score."""
        metric = PRIMARY_METRICS[self.config.task]
        if self.state.best_score != 0 or num_scored(self.data, self.config.task) < FEWEST_SCORED:
            return  # or a warning at the beginning said how few there are
        calls = self.best.model(self.processes.device).metrics.get("calls", ())
        if any(row[metric] for row in calls):
            return
        labels = {label for sentence in self.data.dev or () for label in sentence.labels or ()} - {"O"}
        if labels.isdisjoint(self.data.vocabulary.labels):
            because = ", because training has none of its labels; compare them with dmf data check"
        else:
            because = (
                ": the model has learnt nothing yet; train for more epochs, and compare the labels of the training and dev "
                "data with dmf data check"
            )
        self.tell(f"the {metric} on dev is 0{because}")

    def _score_warnings(self, last: float, before: float | None) -> Iterator[str]:
        """What the dev scores of a run that is over say about the run; ``before`` is the best before the last."""
        metric = PRIMARY_METRICS[self.config.task]
        if before is not None and last - before >= NOTABLE_GAIN:
            epochs = 2 * self.settings.epochs
            limit = "" if self.settings.max_steps is None else f" --set training.max_steps={2 * self.num_steps}"
            command = self.resume_command
            remedy = (
                "train for more epochs"
                if command is None
                else f"to train longer: {command} --set training.epochs={epochs}{limit}"
            )
            yield f"the best epoch was the last one, and the {metric} on dev was still rising; {remedy}"

    def _time_warnings(self) -> Iterator[str]:
        """What to say of a run for which there was little time."""
        planned = self.planned_steps
        if planned is not None and self.num_steps < FEWEST_PLANNED * planned:
            yield (
                f"there was time for {self.num_steps:,} of the {planned:,} steps planned, which is too few for a good model; "
                "allow more time with --minutes"
            )

    def _position(self) -> dict[str, int]:
        return {"epoch": self.state.epoch, "step": self.state.step}

    def _describe(self, score: float, decoder: str) -> str:
        return f"{PRIMARY_METRICS[self.config.task]} {score:.2f} ({decoder})"

    def _describe_decoders(self, model: StoredModel) -> str | None:
        """Which decoder taggers will use, where another did better on dev."""
        best, legal = model.decoder, model.tagging_decoder
        of_dev, metric = model.metrics.get("decoders", {}), PRIMARY_METRICS[self.config.task]
        if best not in of_dev or legal not in of_dev or of_dev[legal][metric] == of_dev[best][metric]:
            return None
        return (
            f"taggers will use {legal} (dev {metric} {of_dev[legal][metric]:.2f}), whose output is always a legal sequence; "
            f"evaluation uses {best} ({of_dev[best][metric]:.2f}), the best of all decoders on dev"
        )

    def checkpoint(self) -> None:
        """Write what `begin` needs to resume the run."""
        self.state.seconds = self.seconds_before + self.meter.seconds
        if self.log is not None:
            # The model first: a checkpoint must not refer to a best model that does not exist.
            self.best.save()
            self.best.wait()
            self.checkpoints.save(self.state, log_bytes=self.log.num_bytes)
        self.last_checkpoint = time.monotonic()

    def _keep_unselected(self) -> None:
        """Without dev data, the model has the last weights, and the most constrained decoder as the safest."""
        decoder = self.state.best_decoder = self.decoders[-1]
        legal = legal_decoder(self.config, self.data.scheme, decoder)
        with self._weights_to_store():
            self.best.take(
                self.labeller, decoder=decoder, legal_decoder=legal, temperature=1.0, metrics=self._position()
            )

    def _choose_calls(self) -> None:
        """Score dev with several numbers of calls; the model keeps the smallest that is as good as the best."""
        model = self.best.model(self.processes.device)
        numbers = candidate_calls(self.config)
        # What was scored on test stays as it was.
        if not self.data.dev or not numbers or model.metrics.keys() & {"calls", "test"}:
            return
        metric, found, rows = PRIMARY_METRICS[self.config.task], {}, {}
        for number in numbers:
            # One for each, so that what was recorded for the others need not be kept.
            predictor = Predictor(model.labeller, self.config, self.processes.device)
            found[number] = self._evaluate(predictor, self.data.dev, decoders=self.decoders, num_calls=number)
            rows[number] = dict(found[number].scores[found[number].decoder])
        chosen = fewest_calls(rows, metric)
        table = [
            {"calls": number, "decoder": found[number].decoder, metric: row[metric], "exact_match": row["exact_match"]}
            for number, row in rows.items()
        ]
        best = found[chosen]
        self.best.change(
            model._replace(
                chosen_calls=chosen,
                decoder=best.decoder,
                legal_decoder=best.legal_decoder,
                temperature=best.temperature,
                metrics={**model.metrics, **_dev_metrics(best), "calls": table},
            )
        )
        self._write_log("calls", {"chosen": chosen, "scores": table})
        scores = ", ".join(f"{number}: {row[metric]:.2f} ({row['exact_match']:.1f})" for number, row in rows.items())
        self.display.note(
            f"{chosen} denoiser call{'s' * (chosen > 1)} will be used, the fewest that are as good as any on dev "
            f"({metric} and exact match by calls: {scores})"
        )

    def finish(self) -> None:
        """Choose the number of calls, score the test data once, with what was selected on dev, and write everything to disk."""
        if self.state.best_decoder is None:
            self._keep_unselected()
        self._choose_calls()
        if self.first_step is not None:
            self._warn_of_zero()
        model = self.best.model(self.processes.device)
        if self.data.test and "test" not in model.metrics:
            config = self.config.with_calls(model.chosen_calls)
            predictor = Predictor(model.labeller, config, self.processes.device)
            found = self._evaluate(
                predictor, self.data.test, decoders=(model.decoder,), reported_temperature=model.temperature
            )
            scores = dict(found.scores[model.decoder])
            model = model._replace(metrics={**model.metrics, "test": scores, **_details("test", found)})
            self.best.change(model)
            self._write_log("test", {"decoder": model.decoder, "scores": scores})
        if (message := self._describe_decoders(model)) is not None:
            self.display.note(message)
        for message in self._time_warnings():
            self.tell(message)
        self.checkpoint()
        if self.first_step is not None:
            spent = {
                "before_first_step": self.first_step - self.started,
                "training": self.last_step - self.first_step,
                "after_last_step": time.monotonic() - self.last_step,
            }
            self._write_log("time", {name: round(value, 3) for name, value in spent.items()})


def _dev_metrics(found: DecoderEvaluation) -> dict[str, Any]:
    return {
        "dev": dict(found.scores[found.decoder]),
        "decoders": {name: dict(scores) for name, scores in found.scores.items()},
        **_details("dev", found),
    }


def _details(split: str, found: DecoderEvaluation) -> dict[str, Any]:
    """What a model's metrics hold beside its scores: how certain it is, and what it confuses."""
    accuracy = found.scores[found.decoder]["accuracy"]
    return {
        "certainty": {"split": split, "confidence": found.confidence, "accuracy": accuracy},
        "confusions": {"split": split, "most_frequent": list(found.confusions)},
    }
