"""Run ``dmf`` in this process, as its console script does."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from typing import NamedTuple

import pytest

from diffusion_mf.cli import main


class Outcome(NamedTuple):
    status: int
    stdout: bytes
    stderr: str


@pytest.fixture
def dmf(monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]) -> Callable[..., Outcome]:
    """Call with the arguments of a command line, and what standard input holds as ``stdin``."""

    def run(*arguments: object, stdin: bytes = b"") -> Outcome:
        monkeypatch.setattr(sys, "argv", ["dmf", *map(str, arguments)])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        capsysbinary.readouterr()
        status = 0
        try:
            main()
        except SystemExit as stop:
            status = 0 if stop.code is None else int(stop.code)
        captured = capsysbinary.readouterr()
        return Outcome(status, captured.out, captured.err.decode())

    return run
