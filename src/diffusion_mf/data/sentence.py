"""Sentences and the documents they come from."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterable, Iterator, Sequence
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


MAX_DOCUMENT_UNITS = 1000
"""a longer document is cut: what is labelled together must fit in a batch of any device"""


def cut_documents(sentences: Iterable[Sentence]) -> Iterator[Sentence]:
    """Stream ``sentences`` with their documents numbered anew from 1, none of more than `MAX_DOCUMENT_UNITS` units.

    Sentences of no document, 0, stay so. One of more units is a document of its own.
    """
    number, size, before = 0, 0, 0
    for sentence in sentences:
        size += len(sentence.units)
        if sentence.document != before or size > MAX_DOCUMENT_UNITS:
            size, before = len(sentence.units), sentence.document
            number += before > 0
        yield sentence._replace(document=number) if before else sentence


def with_first_document(sentences: Iterable[Sentence]) -> Iterator[Sentence]:
    """Stream the sentences of a column file: if a mark comes within a document's size, those before it are one, too.

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
    """Numbers for the names of documents, asked for one sentence after the other: the next one whenever the name changes.

    >>> number_of = DocumentNumbers()
    >>> [number_of(name) for name in ("a", "a", None, "a", "b")]
    [1, 1, 0, 2, 3]
    """

    def __init__(self) -> None:
        self._before: Hashable = None
        self._count = 0

    def __call__(self, name: Hashable) -> int:
        """The number of the document of this name; None is none, 0."""
        self._count += name is not None and name != self._before
        self._before = name
        return 0 if name is None else self._count


def grouped(documents: Sequence[int]) -> list[list[int]]:
    """Indices of sentences, those of a document together, which must stand one after the other; those of none (0) alone."""

    def key(index: int) -> int:
        return documents[index] or -index - 1

    return [[*group] for _, group in itertools.groupby(range(len(documents)), key=key)]
