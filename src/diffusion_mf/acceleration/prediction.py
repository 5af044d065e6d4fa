"""Predictions as fast as the device allows: packed, in half precision, and replayed on a GPU."""

from __future__ import annotations

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

    @property
    def num_recordings(self) -> int:
        """How many forms of batches are replayed by now."""
        return self._recorder.num_recordings

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
