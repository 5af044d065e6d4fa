"""Predictions as fast as the device allows: packed, in half precision, and replayed on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from diffusion_mf.acceleration.flat_batch import Form, flatten, unflatten
from diffusion_mf.acceleration.precision import autocast_for, uses_packing
from diffusion_mf.acceleration.recording import Recorder
from diffusion_mf.config import Config
from diffusion_mf.data.batching import Batch
from diffusion_mf.data.packing import pack, shape_for
from diffusion_mf.model import Labeller, Prediction


class Options(NamedTuple):
    """How to predict; see `Labeller.predict`."""

    num_calls: int | None = None
    base: int | float | None = None


DEFAULTS = Options()


LANES = 2
"""batches in flight at a time: while one's last kernels leave the GPU half empty, the other's fill it"""


class Lane(NamedTuple):
    """A stream of the device, and the recordings that are replayed there."""

    stream: torch.cuda.Stream
    recorder: Recorder[Prediction]


class Pending:
    """Tensors on their way to the host."""

    def __init__(self, tensors: Sequence[Tensor], arrival: torch.cuda.Event | None = None) -> None:
        self._tensors = tensors
        self._arrival = arrival

    def wait(self) -> Sequence[Tensor]:
        """The tensors, once they are there."""
        if self._arrival is not None:
            self._arrival.synchronize()
        return self._tensors


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
        self._has_early_exit = settings.exit_tolerance is not None
        self.is_packed = uses_packing(device, config.encoder.kind, layout=settings.layout, precision=settings.precision)
        self._autocast = autocast_for(device, settings.precision, is_training=False)
        self._options = DEFAULTS
        self._recorder = Recorder(self._recorded, device)
        self._lanes: list[Lane] = []
        self._num_submitted = 0

    @property
    def num_recordings(self) -> int:
        """How many forms of batches are replayed by now."""
        return sum(recorder.num_recordings for recorder in (self._recorder, *(lane.recorder for lane in self._lanes)))

    def submit(
        self,
        batch: Batch,
        finish: Callable[[Prediction], Sequence[Tensor]],
        options: Options = DEFAULTS,
        *,
        budget: int = 1,
    ) -> Pending:
        """Begin with a batch and return at once; ``finish`` says what of its prediction is to reach the host."""
        if not self.is_packed or self._has_early_exit or self.device.type != "cuda":
            return Pending([tensor.cpu() for tensor in finish(self(batch, options, budget=budget))])
        if not self._lanes:
            self._lanes = [
                Lane(torch.cuda.Stream(self.device), Recorder(self._recorded, self.device)) for _ in range(LANES)
            ]
        lane = self._lanes[self._num_submitted % LANES]
        self._num_submitted += 1
        shape = shape_for(batch, budget=budget, max_characters=self._max_characters)
        flat = flatten(pack(batch, shape))
        self._options = options
        lane.stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(lane.stream):
            found = finish(lane.recorder(flat, options))
            copies = [torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True) for tensor in found]
            for copy, tensor in zip(copies, found, strict=True):
                copy.copy_(tensor, non_blocking=True)
            return Pending(copies, lane.stream.record_event())

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

        Clamps and trajectories are computed directly, as is early exit, which depends on the data.
        """
        is_plain = allowed is None and not keep_trajectory and not self._has_early_exit
        if self.is_packed and is_plain:
            shape = shape_for(batch, budget=budget, max_characters=self._max_characters)
            self._options = options
            return self._recorder(flatten(pack(batch, shape)), options)
        with self._autocast():
            return self.labeller.predict(
                batch.to(self.device),
                num_calls=options.num_calls,
                base=options.base,
                allowed=None if allowed is None else allowed.to(self.device),
                keep_trajectory=keep_trajectory,
            )

    def _recorded(self, form: Form, numbers: Tensor) -> Prediction:
        batch, _ = unflatten(form, numbers)
        with self._autocast():
            return self.labeller.predict(batch, num_calls=self._options.num_calls, base=self._options.base)
