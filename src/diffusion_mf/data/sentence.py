"""Sentences and the documents they come from."""

from __future__ import annotations

import itertools
import re
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import NamedTuple


class Sentence(NamedTuple):
    """Units (words or characters) with their labels and their place in a file.

    ``labels`` is None for unlabelled text, otherwise as long as ``units``. ``line`` is the 1-based line of the first unit in its
    file (0 without a file), for messages. ``document`` is the number of the document in its file, from 1; 0 means no document.
    """

    units: tuple[str, ...]
    labels: tuple[str, ...] | None = None
    line: int = 0
    document: int = 0


_HANDLE = re.compile(r"@\w+")
_LINK = re.compile(r"(?:https?:|ftp:)?//|www\.", re.IGNORECASE)


def with_normalised_handles(units: tuple[str, ...]) -> tuple[str, ...]:
    """``@USER`` for handles, also where the @ is a unit of its own, and ``HTTPURL`` for links.

    >>> with_normalised_handles(("Thanks", "@ada", "and", "@", "bob", "!", "https://a.org/b"))
    ('Thanks', '@USER', 'and', '@', '@USER', '!', 'HTTPURL')
    """
    found = []
    before = ""
    for unit in units:
        is_handle = _HANDLE.fullmatch(before + unit if before == "@" else unit)
        found.append("@USER" if is_handle else "HTTPURL" if _LINK.match(unit) else unit)
        before = unit
    return tuple(found)


def begins_document(document: int, before: int) -> tuple[bool, int]:
    """Whether a writer must write a mark before a sentence of ``document``, and ``before`` for the next sentence (0 at first).

    After the first mark, a sentence without a document needs one too, or it would belong to the previous document.
    """
    begins = document != before
    return begins, (document or -1) if begins else before


MAX_DOCUMENT_UNITS = 1000
"""a longer document is split, since a document is labelled as one batch, which must fit on any device"""


def cut_documents(sentences: Iterable[Sentence]) -> Iterator[Sentence]:
    """Stream ``sentences`` with their documents renumbered from 1, splitting those of more than `MAX_DOCUMENT_UNITS` units.

    Sentences without a document (0) stay so. A sentence of more units becomes a document by itself.
    """
    number, size, before = 0, 0, 0
    for sentence in sentences:
        size += len(sentence.units)
        if sentence.document != before or size > MAX_DOCUMENT_UNITS:
            size, before = len(sentence.units), sentence.document
            number += before > 0
        yield sentence._replace(document=number) if before else sentence


def with_first_document(sentences: Iterable[Sentence]) -> Iterator[Sentence]:
    """Stream the sentences of a column file, making the ones before the first mark a document if the mark comes soon enough.

    Some files mark where documents end rather than where they begin.
    """
    before: list[Sentence] = []
    rest = iter(sentences)
    shift = 0
    size = 0
    for sentence in rest:
        if sentence.document:
            shift = bool(before)
            before = [each._replace(document=1) for each in before]
            rest = itertools.chain([sentence], rest)
            break
        before.append(sentence)
        size += len(sentence.units)
        if size > MAX_DOCUMENT_UNITS:
            break
    yield from before
    for sentence in rest:
        yield sentence._replace(document=sentence.document + shift) if sentence.document else sentence


class DocumentNumbers:
    """Numbers documents by name, sentence by sentence: a change of name begins the next number.

    >>> number_of = DocumentNumbers()
    >>> [number_of(name) for name in ("a", "a", None, "a", "b")]
    [1, 1, 0, 2, 3]
    """

    def __init__(self) -> None:
        self._before: Hashable = None
        self._count = 0

    def __call__(self, name: Hashable) -> int:
        """The number of the document called ``name``; 0 for None."""
        self._count += name is not None and name != self._before
        self._before = name
        return 0 if name is None else self._count


def grouped(documents: Sequence[int]) -> list[list[int]]:
    """Indices of sentences grouped by document, whose sentences must be consecutive; those without a document (0) are alone."""

    def key(index: int) -> int:
        return documents[index] or -index - 1

    return [[*group] for _, group in itertools.groupby(range(len(documents)), key=key)]
