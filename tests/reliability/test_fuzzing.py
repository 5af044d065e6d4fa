"""Damaged files, configurations and arguments are understood or refused in a sentence; `make torture` tries a million."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import fuzzing
import pytest

from diffusion_mf.errors import InputError

CASES = 1000


@pytest.mark.parametrize("promise", fuzzing.FUZZERS)
def test_a_promise(promise: str, tmp_path: Path) -> None:
    tried, share = fuzzing.FUZZERS[promise]
    outcomes = list(tried(tmp_path, range(int(CASES * share))))
    assert len(outcomes) > 0.9 * CASES * share
    assert all(outcomes)


def _refuse(message: str) -> Callable[[], None]:
    def call() -> None:
        raise InputError(message)

    return call


def test_what_is_not_fine(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert fuzzing.is_fine(lambda: None, 1, "")
    assert fuzzing.is_fine(_refuse("no"), 2, "")
    assert not fuzzing.is_fine(_refuse("no " * 1000), 3, "")
    assert not fuzzing.is_fine(lambda: [][0], 4, "")
    assert "IndexError" in capsys.readouterr().err
    monkeypatch.setattr(fuzzing, "MOST_SECONDS", -1.0)
    assert not fuzzing.is_fine(lambda: None, 5, "")


def test_a_case_that_hangs_is_stopped_and_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def hang() -> None:
        while True:
            try:
                time.sleep(60)
            except Exception:  # as a reader may that catches too much
                continue

    monkeypatch.setattr(fuzzing, "SECONDS_UNTIL_ALARM", 0.1)
    assert not fuzzing.is_fine(hang, 1234, "")
    shown = capsys.readouterr().err
    assert "seed 1234" in shown
    assert "CaseTimeout" in shown
