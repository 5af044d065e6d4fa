"""Detects what a labelled file contains: its format, task, label scheme, and whether its units are characters or words.

Tags with span prefixes mean NER. The UPOS column of CoNLL-U, or any other column of repeated tags, means POS tagging. XPOS alone,
in a script without spaces, means segmentation and tagging. If two interpretations are likely, an `InputError` names the option
that decides between them.
"""

from __future__ import annotations

import itertools
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from diffusion_mf.data.annotations import read_json_values
from diffusion_mf.data.columns import ColumnLayout
from diffusion_mf.data.conllu import ConlluColumn
from diffusion_mf.data.corpus import Task
from diffusion_mf.data.files import DETECTED, FieldChoice, StrPath
from diffusion_mf.data.formats import FileFormat, FormatOptions, content_format, input_format, read_source
from diffusion_mf.data.hugging_face import tasks_of_row
from diffusion_mf.data.label_schemes import LabelScheme, detect_scheme, is_boundary_label, split_label
from diffusion_mf.data.repair import Repairs
from diffusion_mf.data.sentence import Sentence
from diffusion_mf.errors import InputError

_SCRIPTS_WITHOUT_SPACES = ("CJK", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR", "TIBETAN")
_NUM_SAMPLED = 200
_BARE_BOUNDARIES = frozenset("BIMESLU")


@dataclass(frozen=True, kw_only=True)
class Detection:
    """What a file contains, as detected or as given by the user."""

    path: StrPath
    file_format: FileFormat
    task: Task
    column: ConlluColumn | None
    """of CoNLL-U"""
    layout: ColumnLayout | None
    scheme: LabelScheme
    """the scheme of the file's labels"""
    num_kinds: int
    """the number of labels without their boundaries"""
    num_sentences: int
    has_spaces: bool
    """whether its script separates words by spaces"""

    def lines(self) -> list[str]:
        """What the user is told, one line per finding, with the options that override it."""
        place, options = "", "--format"
        if self.layout is not None:
            place, options = f", {self.layout.describe()}", "--format, --form-column, --tag-column"
        elif self.column is not None:
            place, options = f", labels in {self.column.upper()}", "--format, --column"
        task, other = f"{self.num_kinds} labels", "(--task)"
        if self.task is Task.NER:
            task, other = f"spans of {self.num_kinds} types, scheme {self.scheme}", "(--task, --scheme)"
        elif self.task is Task.SEG_POS:
            task = f"words of {self.num_kinds} tags from characters"
        elif self.file_format is FileFormat.CONLLU and not self.has_spaces:
            other = "(--task seg-pos would also segment characters into words, using XPOS)"
        return [f"format: {self.file_format}{place} ({options})", f"task: {self.task}, {task} {other}"]


def detect(
    path: StrPath,
    *,
    task: Task | None = None,
    column: ConlluColumn | None = None,
    scheme: LabelScheme | None = None,
    file_format: FileFormat | None = None,
    fields: FieldChoice = DETECTED,
    strict: bool = False,
) -> Detection:
    """Read the labelled file ``path`` and detect everything that is not given."""
    file_format = file_format or _format(path)
    repairs = None if strict else Repairs(path)

    def read(task: Task | None, column: ConlluColumn) -> tuple[tuple[Sentence, ...], ColumnLayout | None]:
        options = FormatOptions(column=column, fields=fields, task=task)
        source = read_source(path, file_format, options, repairs=repairs)
        return tuple(source.sentences), source.layout

    if file_format is FileFormat.CONLLU:
        tried = [column] if column else [ConlluColumn.XPOS] if task is Task.SEG_POS else [*_TAG_COLUMNS]
        for column in tried:
            sentences, layout = read(task, column)
            if any(label != "_" for label in _labels(sentences)):
                break
        else:
            raise InputError(
                f"{' and '.join(each.upper() for each in tried)} contain only _",
                path=path,
                remedy="use a labelled file, or choose another column with --column",
            )
    else:
        column = None
        hint = task
        if file_format is FileFormat.HUGGING_FACE and task is None and fields.tag_column is None:
            hint = _task_of_keys(path)
        sentences, layout = read(hint, ConlluColumn.UPOS)
    return _Reading(path, sentences, layout, file_format, column).detection(task, scheme, repairs)


_TAG_COLUMNS = (ConlluColumn.UPOS, ConlluColumn.XPOS)


def _format(path: StrPath) -> FileFormat:
    found = input_format(path) or content_format(path) or FileFormat.COLUMNS
    if found is FileFormat.TEXT and _is_table(path):
        found = FileFormat.COLUMNS
    if found in (FileFormat.TEXT, FileFormat.RAW):
        raise InputError(
            "contains text without labels",
            path=path,
            remedy="write a word and its tag on each line and a blank line after each sentence, or specify the format with --format",
        )
    return found


def _is_table(path: StrPath) -> bool:
    """Whether rows with spaces between columns are one word each, although their tags look like words."""
    source = read_source(path, FileFormat.TEXT)
    return {len(row.units) for row in itertools.islice(source.sentences, _NUM_SAMPLED)} in ({2}, {3}, {4})


def _task_of_keys(path: StrPath) -> Task | None:
    rows = (row for _, row in read_json_values(path) if isinstance(row, dict))
    # The first object may contain the names of the labels.
    tasks = next(filter(None, map(tasks_of_row, itertools.islice(rows, 2))), [])
    if len(tasks) > 1:
        raise InputError(
            "has tags for both entities and parts of speech", path=path, remedy="choose with --task ner or --task pos"
        )
    return tasks[0] if tasks else None


def _labels(sentences: Iterable[Sentence]) -> Iterator[str]:
    return itertools.chain.from_iterable(sentence.labels or () for sentence in sentences)


@dataclass(frozen=True)
class _Reading:
    """The sentences of a file with their labels unchanged."""

    path: StrPath
    sentences: Sequence[Sentence]
    layout: ColumnLayout | None
    file_format: FileFormat
    column: ConlluColumn | None

    def detection(self, task: Task | None, scheme: LabelScheme | None, repairs: Repairs | None) -> Detection:
        unlabelled = next((sentence for sentence in self.sentences if sentence.labels is None), None)
        if unlabelled is not None:
            self._refuse("no labels", "use a labelled file", unlabelled.line)
        counts = Counter(_labels(self.sentences))
        has_spaces = self._has_spaces()
        if task is None:
            task = self._task(counts, has_spaces)
        if len(counts) == 1 and (task is Task.POS or "O" in counts):
            self._refuse(
                f"every unit has the label {next(iter(counts))}, so there is nothing to learn",
                "use another file, or choose other labels with --tag-column or --column",
            )
        kinds = counts.keys() - {"O"}
        if task is Task.NER or (task is Task.SEG_POS and self.column is None):
            if self.file_format.annotation is not None:
                scheme = LabelScheme.BIO2
            elif scheme is None:
                scheme = detect_scheme(
                    self.sentences, path=self.path, is_unit_per_line=self.layout is not None, repairs=repairs
                )
            kinds = {split_label(label)[1] for label in kinds}
        return Detection(
            path=self.path,
            file_format=self.file_format,
            task=task,
            column=self.column,
            layout=self.layout,
            scheme=scheme or task.scheme,
            num_kinds=len(kinds),
            num_sentences=len(self.sentences),
            has_spaces=has_spaces,
        )

    def _task(self, counts: Counter[str], has_spaces: bool) -> Task:
        if self.file_format.annotation is not None:
            return Task.NER
        if self.column is not None:
            is_segmented = self.column is ConlluColumn.XPOS and not has_spaces
            return Task.SEG_POS if is_segmented else Task.POS
        kinds = counts.keys() - {"O"}
        are_bare = bool(kinds) and kinds <= _BARE_BOUNDARIES and bool(kinds & {"B", "I"})
        bounded = {label for label in kinds if is_boundary_label(label)}
        if bounded == kinds or are_bare:
            are_characters = all(len(unit) == 1 for sentence in self.sentences for unit in sentence.units)
            return Task.SEG_POS if are_characters and "O" not in counts and kinds else Task.NER
        if bounded:
            label, place = next(self._places(kinds - bounded))
            self._refuse(
                f"{label!r} has no span prefix, but {min(bounded)!r} has one: these could be entities or labels of single words",
                "correct it for --task ner, or choose --task pos",
                place,
            )
        if "O" in counts and counts.most_common(1)[0][0] == "O":
            self._refuse(
                f"O and labels without span prefixes ({', '.join(sorted(kinds)[:3])}) could be entities or labels of single words",
                f"write prefixes for entities, as in B-{min(kinds)}, or choose --task pos",
            )
        self._check_repetition(counts)
        return Task.POS

    def _check_repetition(self, counts: Counter[str]) -> None:
        """Raise `InputError` if there are too many labels to be a tag set; they may be words, lemmas or numbers."""
        most = max(100.0, 4 * counts.total() ** 0.5)
        if len(counts) > most or 2 * len(counts) > counts.total() > 20:
            where = (
                ""
                if self.layout is None or self.layout.tag_column is None
                else f" in column {self.layout.tag_column + 1}"
            )
            self._refuse(
                f"{len(counts):,} different labels{where} for {counts.total():,} units are too many to be tags",
                "choose the tags with --tag-column, or confirm them with --task pos",
            )

    def _places(self, labels: set[str]) -> Iterator[tuple[str, int]]:
        for sentence in self.sentences:
            for index, label in enumerate(sentence.labels or ()):
                if label in labels:
                    yield label, sentence.line + (index if self.layout is not None else 0)

    def _has_spaces(self) -> bool:
        sample = (unit for sentence in self.sentences[:_NUM_SAMPLED] for unit in sentence.units)
        letters = [letter for unit in sample for letter in unit if letter.isalpha()]
        without = sum(unicodedata.name(letter, "").startswith(_SCRIPTS_WITHOUT_SPACES) for letter in letters)
        return 2 * without <= len(letters)

    def _refuse(self, problem: str, remedy: str, line: int | None = None) -> None:
        raise InputError(problem, path=self.path, line=line, remedy=remedy)
