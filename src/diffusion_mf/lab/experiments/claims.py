"""Claims: which of several runners, on one machine or on many that share a folder, works on a run.

A claim on a run is a file ``NAME.GENERATION.json``, created exclusively, so only one of several runners succeeds. The process that
works on the run touches its claim every few seconds. A claim that has not been touched for long, or whose process is known to have
ended, is stale; a runner takes it over by creating the next generation, which again only one can do. An owner that was suspended
finds the newer generation at its next heartbeat and stops. Ages are differences between file times in the same folder, so the
clocks of different machines need not agree.
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
import platform
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diffusion_mf.data.files import open_output

SECONDS_BETWEEN_HEARTBEATS = 5.0
SECONDS_UNTIL_STALE = 60.0


@dataclass(frozen=True)
class Claim:
    """A claim that this process made."""

    path: Path
    token: str

    def is_held(self) -> bool:
        """Whether the claim is still valid."""
        name, generation = _split(self.path)
        if any(other > generation for other, _ in _generations(self.path.parent, name)):
            return False
        return _read(self.path).get("token") == self.token

    def adopt(self) -> bool:
        """Make the calling process the owner of the claim; False if another runner has taken over."""
        if not self.is_held():
            return False
        with open_output(self.path) as stream:
            stream.write(json.dumps({"token": self.token, **_this_process()}).encode())
        return self.is_held()

    def beat(self) -> bool:
        """Send a heartbeat; False if another runner has taken over."""
        if not self.is_held():
            return False
        with contextlib.suppress(OSError):
            os.utime(self.path)
        return True

    def release(self) -> None:
        """Release the run, removing claims of earlier generations first."""
        if not self.is_held():
            return
        name, generation = _split(self.path)
        for other, path in _generations(self.path.parent, name):
            if other < generation:
                path.unlink(missing_ok=True)
        self.path.unlink(missing_ok=True)


class Claims:
    """The claims of a folder."""

    def __init__(self, folder: Path, *, stale_after: float = SECONDS_UNTIL_STALE) -> None:
        self._folder = folder
        self._stale_after = stale_after
        folder.mkdir(parents=True, exist_ok=True)

    def take(self, name: str) -> Claim | None:
        """Claim the run ``name``; None if another runner works on it."""
        seen = _generations(self._folder, name)
        if any(not self._is_stale(path) for _, path in seen):
            return None
        judged = {path: _read(path).get("token") for _, path in seen}
        generation = max((number for number, _ in seen), default=0) + 1
        path = self._folder / f"{name}.{generation}.json"
        claim = Claim(path, uuid.uuid4().hex)
        try:
            with open(path, "x", encoding="utf-8") as stream:
                json.dump({"token": claim.token, **_this_process()}, stream)
        except FileExistsError:
            return None
        # Another runner may have claimed and finished the run in the meantime.
        now = {other: _read(other).get("token") for number, other in _generations(self._folder, name) if other != path}
        if any(judged.get(other) != token for other, token in now.items()) or not claim.is_held():
            path.unlink(missing_ok=True)
            return None
        return claim

    def _is_stale(self, path: Path) -> bool:
        try:
            touched = path.stat().st_mtime
        except FileNotFoundError:
            return True
        return _is_gone(_read(path)) or self._now() - touched > self._stale_after

    def _now(self) -> float:
        """The current time by the clock of the file system, which dates the claims."""
        probe = self._folder / f".clock-{uuid.uuid4().hex}"
        try:
            probe.touch()
            return probe.stat().st_mtime
        finally:
            probe.unlink(missing_ok=True)


def _split(path: Path) -> tuple[str, int]:
    name, _, generation = path.name.removesuffix(".json").rpartition(".")
    return name, int(generation)


def _generations(folder: Path, name: str) -> list[tuple[int, Path]]:
    found = []
    for path in folder.glob(f"{glob.escape(name)}.*.json"):
        with contextlib.suppress(ValueError):
            other, generation = _split(path)
            if other == name:
                found.append((generation, path))
    return sorted(found)


def _read(path: Path) -> dict[str, Any]:
    """The contents of a claim; empty while it is being written, or if it was just removed."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _this_process() -> dict[str, Any]:
    pid = os.getpid()
    return {"machine": _machine(), "pid": pid, "started": _start_of(pid), "date": time.time()}


def _machine() -> str | None:
    """Identifies the processes that can see each other's ids; None if that cannot be determined."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{platform.node()}/{boot}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return None


def _start_of(pid: int) -> str | None:
    """The start time of the process in kernel ticks, which distinguishes it from others that reuse its id."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return None


def _is_gone(claim: dict[str, Any]) -> bool:
    """Whether the claim's process is known to have ended, so that there is no need to wait."""
    machine = _machine()
    if machine is None or claim.get("machine") != machine or not claim.get("started"):
        return False
    return _start_of(int(claim["pid"])) != claim["started"]
