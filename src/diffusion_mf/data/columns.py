"""Column files: one unit a line with its tag, sentences parted by blank lines, as in the CoNLL shared tasks."""

from __future__ import annotations

import dataclasses
import enum
import re
from collections.abc import Iterable, Iterator
from typing import IO

from diffusion_mf.data.files import BYTE_ORDER_MARK, Rereadable, SentenceLimits, StrPath, check_fields, read_lines
from diffusion_mf.data.label_schemes import LabelScheme, detect_scheme
from diffusion_mf.data.repair import Repairs, refuse
from diffusion_mf.data.sentence import Sentence, begins_document
from diffusion_mf.errors import InputError

DOCUMENT_START = "-DOCSTART-"
_LABELLED_FIELD = re.compile(rf"(?!{DOCUMENT_START})[^\t\n\r\0]+")
_BARE_FIELD = re.compile(rf"(?!{DOCUMENT_START})[^ \t\n\r\0]+")


class Separator(enum.StrEnum):
    """What parts columns; the value is the name used on the command line."""

    TAB = "tab"
    SPACE = "space"

    def fields_of(self, line: str) -> list[str]:
        """The fields of ``line``: every tab parts, but a run of spaces parts once."""
        if self is Separator.TAB:
            return line.split("\t")
        # str.split() would also part at no-break and ideographic spaces, which stand inside units.
        return [field for field in line.split(" ") if field]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ColumnLayout:
    """How a column file is laid out; columns count from 0, ``tag_column`` is None where there are no tags."""

    separator: Separator
    num_columns: int
    unit_column: int
    tag_column: int | None
    scheme: LabelScheme
    is_scheme_detected: bool

    def describe(self) -> str:
        """One phrase for the user, counting from 1."""
        if self.tag_column is None:
            return f"{self.num_columns} {self.separator}-separated column(s), units in column {self.unit_column + 1}, no tags"
        source = "detected" if self.is_scheme_detected else "as given"
        return (
            f"{self.num_columns} {self.separator}-separated columns, units in column {self.unit_column + 1}, "
            f"tags in column {self.tag_column + 1}, scheme {self.scheme} ({source})"
        )


def detect_layout(
    path: StrPath,
    *,
    lines: Iterable[str] | None = None,
    separator: Separator | None = None,
    unit_column: int = 0,
    tag_column: int | None = None,
    scheme: LabelScheme | None = None,
    repairs: Repairs | None = None,
) -> ColumnLayout:
    """Find out what is not given: a tab in the first line parts columns, the last column is the tag.

    The scheme takes the whole file to tell. ``lines`` stands for the file's lines where they cannot be read twice.
    """
    lines = Rereadable(path, read_column_lines) if lines is None else lines
    head = list(through_first_unit(iter(lines), path))
    if not head or _is_skipped(head[-1]):
        raise InputError("holds no sentences", path=path, remedy="check that this is the right file")
    line = head[-1]
    if separator is None:
        separator = Separator.TAB if "\t" in line else Separator.SPACE
    num_columns = len(separator.fields_of(line))
    if tag_column is None and num_columns > 1:
        tag_column = num_columns - 1
    for name, column in (("unit", unit_column), ("tag", tag_column)):
        if column is not None and not 0 <= column < num_columns:
            raise InputError(
                f"there is no {name} column {column + 1}, only {num_columns} column(s)",
                path=path,
                line=len(head),
                remedy="check the column number and the separator",
            )
    layout = ColumnLayout(
        separator=separator,
        num_columns=num_columns,
        unit_column=unit_column,
        tag_column=tag_column,
        scheme=scheme or LabelScheme.PLAIN,
        is_scheme_detected=scheme is None and tag_column is not None,
    )
    if not layout.is_scheme_detected:
        return layout
    sentences = read_columns(path, layout, lines=lines, repairs=repairs)
    detected = detect_scheme(sentences, path=path, is_unit_per_line=True, repairs=repairs)
    if repairs is not None:
        repairs.restart()
    return dataclasses.replace(layout, scheme=detected)


