"""Score two files against each other, sentence by sentence: the work of ``dmf score``.

Both must hold the same sentences with the same units; for Seg-POS the same characters, with any segmentation into words.
The scheme of the gold file is detected, and its irregular tags are repaired. Predictions may be malformed, so that their scheme
cannot be detected: it is the gold file's scheme or given explicitly, and malformed fragments are not spans.
"""

from __future__ import annotations

import itertools
import os
import unicodedata
from collections.abc import Callable, Iterable, Iterator

from diffusion_mf.data.conllu import ConlluColumn
from diffusion_mf.data.corpus import Task, re_encode, repaired_labels, to_characters, to_words
from diffusion_mf.data.files import DETECTED, FieldChoice, Rereadable, StrPath
from diffusion_mf.data.formats import FileFormat, FormatOptions, read_source, task_format
from diffusion_mf.data.label_schemes import LabelError, LabelScheme, detect_scheme, parse_label
from diffusion_mf.data.repair import Repairs
from diffusion_mf.data.sentence import Sentence
from diffusion_mf.errors import InputError
from diffusion_mf.evaluation.reconstruction import NO_LABEL
from diffusion_mf.evaluation.report import Report, TaskScorer


def score_files(
    gold_path: StrPath,
    predicted_path: StrPath,
    task: Task,
    *,
    scheme: LabelScheme | None = None,
    column: ConlluColumn | None = None,
    file_format: FileFormat | None = None,
    fields: FieldChoice = DETECTED,
    train_path: StrPath | None = None,
    strict: bool = False,
    note: Callable[[str], None] = lambda message: None,
) -> Report:
    """Score the labels of one file against those of another; memory does not grow with the files.

    ``scheme`` is that of the predictions, and of the gold file if it cannot be detected there; by default both have the
    scheme detected in the gold file. ``column`` is for CoNLL-U (default UPOS, for Seg-POS XPOS). ``train_path`` gives the
    vocabulary for the scores of known and unknown forms. ``note`` receives a message about repairs in the gold file;
    with ``strict`` they are an error instead.
    """
    if [os.fspath(path) for path in (gold_path, predicted_path, train_path) if path is not None].count("-") > 1:
        raise InputError("only one of the files can be standard input", remedy="give files for the others")
    gold, predicted = (
        _LabelledFile(path, task, column, file_format, fields, strict=strict) for path in (gold_path, predicted_path)
    )
    gold_sentences: Iterable[Sentence]
    gold_scheme = predicted_scheme = task.scheme
    has_schemes = task is not Task.POS and None in (gold.scheme, predicted.scheme)
    if has_schemes and scheme is not LabelScheme.PLAIN:
        # The scheme depends on the labels of the whole file, so it is read twice.
        gold_sentences = Rereadable(gold_path, lambda _: gold.sentences())
        gold_scheme = gold.scheme or _gold_scheme(gold, gold_sentences, given=scheme)
        predicted_scheme = predicted.scheme or scheme or gold_scheme
    elif scheme in (None, task.scheme):
        gold_sentences = gold.sentences()
    else:
        raise InputError(f"labels of the task {task} cannot be in the scheme {scheme}", remedy="leave out --scheme")
    scorer = TaskScorer(
        task,
        gold_scheme,
        predicted_scheme=predicted_scheme,
        vocabulary=None
        if train_path is None
        else _forms(_LabelledFile(train_path, task, column, file_format, fields, strict=strict)),
    )
    known: set[str] = {NO_LABEL}
    for gold_sentence, predicted_sentence in _pairs(gold, gold_sentences, predicted):
        gold_labels, predicted_labels = gold.labels(gold_sentence), predicted.labels(predicted_sentence)
        if predicted_scheme is not LabelScheme.PLAIN and not known.issuperset(predicted_labels):
            predicted.check_labels(predicted_sentence, predicted_scheme)
            known.update(predicted_labels)
        try:
            try:
                scorer.update(gold_labels, predicted_labels, gold_sentence.units)
            except LabelError:
                if gold.repairs is None or task is Task.POS:
                    raise
                legal = gold.repaired(gold_sentence, gold_scheme)
                scorer.update(legal, predicted_labels, gold_sentence.units)
        except LabelError as error:
            raise InputError(
                f"{error}, and gold labels must be legal",
                path=gold_path,
                line=gold.line(gold_sentence, error.index),
                remedy="correct the label or choose another --column or --scheme",
            ) from None
    if gold.repairs is not None and (message := gold.repairs.describe()):
        note(message)
    return scorer.result()


