"""The input of a tagger, checked sentence by sentence: units, documents, and labels known in advance (clamps).

A clamp fixes the labels of units, or whole spans, in advance; ``end`` is exclusive:

    {0: "B-PER", 3: {"O", "B-LOC"}}
    {"units": [0, 2], "type": "PER"}
    [{"units": [0, 2], "type": "PER"}, {5: "O"}]

Labels are in the scheme of the results, or in the model's own (BMES). If several labels of the model are printed as the clamped
one (`decoding.output_labels`), all of them are allowed; in IOB1 this constrains pairs of neighbours too. Several clamps of one
unit must agree. A clamp that cannot be honoured raises an error before anything is computed, because ignoring it silently would
defeat its purpose.
"""

from __future__ import annotations

import difflib
import itertools
import operator
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence, Set
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor

from diffusion_mf.config import DataConfig
from diffusion_mf.data.corpus import Task
from diffusion_mf.data.files import StrPath, is_encodable
from diffusion_mf.data.label_schemes import LabelledSpan, LabelScheme, encode_spans
from diffusion_mf.data.sentence import DocumentNumbers, Sentence, cut_documents
from diffusion_mf.decoding import Legality, OutputLabels
from diffusion_mf.errors import InputError, NoLegalSequenceError, quoted

MOST_DOCUMENTS = 2**63 - 1
"""the greatest number of a document, an integer of 64 bits"""


def whole_number(value: object) -> int | None:
    """``value`` as an int, also of NumPy's types; None for what is no whole number, such as 1.0 or True."""
    if isinstance(value, bool | str):
        return None
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return None


def _is_iterable(value: object) -> bool:
    """Whether ``value`` has items; an array without dimensions has a method for them, but none."""
    try:
        iter(value)  # type: ignore[call-overload]
    except TypeError:
        return False
    return True


LabelClamp: TypeAlias = Mapping[int, str | Collection[str]]
"""maps a position, counted from 0, to the label or labels it may have"""
SpanClamp: TypeAlias = Mapping[str, Any]
"""``{"units": [start, end], "type": "PER"}``, ``end`` exclusive: a complete span of that type"""
Clamp: TypeAlias = LabelClamp | SpanClamp | Sequence[LabelClamp | SpanClamp]
"""what is known about a sentence; all of several clamps hold"""


class PlacedClamp(NamedTuple):
    """A clamp read from a file, with its place for messages; ``line`` is the line of the first unit."""

    clamp: Clamp
    path: StrPath
    line: int
    lines_per_unit: int


class Allowed(NamedTuple):
    """The labels, and pairs of labels, that clamps allow in a sentence."""

    labels: Bool[Tensor, "N K"]
    pairs: Bool[Tensor, "N-1 K K"] | None = None
    """[previous, next] for neighbours; None allows all"""


