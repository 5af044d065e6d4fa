"""The table of file formats, their detection, and `read_task`, which reads a labelled corpus in any of them.

JSON Lines: ``{"units": ["…"], "labels": ["…"], "document": "…"}``, one sentence per line; labels and document are optional.
Consecutive sentences with the same value of ``document``, a string or an integer, form a document.
"""

from __future__ import annotations

import enum
import functools
import itertools
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any, NamedTuple, NoReturn

from diffusion_mf.data.annotations import ANNOTATION_FORMATS, AnnotationFormat, labelled_sentences, read_json_values
from diffusion_mf.data.columns import (
    DOCUMENT_START,
    ColumnLayout,
    Separator,
    detect_layout,
    read_column_lines,
    read_columns,
    read_head,
    write_columns,
)
from diffusion_mf.data.conllu import ConlluColumn, read_conllu, write_conllu
from diffusion_mf.data.corpus import Corpus, Task, re_encode, to_characters
from diffusion_mf.data.files import (
    BYTE_ORDER_MARK,
    DETECTED,
    FieldChoice,
    SentenceLimits,
    StrPath,
    check_fields,
    is_encodable,
    json_problem,
    read_lines,
    refuse_constant,
    uncompressed_suffix,
)
from diffusion_mf.data.hugging_face import read_token_rows, write_token_rows
from diffusion_mf.data.label_schemes import LabelScheme, detect_scheme
from diffusion_mf.data.raw_text import read_raw_text
from diffusion_mf.data.repair import Repairs, refuse
from diffusion_mf.data.sentence import DocumentNumbers, Sentence, with_first_document
from diffusion_mf.data.tables import TAG, check_rows
from diffusion_mf.errors import InputError


def read_json_lines(path: StrPath, *, repairs: Repairs | None = None) -> Iterator[Sentence]:
    """Stream the sentences of ``path``; keys other than ``units``, ``labels`` and ``document`` are ignored, blank lines skipped.

    An empty unit is an error, or with ``repairs`` becomes a placeholder.
    """
    return (sentence for sentence, _ in read_json_rows(path, repairs=repairs))


def read_json_rows(path: StrPath, *, repairs: Repairs | None = None) -> Iterator[tuple[Sentence, Mapping[str, object]]]:
    """Like `read_json_lines`, with the object that each sentence comes from. A file may also be one list of the objects."""
    number_of = DocumentNumbers()
    limits = SentenceLimits.from_environment()
    lines = ((number, line) for number, line in enumerate(read_lines(path), 1) if line.strip())
    number, line = next(lines, (0, ""))
    is_list = line.lstrip().startswith("[") and os.path.isfile(path)
    values: Iterator[tuple[int, Any]] = (
        read_json_values(path) if is_list else itertools.chain([(number, line)] if line else [], lines)
    )
    for number, value in values:
        try:
            row = value if is_list else _parse_line(value, number, path)
            sentence = _sentence(row, number, path, repairs)
            limits.check_units(sentence, path)
        except InputError as error:
            refuse(repairs, error)
            continue
        yield sentence._replace(document=number_of(row.get("document"))), row


