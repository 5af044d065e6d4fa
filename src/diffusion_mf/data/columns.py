"""Column files: one unit per line with its tag, sentences separated by blank lines, as in the CoNLL shared tasks."""

from __future__ import annotations

import dataclasses
import enum
import itertools
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import IO, NamedTuple

from diffusion_mf.data.files import (
    BYTE_ORDER_MARK,
    SentenceLimits,
    StrPath,
    check_fields,
    read_lines,
    read_raw_lines,
    refuse_returns,
    with_blank_line,
)
from diffusion_mf.data.label_schemes import is_boundary_label
from diffusion_mf.data.repair import Repairs, refuse
from diffusion_mf.data.sentence import Sentence, begins_document
from diffusion_mf.errors import InputError, shortened

DOCUMENT_START = "-DOCSTART-"
# The character # alone does not make a comment, since it may be a unit.
_COMMENT_START = r"# +(?:[\w.:-]+ += |newdoc(?=\s|$)|newpar(?=\s|$))"
_COMMENT = re.compile(_COMMENT_START)
COLUMN_FIELD = re.compile(rf"(?!{DOCUMENT_START}|{_COMMENT_START})[^\t\n\r\0]+")
_BARE_FIELD = re.compile(rf"(?!{DOCUMENT_START})[^ \t\n\r\0]+")

FREE = "_"
"""the value in the clamp column of a unit whose label is not known"""

# In WebAnno's files.
_DECLARATION = re.compile(r"#[\w.-]+=")
_NEW_DOCUMENT = re.compile(r"# +newdoc(?=\s|$)")
_COLUMN_NAMES = re.compile(r"# +global\.columns += +(.*)")
_SKIPPED_NUMBER = re.compile(r"[0-9]+(-[0-9]+|\.[0-9]+)")
_NUM_HEAD_ROWS = 100
_NEARLY_ALL = 0.9

# Column names found in header lines, in lower case.
_FORM_NAMES = frozenset(["form", "forms", "word", "words", "token", "tokens"])
_TAG_NAMES = frozenset([
    "tag", "tags", "label", "labels", "ner", "ner_tag", "ner_tags", "ner-tag", "ne", "entity", "entities", "iob",
    "iob2", "bio", "bio2", "iobes", "bioes", "bilou", "pos", "pos_tag", "pos_tags", "upos", "xpos", "chunk",
    "chunk_tag", "chunk_tags",
])  # fmt: skip
_OTHER_NAMES = frozenset([
    "id", "index", "number", "no", "#", "lemma", "feats", "head", "deprel", "deps", "misc", "start", "end",
    "doc_id", "document", "source", "annotator",
])  # fmt: skip
_SENTENCE_NAMES = frozenset(["sentence", "sentence_id", "sentence #", "sent_id"])
_KNOWN_NAMES = _FORM_NAMES | _TAG_NAMES | _SENTENCE_NAMES | _OTHER_NAMES


