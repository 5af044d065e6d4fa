"""CoNLL-U: words with one column as labels, and predicted labels written back with every other byte unchanged.

A unit is a line with an integer ID; ranges of multi-word tokens (3-4) and empty nodes (5.1) are skipped, as in the
paper's corpora.
"""

from __future__ import annotations

import enum
import itertools
import re
import reprlib
from collections.abc import Iterable, Iterator, Sequence
from typing import IO, NamedTuple

from diffusion_mf.data.files import (
    BYTE_ORDER_MARK,
    SentenceLimits,
    StrPath,
    check_fields,
    read_raw_lines,
    with_blank_line,
)
from diffusion_mf.data.repair import Repairs, refuse
from diffusion_mf.data.sentence import Sentence, begins_document
from diffusion_mf.errors import InputError

NUM_COLUMNS = 10
MISC_KEY = "Label"
_MISC_INDEX = 9
_FIELD = re.compile(r"[^\t\n\r\0]+")
_SKIPPED_ID = re.compile(r"[0-9]+(-[0-9]+|\.[0-9]+)")
DOCUMENT_COMMENT = "# newdoc"
_NEW_DOCUMENT = re.compile(r"#\s*newdoc(?=\s|$)")


class ConlluColumn(enum.StrEnum):
    """The columns that hold labels; the value is the name used on the command line."""

    UPOS = "upos"
    XPOS = "xpos"
    MISC = "misc"


_COLUMN_INDEX = {ConlluColumn.UPOS: 3, ConlluColumn.XPOS: 4, ConlluColumn.MISC: _MISC_INDEX}


class ConlluBlock(NamedTuple):
    """The text of one sentence with its comments and the blank line after it, and the sentence read from it.

    ``text`` keeps line ends and a byte order mark, so the blocks of a file, joined and encoded, are the file. ``sentence`` is
    None only for a block without words at the end of a file.
    """

    text: str
    sentence: Sentence | None

    def detached(self) -> tuple[ConlluBlock, ConlluBlock]:
        """What belongs at the beginning of a file (its byte order mark), and the rest as it may stand anywhere."""
        rest = self.text.removeprefix(BYTE_ORDER_MARK)
        return (
            ConlluBlock(self.text.removesuffix(rest), None),
            ConlluBlock(with_blank_line(rest), self.sentence),
        )


def read_conllu(
    path: StrPath, *, column: ConlluColumn = ConlluColumn.UPOS, repairs: Repairs | None = None
) -> Iterator[Sentence]:
    """Stream the sentences of ``path``; labels are the unchanged values of the column, including ``_``, and of MISC those of ``Label=``.

    A word without a form is an error, or with ``repairs`` becomes a placeholder.
    """
    for block in read_conllu_blocks(path, column=column, repairs=repairs):
        if block.sentence is not None and block.sentence.units:
            yield block.sentence


def read_conllu_blocks(
    path: StrPath, *, column: ConlluColumn = ConlluColumn.UPOS, repairs: Repairs | None = None
) -> Iterator[ConlluBlock]:
    """Stream ``path`` sentence by sentence without losing a byte, for writing labels back (`with_labels`).

    A block ends with the empty line after its sentence, so that a program writing into a pipe gets an answer before it begins the
    next one. Further empty lines belong to the next block, or at the end of the file to a block without a sentence.
    """
    index = _COLUMN_INDEX[column]
    limits = SentenceLimits.from_environment()
    raw: list[str] = []
    lines: list[str] = []
    first, document = 1, 0
    for number, raw_line in enumerate(read_raw_lines(path), 1):
        line = raw_line.removesuffix("\n").removesuffix("\r")
        if number == 1:
            line = line.removeprefix(BYTE_ORDER_MARK)
        raw.append(raw_line)
        if line:
            if not lines:
                first = number
            lines.append(line)
        elif lines:
            document += _begins_document(lines)
            yield ConlluBlock("".join(raw), _parse_sentence(lines, first, index, path, document, limits, repairs))
            raw, lines = [], []
    if lines:
        document += _begins_document(lines)
        yield ConlluBlock("".join(raw), _parse_sentence(lines, first, index, path, document, limits, repairs))
    elif raw:
        yield ConlluBlock("".join(raw), None)


def _misc_label(misc: str) -> str:
    """The label in MISC, as `with_labels` writes it; _ if there is none.

    >>> _misc_label("SpaceAfter=No|Label=B-PER"), _misc_label("SpaceAfter=No")
    ('B-PER', '_')
    """
    start = f"{MISC_KEY}="
    found = next((entry.removeprefix(start) for entry in misc.split("|") if entry.startswith(start)), "_")
    return found if misc else ""


def _begins_document(lines: Sequence[str]) -> bool:
    return any(_NEW_DOCUMENT.match(line) for line in itertools.takewhile(lambda line: line[0] == "#", lines))


