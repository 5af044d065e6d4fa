"""The progress of a training run, and the log of its events."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from diffusion_mf.errors import InputError
from diffusion_mf.evaluation.terminal import bar, described_seconds

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True, kw_only=True)
class Progress:
    """The progress of a run; None means not known yet."""

    epoch: int
    """the current one, from 1"""
    num_epochs: int
    step: int
    num_steps: int
    loss: float | None = None
    dev_score: str | None = None
    """metric, value and decoder"""
    sentences_per_second: float | None = None
    seconds_left: float | None = None
    num_skipped: int = 0
    """steps whose gradient was not finite"""

    def details(self) -> str:
        """What is known besides the position, as text.

        >>> Progress(epoch=1, num_epochs=2, step=3, num_steps=8, loss=0.5, seconds_left=75).details()
        'loss 0.5000, 1:15 left'
        """
        parts = [
            None if self.loss is None else f"loss {self.loss:.4f}",
            None if self.dev_score is None else f"dev {self.dev_score}",
            None if self.sentences_per_second is None else f"{self.sentences_per_second:,.0f} sentences/s",
            None if self.seconds_left is None else f"{described_seconds(self.seconds_left)} left",
            f"{self.num_skipped:,} steps skipped" if self.num_skipped else None,
        ]
        return ", ".join(part for part in parts if part)

    def __str__(self) -> str:
        position = f"epoch {self.epoch} of {self.num_epochs}, step {self.step:,} of {self.num_steps:,}"
        return f"{position}: {self.details()}"

    def __rich__(self) -> Table:
        steps = f"{self.step:,}/{self.num_steps:,} steps"
        return bar(f"epoch {self.epoch}/{self.num_epochs}", self.step, self.num_steps, f"{steps} {self.details()}")


class RunDisplay(Protocol):
    """Where the progress and notes of a run are shown: `terminal.Display`, or `Callbacks`."""

    def update(self, progress: Progress, *, at_once: bool = False) -> None:
        """Show the progress, now or later."""
        ...

    def note(self, message: str) -> None:
        """Show a message immediately."""
        ...


@dataclass(frozen=True)
class Callbacks:
    """A display for runs inside other programs, which calls them with notes and, if they like, with the progress."""

    note: Callable[[str], None]
    on_progress: Callable[[Progress], None] | None = None

    def update(self, progress: Progress, *, at_once: bool = False) -> None:
        """Pass the progress on."""
        if self.on_progress is not None:
            self.on_progress(progress)


class SpeedMeter:
    """Sentences per second since the last reading, and the remaining time at the average speed of this session."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._start = self._last = clock()
        self._sentences = self._steps = 0

    def count(self, sentences: int) -> None:
        """Count a step over this many sentences."""
        self._sentences += sentences
        self._steps += 1

    def sentences_per_second(self) -> float:
        """Since the last call."""
        now = self._clock()
        speed = self._sentences / max(now - self._last, 1e-9)
        self._last, self._sentences = now, 0
        return speed

    def seconds_left(self, steps: int) -> float | None:
        """For this many steps, evaluations included; None before the first step."""
        return None if self._steps == 0 else steps * (self._clock() - self._start) / self._steps

    @property
    def has_new_steps(self) -> bool:
        """Whether there were steps since the last reading."""
        return self._sentences > 0

    @property
    def seconds(self) -> float:
        """Since the meter was made."""
        return self._clock() - self._start


class JsonLinesLog:
    """One JSON object per line and event, written immediately; ``keep_bytes`` of an earlier log are kept."""

    def __init__(self, path: Path, *, keep_bytes: int = 0, tensorboard: Path | None = None) -> None:
        self._path = path
        try:
            self._stream = open(path, "ab")  # noqa: SIM115 (closed by close)
            # A killed run may have logged steps that will be repeated, and half a line.
            self._stream.truncate(min(keep_bytes, os.path.getsize(path)))
        except OSError as error:
            raise self._unwritable(error) from None
        self._board = None if tensorboard is None else _summary_writer(tensorboard)

    @property
    def num_bytes(self) -> int:
        """How long the log is."""
        return os.fstat(self._stream.fileno()).st_size

    def write(self, event: str, values: Mapping[str, Any]) -> None:
        """Add an event; `InputError` if the disk is full."""
        line = json.dumps({"event": event, **values}, ensure_ascii=False, allow_nan=False)
        try:
            self._stream.write(line.encode() + b"\n")
            self._stream.flush()
        except OSError as error:
            raise self._unwritable(error) from None
        if self._board is not None:
            for name, value in _numbers(values, event):
                self._board.add_scalar(name, value, values.get("step", 0))
            self._board.flush()

    def close(self) -> None:
        """Close the files."""
        try:
            self._stream.close()
        except OSError as error:
            raise self._unwritable(error) from None
        if self._board is not None:
            self._board.close()

    def _unwritable(self, error: OSError) -> InputError:
        return InputError(
            f"cannot be written ({error.strerror})", path=self._path, remedy="check the free space and permissions"
        )


def _numbers(values: Mapping[str, Any], prefix: str) -> list[tuple[str, float]]:
    found: list[tuple[str, float]] = []
    for name, value in values.items():
        if isinstance(value, Mapping):
            found.extend(_numbers(value, f"{prefix}/{name}"))
        elif isinstance(value, int | float) and not isinstance(value, bool) and name not in ("step", "seconds"):
            found.append((f"{prefix}/{name}", value))
    return found


def _summary_writer(folder: Path):  # type: ignore[no-untyped-def]
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise InputError("TensorBoard is not installed", remedy="pip install 'diffusion-mf[tensorboard]'") from None
    return SummaryWriter(str(folder))
