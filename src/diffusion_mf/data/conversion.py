"""Converts files between formats, label schemes and units (words or characters), as a stream."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import IO

from diffusion_mf.data.annotations import records_of
from diffusion_mf.data.columns import ColumnLayout
from diffusion_mf.data.conllu import MISC_KEY, ConlluColumn, read_conllu_blocks
from diffusion_mf.data.corpus import re_encode, to_characters, to_words
from diffusion_mf.data.files import Rereadable, StrPath, open_output
from diffusion_mf.data.formats import FORMATS, FileFormat, FormatOptions, read_source
from diffusion_mf.data.label_schemes import LabelScheme, detect_scheme
from diffusion_mf.data.repair import Repairs
from diffusion_mf.data.sentence import Sentence, with_first_document
from diffusion_mf.errors import InputError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Conversion:
    """What to convert: formats, the source's options and scheme (None: detected), the scheme to write (None: labels unchanged).

    ``use_characters`` splits CoNLL-U words into characters with boundary–tag labels, or joins characters into words.
    ``keep_documents`` marks where documents begin, which many readers of columns and JSON Lines do not expect. ``strict`` refuses
    irregular data instead of repairing them (see `data.repair`).
    """

    source_format: FileFormat
    target_format: FileFormat
    options: FormatOptions
    source_scheme: LabelScheme | None = None
    target_scheme: LabelScheme | None = None
    use_characters: bool = False
    keep_documents: bool = False
    strict: bool = False


def convert(
    source: StrPath, target: StrPath, conversion: Conversion, *, advance: Callable[[int], None] = lambda count: None
) -> list[str]:
    """Convert ``source`` into ``target``, which is created only on success; ``advance`` is called after every sentence.

    Returns messages for the user about the source: its layout or scheme, and what was repaired. CoNLL-U to CoNLL-U is checked and
    copied byte for byte.
    """
    formats = (conversion.source_format, conversion.target_format)
    if formats == (FileFormat.CONLLU, FileFormat.CONLLU):
        if conversion.target_scheme is not None or conversion.use_characters:
            raise InputError("CoNLL-U to CoNLL-U only copies the file", remedy="leave out --to-scheme and --characters")
        with open_output(target) as stream:
            _copy_conllu(source, stream, conversion.options.column, advance)
        return []
    if conversion.use_characters and FileFormat.CONLLU not in formats:
        raise InputError("--characters converts from or to CoNLL-U words", remedy="leave out --characters")
    repairs = None if conversion.strict else Repairs(source)
    reader, writer = (each.annotation for each in formats)
    if reader is not None and writer is not None:
        # Texts with spans are converted directly, without splitting them into tokens.
        with writer.open(target) as write:
            for record in reader.read(source, repairs):
                write(record)
                advance(1)
        repaired = None if repairs is None else repairs.describe()
        return [] if repaired is None else [repaired]
    sentences, found, scheme = _read(source, conversion, repairs)
    if conversion.source_format is FileFormat.COLUMNS:
        sentences = with_first_document(sentences)
    if not conversion.keep_documents:
        sentences = (sentence._replace(document=0) for sentence in sentences)
    with contextlib.ExitStack() as stack:
        try:
            if writer is not None:
                write = stack.enter_context(writer.open(target))
                for record in records_of(_counted(sentences, advance), scheme):
                    write(record)
            else:
                stream = stack.enter_context(open_output(target))
                FORMATS[conversion.target_format].write(_counted(sentences, advance), stream, conversion.options)
        except InputError as error:
            if error.path is not None:
                raise
            # A writer knows the line a sentence came from but not the file.
            raise InputError(error.problem, path=source, line=error.line, remedy=error.remedy) from None
    repaired = None if repairs is None else repairs.describe()
    return [line for line in (found and f"{source}: {found}", repaired) if line]


def _read(
    source: StrPath, conversion: Conversion, repairs: Repairs | None
) -> tuple[Iterator[Sentence], str | None, LabelScheme]:
    """The sentences to write, messages about the source, and the scheme of the labels."""
    source_format, options = conversion.source_format, conversion.options
    is_columns = source_format is FileFormat.COLUMNS
    layout: ColumnLayout | None = None
    found = None

    def read(path: StrPath) -> Iterator[Sentence]:
        nonlocal layout
        if repairs is not None:
            repairs.restart()
        sentences, layout = read_source(path, source_format, options, repairs=repairs)
        if source_format is not FileFormat.CONLLU:
            return sentences
        if options.column is ConlluColumn.MISC:
            sentences = _with_all_labels(sentences, path)
        return _without_blank_labels(sentences)

    scheme = conversion.source_scheme
    if source_format.annotation is not None:
        scheme = LabelScheme.BIO2
    elif conversion.use_characters and not is_columns:
        scheme = LabelScheme.BMES
    needs_scheme = is_columns or conversion.target_scheme is not None or conversion.target_format.annotation is not None
    if needs_scheme and scheme is None:
        again = Rereadable(source, read)
        scheme = detect_scheme(again, path=source, is_unit_per_line=is_columns)
        found = f"scheme {scheme} (detected)"
        sentences = iter(again)
    else:
        sentences = read(source)
    if layout is not None:
        about = "" if layout.tag_column is None else f", {found or f'scheme {scheme} (as given)'}"
        found = layout.describe() + about
    if source_format is FileFormat.CONLLU and conversion.use_characters:
        sentences = to_characters(sentences)
    is_joined = conversion.use_characters and conversion.target_format is FileFormat.CONLLU
    target_scheme = LabelScheme.BMES if is_joined else conversion.target_scheme
    if conversion.target_format.annotation is not None:
        target_scheme = None if scheme in (None, LabelScheme.PLAIN) else LabelScheme.BIO2
    if scheme is not None:
        sentences = re_encode(
            sentences, scheme, target_scheme, path=source, is_unit_per_line=is_columns, repairs=repairs
        )
    written = to_words(sentences, path=source) if is_joined else sentences
    return written, found, target_scheme or scheme or LabelScheme.PLAIN


def _copy_conllu(source: StrPath, stream: IO[bytes], column: ConlluColumn, advance: Callable[[int], None]) -> None:
    is_empty = True
    for block in read_conllu_blocks(source, column=column):
        is_empty = is_empty and block.sentence is None
        stream.write(block.text.encode())
        advance(1)
    if is_empty:
        raise InputError("contains no sentences", path=source, remedy="check that this is the right file")


def _without_blank_labels(sentences: Iterable[Sentence]) -> Iterator[Sentence]:
    """Treat a sentence whose labels are all _, CoNLL-U's missing value, as unlabelled."""
    for sentence in sentences:
        is_blank = sentence.labels is not None and set(sentence.labels) == {"_"}
        yield sentence._replace(labels=None) if is_blank else sentence


def _with_all_labels(sentences: Iterable[Sentence], path: StrPath) -> Iterator[Sentence]:
    """`InputError` where only some words of a sentence have a label in MISC."""
    for sentence in sentences:
        labels = sentence.labels or ()
        if "_" in labels and set(labels) != {"_"}:
            raise InputError(
                f"only some words of the sentence have {MISC_KEY}=… in MISC",
                path=path,
                line=sentence.line,
                remedy=f"give every word one, with {MISC_KEY}=O outside of spans",
            )
        yield sentence


def _counted(sentences: Iterable[Sentence], advance: Callable[[int], None]) -> Iterator[Sentence]:
    for sentence in sentences:
        yield sentence
        advance(1)
