"""Predictions as fast as the device allows: packed, in half precision, and replayed on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from diffusion_mf.acceleration.early_exit import ExitLoop
from diffusion_mf.acceleration.flat_batch import Form, flatten, unflatten
from diffusion_mf.acceleration.flights import ExitLanes, Steps
from diffusion_mf.acceleration.host_copies import Pending, to_host
from diffusion_mf.acceleration.precision import autocast_for, uses_packing
from diffusion_mf.acceleration.recording import Recorder
from diffusion_mf.config import Config
from diffusion_mf.data.batching import Batch
from diffusion_mf.data.packing import pack, shape_for, stepped_tokens
from diffusion_mf.diffusion import CategoricalDiffusion
from diffusion_mf.model import Labeller, Prediction


class Options(NamedTuple):
    """How to predict; see `Labeller.predict`."""

    num_calls: int | None = None
    base: int | float | None = None


DEFAULTS = Options()


LANES = 2
"""batches in flight at a time: while one's last kernels leave the GPU half empty, the other's fill it"""

EXIT_LANES = 3
"""the same with early exit, where batches also wait for the host, and become small"""


class Lane(NamedTuple):
    """A stream of the device, and the recordings that are replayed there."""

    stream: torch.cuda.Stream
    recorder: Recorder[Prediction]


class Predictor:
    """`Labeller.predict` for batches of the host, with what the device is good at.

    Its predictions may have more rows and places than the batch, filled with nothing. They lie in memory that a later call
    may overwrite: take what is needed before.
    """

    def __init__(self, labeller: Labeller, config: Config, device: torch.device) -> None:
        self.labeller = labeller
        self.device = device
        settings = config.inference
        self._max_characters = config.encoder.max_characters
        self._settings = settings
        # Other processes have no marginals to watch, and make all their calls.
        has_marginals = isinstance(labeller.process, CategoricalDiffusion)
        # Samples never settle.
        can_settle = has_marginals and settings.posterior != "sampled"
        self._has_early_exit = settings.exit_tolerance is not None and can_settle
        self.is_packed = uses_packing(device, config.encoder.kind, layout=settings.layout, precision=settings.precision)
        self._autocast = autocast_for(device, settings.precision, is_training=False)
        self._options = DEFAULTS
        self._recorder = Recorder(self._recorded, device)
        self._lanes: list[Lane] = []
        self._num_submitted = 0
        self._exit_loop: ExitLoop | None = None
        self._exit_lanes: ExitLanes | None = None

    @property
    def num_recordings(self) -> int:
        """How many forms of batches are replayed by now."""
        recorders = (self._recorder, *(lane.recorder for lane in self._lanes))
        plain = sum(recorder.num_recordings for recorder in recorders)
        return plain + sum(loop.num_recordings for loop in self._exit_loops)

    @property
    def mean_calls(self) -> float | None:
        """Denoiser calls per sentence of all packed batches with early exit; None before the first."""
        num_sentences = sum(loop.num_sentences for loop in self._exit_loops)
        return sum(loop.num_sentence_calls for loop in self._exit_loops) / num_sentences if num_sentences else None

    @property
    def _exit_loops(self) -> list[ExitLoop]:
        loops = [] if self._exit_loop is None else [self._exit_loop]
        return loops if self._exit_lanes is None else [*loops, *self._exit_lanes.loops]

    def submit(
        self,
        batch: Batch,
        finish: Callable[[Prediction], Sequence[Tensor]],
        options: Options = DEFAULTS,
        *,
        budget: int = 1,
    ) -> Pending:
        """Begin with a batch and return at once; ``finish`` says what of its prediction is to reach the host."""
        if self._can_repack(batch, budget):
            if self._exit_lanes is None:
                self._exit_lanes = ExitLanes([self._new_exit_loop() for _ in range(EXIT_LANES)], self.device)
            packed, schedule = self._packed(batch, budget), self._schedule(options)
            return self._exit_lanes.start(lambda loop: loop.run(packed, schedule), finish)
        if not self.is_packed or self._has_early_exit or self.device.type != "cuda":
            return Pending([tensor.cpu() for tensor in finish(self(batch, options, budget=budget))])
        if not self._lanes:
            self._lanes = [
                Lane(torch.cuda.Stream(self.device), Recorder(self._recorded, self.device)) for _ in range(LANES)
            ]
        lane = self._lanes[self._num_submitted % LANES]
        self._num_submitted += 1
        flat = flatten(self._packed(batch, budget))
        self._options = options
        lane.stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(lane.stream):
            return to_host(finish(lane.recorder(flat, options)))

    def __call__(
        self,
        batch: Batch,
        options: Options = DEFAULTS,
        *,
        budget: int = 1,
        allowed: Tensor | None = None,
        keep_trajectory: bool = False,
    ) -> Prediction:
        """The prediction for a batch; packed batches are filled up to ``budget`` units, so that many have the same form.

        Clamps and trajectories are computed directly, as is early exit where batches are padded or beyond the budget.
        """
        is_plain = allowed is None and not keep_trajectory
        if is_plain and self._can_repack(batch, budget):
            self._exit_loop = self._exit_loop or self._new_exit_loop()
            return _outcome(self._exit_loop.run(self._packed(batch, budget), self._schedule(options)))
        if is_plain and self.is_packed and not self._has_early_exit:
            self._options = options
            return self._recorder(flatten(self._packed(batch, budget)), options)
        with self._autocast():
            return self.labeller.predict(
                batch.to(self.device),
                num_calls=options.num_calls,
                base=options.base,
                allowed=None if allowed is None else allowed.to(self.device),
                keep_trajectory=keep_trajectory,
                settings=self._settings,
            )

    def _recorded(self, form: Form, numbers: Tensor) -> Prediction:
        batch, _ = unflatten(form, numbers)
        with self._autocast():
            return self.labeller.predict(
                batch, num_calls=self._options.num_calls, base=self._options.base, settings=self._settings
            )

    def _packed(self, batch: Batch, budget: int) -> Batch:
        return pack(batch, shape_for(batch, budget=budget, max_characters=self._max_characters))

    def _can_repack(self, batch: Batch, budget: int) -> bool:
        """Whether early exit can make a batch smaller: what is kept for it has the size of the budget."""
        if batch.others is not None:
            return False  # what is left of a batch would have to recall what has left it
        is_within = int(batch.lengths.sum()) <= stepped_tokens(budget)
        return self.is_packed and self._has_early_exit and is_within

    def _new_exit_loop(self) -> ExitLoop:
        # Tensors made in inference mode could not be written to outside of it.
        with torch.inference_mode(False):
            return ExitLoop(self.labeller, self.device, self._settings)

    def _schedule(self, options: Options) -> tuple[int, ...]:
        process = self.labeller.process
        assert isinstance(process, CategoricalDiffusion)
        num_calls, base = self._settings.calls_and_base(options.num_calls, options.base)
        return tuple(process.schedule(base=base, num_calls=num_calls))


def _outcome(steps: Steps) -> Prediction:
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            found: Prediction = stop.value
            return found
