"""Documents: sentences that are labelled together.

A model with `denoiser.recall` sees, beside its beliefs about a unit, those about other occurrences of its form in the
document. So the sentences of a document share a batch, whatever else changes about batches.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Iterator, Sequence

from diffusion_mf.data.sentence import Sentence

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


def grouped(documents: Sequence[int]) -> list[list[int]]:
    """Indices of sentences, those of a document together, which must stand one after the other; those of none (0) alone."""

    def key(index: int) -> int:
        return documents[index] or -index - 1

    return [[*group] for _, group in itertools.groupby(range(len(documents)), key=key)]


def document_batches(
    lengths: Sequence[int],
    documents: Sequence[int],
    *,
    budget: int,
    seed: int,
    epoch: int,
    max_sentences: int | None = None,
    has_padding: bool = False,
) -> list[list[int]]:
    """Indices of sentences in batches of at most ``budget`` units and whole documents, in random order.

    With ``has_padding``, padding to the longest sentence counts. A document beyond the budget, or with more than ``max_sentences``, stands alone. Sentences keep their order in it.
    """
    # Only random() itself is promised to give the same numbers in every version of Python.
    generator = random.Random(f"document batches {seed} {epoch}")
    groups = grouped(documents)
    keys = [generator.random() for _ in groups]

    def size(batch: Sequence[int]) -> int:
        own = [lengths[index] for index in batch]
        return max(own) * len(own) if has_padding else sum(own)

    batches: list[list[int]] = []
    for key in sorted(range(len(groups)), key=keys.__getitem__):
        together = [*batches[-1], *groups[key]] if batches else []
        is_few = max_sentences is None or len(together) <= max_sentences
        if batches and is_few and size(together) <= budget:
            batches[-1] = together
        else:
            batches.append([*groups[key]])
    return batches
