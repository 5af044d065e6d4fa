"""A labelled corpus in memory, and the conversion of a file's labels to those of a task."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from diffusion_mf.data.columns import ColumnLayout
from diffusion_mf.data.files import StrPath
from diffusion_mf.data.label_schemes import (
    NAME_SCHEME,
    Boundary,
    LabelError,
    LabelScheme,
    characters_of_words,
    check_sequence,
    encode_spans,
    extract_spans,
    format_label,
    parse_label,
    repair_spans,
    split_label,
    words_of_characters,
)
from diffusion_mf.data.repair import Repairs, refuse
from diffusion_mf.data.sentence import Sentence
from diffusion_mf.errors import InputError


class Task(enum.StrEnum):
    """The paper's three tasks; the value is the name used on the command line and in configuration files."""

    POS = "pos"
    NER = "ner"
    SEG_POS = "seg-pos"

    @property
    def scheme(self) -> LabelScheme:
        """The scheme of the task's labels, independent of the file's: plain for POS, BMES for the others."""
        return LabelScheme.PLAIN if self is Task.POS else LabelScheme.BMES


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """The sentences of one file with the labels of ``task``.

    ``scheme`` is the scheme of these labels (`Task.scheme`), ``source_scheme`` the file's, ``layout`` the layout of a column file
    (None for other formats). ``repaired`` is a message about the repairs made, None if there were none.
    """

    path: StrPath
    task: Task
    sentences: tuple[Sentence, ...]
    scheme: LabelScheme
    source_scheme: LabelScheme
    layout: ColumnLayout | None = None
    repaired: str | None = None

    def __len__(self) -> int:
        return len(self.sentences)

    def __iter__(self) -> Iterator[Sentence]:
        return iter(self.sentences)

    def unit_line(self, sentence: Sentence, index: int) -> int:
        """The line of a unit for messages: its own in a column file, otherwise the first of its sentence."""
        return sentence.line + (0 if self.layout is None else index)


def missing_labels(corpus: Corpus) -> Iterator[InputError]:
    """An error for every unit without a usable label: ``_``, and in Seg-POS a character outside words."""
    labels = {label for sentence in corpus for label in sentence.labels or ()}
    if corpus.task is Task.SEG_POS:
        bad = {label for label in labels if label == "O" or split_label(label)[1] == "_"}
    else:
        bad = labels & {"_"}
    if not bad:
        return
    for sentence in corpus:
        for index, label in enumerate(sentence.labels or ()):
            if label in bad:
                yield InputError(
                    f"{sentence.units[index]!r} has no label, but {label}",
                    path=corpus.path,
                    line=corpus.unit_line(sentence, index),
                    remedy="give every unit a label, or remove the sentence",
                )


def check_labels(corpus: Corpus) -> None:
    """Raise `InputError` at the first unit without a usable label."""
    for error in missing_labels(corpus):
        raise error


def re_encode(
    sentences: Iterable[Sentence],
    source: LabelScheme,
    target: LabelScheme | None,
    *,
    path: StrPath,
    is_unit_per_line: bool,
    check: bool = True,
    repairs: Repairs | None = None,
) -> Iterator[Sentence]:
    """Stream ``sentences`` with their labels in another scheme, or only check them if ``target`` is None.

    With ``repairs``, illegal sequences are repaired (see `repaired_labels`). Without ``check``, a sequence may be illegal as long
    as its labels are of the scheme: conversion between closed schemes keeps it malformed, and open schemes are read as in
    conlleval.
    """
    for sentence in sentences:
        labels: Sequence[str] | None = sentence.labels
        # O means the same in every scheme, and many sentences have no other label.
        if labels is None or labels.count("O") == len(labels):
            yield sentence
            continue
        lines_per_unit = 1 if is_unit_per_line else 0
        try:
            try:
                labels = _convert(labels, source, target, check=check)
            except LabelError:
                if repairs is None or not check or source is LabelScheme.PLAIN:
                    raise
                legal = repaired_labels(labels, source, repairs, line=sentence.line, lines_per_unit=lines_per_unit)
                labels = _convert(legal, source, target, check=True)
        except LabelError as error:
            refuse(
                repairs,
                InputError(
                    str(error),
                    path=path,
                    line=sentence.line + error.index * lines_per_unit,
                    remedy=f"correct the tag or {NAME_SCHEME}",
                ),
            )
            continue
        yield sentence._replace(labels=tuple(labels))


def repaired_labels(
    labels: Sequence[str], scheme: LabelScheme, repairs: Repairs, *, line: int, lines_per_unit: int
) -> list[str]:
    """Irregular gold labels made legal in ``scheme``, reporting each changed span; `LabelError` for a malformed label.

    ``line`` is the line of the sentence. Letters of other schemes are understood too (see `label_schemes.repair_spans`).
    """
    spans = repair_spans(labels)
    legal = encode_spans(spans, len(labels), scheme)
    for start, end, _ in spans:
        for index in range(start, end):
            if not _is_same(labels[index], legal[index], scheme):
                repairs.add_span(line + index * lines_per_unit, labels[start:end], legal[start:end])
                break
    return legal


def _is_same(label: str, legal: str, scheme: LabelScheme) -> bool:
    try:
        return parse_label(label, scheme) == parse_label(legal, scheme)
    except ValueError:
        return False


def _convert(labels: Sequence[str], source: LabelScheme, target: LabelScheme | None, *, check: bool) -> Sequence[str]:
    if source is LabelScheme.PLAIN and target in (None, LabelScheme.PLAIN):
        return labels
    if LabelScheme.PLAIN in (source, target):
        raise LabelError(f"labels of the scheme {source} cannot be converted to {target}", 0)
    if check:
        check_sequence(labels, source)
    parsed: list[tuple[Boundary, str]] = []
    for index, label in enumerate(labels):
        try:
            parsed.append(parse_label(label, source))
        except ValueError as error:
            raise LabelError(str(error), index) from None
    if target is None:
        return labels
    if source.is_closed and target.is_closed:
        # Label by label; also from BMES to BMES, where I becomes M.
        return [format_label(boundary, kind, target) for boundary, kind in parsed]
    return encode_spans(extract_spans(labels, source), len(labels), target)


def to_characters(sentences: Iterable[Sentence]) -> Iterator[Sentence]:
    """Stream words as characters, with boundary–tag labels (BMES) if the words have tags."""
    for words in sentences:
        if words.labels is None:
            yield words._replace(units=tuple("".join(words.units)))
        else:
            characters, labels = characters_of_words(words.units, words.labels)
            yield words._replace(units=tuple(characters), labels=tuple(labels))


def to_words(sentences: Iterable[Sentence], *, path: StrPath) -> Iterator[Sentence]:
    """Stream characters with boundary–tag labels as words with tags; the inverse of `to_characters`."""
    for characters in sentences:
        if characters.labels is None:
            raise InputError(
                "there are no labels that mark where words end",
                path=path,
                line=characters.line,
                remedy="label the characters first",
            )
        try:
            check_sequence(characters.labels, LabelScheme.BMES)
            words, tags = words_of_characters(characters.units, characters.labels)
        except LabelError as error:
            raise InputError(
                f"unit {error.index + 1}: {error}",
                path=path,
                line=characters.line,
                remedy="give every character a boundary–tag label, as in B-NN E-NN S-PU",
            ) from None
        yield characters._replace(units=tuple(words), labels=tuple(tags))
