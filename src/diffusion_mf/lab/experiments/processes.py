"""Processes of runs, each with a share of the cores, and the claims that keep two runners from working on one run."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import diffusion_mf
from diffusion_mf import plugins
from diffusion_mf.data.files import make_folder
from diffusion_mf.errors import InputError
from diffusion_mf.lab.experiments.folders import Outcome, RunPlace
from diffusion_mf.lab.experiments.worker import EXIT_STATUSES


class Claim:
    """The right to work on a run: a lock on a file in its folder.

    The run's process inherits the lock, and the kernel releases it when no process is left that holds it: a run whose runner was
    killed is free as soon as it has stopped itself.
    """

    def __init__(self, handle: int) -> None:
        self.handle = handle

    @classmethod
    def take(cls, place: RunPlace) -> Claim | None:
        """Claim a run; None if another runner works on it."""
        make_folder(place.root)
        handle = os.open(place.root / "lock", os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(handle)
            if isinstance(error, BlockingIOError):
                return None
            raise InputError(
                f"its file system cannot lock files ({error.strerror})",
                path=place.root,
                remedy="choose a folder on another file system with --output",
            ) from None
        return cls(handle)

    def release(self) -> None:
        """Let other runners have the run."""
        os.close(self.handle)


class RunProcess:
    """A run's process, its output in the run's folder."""

    def __init__(self, place: RunPlace, *, claim: Claim, device: str, threads: int) -> None:
        self.place = place
        self.claim = claim
        self.device = device
        self.started = time.monotonic()
        self.is_stopped = False
        """whether it was asked to stop"""
        command = [sys.executable, "-m", "diffusion_mf.lab.experiments.worker", str(place.root), "--device", device]
        command += ["--parent", str(os.getpid()), "--claim", str(claim.handle)]
        with place.output.open("ab") as output:
            # A new session, so that Ctrl-C reaches only the runner, which then stops its runs properly.
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=_environment(threads),
                start_new_session=True,
                pass_fds=[claim.handle],
            )

    @property
    def seconds(self) -> float:
        """Seconds since the process was started."""
        return time.monotonic() - self.started

    @property
    def exit_status(self) -> int | None:
        """The exit status: None while it runs, negative after a signal."""
        return self._process.poll()

    def outcome(self) -> Outcome | None:
        """How it ended; None while it runs."""
        status = self.exit_status
        if status is None:
            return None
        known = {number: outcome for outcome, number in EXIT_STATUSES.items()}
        if status == 0 and self.place.result() is None:
            return Outcome.FAILED
        if status < 0 or status not in known:
            return Outcome.INTERRUPTED if self.is_stopped else Outcome.FAILED
        return known[status]

    def described_status(self) -> str:
        """The exit status, or the signal that ended it."""
        status = self.exit_status
        if status is None or status >= 0:
            return f"exit status {status}"
        name = signal.Signals(-status).name if -status in {int(each) for each in signal.Signals} else str(-status)
        hint = ", as when memory runs out" if -status == signal.SIGKILL else ""
        return f"ended by {name}{hint}"

    def stop(self) -> None:
        """Ask the process to write a checkpoint and end."""
        self.is_stopped = True
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the process; the last checkpoint is kept."""
        self.is_stopped = True
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        self._process.wait()


def _environment(threads: int) -> dict[str, str]:
    """The runner's environment with its plugins, the package on the path, and a share of the cores."""
    source = str(Path(diffusion_mf.__file__).resolve().parents[1])
    path = os.pathsep.join(part for part in (source, os.environ.get("PYTHONPATH")) if part)
    return {
        "OMP_NUM_THREADS": str(threads),
        "OMP_WAIT_POLICY": "passive",
        **os.environ,
        **plugins.environment(),
        "PYTHONPATH": path,
        "PYTHONUNBUFFERED": "1",
    }
