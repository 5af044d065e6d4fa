"""Wrong usage: one sentence and exit status 2, like any bad input."""

from __future__ import annotations

from collections.abc import Callable

import pytest


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["frobnicate"], "no such command 'frobnicate'; see dmf --help."),
        (["evaluate"], "missing argument 'MODEL'; see dmf evaluate --help."),
        (["data", "synth"], "missing argument 'DIR'; see dmf data synth --help."),
    ],
)
def test_wrong_usage_is_one_sentence(dmf: Callable, arguments: list[str], sentence: str) -> None:
    outcome = dmf(*arguments)
    assert (outcome.status, outcome.stdout, outcome.stderr) == (2, b"", f"dmf: {sentence}\n")


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["tag", "model", "--fromat", "text"], "--format"),
        (["tag", "model", "--calls", "few"], "'--calls'"),
        (["tag", "model", "--format", "json"], "'json'"),
    ],
)
def test_what_typer_says_is_kept(dmf: Callable, arguments: list[str], part: str) -> None:
    outcome = dmf(*arguments)
    assert (outcome.status, outcome.stderr.count("\n")) == (2, 1)
    assert outcome.stderr.startswith("dmf: ")
    assert part in outcome.stderr
    assert outcome.stderr.endswith("; see dmf tag --help.\n")
    assert "Value error" not in outcome.stderr


def test_help_and_version_are_no_errors(dmf: Callable) -> None:
    for arguments in (["--help"], ["tag", "-h"], ["--version"]):
        outcome = dmf(*arguments)
        assert (outcome.status, outcome.stderr) == (0, "")
        assert b"dmf" in outcome.stdout


def test_without_a_command_there_is_help(dmf: Callable) -> None:
    for arguments in ([], ["benchmark"]):
        outcome = dmf(*arguments)
        assert b"Commands" in outcome.stdout + outcome.stderr.encode()
        assert "dmf: " not in outcome.stderr