class Separator(enum.StrEnum):
    """The column separator; the value is the name used on the command line."""

    TAB = "tab"
    SPACE = "space"

    def fields_of(self, line: str) -> list[str]:
        """The fields of ``line``: every tab is a separator, a run of spaces is one separator."""
        if self is Separator.TAB:
            return line.split("\t")
        # str.split() would also split at no-break and ideographic spaces, which occur inside units.
        return [field for field in line.split(" ") if field]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ColumnLayout:
    """The layout of a column file; columns count from 0, and ``tag_column`` is None if there are no tags.

    ``number_column`` is the column that numbers the units of a sentence, ``clamp_column`` that of labels known before tagging,
    ``sentence_column`` that of the sentence's name or number, or None. ``header`` is the line of the column names, which joined files
    repeat. With ``has_comments`` a first line of a sentence whose first field is # is a comment, although it has as many fields as a row.
    """

    separator: Separator
    num_columns: int
    form_column: int
    tag_column: int | None
    number_column: int | None = None
    header: str | None = None
    has_comments: bool = False
    clamp_column: int | None = None
    sentence_column: int | None = None

    @property
    def has_header(self) -> bool:
        """Whether a line contains column names."""
        return self.header is not None

    def describe(self) -> str:
        """A description of the layout for the user; columns count from 1."""
        header = " after a header line" if self.has_header else ""
        columns = f"{self.num_columns} {self.separator}-separated"
        if self.tag_column is None:
            return f"{columns} column(s){header}, units in column {self.form_column + 1}, no tags"
        return (
            f"{columns} columns{header}, units in column {self.form_column + 1}, tags in column {self.tag_column + 1}"
        )

    def is_comment(self, line: str, *, is_start: bool) -> bool:
        """Whether a line that begins with # is a comment: it looks like one of CoNLL-U, or is no row.

        ``is_start`` means that no unit of the sentence comes before it.
        """
        if _COMMENT.match(line):
            return True
        fields = self.separator.fields_of(line)
        if len(fields) == self.num_columns:
            return is_start and self.has_comments and fields[0] == "#" and line != self.header
        return line.startswith("# ") or (is_start and (fields[0] == "#" or bool(_DECLARATION.match(line))))

    def is_skipped(self, line: str, *, is_start: bool) -> bool:
        """Whether a line separates sentences."""
        return _is_blank(line) or (line[0] == "#" and self.is_comment(line, is_start=is_start)) or line == self.header

    def is_unit(self, fields: Sequence[str]) -> bool:
        """Whether a row is a unit: as in CoNLL-U, ranges of multi-word tokens (3-4) and empty nodes (5.1) are not."""
        return self.number_column is None or not _SKIPPED_NUMBER.fullmatch(fields[self.number_column])

    def begins_sentence(self, first: Sequence[str], previous: Sequence[str], fields: Sequence[str]) -> str | None:
        """How a row shows that it is of another sentence than the ``first`` and the ``previous`` row; None if it does not."""
        if self.number_column is not None:
            number = fields[self.number_column]
            if number == first[self.number_column] != previous[self.number_column]:
                return f"the numbers of the units start again at {number} without a blank line before"
        if self.sentence_column is not None:
            old, new = first[self.sentence_column], fields[self.sentence_column]
            if new not in ("", "_", old):
                return f"another sentence ({shortened(new)} after {shortened(old)}) begins without a blank line before"
        return None

    def lacks_form(self, line: str, num_fields: int) -> bool:
        """Whether a line with spaces between columns is a tag without a form: it begins with a space and lacks one field."""
        has_blanks = self.separator is Separator.SPACE and self.tag_column is not None
        return has_blanks and self.form_column == 0 and num_fields == self.num_columns - 1 and line[0] == " "


def names_a_column(field: str) -> bool:
    """Whether ``field`` is a common name for a column of forms or tags."""
    return field.lower() in _FORM_NAMES | _TAG_NAMES


def names_forms(field: str) -> bool:
    """Whether ``field`` is a common name for a column of forms."""
    return field.lower() in _FORM_NAMES


def _plain(name: str) -> str:
    """A column's name as it is compared: the # at the beginning of a header line may be part of it or not."""
    return name.lstrip("# ").lower()


def detect_layout(
    path: StrPath,
    *,
    lines: Iterable[str] | None = None,
    separator: Separator | None = None,
    form_column: str | None = None,
    tag_column: str | None = None,
    clamp_column: str | None = None,
    may_add_tag: bool = False,
) -> ColumnLayout:
    """Detect what is not given; columns are given by number (from 1) or by their name in a header line.

    With ``may_add_tag``, the number after the last is a tag column that is still to be added.

    If the first row has a tab, tabs separate columns. The names in a header line or a comment ``# global.columns =`` identify the
    columns of forms and tags; if all are common names and none is that of tags, there are none. Otherwise the form is the first column,
    or the second if the first numbers the units of each sentence; the tag is the last, except in numbered rows with several columns
    after the form, where it is the column of boundary labels. ``lines`` are the first lines of a file that cannot be read twice.
    """
    head = read_head(read_column_lines(path) if lines is None else iter(lines), path)
    return _Head(head, path, separator).layout(form_column, tag_column, clamp_column, may_add_tag=may_add_tag)