def read_columns(
    path: StrPath, layout: ColumnLayout, *, lines: Iterable[str] | None = None, repairs: Repairs | None = None
) -> Iterator[Sentence]:
    """Stream the sentences of ``path`` with their tags as they stand; ``-DOCSTART-`` lines begin documents.

    A tag without a form is refused, or with ``repairs`` keeps its place beside a placeholder.
    """
    split, num_columns = layout.separator.fields_of, layout.num_columns
    unit_column, tag_column = layout.unit_column, layout.tag_column
    units: list[str] = []
    tags: list[str] = []
    number, document = 0, 0
    limits = SentenceLimits.from_environment()

    def sentence(line: int) -> Sentence:
        result = Sentence(tuple(units), None if tag_column is None else tuple(tags), line, document)
        if len("".join(units)) > limits.unit_size:
            limits.check_units(result, path)
        return result

    for number, line in enumerate(read_column_lines(path) if lines is None else lines, 1):
        is_skipped = _is_skipped(line)
        if not is_skipped:
            fields = split(line)
            if len(fields) != num_columns and repairs is not None and _lacks_form(line, len(fields), layout):
                fields.insert(0, "")
            if len(fields) == num_columns:
                unit = fields[unit_column]
                tag = unit if tag_column is None else fields[tag_column]
                if not unit and tag and repairs is not None:
                    unit = repairs.add_form(number)
                if unit and tag:
                    units.append(unit)
                    tags.append(tag)
                    continue
            # Where `repairs` collects what is refused, reading goes on after the line.
            refuse(repairs, _bad_line(len(fields), layout, path, number))
        if units:
            yield sentence(number - len(units))
            units.clear()
            tags.clear()
        document += is_skipped and line.startswith(DOCUMENT_START)
    if units:
        yield sentence(number - len(units) + 1)


def _bad_line(num_fields: int, layout: ColumnLayout, path: StrPath, number: int) -> InputError:
    if num_fields == layout.num_columns:
        return InputError("the unit or the tag is empty", path=path, line=number, remedy="complete the line")
    columns = f"{layout.num_columns} {layout.separator}-separated column(s)"
    return InputError(
        f"expected {columns} as in the first line, found {num_fields}",
        path=path,
        line=number,
        remedy="complete the line, or convert the file with dmf data convert --separator",
    )


def _lacks_form(line: str, num_fields: int, layout: ColumnLayout) -> bool:
    """Whether a line with blanks between columns is a tag without a form: it begins with a blank, and one field is missing."""
    has_blanks = layout.separator is Separator.SPACE and layout.tag_column is not None
    return has_blanks and layout.unit_column == 0 and num_fields == layout.num_columns - 1 and line[0] == " "


def read_column_lines(path: StrPath) -> Iterator[str]:
    """The lines of a column file; how long they go on without a blank one is limited."""
    return read_lines(path, is_end=_is_skipped)


def through_first_unit(lines: Iterator[str], path: StrPath) -> Iterator[str]:
    """Take from ``lines`` up to the first that holds a unit, and no further."""
    limits = SentenceLimits.from_environment()
    for number, line in enumerate(lines, 1):
        yield line
        if not _is_skipped(line):
            return
        if number > limits.units:
            limits.refuse(f"no unit in {number:,} lines", path, number, "check that this is the right file")


def _is_skipped(line: str) -> bool:
    return not line or line.startswith(DOCUMENT_START) or not line.strip(" \t")


def write_columns(sentences: Iterable[Sentence], stream: IO[bytes]) -> None:
    """Write unit and tag parted by a tab, a blank line after every sentence; without labels the unit alone.

    Where a document begins there is a line that says so, and a blank one.
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
        check_fields(sentence, _LABELLED_FIELD if has_labels else _BARE_FIELD, "a line of a column file")
        rows = (
            sentence.units
            if sentence.labels is None
            else map("\t".join, zip(sentence.units, sentence.labels, strict=True))
        )
        # A reader takes a mark at the very beginning for the file's own, so a unit's needs another before it.
        mark = BYTE_ORDER_MARK if is_first and sentence.units[0].startswith(BYTE_ORDER_MARK) else ""
        begins, document = begins_document(sentence.document, document)
        if begins:
            mark = DOCUMENT_START + ("\tO\n\n" if has_labels else "\n\n")
        stream.write((mark + "\n".join(rows) + "\n\n").encode())
