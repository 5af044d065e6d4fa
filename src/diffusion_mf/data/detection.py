"""Detects what a labelled file contains: its format, task, label scheme, and whether its units are characters or words.

Tags with span prefixes mean NER. The UPOS column of CoNLL-U, or any other column of repeated tags, means POS tagging. XPOS alone,
in a script without spaces, means segmentation and tagging. If two interpretations are likely, an `InputError` names the option
that decides between them.
"""

from __future__ import annotations

import itertools
import os
import re
import shlex
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from diffusion_mf.data.annotations import read_json_values
from diffusion_mf.data.columns import ColumnLayout, names_a_column, names_forms
from diffusion_mf.data.conllu import ConlluColumn
from diffusion_mf.data.corpus import Task
from diffusion_mf.data.files import DETECTED, FieldChoice, StrPath, read_lines
from diffusion_mf.data.formats import FileFormat, FormatOptions, content_format, input_format, read_source
from diffusion_mf.data.hugging_face import tasks_of_row
from diffusion_mf.data.label_schemes import LabelScheme, detect_scheme, is_boundary_label, split_label
from diffusion_mf.data.repair import Repairs
from diffusion_mf.data.sentence import Sentence
from diffusion_mf.data.tables import check_rows
from diffusion_mf.errors import InputError, shortened

