"""Sentences to tag from a file of any format; labels it may hold are not looked at."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import NamedTuple

from diffusion_mf.data.columns import DOCUMENT_START, detect_layout, read_column_lines, read_columns, through_first_unit
from diffusion_mf.data.conllu import NUM_COLUMNS, ConlluBlock, read_conllu_blocks
from diffusion_mf.data.corpus import Task
from diffusion_mf.data.formats import FileFormat
from diffusion_mf.data.json_lines import read_json_lines
from diffusion_mf.data.label_schemes import LabelScheme
from diffusion_mf.data.plain_text import read_plain_text
from diffusion_mf.data.repair import Repairs
from diffusion_mf.data.sentence import Sentence
from diffusion_mf.errors import InputError
from diffusion_mf.files import StrPath


class Item(NamedTuple):
    """A sentence to tag; ``block`` is its text where it comes from CoNLL-U."""

    sentence: Sentence
    block: ConlluBlock | None = None


def read_items(
    path: StrPath, file_format: FileFormat, task: Task, *, is_guess: bool = False, repairs: Repairs | None = None
) -> Iterator[Item]:
    """Stream the sentences of ``path``, for Seg-POS as characters; of a file without any sentence, none.

    ``is_guess`` says that nobody told the format: what plainly is no plain text is then refused. With ``repairs`` a line of a
    column file without a form keeps its place, so that a labelled file can be tagged and scored.
    """
    if file_format is FileFormat.CONLLU:
        for block in read_conllu_blocks(path):
            words = block.sentence or Sentence(())
            units = tuple("".join(words.units)) if task is Task.SEG_POS else words.units
            yield Item(words._replace(units=units, labels=None), block)
        return
    for number, sentence in enumerate(_READERS[file_format](path, repairs)):
        if is_guess and number == 0:
            _check_plain(sentence, path)
        # Blanks between words of plain text would give away what is to be found.
        is_words = file_format is FileFormat.TEXT and task is Task.SEG_POS
        units = tuple("".join(sentence.units)) if is_words else sentence.units
        yield Item(sentence._replace(units=units, labels=None))


def _read_columns(path: StrPath, repairs: Repairs | None) -> Iterator[Sentence]:
    lines = read_column_lines(path)
    head = list(through_first_unit(lines, path))
    if not head or not head[-1].strip(" \t") or head[-1].startswith(DOCUMENT_START):
        return iter(())
    # With a scheme given nobody goes through the file to find out which one its tags are in.
    layout = detect_layout(path, lines=head, scheme=LabelScheme.PLAIN)
    return read_columns(path, layout, lines=itertools.chain(head, lines), repairs=repairs)


_READERS: dict[FileFormat, Callable[[StrPath, Repairs | None], Iterator[Sentence]]] = {
    FileFormat.COLUMNS: _read_columns,
    FileFormat.JSONL: lambda path, repairs: read_json_lines(path, repairs=repairs),
    FileFormat.TEXT: lambda path, repairs: read_plain_text(path),
}


def _check_plain(sentence: Sentence, path: StrPath) -> None:
    first = sentence.units[0]
    if first.startswith(('{"', "#")) or (first == "1" and len(sentence.units) >= NUM_COLUMNS):
        raise InputError(
            "this does not look like plain text",
            path=path,
            line=sentence.line,
            remedy=f"name its format with --format ({', '.join(FileFormat)})",
        )
