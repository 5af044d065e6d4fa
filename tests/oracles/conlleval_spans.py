"""Spans of irregular sequences by conlleval's conventions, as two questions about neighbours; nothing from the package.

conlleval looks at one tag and the tag before it: does a chunk begin here, and did one end there? Every begin is paired with
the next end. The letters of all schemes are understood: M as I, L as E, U as S.
"""

from __future__ import annotations

OUTSIDE = ("O", "")
_NAMES = str.maketrans("MLU", "IES")


def parse(tag: str) -> tuple[str, str]:
    """The letter, one of O B I E S, and the type."""
    letter, _, kind = tag.partition("-")
    return letter.translate(_NAMES), kind


def begins(before: tuple[str, str], here: tuple[str, str]) -> bool:
    """Whether a chunk begins at ``here``: at B and S, and where the tag before is no part of the same chunk."""
    if here == OUTSIDE:
        return False
    return here[0] in "BS" or before[0] in "OES" or before[1] != here[1]


def ends(here: tuple[str, str], after: tuple[str, str]) -> bool:
    """Whether a chunk ends with ``here``: at E and S, and where the tag after it is no part of the same chunk."""
    if here == OUTSIDE:
        return False
    return here[0] in "ES" or after[0] in "OBS" or after[1] != here[1]


def conlleval_spans(tags: list[str]) -> list[tuple[int, int, str]]:
    """(start, end, type) of every chunk, ends exclusive."""
    parsed = [parse(tag) for tag in tags]
    starts = [i for i, here in enumerate(parsed) if begins(parsed[i - 1] if i else OUTSIDE, here)]
    stops = [i + 1 for i, here in enumerate(parsed) if ends(here, parsed[i + 1] if i + 1 < len(parsed) else OUTSIDE)]
    return [(start, stop, parsed[start][1]) for start, stop in zip(starts, stops, strict=True)]