_SCRIPTS_WITHOUT_SPACES = ("CJK", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR", "TIBETAN")
_NUM_SAMPLED = 200
_BARE_BOUNDARIES = frozenset("BIMESLU")
_NUM_KINDS_SHOWN = 4
_NOT_LABELS = frozenset("o0_-")
"""what some files have in place of O"""
_LONGEST_ALONE = 500
"""units: a longer sentence that is a whole file lacks the blank lines between its sentences"""
_ODD_BOUNDARY = re.compile(r"[BIMESLU]_(.+)|[bimeslu][-_](.+)")
"""a span label that is not written as one"""
_OTHER_SPELLING = re.compile(r"([BIMESLU])([-_:./])(.*)|(.+)([-_:./])([BIMESLU])", re.IGNORECASE)
"""a label that may be one of a span if others of its type are spelled in the same way"""
_NUMBER = re.compile(r"\d+(?:[-.]\d+)?")
"""of a unit, also with that of its sentence"""
_NESTED = re.compile(r"[^\w\s-] ?[BIMESLU]-\w")
"""a second span label within a type"""


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
    kinds: tuple[str, ...]
    """the labels without their boundaries, most frequent first"""
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
        number, some = len(self.kinds), self._some_kinds()
        task, other = f"{number:,} label{'s' * (number > 1)}{some}", "(--task)"
        if self.task is Task.NER:
            task = f"spans of {number:,} type{'s' * (number > 1)}{some}, scheme {self.scheme}"
            other = "(--task, --scheme)"
        elif self.task is Task.SEG_POS:
            task = f"words of {number:,} tag{'s' * (number > 1)}{some} from characters"
        elif self.file_format is FileFormat.CONLLU and not self.has_spaces:
            other = "(--task seg-pos would also segment characters into words, using XPOS)"
        return [f"format: {self.file_format}{place} ({options})", f"task: {self.task}, {task} {other}"]

    def _some_kinds(self) -> str:
        """The most frequent labels, which show at a glance whether the right column was read."""
        more = " …" if len(self.kinds) > _NUM_KINDS_SHOWN else ""
        shown = " ".join(map(shortened, self.kinds[:_NUM_KINDS_SHOWN]))
        return f" ({shown}{more})" if shown else ""


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
        options = FormatOptions(column=column, fields=fields, task=task, needs_labels=True)
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
    _check_folder(path)
    found = input_format(path) or content_format(path) or FileFormat.COLUMNS
    if found is FileFormat.TEXT and _is_table(path):
        found = FileFormat.COLUMNS
    if found is FileFormat.TEXT:
        check_rows(_first_lines(path), path, needs_tags=False)
    if found in (FileFormat.TEXT, FileFormat.RAW):
        raise InputError(
            "contains text without labels",
            path=path,
            remedy="write a word and its tag on each line and a blank line after each sentence, or specify the format with --format",
        )
    return found


def _check_folder(path: StrPath) -> None:
    """`InputError` for a folder other than brat's, with the files in it that were probably meant."""
    folder = Path(path)
    if not folder.is_dir() or any(folder.rglob("*.ann")):
        return
    files = sorted(file for file in folder.iterdir() if file.is_file())
    named = {split: [file for file in files if split in file.name.lower()] for split in ("train", "dev", "test")}
    options = {"train": "", "dev": " --dev", "test": " --test"}
    command = "".join(
        f"{options[split]} {shlex.quote(os.fspath(found[0]))}" for split, found in named.items() if len(found) == 1
    )
    raise InputError(
        "this is a folder, and not one of brat, which would have .ann files",
        path=path,
        remedy=f"name its files: dmf train{command}" if len(named["train"]) == 1 else "name a labelled file",
    )


def exchanged_columns(layout: ColumnLayout, units: Collection[str], tags: Iterable[str]) -> tuple[str, str] | None:
    """The problem and its remedy if what is read as words are labels of spans, and what is read as tags are not."""
    typed = min(set(units) - {"O"}, default=None)
    if layout.tag_column is None or typed is None:
        return None
    if not all(map(is_boundary_label, units)) or all(map(is_boundary_label, tags)):
        return None
    form, tag = layout.form_column + 1, layout.tag_column + 1
    return (
        f"column {form}, read as that of the words, contains only tags such as {typed}",
        f"choose the columns, as in --form-column {tag} --tag-column {form}",
    )


def numbers_as_forms(layout: ColumnLayout, units: Iterable[str], others: Collection[int]) -> tuple[str, str] | None:
    """The problem and its remedy if what is read as words are numbers, and the columns ``others`` may contain the words."""
    if not others or not all(map(_NUMBER.fullmatch, units)):
        return None
    return (
        f"column {layout.form_column + 1}, read as that of the words, contains only numbers",
        f"choose that of the words with --form-column {' or '.join(str(column + 1) for column in others)}",
    )


def check_table(path: StrPath) -> None:
    """`InputError` if a file is a table as spreadsheets write it, and neither text nor a column file.

    In its first lines, commas or semicolons separate the same number of values, or all values are in quotation marks, and the last
    values look like tags, or the first row names a column of words and one of tags. A stream that can be read only once passes.
    `read_source` itself checks column files; this is for files that are read as text, or as columns without labels.
    """
    if os.path.isfile(path):
        check_rows(_first_lines(path), path)


def _first_lines(path: StrPath) -> list[str]:
    return [*itertools.islice(read_lines(path, allow_returns=True), _NUM_SAMPLED)]


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
            other = self.layout is not None and self.layout.num_columns > 1
            remedy = "use a labelled file" + ", or choose the column of the tags with --tag-column" * other
            self._refuse("no labels", remedy, unlabelled.line)
        self._check_sentences()
        counts = Counter(_labels(self.sentences))
        self._check_fields(counts)
        has_spaces = self._has_spaces()
        if task is None:
            task = self._task(counts, has_spaces)
        if len(counts) == 1 and (task is Task.POS or "O" in counts):
            self._refuse(
                f"every unit has the label {next(iter(counts))}, so there is nothing to learn",
                "use another file, or choose other labels with --tag-column or --column",
            )
        kinds = Counter({label: count for label, count in counts.items() if label != "O" or task is Task.POS})
        if task is Task.NER or (task is Task.SEG_POS and self.column is None):
            if self.file_format.annotation is not None:
                scheme = LabelScheme.BIO2
            elif scheme is None:
                scheme = detect_scheme(
                    self.sentences, path=self.path, is_unit_per_line=self.layout is not None, repairs=repairs
                )
            typed: Counter[str] = Counter()
            for label, count in kinds.items():
                typed[split_label(label)[1]] += count
            kinds = typed
        return Detection(
            path=self.path,
            file_format=self.file_format,
            task=task,
            column=self.column,
            layout=self.layout,
            scheme=scheme or task.scheme,
            kinds=tuple(kind for kind, _ in sorted(kinds.items(), key=lambda item: (-item[1], item[0]))),
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
        self._check_spelling(kinds, bounded)
        if bounded == kinds or are_bare:
            are_characters = all(len(unit) == 1 for sentence in self.sentences for unit in sentence.units)
            return Task.SEG_POS if are_characters and "O" not in counts and kinds else Task.NER
        if bounded:
            label, place = next(self._places(kinds - bounded))
            if kinds - bounded == {label} and label in _NOT_LABELS:
                self._refuse(
                    f"{label!r}, on {counts[label]:,} unit{'s' * (counts[label] > 1)}, is neither O nor the label of a span",
                    "write O for units outside of spans, or choose --task pos",
                    place,
                )
            if kinds - bounded == {label} and counts[label] == 1:
                self._check_header(label)
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
        label = self.sentences[0].labels[0] if self.sentences[0].labels else ""
        if counts[label] == 1 and self._is_odd(label, counts.keys() - {label}):
            self._check_header(label)
        self._check_repetition(counts)
        return Task.POS

    def _is_odd(self, label: str, others: Collection[str]) -> bool:
        """Whether the label of the first unit may be the name of its column: it, or the unit, is one, or no other is spelled like it."""

        def case(text: str) -> tuple[bool, bool]:
            return text == text.upper(), text == text.lower()

        cases = {case(other) for other in others if any(map(str.isalpha, other))}
        is_name = names_a_column(label) or names_a_column(self.sentences[0].units[0])
        return bool(cases) and (is_name or case(label) not in cases)

    def _check_header(self, label: str) -> None:
        """`InputError` if the first row of a column file has the only ``label``, and its unit occurs nowhere else."""
        line, form = self.sentences[0].line, self.sentences[0].units[0]
        num_forms = sum(sentence.units.count(form) for sentence in self.sentences)
        if self.layout is not None and num_forms == 1 and next(self._places({label}))[1] == line:
            names = f": --form-column {shlex.quote(form)} --tag-column {shlex.quote(label)}"
            if names_forms(label):
                names = " with --form-column and --tag-column"
            self._refuse(
                f"the first line ({form}, {label}) looks like a header", f"remove it, or name its columns{names}", line
            )

    def _check_sentences(self) -> None:
        """`InputError` if the file as a whole is one sentence that no sentence can be."""
        if len(self.sentences) == 1 and len(self.sentences[0].units) > _LONGEST_ALONE:
            self._refuse(
                f"the whole file is one sentence of {len(self.sentences[0].units):,} units",
                "put a blank line after every sentence" if self.layout is not None else "write one sentence per line",
            )

    def _check_fields(self, counts: Counter[str]) -> None:
        """`InputError` if the fields of a table were not meant as they were read."""
        layout = self.layout
        if layout is None or layout.tag_column is None:
            return
        if all(label[0] == label[-1] == '"' and len(label) > 2 for label in counts):
            self._refuse(f"the tags are in quotation marks ({min(counts)})", "write the columns without them")
        units = {unit for sentence in self.sentences for unit in sentence.units}
        spaced = sorted(unit for unit in units if unit.endswith(" ") and unit.strip(" "))
        # Published corpora have a few.
        if 2 * len(spaced) > len(units):
            self._refuse(
                f"most forms end in a space, such as {shortened(spaced[0])!r}", "remove the spaces around forms"
            )
        others = {*range(layout.num_columns)} - {layout.form_column, layout.tag_column}
        if found := numbers_as_forms(layout, units, sorted(others)):
            self._refuse(*found)
        if found := exchanged_columns(layout, units, counts):
            self._refuse(*found)

    def _check_spelling(self, kinds: Collection[str], bounded: Collection[str]) -> None:
        """`InputError` if labels look like those of spans, but are not written as such, or have several spans each."""
        odd = {label: found for label in kinds if (found := _ODD_BOUNDARY.fullmatch(label))}
        if odd and odd.keys() >= set(kinds) - {"o"}:
            label, found = min(odd.items())
            self._refuse(
                f"{label!r} looks like the label of a span, but is not written as one",
                f"write {label[0].upper()}-{found[1] or found[2]}, and O for words outside of spans, or choose --task pos",
            )
        spelled = None if bounded else self._other_spelling(set(kinds) - {"o"})
        if spelled is not None:
            label, written = spelled
            self._refuse(
                f"{label!r} looks like the label of a span, but is not written as one",
                f"write {written}, and O for words outside of spans, or choose --task pos",
            )
        nested = [label for label in bounded if _NESTED.search(split_label(label)[1])]
        if nested:
            label, place = next(self._places(set(nested)))
            self._refuse(
                f"{label!r} looks like the labels of two spans that overlap, but a word can only have one",
                "keep one level of spans, or choose --task ner or --task pos to read every such label as a single one",
                place,
            )

    def _other_spelling(self, labels: Collection[str]) -> tuple[str, str] | None:
        """A label that begins a span in a spelling that most ``labels`` have, and how to write it.

        Tags of single words may look like one boundary, as in ADJ-S, but not like the beginning and the rest of spans of one type.
        """
        spellings: defaultdict[tuple[bool, str], dict[tuple[str, str], str]] = defaultdict(dict)
        for label in labels:
            if found := _OTHER_SPELLING.fullmatch(label):
                is_prefix = found[1] is not None
                letter, separator, kind = found.group(1, 2, 3) if is_prefix else found.group(6, 5, 4)
                spellings[is_prefix, separator][letter.upper(), kind] = label
        for spelled in spellings.values():
            for (letter, kind), label in sorted(spelled.items()):
                continued = any((other, kind) in spelled for other in "IMEL")
                if letter == "B" and continued and 2 * len(spelled) > len(labels):
                    return label, f"B-{kind}" if kind else "B"
        return None

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

    def _refuse(self, problem: str, remedy: str, line: int | None = None) -> NoReturn:
        raise InputError(problem, path=self.path, line=line, remedy=remedy)
