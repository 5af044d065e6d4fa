"""Processes of runs, one each or a pool for many: started with a share of the cores, told to stop, ended where they do not."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import diffusion_mf
from diffusion_mf import plugins
from diffusion_mf.lab.experiments.claims import Claim
from diffusion_mf.lab.experiments.folders import Outcome, RunPlace
from diffusion_mf.lab.experiments.worker import EXIT_STATUSES


class RunProcess:
    """A run's process, its output in the run's folder."""

    def __init__(self, place: RunPlace, *, claim: Claim, device: str = "auto", threads: int = 1) -> None:
        self.place = place
        self.claim = claim
        self.device = device
        self.started = time.monotonic()
        self.is_stopped = False
        """whether it was asked to stop"""
        command = [sys.executable, "-m", "diffusion_mf.lab.experiments.worker", str(place.root), "--device", device]
        command += ["--parent", str(os.getpid()), "--claim", str(claim.path), "--token", claim.token]
        place.root.mkdir(parents=True, exist_ok=True)
        with place.output.open("ab") as output:
            # A new session, so that Ctrl-C reaches only the runner, which then stops its runs properly.
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=_environment(threads),
                start_new_session=True,
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


class WorkerPool:
    """Processes that take one run after another: imports and the start of CUDA take longer than a small run does.

    `start` does what `RunProcess` does, for `SchedulerOptions.start`.
    """

    def __init__(self) -> None:
        self._workers: list[subprocess.Popen[bytes]] = []
        self._busy: set[int] = set()
        """numbers of processes"""

    def start(self, place: RunPlace, *, claim: Claim, device: str = "auto", threads: int = 1) -> PooledRun:
        """Hand the run to a process that has nothing to do, or to a new one."""
        self._workers = [worker for worker in self._workers if worker.poll() is None]
        self._busy &= {worker.pid for worker in self._workers}
        for worker in [worker for worker in self._workers if worker.pid not in self._busy]:
            with contextlib.suppress(BrokenPipeError):
                return self._hand_over(worker, place, claim, device)
        worker = self._new_worker(threads)
        self._workers.append(worker)
        return self._hand_over(worker, place, claim, device)

    def _new_worker(self, threads: int) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "diffusion_mf.lab.experiments.worker", "--serve", "--parent", str(os.getpid())]
        worker = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=_environment(threads),
            start_new_session=True,
            bufsize=0,
        )
        assert worker.stdout is not None
        os.set_blocking(worker.stdout.fileno(), False)
        return worker

    def _hand_over(self, worker: subprocess.Popen[bytes], place: RunPlace, claim: Claim, device: str) -> PooledRun:
        place.root.mkdir(parents=True, exist_ok=True)
        request = {"folder": str(place.root), "claim": str(claim.path), "token": claim.token, "device": device}
        assert worker.stdin is not None
        worker.stdin.write((json.dumps(request) + "\n").encode())
        self._busy.add(worker.pid)

        def on_end(status: int) -> None:
            # After a failure the process is about to end: it takes no other run.
            if status != EXIT_STATUSES[Outcome.FAILED]:
                self._busy.discard(worker.pid)

        return PooledRun(place, worker, claim=claim, device=device, on_end=on_end)

    def close(self) -> None:
        """End the processes; those that still run something are killed."""
        for worker in self._workers:
            if worker.pid in self._busy:
                worker.kill()
            for stream in (worker.stdin, worker.stdout):
                if stream is not None:
                    stream.close()
        for worker in self._workers:
            try:
                worker.wait(timeout=10)
            except subprocess.TimeoutExpired:
                worker.kill()
                worker.wait()


class PooledRun(RunProcess):
    """A run in a process of a `WorkerPool`, which lives on when the run has ended."""

    def __init__(
        self,
        place: RunPlace,
        worker: subprocess.Popen[bytes],
        *,
        claim: Claim,
        device: str,
        on_end: Callable[[int], None],
    ) -> None:
        self.place, self.claim, self.device = place, claim, device
        self.started = time.monotonic()
        self.is_stopped = False
        self._process = worker
        self.worker_id = worker.pid
        self._on_end = on_end
        self._status: int | None = None

    @property
    def exit_status(self) -> int | None:
        """None while it runs, negative where a signal ended its process."""
        if self._status is None:
            # In this order: a process may answer and end between the two.
            ended = self._process.poll()
            answer = self._process.stdout.read() if self._process.stdout is not None else None
            self._status = int(answer) if answer else ended
            if self._status is not None:
                self._on_end(self._status)
        return self._status

    def stop(self) -> None:
        """Ask for a checkpoint and an end, unless the process already has another run."""
        if self.exit_status is None:
            super().stop()
        self.is_stopped = True

    def kill(self) -> None:
        """End its process now; the last checkpoint stays."""
        if self.exit_status is None:
            super().kill()
        self.is_stopped = True


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
