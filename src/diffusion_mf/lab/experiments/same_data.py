"""Whether runs were made with the same data: by digests of the contents of their files, which may have moved."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Mapping

from diffusion_mf.config import Config
from diffusion_mf.errors import InputError
from diffusion_mf.lab.experiments.folders import ExperimentFolder, RunPlace

Files = Mapping[str, str]
"""paths by split"""


class FileDigests:
    """Digests of files, each of which is read once."""

    def __init__(self) -> None:
        self._known: dict[str, str | None] = {}

    def of(self, files: Files) -> dict[str, str]:
        """The SHA-256 of each split's file; files that are not there, or cannot be read, are left out."""
        for path in files.values():
            if path not in self._known:
                self._known[path] = digest_of(path)
        found = {split: self._known[path] for split, path in files.items()}
        return {split: digest for split, digest in found.items() if digest is not None}


def digest_of(path: str) -> str | None:
    """The SHA-256 of a file; None if it is not there, or cannot be read."""
    with contextlib.suppress(OSError):
        if os.path.isfile(path):
            with open(path, "rb") as stream:
                return hashlib.file_digest(stream, "sha256").hexdigest()
    return None


def data_files(config: Config) -> dict[str, str]:
    """The files that a configuration names."""
    files = {"train": config.data.train, "dev": config.data.dev, "test": config.data.test}
    return {split: path for split, path in files.items() if path is not None}


def made_with_other_data(
    folder: ExperimentFolder, runs: Mapping[str, Files], digests: FileDigests
) -> dict[str, list[str]]:
    """Those of ``runs`` that were made with other data than their files have now, and these files.

    Unknown digests, and files that are not on this machine, are taken to be right.
    """
    found = {}
    for name, files in runs.items():
        before, now = folder.run(name).data(), digests.of(files)
        changed = [files[split] for split in now if before.get(split, now[split]) != now[split]]
        if changed:
            found[name] = changed
    return found


def check_data(
    folder: ExperimentFolder,
    runs: Mapping[str, Files],
    digests: FileDigests,
    *,
    remedy: str = "",
    tell: Callable[[str], None] | None = None,
) -> None:
    """Raise `InputError` if any of ``runs`` was made with other data than its files have now; ``tell`` is called with each first."""
    changed = made_with_other_data(folder, runs, digests)
    if tell is not None:
        for name, paths in changed.items():
            tell(f"made with other data: {name} ({', '.join(paths)})")
    if not changed:
        return
    first, *others = changed
    files = list(dict.fromkeys(path for paths in changed.values() for path in paths))
    subject = f"this run and {len(others)} more were" if others else "this run was"
    folders = "the folders of these runs (--dry-run lists them)" if others else "the folder of this run"
    raise InputError(
        f"{subject} not made with the data now in {' and '.join(files)}",
        path=folder.run(first).root,
        remedy=remedy
        or f"choose another folder with --output, or delete {folders} to repeat {'them' if others else 'it'}",
    )


def check_unchanged(place: RunPlace) -> None:
    """Raise `InputError` if a file of a run has changed since the run was queued, which may be hours ago."""
    description = place.description()
    before = description.get("data", {})
    files = description["sample"]["files"] if "sample" in description else description.get("config", {}).get("data", {})
    for split, digest in FileDigests().of({split: files[split] for split in before}).items():
        if digest != before[split]:
            raise InputError(
                "the file changed after this command began", path=files[split], remedy="start the command again"
            )
