"""A labelled corpus in memory, and the conversion of a file's labels to those of a task."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from diffusion_mf.data.columns import ColumnLayout
from diffusion_mf.data.files import StrPath
from diffusion_mf.data.label_schemes import (
    NAME_SCHEME,
    LabelError,
    LabelScheme,
    characters_of_words,
    convert_labels,
    encode_spans,
    is_label,
    parse_label,
    repair_spans,
    split_label,
    words_of_characters,
)
from diffusion_mf.data.repair import Repair, Repairs, describe_span, refuse
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

    ``source_scheme`` is the scheme in which users read results: that of the file's labels. ``layout`` is the layout of a column
    file (None for other formats). ``repaired`` is a message about the repairs made, None if there were none.
    """

    path: StrPath
    task: Task
    sentences: tuple[Sentence, ...]
    source_scheme: LabelScheme
    layout: ColumnLayout | None = None
    repaired: str | None = None

    @property
    def scheme(self) -> LabelScheme:
        """The scheme of these labels."""
        return self.task.scheme

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
                    f"{sentence.units[index]!r} has no label (found {label})",
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
    repairs: Repairs | None = None,
) -> Iterator[Sentence]:
    """Stream ``sentences`` with their labels in another scheme, or only check them if ``target`` is None.

    With ``repairs``, illegal sequences are repaired (see `repaired_labels`).
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
                labels = convert_labels(labels, source, target)
            except LabelError:
                if repairs is None or source is LabelScheme.PLAIN:
                    raise
                legal = repaired_labels(labels, source, repairs, line=sentence.line, lines_per_unit=lines_per_unit)
                labels = convert_labels(legal, source, target)
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
            if not is_label(labels[index], scheme) or parse_label(labels[index], scheme) != parse_label(
                legal[index], scheme
            ):
                text = describe_span(labels[start:end], legal[start:end])
                repairs.add(Repair.TAGS, line + index * lines_per_unit, text)
                break
    return legal


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
            words, tags = words_of_characters(characters.units, characters.labels)
        except LabelError as error:
            raise InputError(
                f"unit {error.index + 1}: {error}",
                path=path,
                line=characters.line,
                remedy="give every character a boundary–tag label, as in B-NN E-NN S-PU",
            ) from None
        yield characters._replace(units=tuple(words), labels=tuple(tags))
