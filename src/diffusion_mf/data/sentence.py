"""The one record every reader yields and every writer takes."""

from __future__ import annotations

from typing import NamedTuple


class Sentence(NamedTuple):
    """Units (words or characters) with their labels, and where they stand.

    ``labels`` is None for unlabelled text, else as long as ``units``. ``line`` is the 1-based line of the first unit in its
    file (0 where there is no file), for messages. ``document`` counts the documents of a file from 1; 0 is none.
    """

    units: tuple[str, ...]
    labels: tuple[str, ...] | None = None
    line: int = 0
    document: int = 0


def begins_document(document: int, before: int) -> tuple[bool, int]:
    """Whether a writer must mark a sentence of ``document``, and what to call with for the next; ``before`` is 0 at first.

    Once there was a mark, a sentence of none needs one, too: it would belong to the document before it.
    """
    begins = document != before
    return begins, (document or -1) if begins else before