class _LabelledFile:
    """The sentences of a file unchanged, except that words become characters where the task is about characters."""

    def __init__(
        self,
        path: StrPath,
        task: Task,
        column: ConlluColumn | None,
        file_format: FileFormat | None,
        fields: FieldChoice,
        *,
        strict: bool,
    ) -> None:
        self.path = path
        self.repairs = None if strict else Repairs(path)
        self.task = task
        self.fields = fields
        self.file_format = task_format(path, task, file_format=file_format)
        self.column = column or (ConlluColumn.XPOS if task is Task.SEG_POS else ConlluColumn.UPOS)
        self.scheme: LabelScheme | None = None
        """that of labels made from words; None if the file's own labels decide"""
        if task is Task.SEG_POS and self.file_format is FileFormat.CONLLU:
            self.scheme = task.scheme

    def raw_sentences(self, *, needs_labels: bool = False) -> Iterator[Sentence]:
        options = FormatOptions(
            column=self.column,
            fields=self.fields,
            task=self.task,
            # A sentence never ends inside a span, so that files with different spans may have different sentences.
            use_sentences=False,
            needs_labels=needs_labels,
        )
        if self.repairs is not None:
            self.repairs.restart()
        return read_source(self.path, self.file_format, options, repairs=self.repairs).sentences

    def sentences(self) -> Iterator[Sentence]:
        sentences = self.raw_sentences(needs_labels=True)
        return sentences if self.scheme is None else to_characters(sentences)

    def line(self, sentence: Sentence, index: int) -> int:
        return sentence.line + (index if self.file_format is FileFormat.COLUMNS else 0)

    def labels(self, sentence: Sentence) -> tuple[str, ...]:
        if sentence.labels is None:
            raise InputError("no labels", path=self.path, line=sentence.line, remedy="use a labelled file")
        return sentence.labels

    def repaired(self, sentence: Sentence, scheme: LabelScheme) -> list[str]:
        """Irregular gold labels made legal; `LabelError` if they cannot be repaired."""
        if self.repairs is None:
            raise AssertionError("nothing is repaired in strict mode")
        lines_per_unit = 1 if self.file_format is FileFormat.COLUMNS else 0
        return repaired_labels(
            self.labels(sentence), scheme, self.repairs, line=sentence.line, lines_per_unit=lines_per_unit
        )

    def check_labels(self, sentence: Sentence, scheme: LabelScheme) -> None:
        for index, label in enumerate(self.labels(sentence)):
            if label == NO_LABEL:
                continue
            try:
                parse_label(label, scheme)
            except ValueError as error:
                raise InputError(
                    str(error),
                    path=self.path,
                    line=self.line(sentence, index),
                    remedy=f"specify the predictions' scheme with --scheme, or write {NO_LABEL} for a unit without a label",
                ) from None


def _gold_scheme(gold: _LabelledFile, sentences: Iterable[Sentence], *, given: LabelScheme | None) -> LabelScheme:
    """The detected scheme, or the given one if the labels contradict each other or are all O."""
    try:
        is_unit_per_line = gold.file_format is FileFormat.COLUMNS
        detected = detect_scheme(sentences, path=gold.path, is_unit_per_line=is_unit_per_line)
    except InputError:
        if given is None:
            raise
        return given
    return detected if detected is not LabelScheme.PLAIN else given or LabelScheme.BMES


def _pairs(
    gold: _LabelledFile, gold_sentences: Iterable[Sentence], predicted: _LabelledFile
) -> Iterator[tuple[Sentence, Sentence]]:
    """Pairs of corresponding sentences; `InputError` where the files differ."""
    remedy = "score files with the same sentences in the same order"
    for number, (one, other) in enumerate(itertools.zip_longest(gold_sentences, predicted.sentences())):
        if other is None:
            raise InputError(
                f"ends after {_counted(number, 'sentence')}, but {gold.path} continues on line {one.line}",
                path=predicted.path,
                remedy=remedy,
            )
        if one is None:
            raise InputError(
                f"continues, but {gold.path} ends after {_counted(number, 'sentence')}",
                path=predicted.path,
                line=other.line,
                remedy=remedy,
            )
        if one.units != other.units:
            _refuse_units(gold, one, predicted, other, remedy)
        yield one, other


def _refuse_units(gold: _LabelledFile, one: Sentence, predicted: _LabelledFile, other: Sentence, remedy: str) -> None:
    kind = "character" if gold.task is Task.SEG_POS else "unit"
    # A missing unit shifts all that follow, so that the count is more informative than the first difference.
    if len(one.units) != len(other.units):
        raise InputError(
            f"a sentence has {_counted(len(other.units), kind)}, but {len(one.units)} on line {one.line} of {gold.path}",
            path=predicted.path,
            line=other.line,
            remedy=remedy,
        )
    pairs = enumerate(zip(one.units, other.units, strict=True))
    different = next(index for index, (left, right) in pairs if left != right)
    left, right = one.units[different], other.units[different]
    composition = ""
    if unicodedata.normalize("NFC", left) == unicodedata.normalize("NFC", right):
        composition = " in another Unicode composition"
        remedy = "convert both files to the same one, such as NFC"
    raise InputError(
        f"{kind} {different + 1} of the sentence is {right!r}, "
        f"but {left!r}{composition} on line {gold.line(one, different)} of {gold.path}",
        path=predicted.path,
        line=predicted.line(other, different),
        remedy=remedy,
    )


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _forms(train: _LabelledFile) -> set[str]:
    sentences = train.raw_sentences()
    if train.task is Task.SEG_POS and train.file_format is not FileFormat.CONLLU:
        is_unit_per_line = train.file_format is FileFormat.COLUMNS
        legal = re_encode(
            sentences,
            train.task.scheme,
            None,
            path=train.path,
            is_unit_per_line=is_unit_per_line,
            repairs=train.repairs,
        )
        sentences = to_words(legal, path=train.path)
    return {form for sentence in sentences for form in sentence.units}
