"""Errors a user can do something about; everything else is a bug and keeps its traceback."""

from __future__ import annotations

import os
import re
import signal

LONGEST_QUOTATION = 60
LONGEST_PATH = 4096
"""what is longer is no path"""
_LONG_WORD = re.compile(r"\S{200,}")


def quoted(value: object) -> str:
    """``value`` as a message shows it: as Python would write it, at most `LONGEST_QUOTATION` characters.

    >>> quoted("O"), quoted("x" * 100)
    ("'O'", "'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx…'")
    """
    if isinstance(value, str):
        return repr(shortened(value))
    try:
        text = repr(value)
    except ValueError:
        return "a number of thousands of digits"
    except RecursionError:
        return "something nested too deeply"
    return shortened(text)


def shortened(text: str) -> str:
    """``text``, cut after `LONGEST_QUOTATION` characters."""
    return text if len(text) <= LONGEST_QUOTATION else f"{text[: LONGEST_QUOTATION - 1]}…"


def readable(text: str) -> str:
    """``text`` without what is longer than any word, such as a damaged label, and would bury the sentence."""
    return _LONG_WORD.sub(lambda word: shortened(word[0]), text)


class DiffusionMFError(Exception):
    """Base class of this package's errors; the command line prints the message as one sentence and exits with status 1."""

    exit_status = 1


class InputError(DiffusionMFError):
    """Bad input or usage: one sentence that names file, line and remedy; the command line exits with status 2.

    >>> str(InputError("expected 4 columns, found 3", path="a.txt", line=7, remedy="check the separator"))
    'a.txt, line 7: expected 4 columns, found 3; check the separator.'
    """

    exit_status = 2

    def __init__(
        self,
        problem: str,
        *,
        path: str | os.PathLike[str] | None = None,
        line: int | None = None,
        remedy: str | None = None,
    ) -> None:
        self.problem = readable(problem)
        self.path = None if path is None else os.fspath(path)
        self.line = line
        self.remedy = None if remedy is None else readable(remedy)
        super().__init__(self.problem)

    def __str__(self) -> str:
        place = "standard input" if self.path == "-" else self.path
        if place is not None and len(place) > LONGEST_PATH:
            place = shortened(place)
        if place and self.line is not None:
            place = f"{place}, line {self.line}"
        parts = [self.problem] if not place else [f"{place}: {self.problem}"]
        if self.remedy:
            parts.append(self.remedy)
        # Names and values of the user's may contain line ends.
        return " ".join(line.strip() for line in "; ".join(part.rstrip(".") for part in parts).splitlines()) + "."


class NoLegalSequenceError(InputError):
    """Constraints, clamps and −∞ scores together leave a sentence without any label sequence."""


class DivergenceError(DiffusionMFError):
    """A loss or its gradient is no longer finite; trying again with the same settings would fail in the same way."""


class TerminatedError(SystemExit):
    """SIGTERM, or SIGHUP of a terminal that was closed, asked the program to stop: it exits with status 143 or 129."""

    def __init__(self, number: int = signal.SIGTERM) -> None:
        super().__init__(128 + number)