class _ClampReader:
    """Turns one sentence's clamp into `Allowed`; ``sentence``, counted from 1, is used in messages.

    `InputError` if it is malformed, contradicts itself, or cannot be satisfied by a legal sequence.
    """

    def __init__(self, clamp: Clamp | PlacedClamp, num_units: int, output: OutputLabels, *, sentence: int) -> None:
        self.place = clamp if isinstance(clamp, PlacedClamp) else None
        self.owner = f"the clamp of sentence {sentence}" if self.place is None else "the clamp"
        self.output = output
        num_labels = len(output.model_labels)
        self.labels = torch.ones(num_units, num_labels, dtype=torch.bool)
        self.pairs: Tensor | None = None
        if output.depends_on_previous:
            self.pairs = torch.ones(max(num_units - 1, 0), num_labels, num_labels, dtype=torch.bool)
        given = clamp.clamp if isinstance(clamp, PlacedClamp) else clamp
        parts = [given] if isinstance(given, Mapping) else given
        if isinstance(parts, str) or not isinstance(parts, Sequence) or not all(isinstance(x, Mapping) for x in parts):
            raise self.error(
                f"{self.owner} is {quoted(given)}",
                'give labels by position, spans such as {"units": [0, 2], "type": "PER"}, or a list of them',
            )
        for part in parts:
            if part.keys() & {"units", "type"}:
                self._read_span(part)
            else:
                for position, wanted in part.items():
                    self._read_label(position, wanted)

    def error(self, problem: str, remedy: str, *, position: int = 0, kind: type[InputError] = InputError) -> InputError:
        """An error about the clamp, with its file and line if it comes from a file."""
        if self.place is None:
            return kind(problem, remedy=remedy)
        line = self.place.line + position * self.place.lines_per_unit
        return kind(problem, path=self.place.path, line=line, remedy=remedy)

    def _read_label(self, place: Any, wanted: Any) -> None:
        num_units, position = len(self.labels), whole_number(place)
        if position is None or not 0 <= position < num_units:
            raise self.error(
                f"{self.owner} names the position {quoted(place)}, but the sentence has {num_units} unit(s)",
                "count positions from 0",
            )
        names = [wanted] if isinstance(wanted, str) else list(wanted) if isinstance(wanted, Collection) else [wanted]
        if not names:
            raise self.error(
                f"{self.owner} allows no label at position {position}", "allow a label there", position=position
            )
        # A label is first looked up in the output's scheme, then in the model's own.
        printed: set[str] = set()
        others: set[int] = set()
        for name in names:
            if isinstance(name, str) and self.output.ids(self.output.canonical(name)):
                printed.add(self.output.canonical(name))
            else:
                others.add(self._model_id(name, position))
        ids = {index for name in printed for index in self.output.ids(name)}
        if self.pairs is not None and position == 0:
            ids = set(self.output.prints_at_the_start(printed).nonzero()[:, 0].tolist())
        elif self.pairs is not None:
            after = self.output.prints_after(printed)
            after[:, list(others)] = True
            self.pairs[position - 1] &= after
        self._allow(position, ids | others, names)

    def _read_span(self, span: Mapping[Any, Any]) -> None:
        num_units, units, kind = len(self.labels), span.get("units"), span.get("type")
        if not isinstance(units, Sequence | np.ndarray) or isinstance(units, str) or len(units) != 2:
            units = None
        if span.keys() != {"units", "type"} or units is None or not isinstance(kind, str):
            raise self.error(
                f"{self.owner} has the span {quoted(dict(span))}", 'give {"units": [start, end], "type": "PER"}'
            )
        start, end = map(whole_number, units)
        if start is None or end is None or not 0 <= start < end <= num_units:
            raise self.error(
                f"{self.owner} has a span of the units {quoted(list(units))}, but the sentence has {num_units} unit(s)",
                "count units from 0; end is the position after the last unit",
            )
        if self.output.source is LabelScheme.PLAIN:
            raise self.error(
                f"{self.owner} has a span, but this model's labels do not mark spans", "give a label instead"
            )
        labels = encode_spans([LabelledSpan(start, end, kind)], num_units, self.output.source)
        for position in range(start, end):
            label = labels[position]
            if label not in self.output.model_labels:
                kinds = sorted({x[2:] for x in self.output.model_labels if x[1:2] == "-"})
                if kind in kinds:
                    raise self.error(
                        f"{self.owner} has a {kind} span of {end - start} unit(s), for which this model has no labels",
                        "give another span",
                        position=position,
                    )
                raise self.error(
                    f"{self.owner} has a span of the type {quoted(kind)}, which this model does not have",
                    f"use one of its types: {', '.join(kinds)}",
                    position=position,
                )
            self._allow(position, {self.output.model_labels.index(label)}, [kind])

    def _allow(self, position: int, ids: set[int], names: Sequence[Any]) -> None:
        before = self.labels[position].clone()
        only = torch.zeros_like(before)
        only[list(ids)] = True
        self.labels[position] &= only
        if not self.labels[position].any():
            shown = " or ".join(sorted(map(str, names)))
            cannot = "no sentence can begin with that" if before.all() else "it also requires another label there"
            raise self.error(
                f"{self.owner} has {shown} at position {position}, but {cannot}",
                "remove one of them" if not before.all() else "relax the clamp",
                position=position,
                kind=NoLegalSequenceError,
            )

    def _model_id(self, name: Any, position: int) -> int:
        labels = self.output.model_labels
        if isinstance(name, str) and name in labels:
            return labels.index(name)
        near = difflib.get_close_matches(quoted(name), self.output.names, n=1, cutoff=0.0)
        raise self.error(
            f"{self.owner} names the label {quoted(name)}, which this model does not have",
            f"use one of its labels, such as {near[0]}" if near else "use one of its labels",
            position=position,
        )

    def result(self, legality: Legality | None) -> Allowed:
        """What the clamp allows, after checking that a legal sequence satisfies it."""
        if legality is not None and len(self.labels):
            self._check_possible(legality)
        has_pairs = self.pairs is not None and not bool(self.pairs.all())
        return Allowed(self.labels, self.pairs if has_pairs else None)

    def _check_possible(self, legality: Legality) -> None:
        """Raise an error unless a legal sequence satisfies the clamp, by tracking the labels reachable at each position."""
        reachable = legality.starts.cpu()
        transitions, ends = legality.transitions.cpu(), legality.ends.cpu()
        for position in range(len(self.labels)):
            if position:
                possible = transitions if self.pairs is None else transitions & self.pairs[position - 1]
                reachable = possible[reachable].any(0)
            reachable = reachable & self.labels[position]
            if position == len(self.labels) - 1:
                reachable = reachable & ends
            if not reachable.any():
                raise self.error(
                    f"no legal sequence of labels satisfies {self.owner} up to position {position}",
                    "relax the clamp",
                    position=position,
                    kind=NoLegalSequenceError,
                )


SentenceLike = Sequence[str] | Sentence


class Request(NamedTuple):
    """A sentence as the user gave it, as the model sees it, and the labels its units may have."""

    units: tuple[str, ...]
    prepared: Sentence
    allowed: Allowed | None
    """None allows all"""

    @property
    def num_units(self) -> int:
        """The length of the sentence."""
        return len(self.units)

    @property
    def document(self) -> int:
        """The number of its document, 0 for none."""
        return self.prepared.document


