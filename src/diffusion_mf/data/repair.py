"""Repairs of gold data: known errors of published corpora are read by fixed rules, and one message reports them.

A reader that is given `Repairs` repairs what it can and reports the rest to `Repairs.refuse`; without it, both are errors.
The rules for tags are those of `label_schemes.repair_spans`. Predictions are never repaired.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Sequence

from diffusion_mf.data.files import StrPath
from diffusion_mf.errors import InputError, readable

PLACEHOLDER_FORM = "_"
"""stands for a missing form, so that the unit keeps its tag and its line"""

_NUM_LABELS_SHOWN = 5


class Repair(enum.Enum):
    """The kinds of repairs, in the order in which they are reported; the value describes them in singular and plural."""

    TAGS = ("span with irregular tags repaired", "spans with irregular tags repaired")
    FORM = (f"unit without a form read as {PLACEHOLDER_FORM}", f"units without a form read as {PLACEHOLDER_FORM}")
    WIDENED = ("span that cuts a token extended to it", "spans that cut a token extended to it")
    OVERLAP = ("overlapping span left out", "overlapping spans left out")
    LEFT_OUT = ("annotation left out", "annotations left out")


class Repairs:
    """Counts the repairs in one file, and keeps the place of the first of each kind."""

    collects = False
    """whether errors that cannot be repaired are collected instead of raised"""

    def __init__(self, path: StrPath) -> None:
        self.path = path
        self.restart()

    def restart(self) -> None:
        """Forget everything: the file is read from its beginning again."""
        self._counts: Counter[Repair] = Counter()
        self._first: dict[Repair, str] = {}

    def add(self, kind: Repair, place: int | str, text: str = "") -> None:
        """Count a repair on a line, or at a place described in words."""
        self._counts[kind] += 1
        where = f"on line {place}" if isinstance(place, int) else f"at {place}"
        self._first.setdefault(kind, f"{where} ({readable(text)})" if text else where)

    def add_form(self, line: int) -> str:
        """Count a unit without a form, and return its placeholder."""
        self.add(Repair.FORM, line)
        return PLACEHOLDER_FORM

    def refuse(self, error: InputError) -> None:
        """Raise an error that cannot be repaired; subclasses may collect it instead."""
        raise error

    def describe(self, *, is_gold: bool = True) -> str | None:
        """One line for the user, None if nothing was repaired; for gold data it also names the option that refuses repairs."""
        parts = [
            f"{count:,} {kind.value[count > 1]}, first {self._first[kind]}"
            for kind in Repair
            if (count := self._counts[kind])
        ]
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