class _Head:
    """The first rows of a file, from which its columns are detected."""

    def __init__(self, lines: Sequence[str], path: StrPath, separator: Separator | None) -> None:
        self.path = path
        numbered = [(number, line) for number, line in enumerate(lines, 1) if not _is_blank(line)]
        self.lines = lines
        # Until the number of columns is known, lines that begin with # are rows only if there are no others.
        rows = [(number, line) for number, line in numbered if line[0] != "#"]
        rows = rows or [(number, line) for number, line in numbered if not _COMMENT.match(line)]
        if not rows:
            raise InputError("contains no sentences", path=path, remedy="check that this is the right file")
        self.line, first = rows[0]
        # A first row of one field may lack the others.
        has_tabs = "\t" in first or (" " not in first and any("\t" in line for _, line in rows))
        self.separator = separator or (Separator.TAB if has_tabs else Separator.SPACE)
        self.first = self.separator.fields_of(first)
        self.num_columns = len(self.first)
        declared = (_COLUMN_NAMES.match(line) for _, line in numbered)
        self.names = next((found[1].split() for found in declared if found), None)
        # The first sentence shows numbering, which restarts in each; all rows show tags.
        after = itertools.takewhile(lambda line: not _is_blank(line), lines[self.line - 1 :])
        self.sentence = [self.separator.fields_of(line) for line in after if line[0] != "#"]
        self.rows = [self.separator.fields_of(line) for _, line in rows]
        self._check_first()

    def _check_first(self) -> None:
        """`InputError` if the first row alone lacks columns, so that its own line is named and not those after it."""
        others = {len(row) for row in self.rows[1:]}
        if len(self.rows) > 2 and len(others) == 1 and (usual := others.pop()) > self.num_columns:
            raise InputError(
                f"expected {usual} {self.separator}-separated columns as in the lines after it, found {self.num_columns}",
                path=self.path,
                line=self.line,
                remedy="complete the line",
            )

    def layout(self, form: str | None, tag: str | None, clamp: str | None, *, may_add_tag: bool) -> ColumnLayout:
        header = None
        if self.names is None:
            header, self.names = self._header([name for name in (form, tag, clamp) if name is not None])
        if self.names is self.first:
            del self.rows[0], self.sentence[0]
        form_column = None if form is None else self._given(form, "form")
        is_added = may_add_tag and tag == str(self.num_columns + 1)
        tag_column = None if tag is None or is_added else self._given(tag, "tag")
        clamp_column = None if clamp is None else self._given(clamp, "clamp")
        number_column = 0 if self._is_numbered() and form_column != 0 else None
        if form_column is None:
            form_column = self._form(number_column)
        if tag_column is None and not is_added:
            tag_column = self._tag(form_column, number_column)
        sentence_column = self._sentence_column()
        for kind, column in (("clamp", clamp_column), ("tag", tag_column)):
            if form_column == column:
                raise InputError(
                    f"column {form_column + 1} cannot be both form and {kind}",
                    path=self.path,
                    line=self.line,
                    remedy=f"choose them with --form-column and --{kind}-column",
                )
        layout = ColumnLayout(
            separator=self.separator,
            num_columns=self.num_columns,
            form_column=form_column,
            tag_column=tag_column,
            number_column=number_column,
            header=header,
            has_comments=self._has_comments(header),
            clamp_column=clamp_column,
            sentence_column=None if sentence_column in (form_column, tag_column, clamp_column) else sentence_column,
        )
        # A comment may also name the columns, and is skipped as such.
        is_comment = header is not None and header[0] == "#" and layout.is_comment(header, is_start=True)
        return dataclasses.replace(layout, header=None) if is_comment else layout

    def _has_comments(self, header: str | None) -> bool:
        """Whether nearly every sentence begins with a line whose first field is #, all of them different and unlike rows.

        A unit # at the beginning of most sentences would have the same tag in some of them, or one of other units.
        """
        sentences = [
            [line for line in group if line != header and not _COMMENT.match(line)]
            for is_blank, group in itertools.groupby(self.lines, _is_blank)
            if not is_blank
        ]
        first = [lines[0] for lines in sentences if lines]
        found = [fields for fields in map(self.separator.fields_of, first) if fields[0] == "#"]
        tags = {row[-1] for row in self.rows}
        is_usual = len(found) > 1 and len(found) >= _NEARLY_ALL * len(first)
        return is_usual and len({*map(tuple, found)}) == len(found) and not any(row[-1] in tags for row in found)

    def _sentence_column(self) -> int | None:
        names = enumerate((self.names or [])[: self.num_columns])
        return next((column for column, name in names if name.lower() in _SENTENCE_NAMES), None)

    def _header(self, given: Sequence[str]) -> tuple[str, list[str]] | tuple[None, None]:
        """The line that names the columns, and the names: the first row, or a line before it that begins with #."""
        for line in self.lines[: self.line - 1]:
            if line.startswith("#") and not _COMMENT.match(line):
                for text in (line.lstrip("# "), line):
                    names = self.separator.fields_of(text)
                    if len(names) == self.num_columns and self._is_header(names, given):
                        return line, names
        return (self.lines[self.line - 1], self.first) if self._is_header(self.first, given) else (None, None)

    def _is_header(self, fields: Sequence[str], given: Sequence[str]) -> bool:
        names = {name.lower() for name in fields}
        if any(_plain(name) in map(_plain, names) for name in given if not name.isdecimal()):
            return True
        # A row of three columns or more whose fields all differ and include both names is no word with its tag, but may be free text.
        is_row = fields is self.first or self.separator is Separator.TAB
        is_known, are_several = names <= _KNOWN_NAMES, is_row and len(names) == self.num_columns
        if names & _TAG_NAMES:
            return bool(names & _FORM_NAMES) and (is_known or (are_several and self.num_columns > 2))
        # A word and its lemma, such as Words and word, are no two names of forms.
        return is_known and are_several and self.num_columns > 1 and len(names & _FORM_NAMES) == 1

    def _given(self, column: str, kind: str) -> int:
        if column.isdecimal():
            if len(column) < 10 and 1 <= int(column) <= self.num_columns:
                return int(column) - 1
            problem = f"there is no {kind} column {column}, only {self.num_columns} column(s)"
            remedy = "check the column number and the separator"
        else:
            lowered = [_plain(name) for name in self.names or ()]
            if _plain(column) in lowered[: self.num_columns]:
                return lowered.index(_plain(column))
            known = f"only {', '.join(self.names)}" if self.names else "and there is no header line"
            problem = f"no column is called {column!r}, {known}"
            remedy = f"choose another with --{kind}-column, or give its number"
        raise InputError(problem, path=self.path, line=self.line, remedy=remedy)

    def _is_numbered(self) -> bool:
        if self.num_columns < 3 or self._sentence_column() == 0:
            return False
        numbers = [row[0] for row in self.sentence if not _SKIPPED_NUMBER.fullmatch(row[0])]
        # Where they start again a blank line is missing, which reading the rows finds.
        numbers = numbers[: next((i for i in range(2, len(numbers)) if numbers[i] == numbers[0]), None)]
        # A sentence of one unit is no evidence, since the unit itself may be the number 1.
        is_known = len(numbers) > 1 or self.names is not None
        return is_known and any(
            numbers == [*map(str, range(first, first + len(numbers)))] for first in (1, 0) if numbers
        )

    def _form(self, number_column: int | None) -> int:
        for index, name in enumerate(self.names or ()):
            if name.lower() in _FORM_NAMES and index < self.num_columns:
                return index
        return 0 if number_column is None else 1

    def _tag(self, form_column: int, number_column: int | None) -> int | None:
        last = self.num_columns - 1
        if self.names is not None:
            found = [i for i, name in enumerate(self.names[: self.num_columns]) if name.lower() in _TAG_NAMES]
            if len(found) > 1:
                self._ask(f"several columns contain tags ({', '.join(self.names[index] for index in found)})")
            is_untagged = all(name.lower() in _KNOWN_NAMES for name in self.names)
            return found[0] if found else None if is_untagged else last
        if self.num_columns == 1:
            return None
        if number_column is None or last <= form_column + 1:
            return last
        rows = [row for row in self.rows if not _SKIPPED_NUMBER.fullmatch(row[number_column])]
        labels = [
            column
            for column in range(form_column + 1, self.num_columns)
            if all(len(row) > column and is_boundary_label(row[column]) for row in rows)
        ]
        if len(labels) != 1:
            self._ask(f"{last - form_column} columns follow the form, and it is not clear which contains the tags")
        return labels[0]

    def _ask(self, problem: str) -> None:
        raise InputError(
            problem, path=self.path, line=self.line, remedy="choose one with --tag-column (data.tag_column)"
        )