def in_documents(requests: Iterable[Request]) -> Iterator[Request]:
    """The requests with their documents numbered, and long documents cut, as in training."""
    before, after = itertools.tee(requests)
    for request, prepared in zip(before, cut_documents(request.prepared for request in after), strict=True):
        yield request._replace(prepared=prepared)


class RequestReader:
    """Turns user input into requests; an `InputError` names the sentence (counted from 1) and the unit (from 0)."""

    def __init__(self, task: Task, data: DataConfig, legality: Legality | None, output: OutputLabels) -> None:
        self._task = task
        self._prepare = data.prepare
        self._legality = legality
        self._output = output

    def __call__(
        self,
        sentences: Iterable[SentenceLike],
        clamps: Iterable[Clamp | PlacedClamp | None] | None,
        documents: Iterable[Hashable] | None,
        output: OutputLabels,
    ) -> Iterator[Request]:
        """Yield requests one by one, reading the input lazily.

        ``output`` is the scheme of the labels in clamps, except for clamps from files, which are in the training data's scheme.
        """
        if documents is not None and (isinstance(documents, str) or not _is_iterable(documents)):
            raise InputError(
                "documents must be given per sentence", remedy="give a list of names, one for each sentence"
            )
        if isinstance(sentences, str | bytes | Mapping) or not _is_iterable(sentences):
            raise InputError("sentences must be given as a list", remedy="put the sentence into a list")
        if clamps is not None and (isinstance(clamps, str | Mapping) or not _is_iterable(clamps)):
            raise InputError(
                "clamps must be given per sentence", remedy="give a list of mappings, one for each sentence"
            )
        if documents is not None:
            sentences = self._with_documents(sentences, documents)
        return self._read(sentences, clamps, output)

    def _with_documents(self, sentences: Iterable[SentenceLike], documents: Iterable[Hashable]) -> Iterator[Sentence]:
        """The sentences with their documents' names replaced by numbers; None means no document."""
        names = iter(documents)
        number_of = DocumentNumbers()
        number = 0
        for number, sentence in enumerate(sentences, 1):
            name = next(names, self)
            if name is self:
                raise InputError(
                    f"there are fewer documents than sentences: none for sentence {number}",
                    remedy="give None for a sentence without a document",
                )
            yield Sentence(self._units(sentence, number), document=number_of(name))
        if next(names, self) is not self:
            raise InputError(f"there are more documents than sentences ({number})", remedy="give one per sentence")

    def _read(
        self,
        sentences: Iterable[SentenceLike],
        clamps: Iterable[Clamp | PlacedClamp | None] | None,
        output: OutputLabels,
    ) -> Iterator[Request]:
        known: Iterator[Clamp | PlacedClamp | None] = itertools.repeat(None) if clamps is None else iter(clamps)
        number = 0
        for number, sentence in enumerate(sentences, 1):
            units = self._units(sentence, number)
            try:
                clamp = next(known)
            except StopIteration:
                raise InputError(
                    f"there are fewer clamps than sentences: none for sentence {number}",
                    remedy="give None for a sentence without known labels",
                ) from None
            meaning = self._output if isinstance(clamp, PlacedClamp) else output
            allowed = None
            if clamp is not None and clamp != {}:
                allowed = _ClampReader(clamp, len(units), meaning, sentence=number).result(self._legality)
            given = sentence.document if isinstance(sentence, Sentence) else 0
            document = int(given) if isinstance(given, bool) else whole_number(given)
            if document is None or not 0 <= document <= MOST_DOCUMENTS:
                raise InputError(
                    f"the document of sentence {number} is {quoted(given)}",
                    remedy="give a number from 1, or 0 for none",
                )
            yield Request(units, self._prepare(Sentence(units, document=document)), allowed)
        if clamps is not None and next(known, self) is not self:
            raise InputError(f"there are more clamps than sentences ({number})", remedy="give one per sentence")

    def _units(self, sentence: SentenceLike, number: int) -> tuple[str, ...]:
        given = sentence.units if isinstance(sentence, Sentence) else sentence
        if isinstance(sentence, str) and self._task is not Task.SEG_POS:
            raise InputError(f"sentence {number} is a string", remedy='split it into words, such as ["a", "b"]')
        if isinstance(given, bytes | Mapping | Set) or not _is_iterable(given):
            raise InputError(f"sentence {number} is {quoted(given)}", remedy='give a list of words, such as ["a", "b"]')
        units = tuple(given)
        try:
            # The fastest way to find out whether all are strings.
            text = "".join(units)
            if all(units) and (text.isascii() or is_encodable(text)):
                return units
        except TypeError:
            pass
        for position, unit in enumerate(units):
            if not isinstance(unit, str) or not unit or not is_encodable(unit):
                raise InputError(
                    f"unit {position} of sentence {number} is {quoted(unit)}",
                    remedy="give strings that are not empty, without halves of surrogate pairs",
                )
        return units