def _parse_sentence(
    lines: Sequence[str],
    first: int,
    label_index: int,
    path: StrPath,
    document: int,
    limits: SentenceLimits,
    repairs: Repairs | None,
) -> Sentence:
    """The words in one block of lines (without line ends); ``first`` is the number of its first line.

    Returns no words only if ``repairs`` collects errors instead of raising them.
    """
    units: list[str] = []
    labels: list[str] = []
    start = 0
    problem = ("a sentence without words", "remove its lines")
    # Files in which every word has the ID 1 do not number their words; a comment below a word shows another sentence.
    rest = itertools.dropwhile(lambda line: line[0] == "#", lines)
    has_numbers = not all(line.partition("\t")[0] == "1" for line in rest)
    for offset, line in enumerate(lines):
        if line[0] == "#":
            continue
        fields = line.split("\t")
        if len(fields) != NUM_COLUMNS:
            problem = (
                f"expected {NUM_COLUMNS} columns separated by tabs, found {len(fields)}",
                "check that the file is CoNLL-U",
            )
        elif not fields[0].isdecimal():
            if _SKIPPED_ID.fullmatch(fields[0]):
                continue
            problem = (
                f"the ID {reprlib.repr(fields[0])} is not a number, a range or an empty node",
                "check the first column",
            )
        else:
            form, label = fields[1], fields[label_index]
            if label_index == _MISC_INDEX:
                label = _misc_label(label)
            if not form and label and repairs is not None:
                form = repairs.add_form(first + offset)
            if fields[0] == "1" and units and has_numbers:
                repeated = "the IDs start again at 1 without a blank line before"
                remedy = "put a blank line after every sentence"
                refuse(repairs, InputError(repeated, path=path, line=first + offset, remedy=remedy))
            if form and label:
                if not units:
                    start = first + offset
                units.append(form)
                labels.append(label)
                continue
            problem = ("a column is empty", "write _ for a missing value")
        refuse(repairs, InputError(problem[0], path=path, line=first + offset, remedy=problem[1]))
        start = start or first + offset
    if not start:
        refuse(repairs, InputError(problem[0], path=path, line=first, remedy=problem[1]))
    sentence = Sentence(tuple(units), tuple(labels), start, document)
    limits.check_units(sentence, path)
    return sentence


def with_labels(
    block: ConlluBlock, labels: Sequence[str], *, column: ConlluColumn = ConlluColumn.UPOS, key: str = MISC_KEY
) -> str:
    """The block's text with ``labels`` in ``column`` (in MISC as ``key=label``) and every other character unchanged."""
    num_words = 0 if block.sentence is None else len(block.sentence.units)
    if len(labels) != num_words:
        raise ValueError(f"{len(labels)} labels for {num_words} words")
    remaining = iter(labels)
    lines = block.text.split("\n")
    for index, line in enumerate(lines):
        fields = line.split("\t")
        if len(fields) != NUM_COLUMNS or not fields[0].removeprefix(BYTE_ORDER_MARK).isdecimal():
            continue
        label = next(remaining)
        if not _FIELD.fullmatch(label) or (column is ConlluColumn.MISC and "|" in label):
            raise InputError(
                f"the label {label!r} cannot be written to the column {column}",
                remedy="choose another column or format",
            )
        if column is ConlluColumn.MISC:
            text = fields[_MISC_INDEX]
            end = "\r" if text.endswith("\r") else ""
            fields[_MISC_INDEX] = _set_misc(text.removesuffix("\r"), key, label) + end
        else:
            fields[_COLUMN_INDEX[column]] = label
        lines[index] = "\t".join(fields)
    return "\n".join(lines)


def _set_misc(misc: str, key: str, value: str) -> str:
    """Set ``key`` in place if it is present, otherwise append it.

    >>> _set_misc("_", "Label", "X"), _set_misc("Label=A|SpaceAfter=No", "Label", "X")
    ('Label=X', 'Label=X|SpaceAfter=No')
    """
    entry = f"{key}={value}"
    if misc in ("_", ""):
        return entry
    kept: list[str] = []
    is_set = False
    for old in misc.split("|"):
        if not old.startswith(f"{key}="):
            kept.append(old)
        elif not is_set:
            kept.append(entry)
            is_set = True
    return "|".join(kept if is_set else [*kept, entry])


def write_conllu(sentences: Iterable[Sentence], stream: IO[bytes], *, column: ConlluColumn = ConlluColumn.UPOS) -> None:
    """Write bare CoNLL-U: ID, FORM and the labels in ``column``, every other column ``_``; ``# newdoc`` begins documents."""
    index = _COLUMN_INDEX[column]
    document = 0
    for sentence in sentences:
        check_fields(sentence, _FIELD, "a CoNLL-U line")
        begins, document = begins_document(sentence.document, document)
        lines = [DOCUMENT_COMMENT] if begins else []
        for number, unit in enumerate(sentence.units, 1):
            fields = ["_"] * NUM_COLUMNS
            fields[0], fields[1] = str(number), unit
            if sentence.labels is not None:
                label = sentence.labels[number - 1]
                fields[index] = f"{MISC_KEY}={label}" if column is ConlluColumn.MISC else label
            lines.append("\t".join(fields))
        stream.write(("\n".join(lines) + "\n\n").encode())