def read_columns(
    path: StrPath,
    layout: ColumnLayout,
    *,
    lines: Iterable[str] | None = None,
    repairs: Repairs | None = None,
    needs_tags: bool = True,
) -> Iterator[Sentence]:
    """Stream the sentences of ``path`` with their tags unchanged; ``-DOCSTART-`` and ``# newdoc`` begin documents.

    A tag without a form is an error, or with ``repairs`` gets a placeholder as its form. Without ``needs_tags`` an empty tag is `FREE`,
    and a tag may begin or end with a space.
    """
    split, num_columns = layout.separator.fields_of, layout.num_columns
    form_column, tag_column = layout.form_column, layout.tag_column
    has_numbers, header = layout.number_column is not None, layout.header
    has_marks = has_numbers or layout.sentence_column is not None
    is_bare = num_columns == 1 and layout.separator is Separator.SPACE
    first: Sequence[str] = ()
    previous: Sequence[str] = ()
    units: list[str] = []
    tags: list[str] = []
    start, document = 1, 0
    limits = SentenceLimits.from_environment()

    def sentence() -> Sentence:
        result = Sentence(tuple(units), None if tag_column is None else tuple(tags), start, document)
        limits.check_units(result, path)
        return result

    for number, line in enumerate(read_column_lines(path) if lines is None else lines, 1):
        is_skipped = (
            _is_blank(line) or line == header or (line[0] == "#" and layout.is_comment(line, is_start=not units))
        )
        if not is_skipped:
            fields = line.split("\t") if is_bare and "\t" in line else split(line)
            if len(fields) != num_columns and repairs is not None and layout.lacks_form(line, len(fields)):
                fields.insert(0, "")
            if len(fields) == num_columns:
                if has_numbers and not layout.is_unit(fields):
                    continue
                if has_marks:
                    problem = layout.begins_sentence(first, previous, fields) if units else None
                    if problem is not None:
                        remedy = "put a blank line after every sentence"
                        refuse(repairs, InputError(problem, path=path, line=number, remedy=remedy))
                    if problem is not None or not units:
                        first = fields
                    previous = fields
                unit = fields[form_column]
                tag = unit if tag_column is None else fields[tag_column]
                if not tag and (not needs_tags or layout.clamp_column == tag_column):
                    tag = FREE
                if not unit and tag and repairs is not None:
                    unit = repairs.add_form(number)
                if unit and tag and not (needs_tags and tag_column is not None and tag.strip(" ") != tag):
                    units.append(unit)
                    tags.append(tag)
                    continue
            # If `repairs` collects errors, reading continues after the line.
            refuse(repairs, _bad_line(line, fields, layout, path, number))
        if units:
            yield sentence()
            units.clear()
            tags.clear()
        start = number + 1
        document += is_skipped and (line.startswith(DOCUMENT_START) or bool(_NEW_DOCUMENT.match(line)))
    if units:
        yield sentence()


