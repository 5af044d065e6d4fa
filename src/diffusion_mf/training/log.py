"""The log of a run: JSON lines, and TensorBoard where it is asked for."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from diffusion_mf.errors import InputError


class Log(Protocol):
    """Where events of a run go."""

    @property
    def num_bytes(self) -> int:
        """How long the log is; a resumed run forgets what came after its checkpoint."""
        ...

    def write(self, event: str, values: Mapping[str, Any]) -> None:
        """Add an event."""
        ...

    def close(self) -> None:
        """Let go of the files."""
        ...


class NoLog:
    """The log of processes that do not write."""

    num_bytes = 0

    def write(self, event: str, values: Mapping[str, Any]) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


class JsonLinesLog:
    """One JSON object per line and event, on disk at once; ``keep_bytes`` of an earlier log stay."""

    def __init__(self, path: Path, *, keep_bytes: int = 0, tensorboard: Path | None = None) -> None:
        self._path = path
        try:
            self._stream = open(path, "ab")  # noqa: SIM115 (closed by close)
            # A run that was killed may have logged steps that will come again, and half a line.
            self._stream.truncate(min(keep_bytes, os.path.getsize(path)))
        except OSError as error:
            raise self._unwritable(error) from None
        self._board = None if tensorboard is None else _summary_writer(tensorboard)

    @property
    def num_bytes(self) -> int:
        """How long the log is."""
        return os.fstat(self._stream.fileno()).st_size

    def write(self, event: str, values: Mapping[str, Any]) -> None:
        """Add an event; `InputError` where the disk is full."""
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
        """Let go of the files."""
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