def write_json_lines(sentences: Iterable[Sentence], stream: IO[bytes]) -> None:
    """Write one object per sentence, with unescaped text; unlabelled sentences have no ``labels``."""
    for sentence in sentences:
        row: dict[str, tuple[str, ...] | int] = {"units": sentence.units}
        if sentence.labels is not None:
            row["labels"] = sentence.labels
        if sentence.document:
            row["document"] = sentence.document
        stream.write((json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n").encode())


def _parse_line(line: str, number: int, path: StrPath) -> Any:
    """The value in a line."""
    try:
        return json.loads(line, parse_constant=refuse_constant)
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"not JSON ({json_problem(error)})",
            path=path,
            line=number,
            remedy='write one object per line, such as {"units": ["a"], "labels": ["X"]}',
        ) from None


def _sentence(row: Any, number: int, path: StrPath, repairs: Repairs | None) -> Sentence:
    """The sentence of an object."""

    def fail(problem: str, remedy: str) -> NoReturn:
        raise InputError(problem, path=path, line=number, remedy=remedy)

    if not isinstance(row, dict) or "units" not in row:
        fail('not an object with the key "units"', 'write {"units": ["a", "b"], "labels": ["X", "Y"]}')
    units, labels, document = row["units"], row.get("labels"), row.get("document")
    if document is not None and (isinstance(document, bool) or not isinstance(document, str | int)):
        fail('"document" is neither a string nor an integer', "give the sentences of a document the same name")
    if repairs is not None and isinstance(units, list) and "" in units and labels is not None:
        units = [repairs.add_form(number) if unit == "" else unit for unit in units]
    for name, values in (("units", units), ("labels", labels)):
        if name == "labels" and values is None:
            continue
        if not isinstance(values, list) or not all(isinstance(value, str) and value for value in values):
            fail(f'"{name}" is not a list of non-empty strings', "write every value as a non-empty string in quotes")
        # An escape can introduce an unpaired surrogate, which cannot be written to any output.
        if not all(map(is_encodable, values)):
            fail(f'"{name}" contains an unpaired surrogate', "write the characters unescaped")
    if not units:
        fail("an empty sentence", "remove the line")
    if labels is not None and len(labels) != len(units):
        fail(f"{len(units)} units but {len(labels)} labels", "give every unit one label")
    return Sentence(tuple(units), None if labels is None else tuple(labels), number)


# Only spaces and tabs separate units: a no-break or ideographic space may be part of one.
_BLANKS = re.compile(r"[ \t]+")
_FIELD = re.compile(r"[^ \t\n\r\0]+")


def read_plain_text(path: StrPath, *, lines: Iterable[str] | None = None) -> Iterator[Sentence]:
    """Stream the unlabelled sentences of ``path``, one per line, or of its ``lines``; blank lines separate paragraphs."""
    limits = SentenceLimits.from_environment()
    for number, line in enumerate(read_lines(path) if lines is None else lines, 1):
        units = _BLANKS.split(line.strip(" \t"))
        if units != [""]:
            sentence = Sentence(tuple(units), None, number)
            limits.check_units(sentence, path)
            yield sentence


def write_plain_text(sentences: Iterable[Sentence], stream: IO[bytes]) -> None:
    """Write the units with single spaces between them; labels are dropped."""
    is_first = True
    for sentence in sentences:
        check_fields(Sentence(sentence.units, None, sentence.line), _FIELD, "a line of units separated by spaces")
        # Readers drop a byte order mark at the start of a file, so one that belongs to a unit is doubled.
        mark = BYTE_ORDER_MARK if is_first and sentence.units[0].startswith(BYTE_ORDER_MARK) else ""
        stream.write((mark + " ".join(sentence.units) + "\n").encode())
        is_first = False


class FileFormat(enum.StrEnum):
    """The file formats; the value is the name used on the command line."""

    CONLLU = "conllu"
    COLUMNS = "columns"
    JSONL = "jsonl"
    TEXT = "text"
    RAW = "raw"
    DOCCANO = "doccano"
    PRODIGY = "prodigy"
    LABEL_STUDIO = "label-studio"
    BRAT = "brat"
    HUGGING_FACE = "hugging-face"

    @property
    def annotation(self) -> AnnotationFormat | None:
        """How texts with spans are read and written; None for formats of units."""
        return ANNOTATION_FORMATS.get(self.value)


@dataclass(frozen=True, kw_only=True)
class FormatOptions:
    """The user's choices about a file; None means detected."""

    column: ConlluColumn = ConlluColumn.UPOS
    separator: Separator | None = None
    fields: FieldChoice = DETECTED
    task: Task | None = None
    use_sentences: bool = True
    """whether texts are split into sentences, or each is one sentence"""
    needs_labels: bool = False
    """whether a text of an annotation tool without annotations is an error"""


class Source(NamedTuple):
    """A stream of the sentences of a file, with labels unchanged, and a column file's layout."""

    sentences: Iterator[Sentence]
    layout: ColumnLayout | None = None


class Format(NamedTuple):
    """How one format is recognised, read and written."""

    suffixes: tuple[str, ...]
    read: Callable[[StrPath, FormatOptions, Repairs | None], Source]
    write: Callable[[Iterable[Sentence], IO[bytes], FormatOptions], None]


def _read_columns(path: StrPath, options: FormatOptions, repairs: Repairs | None) -> Source:
    rest = read_column_lines(path)
    head = read_head(rest, path)
    check_rows(head, path)
    layout = detect_layout(
        path,
        lines=head,
        separator=options.separator,
        form_column=options.fields.form_column,
        tag_column=options.fields.tag_column,
    )
    return Source(read_columns(path, layout, lines=itertools.chain(head, rest), repairs=repairs), layout)


def _read_annotations(
    file_format: AnnotationFormat, path: StrPath, options: FormatOptions, repairs: Repairs | None
) -> Source:
    return Source(
        labelled_sentences(
            file_format.read(path, repairs),
            language=options.fields.language,
            use_sentences=options.use_sentences,
            needs_labels=options.needs_labels,
            repairs=repairs,
        )
    )


def _refuse_raw() -> NoReturn:
    raise InputError(
        "raw text can only be read, not written", remedy="use the format text, which has spaces between units"
    )


def _refuse_stream(sentences: Iterable[Sentence], stream: IO[bytes], options: FormatOptions) -> NoReturn:
    raise AssertionError("texts with spans must be written by `annotations`")


FORMATS: dict[FileFormat, Format] = {
    FileFormat.CONLLU: Format(
        (".conllu",),
        lambda path, options, repairs: Source(read_conllu(path, column=options.column, repairs=repairs)),
        lambda sentences, stream, options: write_conllu(sentences, stream, column=options.column),
    ),
    FileFormat.COLUMNS: Format(
        (".conll", ".tsv", ".iob", ".iob1", ".bio", ".iob2", ".bio2", ".iobes", ".bioes", ".bmes", ".bilou"),
        _read_columns,
        lambda sentences, stream, options: write_columns(sentences, stream),
    ),
    FileFormat.JSONL: Format(
        (".jsonl", ".ndjson"),
        lambda path, options, repairs: Source(read_json_lines(path, repairs=repairs)),
        lambda sentences, stream, options: write_json_lines(sentences, stream),
    ),
    FileFormat.HUGGING_FACE: Format(
        (),
        lambda path, options, repairs: Source(
            row.sentence for row in read_token_rows(path, options.fields, task=options.task, repairs=repairs)
        ),
        lambda sentences, stream, options: write_token_rows(
            sentences, stream, key=options.fields.tag_column or "ner_tags"
        ),
    ),
    FileFormat.RAW: Format(
        (".raw",),
        lambda path, options, repairs: Source(read_raw_text(path, language=options.fields.language)),
        lambda sentences, stream, options: _refuse_raw(),
    ),
    **{
        name: Format(suffixes, functools.partial(_read_annotations, ANNOTATION_FORMATS[name]), _refuse_stream)
        for name, suffixes in (
            (FileFormat.DOCCANO, ()),
            (FileFormat.PRODIGY, ()),
            (FileFormat.LABEL_STUDIO, (".json",)),
            (FileFormat.BRAT, (".ann",)),
        )
    },
    FileFormat.TEXT: Format(
        (".text", ".tok"),
        lambda path, options, repairs: Source(read_plain_text(path)),
        lambda sentences, stream, options: write_plain_text(sentences, stream),
    ),
}

# Standard input and pipes are assumed to be in the first format.
_TASK_FORMATS: dict[Task, tuple[FileFormat, ...]] = {
    Task.POS: (FileFormat.CONLLU, FileFormat.COLUMNS, FileFormat.JSONL, FileFormat.HUGGING_FACE),
    Task.NER: (
        FileFormat.COLUMNS,
        FileFormat.JSONL,
        FileFormat.HUGGING_FACE,
        FileFormat.DOCCANO,
        FileFormat.PRODIGY,
        FileFormat.LABEL_STUDIO,
        FileFormat.BRAT,
    ),
    Task.SEG_POS: (FileFormat.CONLLU, FileFormat.COLUMNS, FileFormat.JSONL),
}


def suffix_format(path: StrPath) -> FileFormat | None:
    """The format indicated by a file's name without compression; None for ``.txt``, used by columns and plain text."""
    suffix = uncompressed_suffix(path)
    return next((name for name, entry in FORMATS.items() if suffix in entry.suffixes), None)


_HEAD_LINES = 100
_MIN_CONLLU_FIELDS = 8
_ALIKE = 0.9
"""the share of a table's rows that have the same number of fields"""
_COMMENT = re.compile(r"#(?:[ \t]|[\w.-]+=)")
_PUNCTUATION = re.compile(r"\W+")


def content_format(path: StrPath) -> FileFormat | None:
    """The format detected from the first lines of ``path``; None for a stream that can be read only once.

    JSON Lines begin with a brace; the first unit of CoNLL-U has the ID 1 and eight columns or more. Columns are lines with the
    same number of fields, two or more, separated by tabs, or by spaces if the last fields look like tags (``B-PER``, ``O``,
    ``NOUN``, ``.``); a few lines among many may differ, which their reader then names. Everything else is plain text.
    """
    if not os.path.isfile(path) and (path == "-" or os.path.exists(path)):
        return None
    lines = [line for line in itertools.islice(read_lines(path, allow_returns=True), _HEAD_LINES) if line.strip()]
    if lines and lines[0].startswith("{"):
        return _json_format(path, FileFormat.JSONL)
    if begins_conllu(lines):
        return FileFormat.CONLLU
    if any(line.startswith(DOCUMENT_START) for line in lines):
        return FileFormat.COLUMNS
    rows = [line for line in lines if not _COMMENT.match(line)] or lines
    if len(_alike([line.split("\t") for line in rows])[0]) > 1:
        return FileFormat.COLUMNS
    tags = [row[-1] for row in _alike([Separator.SPACE.fields_of(line) for line in rows]) if len(row) > 1]
    has_tags = all(map(TAG.fullmatch, tags)) and not all(map(_PUNCTUATION.fullmatch, tags))
    return FileFormat.COLUMNS if has_tags else FileFormat.TEXT


def begins_conllu(lines: Iterable[str]) -> bool:
    """Whether the first line that is no comment is the first unit of CoNLL-U."""
    first = next((line for line in lines if not line.startswith("#")), "").split("\t")
    return len(first) >= _MIN_CONLLU_FIELDS and re.fullmatch(r"1(-\d+)?|0\.1", first[0]) is not None


def _alike(rows: Sequence[list[str]]) -> Sequence[list[str]]:
    """The rows with the most common number of fields if nearly all have it; a single empty row if not."""
    number, count = Counter(map(len, rows)).most_common(1)[0] if rows else (0, 0)
    return [row for row in rows if len(row) == number] if count > _ALIKE * len(rows) else [[""]]


def input_format(path: StrPath) -> FileFormat | None:
    """The format of an existing file by its name, and for JSON files by the keys of the first object."""
    name = os.fspath(path)
    found = suffix_format(path)
    if found is None and os.path.isdir(name):
        return FileFormat.BRAT
    if found not in (FileFormat.JSONL, FileFormat.LABEL_STUDIO) or not os.path.isfile(name):
        return found
    return _json_format(path, found)


def _json_format(path: StrPath, found: FileFormat) -> FileFormat:
    """The format of a JSON file by the keys of its first object; ``found`` if they do not determine it."""
    try:
        _, first = next(read_json_values(path), (0, None))
    except InputError:
        return found  # reading the file reports the error
    values: dict[str, Any] = first if isinstance(first, dict) else {}
    keys = set(values)
    if "units" in keys:
        return FileFormat.JSONL
    if not keys:
        return found
    if "data" in keys:
        return FileFormat.LABEL_STUDIO
    tokens = values.get("tokens")
    has_words = isinstance(tokens, list) and isinstance(next(iter(tokens), None), str)
    if isinstance(values.get("text"), str) and not has_words:
        if keys & {"spans", "tokens"}:
            return FileFormat.PRODIGY
        if keys & {"label", "labels", "entities"}:
            return FileFormat.DOCCANO
        raise InputError(
            "the format of texts without annotations cannot be detected",
            path=path,
            remedy="specify it with --format doccano or --format prodigy",
        )
    # Of words and tags under other keys, its reader asks for the keys.
    is_tokens = keys & {"tokens", "words", "label_names", "features"} or any(
        isinstance(value, list) and isinstance(next(iter(value), None), str) for value in values.values()
    )
    return FileFormat.HUGGING_FACE if is_tokens else found


def format_of(path: StrPath, *, option: str = "--format", is_output: bool = False) -> FileFormat:
    """The format of ``path``, of an output only by its name; an `InputError` asks for ``option`` if it cannot be determined."""
    found = suffix_format(path) if is_output else input_format(path)
    if found is None:
        raise InputError(
            "the format cannot be determined from the name",
            path=path,
            remedy=f"specify it with {option} ({', '.join(FileFormat)})",
        )
    return found


def task_format(path: StrPath, task: Task, *, file_format: FileFormat | None = None) -> FileFormat:
    """The format of a labelled file: as given, by its name or by its first lines, otherwise columns."""
    accepted = _TASK_FORMATS[task]
    found = file_format or input_format(path)
    if found is None:
        found = content_format(path) or accepted[0]
        if found not in accepted:
            found = FileFormat.COLUMNS
    if found not in accepted:
        has_spans = task is Task.NER and found is FileFormat.CONLLU
        raise InputError(
            f"the task {task} reads {', '.join(accepted[:-1])} or {accepted[-1]}, not {found}",
            path=path,
            remedy="if its labels are in MISC (Label=…), convert it with dmf data convert --column misc to a .tsv file"
            if has_spans
            else "convert the file with dmf data convert, or specify its format with --format",
        )
    return found


def read_source(
    path: StrPath, file_format: FileFormat, options: FormatOptions | None = None, *, repairs: Repairs | None = None
) -> Source:
    """The sentences of ``path`` with tags unchanged; a file without sentences is an `InputError` once it has been read.

    Tags that are numbers become the label names given, if any. With ``repairs`` a unit without a form becomes a placeholder.
    """
    options = options or FormatOptions()
    source = FORMATS[file_format].read(path, options, repairs)
    sentences = _not_empty(source.sentences, path)
    names = options.fields.label_names
    return source._replace(sentences=sentences if names is None else _named(sentences, names, path, source.layout))


def _named(
    sentences: Iterable[Sentence], names: Sequence[str], path: StrPath, layout: ColumnLayout | None
) -> Iterator[Sentence]:
    """Replace labels that are numbers, from 0, by their names; those that are names stay what they are."""

    def name(label: str, line: int) -> str:
        if label in names or not (label.isascii() and label.isdecimal()):
            return label
        if len(label) > 9 or int(label) >= len(names):
            raise InputError(
                f"the label {label} is outside the {len(names)} label names",
                path=path,
                line=line,
                remedy="check --label-names",
            )
        return names[int(label)]

    lines_per_unit = 0 if layout is None else 1
    for sentence in sentences:
        if sentence.labels is not None:
            lines = itertools.count(sentence.line, lines_per_unit)
            sentence = sentence._replace(labels=tuple(map(name, sentence.labels, lines)))
        yield sentence


def _not_empty(sentences: Iterable[Sentence], path: StrPath) -> Iterator[Sentence]:
    is_empty = True
    for sentence in sentences:
        is_empty = False
        yield sentence
    if is_empty:
        raise InputError("contains no sentences", path=path, remedy="check that this is the right file")


def read_task(
    path: StrPath,
    task: Task,
    *,
    column: ConlluColumn | None = None,
    scheme: LabelScheme | None = None,
    file_format: FileFormat | None = None,
    fields: FieldChoice = DETECTED,
    strict: bool = False,
    repairs: Repairs | None = None,
) -> Corpus:
    """Read a labelled corpus for ``task``, with the labels the paper's systems see.

    POS: the UPOS (or ``column``) of CoNLL-U words. NER: column files in any scheme, detected unless given, as BMES. Seg-POS:
    one unit per character of CoNLL-U words with boundary–XPOS labels. All accept JSON Lines; POS and Seg-POS also column files,
    with the tag in the last column, for Seg-POS in any scheme.

    Irregular tags and units without a form are repaired, and `Corpus.repaired` reports it; with ``strict`` they are errors.
    ``repairs`` receives each repair.
    """
    if strict:
        repairs = None
    elif repairs is None:
        repairs = Repairs(path)
    file_format = task_format(path, task, file_format=file_format)
    if column is None:
        column = ConlluColumn.XPOS if task is Task.SEG_POS else ConlluColumn.UPOS
    if task is Task.POS or (task is Task.SEG_POS and file_format is FileFormat.CONLLU):
        scheme = task.scheme
    options = FormatOptions(column=column, fields=fields, task=task, needs_labels=True)
    source = read_source(path, file_format, options, repairs=repairs)
    is_unit_per_line = file_format is FileFormat.COLUMNS
    sentences = _labelled(source.sentences, path, column if file_format is FileFormat.CONLLU else None)
    if file_format is FileFormat.COLUMNS:
        sentences = with_first_document(sentences)
    source_scheme = scheme if file_format.annotation is None else LabelScheme.BIO2
    if task is Task.SEG_POS and file_format is FileFormat.CONLLU:
        sentences = to_characters(sentences)
    elif task is not Task.POS:
        if source_scheme is None:
            kept = tuple(sentences)
            source_scheme = detect_scheme(kept, path=path, is_unit_per_line=is_unit_per_line, repairs=repairs)
            if task is Task.SEG_POS and source_scheme is LabelScheme.PLAIN:
                source_scheme = task.scheme  # the scheme that its labels should have had
            sentences = iter(kept)
        sentences = re_encode(
            sentences, source_scheme, task.scheme, path=path, is_unit_per_line=is_unit_per_line, repairs=repairs
        )
    kept = tuple(sentences)
    return Corpus(
        path=path,
        task=task,
        sentences=kept,
        source_scheme=source_scheme or task.scheme,
        layout=source.layout,
        repaired=None if repairs is None else repairs.describe(),
    )


def _labelled(sentences: Iterable[Sentence], path: StrPath, column: ConlluColumn | None) -> Iterator[Sentence]:
    """Pass on labelled sentences, or raise an error; a CoNLL-U column with only ``_`` counts as unlabelled."""
    has_labels = False
    line = 0
    for sentence in sentences:
        line = line or sentence.line
        if sentence.labels is None:
            raise InputError("no labels", path=path, line=sentence.line, remedy="use a labelled file")
        has_labels = has_labels or column is None or any(label != "_" for label in sentence.labels)
        yield sentence
    if line and not has_labels and column is not None:
        raise InputError(
            f"the column {column} contains only _", path=path, line=line, remedy="choose another with --column"
        )