def _bad_line(line: str, fields: Sequence[str], layout: ColumnLayout, path: StrPath, number: int) -> InputError:
    if len(fields) == layout.num_columns:
        is_unit = not fields[layout.form_column]
        column = layout.form_column if is_unit or layout.tag_column is None else layout.tag_column
        kind, option = ("unit", "--form-column") if is_unit else ("tag", "--tag-column")
        if fields[column]:
            edge = "ends in" if fields[column].endswith(" ") else "begins with"
            return InputError(
                f"the {kind} {fields[column]!r} {edge} a space",
                path=path,
                line=number,
                remedy="remove the spaces around tags and at the ends of lines",
            )
        return InputError(
            f"the {kind} is empty (column {column + 1} of {layout.num_columns})",
            path=path,
            line=number,
            remedy=f"complete the line, or choose another column with {option}",
        )
    other = Separator.SPACE if layout.separator is Separator.TAB else Separator.TAB
    if layout.num_columns > 1 and len(other.fields_of(line)) == layout.num_columns:
        return InputError(
            f"the columns are {other}-separated here, but {layout.separator}-separated in the first line",
            path=path,
            line=number,
            remedy="separate all of them in the same way, best by tabs",
        )
    columns = f"{layout.num_columns} {layout.separator}-separated column(s)"
    return InputError(
        f"expected {columns} as in the first line, found {len(fields)}",
        path=path,
        line=number,
        remedy="complete the line, or separate all columns in the same way, best by tabs",
    )


def read_column_lines(path: StrPath) -> Iterator[str]:
    """The lines of a column file, with limited size between blank lines."""
    return read_lines(path, is_end=_is_blank)


