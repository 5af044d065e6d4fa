"""Predict batches, with results copied to the host while the host builds the next batch."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from diffusion_mf.batches.batching import Batch
from diffusion_mf.batches.layouts import is_attended_whole
from diffusion_mf.batches.packing import pack, shape_for
from diffusion_mf.config import Config
from diffusion_mf.model import Labeller, Prediction
from diffusion_mf.prediction.devices import on_device
from diffusion_mf.prediction.precision import autocast_for, uses_packing
from diffusion_mf.prediction.recording import BatchSignature, Recorder, flatten, unflatten


class Pending:
    """Tensors being copied to the host."""

    def __init__(self, tensors: Sequence[Tensor], arrival: torch.cuda.Event | None = None) -> None:
        self._tensors = tensors
        self._arrival = arrival

    def wait(self) -> Sequence[Tensor]:
        """The tensors, once the copy is complete."""
        if self._arrival is not None:
            self._arrival.synchronize()
        return self._tensors


def to_host(tensors: Sequence[Tensor]) -> Pending:
    """Start copying ``tensors`` as soon as the current stream has computed them; tensors on the host stay as they are."""
    if not tensors or not tensors[0].is_cuda:
        return Pending(tensors)
    copies = [torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True) for tensor in tensors]
    for copy, tensor in zip(copies, tensors, strict=True):
        copy.copy_(tensor, non_blocking=True)
    return Pending(copies, torch.cuda.current_stream(tensors[0].device).record_event())


BATCHES_IN_FLIGHT = 2
"""number of batches in flight on a GPU: while the last kernels of one batch leave it half empty, the other's fill it"""


class RecordingStream(NamedTuple):
    """A CUDA stream (None on a CPU), and the recordings that are replayed on it."""

    stream: torch.cuda.Stream | None
    recorder: Recorder[Prediction]


class Predictor:
    """`Labeller.predict` for batches on the host: packed and recorded on a GPU, directly on a CPU."""

    def __init__(self, labeller: Labeller, config: Config, device: torch.device) -> None:
        self.labeller = labeller
        self.device = device
        self.recall = config.recall
        settings = config.inference
        self._settings = settings
        self._max_characters = config.encoder.max_characters
        self.is_packed = uses_packing(device, config.encoder.kind, layout=settings.layout, precision=settings.precision)
        self._autocast = autocast_for(device, settings.precision, is_training=False)
        self._streams: list[RecordingStream] = []

    @property
    def recorders(self) -> list[Recorder[Prediction]]:
        """The recorders of all streams."""
        return [current.recorder for current in self._streams]

    @property
    def num_recordings(self) -> int:
        """How many kinds of batches have been recorded."""
        return sum(recorder.num_recordings for recorder in self.recorders)

    def predict(
        self,
        batch: Batch,
        finish: Callable[[Prediction], Sequence[Tensor]],
        *,
        budget: int = 1,
        stream: int = 0,
        num_calls: int | None = None,
        allowed: Tensor | None = None,
        keep_trajectory: bool = False,
    ) -> Pending:
        """Start predicting a batch and return at once; ``finish`` selects what is copied to the host.

        Batches of different ``stream`` (counted modulo `BATCHES_IN_FLIGHT`) run concurrently on a GPU.

        Predictions may have more rows and positions than the batch: packed batches are padded to ``budget`` units, so that
        many have the same signature. A later call may overwrite their memory, so ``finish`` must not keep references.
        Clamps (``allowed``, on the device), trajectories and sentences that need windows are computed directly, without packing.
        """
        with on_device(self.device):
            if not self.is_packed or allowed is not None or keep_trajectory or not is_attended_whole(batch.lengths):
                with self._autocast():
                    prediction = self.labeller.predict(
                        batch.to(self.device),
                        num_calls=num_calls,
                        allowed=allowed,
                        keep_trajectory=keep_trajectory,
                        settings=self._settings,
                    )
                return to_host(finish(prediction))

            def work(signature: BatchSignature, numbers: Tensor) -> Prediction:
                with self._autocast():
                    return self.labeller.predict(
                        unflatten(signature, numbers)[0], num_calls=num_calls, settings=self._settings
                    )

            packed = flatten(pack(batch, shape_for(batch, budget=budget, max_characters=self._max_characters)))
            current, recorder = self._stream(stream)
            with contextlib.nullcontext() if current is None else torch.cuda.stream(current):
                return to_host(finish(recorder(packed, work, kind=num_calls)))

    def _stream(self, number: int) -> RecordingStream:
        """A stream, once it has waited for work on the current stream, such as an update of the weights."""
        if not self._streams:
            is_gpu = self.device.type == "cuda"
            self._streams = [
                RecordingStream(torch.cuda.Stream(self.device) if is_gpu else None, Recorder(self.device))
                for _ in range(BATCHES_IN_FLIGHT if is_gpu else 1)
            ]
        chosen = self._streams[number % len(self._streams)]
        if chosen.stream is not None:
            chosen.stream.wait_stream(torch.cuda.current_stream(self.device))
        return chosen
