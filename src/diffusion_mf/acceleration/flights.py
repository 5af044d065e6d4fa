"""Several batches on their way at a time, each of which has to ask the host how to go on.

While the device works on one, the host decides for another whose answer is there; a batch that finds its lane taken waits
until the one before has landed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Sequence

import torch
from torch import Tensor

from diffusion_mf.acceleration.early_exit import ExitLoop
from diffusion_mf.acceleration.host_copies import Pending, to_host
from diffusion_mf.model import Prediction

Steps = Generator[Pending, None, Prediction]


class Flight:
    """A batch on its way: `advance` takes it to the next answer it needs, and at last to its result."""

    def __init__(
        self, steps: Steps, finish: Callable[[Prediction], Sequence[Tensor]], stream: torch.cuda.Stream | None
    ) -> None:
        self._steps = steps
        self._finish = finish
        self._stream = stream
        self._awaited: Pending | None = None
        self.result: Pending | None = None
        self.is_collected = False
        """whether somebody has waited for the result"""
        self.advance()

    @property
    def can_advance(self) -> bool:
        """Whether there is a way to go, and the device has answered."""
        return self.result is None and (self._awaited is None or self._awaited.is_there)

    def advance(self) -> None:
        """Go on; waits where `can_advance` says so."""
        with contextlib.nullcontext() if self._stream is None else torch.cuda.stream(self._stream):
            try:
                self._awaited = next(self._steps)
            except StopIteration as stop:
                self.result = to_host(self._finish(stop.value))


class Landing(Pending):
    """The result of a flight, to be waited for."""

    def __init__(self, flight: Flight, lanes: ExitLanes) -> None:
        self._flight = flight
        self._lanes = lanes

    @property
    def is_there(self) -> bool:
        """Whether `wait` would return at once."""
        return self._flight.result is not None and self._flight.result.is_there

    def wait(self) -> Sequence[Tensor]:
        """The tensors, once they are there."""
        self._flight.is_collected = True
        return self._lanes.land(self._flight).wait()


class ExitLanes:
    """Loops that share a device, each with a stream of its own on a GPU, and with one batch at a time."""

    def __init__(self, loops: Sequence[ExitLoop], device: torch.device) -> None:
        self.loops = loops
        self._device = device
        is_gpu = device.type == "cuda"
        self._streams = [torch.cuda.Stream(device) if is_gpu else None for _ in loops]
        self._flights: list[Flight | None] = [None for _ in loops]
        self._num_started = 0

    def start(self, run: Callable[[ExitLoop], Steps], finish: Callable[[Prediction], Sequence[Tensor]]) -> Landing:
        """Begin with a batch, as soon as a lane is free."""
        if all(flight is None or flight.is_collected for flight in self._flights):
            # A second pass over the same batches finds each in the lane that has recorded its forms.
            self._num_started = 0
        lane = self._num_started % len(self.loops)
        self._num_started += 1
        before = self._flights[lane]
        if before is not None:
            self.land(before)
        stream = self._streams[lane]
        if stream is not None:
            stream.wait_stream(torch.cuda.current_stream(self._device))
        flight = Flight(run(self.loops[lane]), finish, stream)
        self._flights[lane] = flight
        return Landing(flight, self)

    def land(self, flight: Flight) -> Pending:
        """Go on with a flight to its end, and with others whenever their answers are there first."""
        while flight.result is None:
            others = [other for other in self._flights if other is not None and other is not flight]
            ready = [other for other in others if other.can_advance]
            for other in ready:
                other.advance()
            if flight.can_advance or not ready:
                flight.advance()
        return flight.result