def read_head(lines: Iterator[str], path: StrPath) -> list[str]:
    """Take the lines needed to detect the layout: the first sentence of a pipe, some more of a file."""
    limits = SentenceLimits.from_environment()
    is_file = os.path.isfile(path)
    head: list[str] = []
    num_rows = 0
    is_plain = False
    for line in lines:
        head.append(line)
        if not _is_blank(line):
            if not _COMMENT.match(line):
                num_rows += 1
                # A unit that may be a number or a comment is no evidence.
                is_plain = is_plain or num_rows > 1 or not line.startswith(("1\t", "1 ", "#"))
        elif num_rows >= _NUM_HEAD_ROWS or (is_plain and not is_file):
            # A program that writes into a pipe may wait for labels before it writes more.
            break
        if not num_rows and len(head) > limits.units:
            limits.refuse(f"no unit in {len(head):,} lines", path, len(head), "check that this is the right file")
    return head


def _is_blank(line: str) -> bool:
    return not line or line.startswith(DOCUMENT_START) or not line.strip(" \t")


class ColumnBlock(NamedTuple):
    """The lines of one sentence with the lines around it, and the sentence read from them.

    ``text`` keeps line ends and a byte order mark, so the blocks of a file, joined and encoded, are the file. ``sentence`` is
    None only for the lines after the last sentence.
    """

    text: str
    sentence: Sentence | None
    layout: ColumnLayout
    is_first: bool

    @property
    def clamps(self) -> dict[int, str]:
        """The labels in the clamp column by the positions of their units; `FREE` or an empty field leaves a unit free."""
        column = self.layout.clamp_column
        cells = [] if column is None else [fields[column] for _, _, fields in self._rows()]
        return {position: label for position, label in enumerate(cells) if label not in ("", FREE)}

    def _rows(self, *, only_header: bool = False) -> Iterator[tuple[int, str, list[str]]]:
        """The index of every unit's line in the text, the line without its end and byte order mark, and its fields."""
        layout = self.layout
        is_start = True
        for index, raw in enumerate(self.text.split("\n")):
            line = raw.removesuffix("\r")
            line = line.removeprefix(BYTE_ORDER_MARK) if self.is_first and index == 0 else line
            if only_header and line == layout.header:
                yield index, line, layout.separator.fields_of(line)
            if only_header or layout.is_skipped(line, is_start=is_start):
                continue
            fields = layout.separator.fields_of(line)
            if layout.lacks_form(line, len(fields)):
                fields.insert(0, "")
            if layout.is_unit(fields):
                is_start = False
                yield index, line, fields

    def detached(self) -> tuple[ColumnBlock, ColumnBlock]:
        """What belongs at the beginning of a file (byte order mark and column names), and the rest as it may stand anywhere."""
        mark = BYTE_ORDER_MARK if self.is_first and self.text.startswith(BYTE_ORDER_MARK) else ""
        names, rest = list[str](), list[str]()
        for line in self.text.removeprefix(mark).split("\n"):
            is_names = line.removesuffix("\r") == self.layout.header or _COLUMN_NAMES.match(line)
            (names if is_names else rest).append(line)
        head = mark + "".join(f"{line}\n" for line in names[:1])
        return (
            self._replace(text=head, sentence=None),
            self._replace(text=with_blank_line("\n".join(rest)), is_first=False),
        )

    def with_tags(self, tags: Sequence[str], scores: Sequence[str] | None = None) -> str:
        """The block's text with ``tags`` in the tag column and every other character unchanged.

        Without a tag column, one is added at the end; ``scores`` get a column before it. Added columns get names below a header.
        """
        layout = self.layout
        is_spaced = layout.separator is Separator.SPACE and layout.num_columns > 1
        check_fields(Sentence((), tuple(tags)), _BARE_FIELD if is_spaced else COLUMN_FIELD, "a column file")
        gap = " " if is_spaced else "\t"
        rest = iter(tags if scores is None else map(gap.join, zip(scores, tags, strict=True)))
        lines = self.text.split("\n")
        for index, line, _ in self._rows():
            before, after = lines[index].split(line, 1)
            lines[index] = before + _with_tag(line, layout, next(rest), gap) + after
        headers = self._rows(only_header=True) if scores is not None or layout.tag_column is None else ()
        for index, line, fields in headers:
            name = "tag" if layout.tag_column is None else fields[layout.tag_column]
            name = name if scores is None else f"score{gap}{name}"
            before, after = lines[index].split(line, 1)
            lines[index] = before + _with_tag(line, layout, name, gap) + after
        return "\n".join(lines)


