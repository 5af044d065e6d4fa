"""The file formats in one table, and `read_task`, the one front door to a labelled corpus."""

from __future__ import annotations

import enum
import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import IO, NamedTuple

from diffusion_mf.data.columns import (
    ColumnLayout,
    Separator,
    detect_layout,
    read_column_lines,
    read_columns,
    through_first_unit,
    write_columns,
)
from diffusion_mf.data.conllu import ConlluColumn, read_conllu, write_conllu
from diffusion_mf.data.corpus import Corpus, Task, re_encode, to_characters
from diffusion_mf.data.documents import with_first_document
from diffusion_mf.data.json_lines import read_json_lines, write_json_lines
from diffusion_mf.data.label_schemes import LabelScheme
from diffusion_mf.data.plain_text import read_plain_text, write_plain_text
from diffusion_mf.data.repair import Repairs
from diffusion_mf.data.scheme_detection import detect_scheme
from diffusion_mf.data.sentence import Sentence
from diffusion_mf.data.text_lines import Rereadable
from diffusion_mf.errors import InputError
from diffusion_mf.files import StrPath, uncompressed_suffix


class FileFormat(enum.StrEnum):
    """The file formats; the value is the name used on the command line."""

    CONLLU = "conllu"
    COLUMNS = "columns"
    JSONL = "jsonl"
    TEXT = "text"


@dataclass(frozen=True, kw_only=True)
class FormatOptions:
    """What a user may say about a file; None is detected. Columns of column files count from 0."""

    column: ConlluColumn = ConlluColumn.UPOS
    scheme: LabelScheme | None = None
    separator: Separator | None = None
    unit_column: int = 0
    tag_column: int | None = None


class Source(NamedTuple):
    """The sentences of a file as they stand there, streaming, and a column file's layout."""

    sentences: Iterator[Sentence]
    layout: ColumnLayout | None = None


class Format(NamedTuple):
    """How one format is recognised, read and written."""

    suffixes: tuple[str, ...]
    read: Callable[[StrPath, FormatOptions, Repairs | None], Source]
    write: Callable[[Iterable[Sentence], IO[bytes], FormatOptions], None]


def _read_columns(path: StrPath, options: FormatOptions, repairs: Repairs | None) -> Source:
    head: Iterable[str]
    lines: Iterable[str]
    if options.scheme is None:
        # Only the whole file tells the scheme, so it is gone through twice.
        head = lines = Rereadable(path, read_column_lines)
    else:
        rest = read_column_lines(path)
        head = list(through_first_unit(rest, path))
        lines = itertools.chain(head, rest)
    layout = detect_layout(
        path,
        lines=head,
        separator=options.separator,
        unit_column=options.unit_column,
        tag_column=options.tag_column,
        scheme=options.scheme,
        repairs=repairs,
    )
    return Source(read_columns(path, layout, lines=lines, repairs=repairs), layout)


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
    FileFormat.TEXT: Format(
        (".text", ".tok"),
        lambda path, options, repairs: Source(read_plain_text(path)),
        lambda sentences, stream, options: write_plain_text(sentences, stream),
    ),
}

# The first is what a file is taken for when its name does not tell.
_TASK_FORMATS: dict[Task, tuple[FileFormat, ...]] = {
    Task.POS: (FileFormat.CONLLU, FileFormat.COLUMNS, FileFormat.JSONL),
    Task.NER: (FileFormat.COLUMNS, FileFormat.JSONL),
    Task.SEG_POS: (FileFormat.CONLLU, FileFormat.COLUMNS, FileFormat.JSONL),
}


def suffix_format(path: StrPath) -> FileFormat | None:
    """The format a file's name tells, compression aside; ``.txt`` tells none, for columns and plain text both use it."""
    suffix = uncompressed_suffix(path)
    return next((name for name, entry in FORMATS.items() if suffix in entry.suffixes), None)


def format_of(path: StrPath, *, option: str = "--format") -> FileFormat:
    """The format of ``path`` by its name; `InputError` asking for ``option`` where the name does not tell."""
    found = suffix_format(path)
    if found is None:
        raise InputError(
            "the name does not tell the format", path=path, remedy=f"name it with {option} ({', '.join(FORMATS)})"
        )
    return found


