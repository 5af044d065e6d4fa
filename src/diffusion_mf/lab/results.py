"""Result files: JSON lists of rows with their provenance, written by the commands that measured them."""

from __future__ import annotations

import contextlib
import datetime
import importlib.metadata
import json
import os
import platform
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import diffusion_mf
from diffusion_mf.data.files import StrPath, json_problem, make_folder, write_json
from diffusion_mf.errors import InputError

PACKAGE = Path(__file__).resolve().parents[1]

# Names the commit if the sources are not a checkout of this project.
COMMIT_VARIABLE = "DIFFUSION_MF_COMMIT"


def provenance(command: str, *, packages: Sequence[str] = (), measured: Sequence[StrPath] = ()) -> dict[str, Any]:
    """The fields common to all result rows: command, commit, hardware, versions and date (UTC).

    ``packages`` are further distributions whose versions matter, ``measured`` the files and folders whose uncommitted changes
    would matter, relative to the package or absolute (default: the package).
    """
    return {
        "command": command,
        "commit": commit(measured=measured),
        "hardware": hardware(),
        "versions": versions(packages=packages),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def commit(*, measured: Sequence[StrPath] = ()) -> str | None:
    """The commit of the sources, with ``-dirty`` if measured files have uncommitted changes; None outside a checkout.

    The environment variable `COMMIT_VARIABLE` overrides it.
    """

    def git(*arguments: StrPath) -> str:
        command = ["git", "-C", os.fspath(PACKAGE), *(os.fspath(argument) for argument in arguments)]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    given = os.environ.get(COMMIT_VARIABLE)
    if given:
        return given
    try:
        # An installed copy may be inside a checkout of another project.
        git("ls-files", "--error-unmatch", Path(__file__).resolve())
        found = git("rev-parse", "HEAD")
        changed = git("status", "--porcelain", "--", *(measured or [PACKAGE]))
    except (OSError, subprocess.CalledProcessError):
        return None
    return f"{found}-dirty" if changed else found


def hardware() -> str:
    """The GPU if there is one, the CPU's model and the number of cores this process may use."""
    names = [f"{_cpu_model()}, {num_cores()} cores"]
    with contextlib.suppress(ImportError):
        import torch

        if torch.cuda.is_available():
            names.insert(0, torch.cuda.get_device_name())
    return "; ".join(names)


def num_cores() -> int:
    """The cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    models = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(models, platform.processor() or platform.machine())


def versions(*, packages: Sequence[str] = ()) -> dict[str, str | None]:
    """Versions of Python, this package and its numerical libraries; None for what is not an installed distribution."""
    found: dict[str, str | None] = {"python": platform.python_version(), "diffusion-mf": diffusion_mf.__version__}
    for name in ("torch", "triton", "numpy", *packages):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    return found


def read_rows(path: StrPath) -> list[dict[str, Any]]:
    """The rows of a result file; none if there is no such file."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot be read ({error})", path=path, remedy="check the path") from None
    try:
        rows = json.loads(text)
    except (ValueError, RecursionError) as error:
        line = error.lineno if isinstance(error, json.JSONDecodeError) else None
        raise InputError(
            f"not JSON ({json_problem(error)})", path=path, line=line, remedy="repair the file, or choose another"
        ) from None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise InputError("not a list of result rows", path=path, remedy="repair the file, or choose another")
    return rows


def write_rows(path: StrPath, rows: Iterable[Mapping[str, Any]], *, replace_by: Sequence[str]) -> None:
    """Merge ``rows`` into a result file, replacing rows with the same values of ``replace_by``.

    The file is replaced by atomic rename, and concurrent writers wait for each other, so no rows are lost. A missing folder is
    created.
    """
    new: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        new.setdefault(_key(row, replace_by), []).append(row)
    path = Path(path)
    make_folder(path.parent)
    with _only_writer(path.parent):
        merged: list[Mapping[str, Any]] = []
        written: set[str] = set()
        for row in read_rows(path):
            key = _key(row, replace_by)
            if key not in new:
                merged.append(row)
            elif key not in written:
                # New rows take the place of the first row they replace, which keeps the file's diffs readable.
                written.add(key)
                merged.extend(new[key])
        for key, added in new.items():
            if key not in written:
                merged.extend(added)
        write_json(path, merged)


def _key(row: Mapping[str, Any], fields: Sequence[str]) -> str:
    return json.dumps([row.get(field) for field in fields], sort_keys=True)


@contextlib.contextmanager
def _only_writer(folder: Path) -> Iterator[None]:
    """Wait until no other process writes results in ``folder``; the lock is on the folder itself, so no lock file is left."""
    try:
        import fcntl
    except ImportError:  # not a POSIX system: no lock, but still an atomic rename
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