_SPACED_FIELD = re.compile(r"[^ ]+")


def _with_tag(line: str, layout: ColumnLayout, tag: str, gap: str) -> str:
    if layout.tag_column is None:
        return f"{line}{gap}{tag}"
    if layout.separator is Separator.TAB:
        fields = line.split("\t")
        fields[layout.tag_column] = tag
        return "\t".join(fields)
    column = layout.tag_column - layout.lacks_form(line, len(layout.separator.fields_of(line)))
    found = next(itertools.islice(_SPACED_FIELD.finditer(line), column, None))
    return line[: found.start()] + tag + line[found.end() :]


def read_column_blocks(
    path: StrPath,
    *,
    form_column: str | None = None,
    tag_column: str | None = None,
    clamp_column: str | None = None,
    repairs: Repairs | None = None,
) -> Iterator[ColumnBlock]:
    """Stream ``path`` sentence by sentence without losing a byte, for `ColumnBlock.with_tags`; nothing if it has no sentence.

    The tags that are to be replaced may be empty.
    """
    raw_lines = read_raw_lines(path, is_end=_is_blank)
    limits = SentenceLimits.from_environment()
    held: list[str] = []

    def bare(raw: str, number: int) -> str:
        line = raw.removesuffix("\n").removesuffix("\r")
        line = line.removeprefix(BYTE_ORDER_MARK) if number == 1 else line
        if "\r" in line:
            refuse_returns(path, [line], number)
        return line

    def keeping() -> Iterator[str]:
        for number, raw in enumerate(raw_lines, 1):
            held.append(raw)
            yield bare(raw, number)

    head = read_head(keeping(), path)
    if all(_is_blank(line) or _COMMENT.match(line) for line in head):
        return
    layout = detect_layout(
        path,
        lines=head,
        form_column=form_column,
        tag_column=tag_column,
        clamp_column=clamp_column,
        may_add_tag=True,
    )
    before, block = held.copy(), list[str]()

    def lines() -> Iterator[str]:
        size = 0
        for number, raw in enumerate(itertools.chain(before, raw_lines), 1):
            size = size + len(raw) if block else len(raw)
            # Twice the limit: once for comments and blank lines before a sentence, once for the sentence.
            if size > 2 * limits.size or len(block) > 2 * limits.units:
                limits.refuse("too much text between two sentences", path, number, "check that this is the right file")
            block.append(raw)
            yield bare(raw, number)

    is_first = True
    for sentence in read_columns(path, layout, lines=lines(), repairs=repairs, needs_tags=False):
        yield ColumnBlock("".join(block), sentence, layout, is_first)
        block.clear()
        is_first = False
    if block:
        yield ColumnBlock("".join(block), None, layout, is_first)


def write_columns(sentences: Iterable[Sentence], stream: IO[bytes]) -> None:
    """Write units and tags separated by tabs, with a blank line after every sentence; without labels, only the units.

    A ``-DOCSTART-`` line and a blank line mark the beginning of a document.
    """
    has_labels: bool | None = None
    document = 0
    for sentence in sentences:
        is_first = has_labels is None
        if is_first:
            has_labels = sentence.labels is not None
        elif has_labels != (sentence.labels is not None):
            raise InputError(
                "some sentences have labels and some have none",
                line=sentence.line,
                remedy="label all of them or none before writing columns",
            )
        check_fields(sentence, COLUMN_FIELD if has_labels else _BARE_FIELD, "a line of a column file")
        rows = (
            sentence.units
            if sentence.labels is None
            else map("\t".join, zip(sentence.units, sentence.labels, strict=True))
        )
        # Readers drop a byte order mark at the start of a file, so one that belongs to a unit is doubled.
        mark = BYTE_ORDER_MARK if is_first and sentence.units[0].startswith(BYTE_ORDER_MARK) else ""
        begins, document = begins_document(sentence.document, document)
        if begins:
            mark = DOCUMENT_START + ("\tO\n\n" if has_labels else "\n\n")
        stream.write((mark + "\n".join(rows) + "\n\n").encode())