def task_format(path: StrPath, task: Task, *, file_format: FileFormat | None = None) -> FileFormat:
    """The format of a labelled file: as given, by its name, or the task's own where the name does not tell."""
    accepted = _TASK_FORMATS[task]
    found = file_format or suffix_format(path) or accepted[0]
    if found not in accepted:
        raise InputError(
            f"the task {task} reads {' or '.join(accepted)}, not {found}",
            path=path,
            remedy="convert the file with dmf data convert, or name its format with --format",
        )
    return found


def read_source(
    path: StrPath, file_format: FileFormat, options: FormatOptions | None = None, *, repairs: Repairs | None = None
) -> Source:
    """The sentences of ``path`` as they stand there; a file without any is an `InputError` once it has been read.

    With ``repairs`` a unit without a form has a placeholder; tags are as they stand in any case.
    """
    source = FORMATS[file_format].read(path, options or FormatOptions(), repairs)
    return source._replace(sentences=_not_empty(source.sentences, path))


def _not_empty(sentences: Iterable[Sentence], path: StrPath) -> Iterator[Sentence]:
    is_empty = True
    for sentence in sentences:
        is_empty = False
        yield sentence
    if is_empty:
        raise InputError("holds no sentences", path=path, remedy="check that this is the right file")


def read_task(
    path: StrPath,
    task: Task,
    *,
    column: ConlluColumn | None = None,
    scheme: LabelScheme | None = None,
    file_format: FileFormat | None = None,
    check: bool = True,
    strict: bool = False,
    repairs: Repairs | None = None,
) -> Corpus:
    """Read a labelled corpus for ``task``, with the labels the paper's systems see.

    POS: the UPOS (or ``column``) of CoNLL-U words. NER: column files in any scheme, detected unless given, as BMES. Seg-POS:
    one unit per character of CoNLL-U words with boundary–XPOS labels. All accept JSON Lines; POS and Seg-POS also columns.
    Irregular tags and units without a form are repaired, and `Corpus.repaired` says so; ``strict`` refuses them. ``repairs`` is
    for those who want to hear of each. ``check=False`` is for predictions, which may be malformed and never are repaired:
    labels must be of the scheme, sequences need not be legal.
    """
    if strict or not check:
        repairs = None
    elif repairs is None:
        repairs = Repairs(path)
    file_format = task_format(path, task, file_format=file_format)
    if column is None:
        column = ConlluColumn.XPOS if task is Task.SEG_POS else ConlluColumn.UPOS
    if task is not Task.NER:
        scheme = task.scheme
    source = read_source(path, file_format, FormatOptions(column=column, scheme=scheme), repairs=repairs)
    is_unit_per_line = file_format is FileFormat.COLUMNS
    sentences = _labelled(source.sentences, path, column if file_format is FileFormat.CONLLU else None)
    if file_format is FileFormat.COLUMNS:
        sentences = with_first_document(sentences)
    source_scheme = source.layout.scheme if source.layout is not None else scheme
    if task is Task.SEG_POS and file_format is FileFormat.CONLLU:
        sentences = to_characters(sentences)
    elif task is not Task.POS:
        if source_scheme is None:
            kept = tuple(sentences)
            source_scheme = detect_scheme(kept, path=path, is_unit_per_line=is_unit_per_line, repairs=repairs)
            sentences = iter(kept)
        sentences = re_encode(
            sentences,
            source_scheme,
            task.scheme,
            path=path,
            is_unit_per_line=is_unit_per_line,
            check=check,
            repairs=repairs,
        )
    kept = tuple(sentences)
    return Corpus(
        path=path,
        task=task,
        sentences=kept,
        scheme=task.scheme,
        source_scheme=source_scheme or task.scheme,
        layout=source.layout,
        repaired=None if repairs is None else repairs.describe(),
    )


def _labelled(sentences: Iterable[Sentence], path: StrPath, column: ConlluColumn | None) -> Iterator[Sentence]:
    """Let labelled sentences through; in CoNLL-U a column with nothing but ``_`` counts as no labels."""
    has_labels = False
    line = 0
    for sentence in sentences:
        line = line or sentence.line
        if sentence.labels is None:
            raise InputError("no labels", path=path, line=sentence.line, remedy="name a labelled file")
        has_labels = has_labels or column is None or any(label != "_" for label in sentence.labels)
        yield sentence
    if line and not has_labels and column is not None:
        raise InputError(
            f"the column {column} holds nothing but _", path=path, line=line, remedy="choose another with --column"
        )
