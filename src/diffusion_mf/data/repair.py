"""Repairs of gold data: known errors of published corpora are read by fixed rules, and one message reports them.

A reader that is given `Repairs` repairs what it can and reports the rest to `Repairs.refuse`; without it, both are errors.
The rules for tags are those of `label_schemes.repair_spans`. Predictions are never repaired.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Sequence

from diffusion_mf.data.files import StrPath
from diffusion_mf.errors import InputError

PLACEHOLDER_FORM = "_"
"""stands for a missing form, so that the unit keeps its tag and its line"""

_NUM_LABELS_SHOWN = 5


class SpanProblem(enum.Enum):
    """Repairs of the spans of an annotation tool; the value describes the repair in singular and plural."""

    WIDENED = ("span that cuts a token extended to it", "spans that cut a token extended to it")
    OVERLAP = ("overlapping span left out", "overlapping spans left out")
    LEFT_OUT = ("annotation left out", "annotations left out")


@dataclasses.dataclass
class _Tally:
    count: int = 0
    first: str = ""


class Repairs:
    """Counts the repairs in one file, and keeps the place of the first of each kind."""

    def __init__(self, path: StrPath) -> None:
        self.path = path
        self.restart()

    def restart(self) -> None:
        """Forget everything: the file is read from its beginning again."""
        self._spans = _Tally()
        self._forms = _Tally()
        self._problems = {kind: _Tally() for kind in SpanProblem}

    def add_span(self, line: int, old: Sequence[str], new: Sequence[str]) -> None:
        """Count a span with irregular tags: ``old`` was read as ``new``."""
        self._spans.count += 1
        self._spans.first = self._spans.first or f"line {line} ({describe_span(old, new)})"

    def add_form(self, line: int) -> str:
        """Count a unit without a form, and return its placeholder."""
        self._forms.count += 1
        self._forms.first = self._forms.first or f"line {line}"
        return PLACEHOLDER_FORM

    def add_problem(self, kind: SpanProblem, place: str, text: str) -> None:
        """Count a span of characters that does not fit the tokens, or an annotation that is not supported."""
        tally = self._problems[kind]
        tally.count += 1
        tally.first = tally.first or f"{place} ({text})"

    def refuse(self, error: InputError) -> None:
        """Raise an error that cannot be repaired; subclasses may collect it instead."""
        raise error

    def describe(self, *, is_gold: bool = True) -> str | None:
        """One line for the user, None if nothing was repaired; for gold data it also names the option that refuses repairs."""
        parts = []
        if self._spans.count:
            parts.append(
                f"{_counted(self._spans.count, 'span')} with irregular tags repaired, first on {self._spans.first}"
            )
        if self._forms.count:
            units = _counted(self._forms.count, "unit")
            parts.append(f"{units} without a form read as {PLACEHOLDER_FORM}, first on {self._forms.first}")
        for kind, tally in self._problems.items():
            if tally.count:
                parts.append(f"{tally.count:,} {kind.value[tally.count > 1]}, first at {tally.first}")
        if not parts:
            return None
        if is_gold:
            parts.append("dmf data check lists them, --strict (data.strict) refuses them")
        return f"{self.path}: {'; '.join(parts)}"


def describe_span(old: Sequence[str], new: Sequence[str]) -> str:
    """How the tags of a span were repaired; long spans are shortened.

    >>> describe_span(["I-PER", "I-PER"], ["B-PER", "I-PER"])
    'I-PER I-PER read as B-PER I-PER'
    """
    more = " …" if len(old) > _NUM_LABELS_SHOWN else ""
    shown = [" ".join(labels[:_NUM_LABELS_SHOWN]) + more for labels in (old, new)]
    return " read as ".join(shown)


def refuse(repairs: Repairs | None, error: InputError) -> None:
    """Raise ``error``, or hand it to ``repairs``, which may collect errors."""
    if repairs is None:
        raise error
    repairs.refuse(error)


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
