"""What a tagger is asked, checked sentence by sentence: units, documents, and labels known before (clamps).

Labels known before the model is asked: ``{0: "S-PER", 3: {"O", "S-LOC"}}`` holds two units of a sentence.

A clamp that cannot be honoured is refused before anything is computed, by name: silently giving way would defeat it.
"""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import torch
from jaxtyping import Bool
from torch import Tensor

from diffusion_mf.batches.vocabulary import Vocabulary
from diffusion_mf.config import DataConfig
from diffusion_mf.data.corpus import Task
from diffusion_mf.data.sentence import DocumentNumbers, Sentence, cut_documents
from diffusion_mf.decoding import Legality
from diffusion_mf.errors import InputError, NoLegalSequenceError

Clamp: TypeAlias = Mapping[int, str | Collection[str]]
"""position to the label, or the labels, it may have; positions count from 0"""


def allowed_labels(
    clamp: Clamp, num_units: int, vocabulary: Vocabulary, legality: Legality | None, *, sentence: int
) -> Bool[Tensor, "N K"]:
    """Which labels each unit may have; `InputError` for a clamp that is mistaken or that no legal sequence fulfils.

    ``sentence`` is the sentence's number, counted from 1, for messages.
    """
    allowed = torch.ones(num_units, len(vocabulary.labels), dtype=torch.bool)
    for position, wanted in clamp.items():
        if not isinstance(position, int) or isinstance(position, bool) or not 0 <= position < num_units:
            raise InputError(
                f"the clamp of sentence {sentence} names the position {position!r}, but it has {num_units} unit(s)",
                remedy="count positions from 0",
            )
        names = [wanted] if isinstance(wanted, str) else list(wanted)
        if not names:
            raise InputError(
                f"the clamp of sentence {sentence} leaves no label at position {position}", remedy="allow a label there"
            )
        allowed[position] = False
        allowed[position, [_label_id(name, vocabulary, sentence) for name in names]] = True
    if legality is not None and num_units:
        _check_possible(allowed, legality, sentence)
    return allowed


def _label_id(name: object, vocabulary: Vocabulary, sentence: int) -> int:
    found = vocabulary.label_ids.get(name) if isinstance(name, str) else None
    if found is None:
        near = difflib.get_close_matches(str(name), vocabulary.labels, n=1, cutoff=0.0)
        raise InputError(
            f"the clamp of sentence {sentence} names the label {name!r}, which this model does not have",
            remedy=f"use one of its labels, such as {near[0]}" if near else "use one of its labels",
        )
    return found


def _check_possible(allowed: Tensor, legality: Legality, sentence: int) -> None:
    """Go through the sentence with all labels that a legal beginning can reach."""
    reachable = legality.starts.cpu()
    transitions, ends = legality.transitions.cpu(), legality.ends.cpu()
    for position in range(len(allowed)):
        if position:
            reachable = transitions[reachable].any(0)
        reachable = reachable & allowed[position]
        if position == len(allowed) - 1:
            reachable = reachable & ends
        if not reachable.any():
            raise NoLegalSequenceError(
                f"no legal sequence of labels fulfils the clamp of sentence {sentence}, at position {position} or before",
                remedy="relax the clamp",
            )


SentenceLike = Sequence[str] | Sentence


class Request(NamedTuple):
    """A sentence as it was given, as the model is to see it, and the labels its units may have."""

    units: tuple[str, ...]
    prepared: Sentence
    allowed: Tensor | None
    """(N, K); None: all"""

    @property
    def num_units(self) -> int:
        """The length of the sentence."""
        return len(self.units)

    @property
    def document(self) -> int:
        """The number of its document, 0 for none."""
        return self.prepared.document


def in_documents(requests: Iterable[Request]) -> Iterator[Request]:
    """The requests with their documents numbered and cut, as in training."""
    before, after = itertools.tee(requests)
    for request, prepared in zip(before, cut_documents(request.prepared for request in after), strict=True):
        yield request._replace(prepared=prepared)


class RequestReader:
    """Turns what users give into requests; `InputError` naming the sentence, counted from 1, and the unit, from 0."""

    def __init__(self, task: Task, data: DataConfig, vocabulary: Vocabulary, legality: Legality | None) -> None:
        self._task = task
        self._prepare = data.prepare
        self._vocabulary = vocabulary
        self._legality = legality

    def __call__(
        self,
        sentences: Iterable[SentenceLike],
        clamps: Iterable[Clamp | None] | None,
        documents: Iterable[Hashable] | None = None,
    ) -> Iterator[Request]:
        """Requests one by one; nothing is read before it is needed."""
        if documents is not None and (isinstance(documents, str) or not isinstance(documents, Iterable)):
            raise InputError("documents are given per sentence", remedy="give a list of names, one for each sentence")
        if isinstance(sentences, str):
            raise InputError("sentences are given as a list", remedy="put the sentence into a list")
        if isinstance(clamps, Mapping):
            raise InputError("clamps are given per sentence", remedy="give a list of mappings, one for each sentence")
        if documents is not None:
            sentences = self._with_documents(sentences, documents)
        return self._read(sentences, clamps)

    def _with_documents(self, sentences: Iterable[SentenceLike], documents: Iterable[Hashable]) -> Iterator[Sentence]:
        """The sentences with numbers for the names of their documents; None is none."""
        names = iter(documents)
        number_of = DocumentNumbers()
        number = 0
        for number, sentence in enumerate(sentences, 1):
            name = next(names, self)
            if name is self:
                raise InputError(
                    f"there are fewer documents than sentences, none for sentence {number}",
                    remedy="give None where there is none",
                )
            yield Sentence(self._units(sentence, number), document=number_of(name))
        if next(names, self) is not self:
            raise InputError(f"there are more documents than the {number} sentence(s)", remedy="give one per sentence")

    def _read(self, sentences: Iterable[SentenceLike], clamps: Iterable[Clamp | None] | None) -> Iterator[Request]:
        known: Iterator[Clamp | None] = itertools.repeat(None) if clamps is None else iter(clamps)
        number = 0
        for number, sentence in enumerate(sentences, 1):
            units = self._units(sentence, number)
            try:
                clamp = next(known)
            except StopIteration:
                raise InputError(
                    f"there are fewer clamps than sentences, none for sentence {number}",
                    remedy="give None where nothing is known",
                ) from None
            allowed = (
                allowed_labels(clamp, len(units), self._vocabulary, self._legality, sentence=number) if clamp else None
            )
            document = sentence.document if isinstance(sentence, Sentence) else 0
            if not isinstance(document, int) or document < 0:
                raise InputError(
                    f"the document of sentence {number} is {document!r}", remedy="give a number from 1, or 0 for none"
                )
            yield Request(units, self._prepare(Sentence(units, document=document)), allowed)
        if clamps is not None and next(known, self) is not self:
            raise InputError(f"there are more clamps than the {number} sentence(s)", remedy="give one per sentence")

    def _units(self, sentence: SentenceLike, number: int) -> tuple[str, ...]:
        if isinstance(sentence, Sentence):
            return sentence.units
        if isinstance(sentence, str) and self._task is not Task.SEG_POS:
            raise InputError(f"sentence {number} is a string", remedy='split it into words, such as ["a", "b"]')
        units = tuple(sentence)
        try:
            # The fastest way to find out whether all are strings.
            "".join(units)
            if all(units):
                return units
        except TypeError:
            pass
        for position, unit in enumerate(units):
            if not isinstance(unit, str) or not unit:
                raise InputError(
                    f"unit {position} of sentence {number} is {unit!r}", remedy="give strings that are not empty"
                )
        return units
