"""Tags files as a stream: reads the sentences of a file and writes them with labels."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import heapq
import itertools
import os
import re
import sys
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch

from diffusion_mf.data.annotations import AnnotationFormat, Record, TextSpan, records_of, sentences_of
from diffusion_mf.data.columns import (
    COLUMN_FIELD,
    DOCUMENT_START,
    FREE,
    ColumnBlock,
    ColumnLayout,
    detect_layout,
    read_column_blocks,
    read_columns,
)
from diffusion_mf.data.conllu import NUM_COLUMNS, ConlluBlock, ConlluColumn, read_conllu_blocks, with_labels
from diffusion_mf.data.corpus import Corpus, Task, check_labels
from diffusion_mf.data.detection import check_table, exchanged_columns, numbers_as_forms
from diffusion_mf.data.files import (
    BYTE_ORDER_MARK,
    DETECTED,
    FieldChoice,
    SentenceLimits,
    StrPath,
    check_fields,
    json_text,
    open_output,
    read_lines,
)
from diffusion_mf.data.formats import (
    FileFormat,
    begins_conllu,
    content_format,
    input_format,
    read_json_rows,
    read_plain_text,
    read_task,
    suffix_format,
    task_format,
)
from diffusion_mf.data.hugging_face import TokenRow, read_token_rows
from diffusion_mf.data.label_schemes import LabelledSpan, LabelScheme, extract_spans, is_boundary_label, split_label
from diffusion_mf.data.raw_text import Offsets, characters_of, read_paragraphs
from diffusion_mf.data.repair import Repairs
from diffusion_mf.data.sentence import Sentence, with_first_document
from diffusion_mf.data.tables import TAG
from diffusion_mf.errors import DiffusionMFError, InputError, quoted, shortened
from diffusion_mf.evaluation.calibration import expected_calibration_error
from diffusion_mf.evaluation.report import Report, TaskScorer
from diffusion_mf.model.storage import StoredModel
from diffusion_mf.tagger.rendering import (
    PAGE_END,
    PAGE_START,
    Readable,
    html_text,
    kind_colours,
    label_colours,
    pieces,
    spans_text,
    terminal_text,
)
from diffusion_mf.tagger.requests import PlacedClamp
from diffusion_mf.tagger.results import TaggedSentence, without_uncertain
from diffusion_mf.tagger.tagger import Tagger


class TextPart(NamedTuple):
    """A sentence of a raw text: its tokens and whether it is the last; ``start`` is the text's offset in its file."""

    record: Record
    tokens: Sequence[Offsets]
    is_last: bool
    start: int = 0


class SourceSentence(NamedTuple):
    """A sentence to tag and its source: CoNLL-U, a column file, a row of a Hugging Face dataset, or a raw text."""

    sentence: Sentence
    block: ConlluBlock | None = None
    rows: ColumnBlock | None = None
    row: TokenRow | None = None
    part: TextPart | None = None
    clamp: PlacedClamp | None = None
    """the labels that the file gives in advance"""

    def detached(self) -> tuple[SourceSentence, SourceSentence]:
        """What belongs at the beginning of its file, and the sentence as it may stand anywhere."""
        head, rest = SourceSentence(Sentence(())), self
        if self.block is not None:
            blocks = self.block.detached()
            head, rest = head._replace(block=blocks[0]), rest._replace(block=blocks[1])
        if self.rows is not None:
            rows = self.rows.detached()
            head, rest = head._replace(rows=rows[0]), rest._replace(rows=rows[1])
        return head, rest


def read_source_sentences(
    path: StrPath,
    file_format: FileFormat,
    task: Task,
    *,
    fields: FieldChoice = DETECTED,
    is_guess: bool = False,
    labels: Collection[str] = (),
    repairs: Repairs | None = None,
) -> Iterator[SourceSentence]:
    """Stream the sentences of ``path``, for Seg-POS as characters; a file without sentences yields none.

    ``is_guess`` means that text is only assumed: what is clearly something else, such as words with ``labels``, is refused. With
    ``repairs``, a line without a form in a column file keeps its place, so that a labelled file can be tagged and scored.
    """
    if file_format is FileFormat.CONLLU:
        clamp_column = _conllu_clamps(fields.clamp_column, task)
        for block in read_conllu_blocks(path, column=clamp_column or ConlluColumn.UPOS, repairs=repairs):
            words = block.sentence or Sentence(())
            units = tuple("".join(words.units)) if task is Task.SEG_POS else words.units
            known = () if clamp_column is None else enumerate(words.labels or ())
            clamp = {position: label for position, label in known if label != FREE}
            yield SourceSentence(words._replace(units=units, labels=None), block, clamp=_placed(clamp, path, words, 1))
        return
    if file_format is FileFormat.COLUMNS:
        blocks = read_column_blocks(
            path,
            form_column=fields.form_column,
            tag_column=fields.tag_column,
            clamp_column=fields.clamp_column,
            repairs=repairs,
        )
        for rows in blocks:
            words = rows.sentence or Sentence(())
            yield SourceSentence(words._replace(labels=None), rows=rows, clamp=_placed(rows.clamps, path, words, 1))
        return
    if fields.clamp_column is not None:
        raise InputError(
            f"--clamp-column is for columns and conllu, not for {file_format}",
            remedy='leave it out; in JSON Lines the key "clamp" holds labels that are known',
        )
    if file_format is FileFormat.HUGGING_FACE:
        for row in read_token_rows(path, fields, task=task, repairs=repairs, needs_tags=False):
            clamp = json_clamp(row.row.get("clamp"))
            yield SourceSentence(row.sentence._replace(labels=None), row=row, clamp=_placed(clamp, path, row.sentence))
        return
    if file_format is FileFormat.JSONL:
        for sentence, values in read_json_rows(path, repairs=repairs):
            clamp = json_clamp(values.get("clamp"))
            yield SourceSentence(sentence._replace(labels=None), clamp=_placed(clamp, path, sentence))
        return
    if file_format is FileFormat.RAW:
        for number, paragraph in enumerate(read_paragraphs(path)):
            if is_guess and number == 0:
                text = paragraph.text.removeprefix(BYTE_ORDER_MARK)
                lines = text.strip().split("\n")
                _check_plain(lines, paragraph.line + text.removesuffix(text.lstrip()).count("\n"), path)
                _check_unlabelled(lines, path, labels)
            record = Record(paragraph.text, path=path, line=paragraph.line)
            yield from _text_items(record, task, fields.language, document=1, start=paragraph.start)
        return
    if file_format.annotation is not None:
        for number, record in enumerate(file_format.annotation.read(path, repairs), 1):
            # Existing labels must not influence where sentences end.
            yield from _text_items(record._replace(spans=None), task, fields.language, document=number)
        return
    for sentence in read_plain_text(path, lines=_checked_lines(path, labels) if is_guess else None):
        # The spaces in plain text would reveal the word boundaries that the model has to find.
        units = tuple("".join(sentence.units)) if task is Task.SEG_POS else sentence.units
        yield SourceSentence(sentence._replace(units=units, labels=None))


def _conllu_clamps(name: str | None, task: Task) -> ConlluColumn | None:
    if name is None:
        return None
    if task is Task.SEG_POS or name.lower() not in (ConlluColumn.UPOS, ConlluColumn.XPOS):
        raise InputError(
            f"the column {name} of CoNLL-U cannot hold clamps for {task}",
            remedy="choose --clamp-column upos or xpos"
            if task is not Task.SEG_POS
            else 'give them in JSON Lines, with characters as "units" and the key "clamp"',
        )
    return ConlluColumn(name.lower())


def _placed(clamp: Any, path: StrPath, sentence: Sentence, lines_per_unit: int = 0) -> PlacedClamp | None:
    return PlacedClamp(clamp, path, sentence.line, lines_per_unit) if clamp else None


_POSITION = re.compile(r"0|[1-9][0-9]{0,8}")


def json_clamp(value: Any) -> Any:
    """A clamp from JSON with its positions as integers, since JSON keys are strings."""
    if isinstance(value, list):
        return [_json_positions(part) for part in value]
    return _json_positions(value)


def _json_positions(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    # Another spelling, such as 01, could be a second key of the same position.
    return {int(key) if _POSITION.fullmatch(key) else key: labels for key, labels in value.items()}


def _text_items(
    record: Record, task: Task, language: str | None, *, document: int, start: int = 0
) -> Iterator[SourceSentence]:
    limits = SentenceLimits.from_environment()
    sentences = sentences_of(record, language=language)
    if not sentences:
        yield SourceSentence(Sentence(()), part=TextPart(record, (), True, start))
    for number, tokens in enumerate(sentences, 1):
        if task is Task.SEG_POS:
            begin, end = tokens[0][0], tokens[-1][1]
            tokens = [(begin + one, begin + other) for one, other in characters_of(record.text[begin:end])]
        units = tuple(record.text[slice(*token)] for token in tokens)
        sentence = Sentence(units, None, record.line, document)
        limits.check_units(sentence, record.path)
        yield SourceSentence(sentence, part=TextPart(record, tokens, number == len(sentences), start))


def split_text(
    tagger: Tagger, text: str, *, language: str | None = None, document: int = 1
) -> list[tuple[Sentence, tuple[Offsets, ...]]]:
    """The sentences of raw text as ``tagger`` splits it, each with the offsets of its units."""
    language = language or tagger.model.config.data.language
    items = _text_items(Record(text), tagger.task, language, document=document)
    return [(item.sentence, tuple(item.part.tokens)) for item in items if item.part is not None and item.sentence.units]


def tag_text(tagger: Tagger, text: str, *, language: str | None = None, **options: Any) -> list[TaggedSentence]:
    """The work of `Tagger.tag_text`."""
    if not isinstance(text, str):
        raise InputError(f"the text is {quoted(text)}", remedy="give a string")
    return next(tag_texts(tagger, [text], language=language, **options))


def tag_texts(
    tagger: Tagger, texts: Sequence[str], *, language: str | None = None, **options: Any
) -> Iterator[list[TaggedSentence]]:
    """The sentences of every text, each of which is a document; all are tagged together."""
    parts = [split_text(tagger, text, language=language, document=number) for number, text in enumerate(texts, 1)]
    results = iter(tagger.tag((sentence for members in parts for sentence, _ in members), **options))
    for members in parts:
        yield [dataclasses.replace(next(results), offsets=offsets) for _, offsets in members]


def _checked_lines(path: StrPath, labels: Collection[str]) -> Iterator[str]:
    """The lines of what should be text; `InputError` if the first ones show that it is something else."""
    first: list[str] = []
    for number, line in enumerate(read_lines(path), 1):
        if len(first) < _NUM_CHECKED and line.strip(" \t"):
            if not first:
                # What comes after a comment may be known only once its labels are written.
                _check_plain([line], number, path, may_begin_with_hash=False)
            first.append(line)
            _check_unlabelled(first, path, labels)
        yield line


_JSON_START = re.compile(r'\s*(?:\{\s*"|\[\s*\{)')


def _check_plain(lines: Sequence[str], number: int, path: StrPath, *, may_begin_with_hash: bool = True) -> None:
    """`InputError` if the first lines, from that with the ``number``, are those of JSON or CoNLL-U."""
    is_comment = not may_begin_with_hash and lines[0].lstrip().startswith("#")
    if is_comment or begins_conllu(lines) or _JSON_START.match("\n".join(lines)):
        raise InputError(
            "this does not look like plain text",
            path=path,
            line=number,
            remedy=f"specify its format with --format ({', '.join(FileFormat)})",
        )


_NUM_CHECKED = 2
"""lines: a program that writes into a pipe may wait for the labels of the first before it writes more"""


def _check_unlabelled(lines: Sequence[str], path: StrPath, labels: Collection[str]) -> None:
    """`InputError` if the first lines of what should be text are words, each with a tab and a label.

    A single line is evidence enough only if its label is one of a span and among ``labels``.
    """
    rows = [line.rstrip().split("\t") for line in lines]
    tags = [row[-1] for row in rows if len(row) > 1 and " " not in row[0]]
    are_labelled = len(tags) == len(rows) and all(tag in labels or is_boundary_label(tag) for tag in tags)
    problem = None
    if rows[0][0].startswith(DOCUMENT_START):
        problem = "this does not look like text"
    elif are_labelled and (len(rows) > 1 or (tags[0] in labels and tags[0] != "O" and is_boundary_label(tags[0]))):
        problem = f"these are words with labels ({shortened(rows[0][0])}, {shortened(tags[0])}), and not text"
    if problem is not None:
        remedy = "specify the format: --format columns, or --format text if every line is a sentence"
        raise InputError(problem, path=path, remedy=remedy)


SCORE_KEY = "Score"
_CONLLU_FIELD = re.compile(r"[^\t\n\r\0]+")
_TEXT_FIELD = re.compile(r"[^ \t\n\r\0]+")
_DEFAULT_COLUMN = {Task.POS: ConlluColumn.UPOS, Task.NER: ConlluColumn.MISC, Task.SEG_POS: ConlluColumn.XPOS}


@dataclasses.dataclass(frozen=True, kw_only=True)
class OutputOptions:
    """How results are written."""

    task: Task
    file_format: FileFormat | Readable
    labels: Sequence[str]
    """all of them, for their colours"""
    column: ConlluColumn | None = None
    """the CoNLL-U column; None means UPOS for POS, MISC for entities, XPOS for Seg-POS"""
    use_scores: bool = False
    is_bare: bool = False
    """in column files, write only unit and label, without the input's other columns"""

    def __post_init__(self) -> None:
        if self.file_format is FileFormat.RAW:
            raise InputError("raw text cannot hold labels", remedy="write columns, jsonl or another format")
        annotation = self.annotation
        if self.use_scores and annotation is not None and not annotation.has_scores:
            raise InputError(f"the format {self.file_format} has no place for scores", remedy="leave out --scores")
        if self.file_format is FileFormat.TEXT and self.task is not Task.SEG_POS:
            raise InputError("plain text cannot hold labels", remedy="write columns, jsonl or conllu")

    @property
    def annotation(self) -> AnnotationFormat | None:
        """How texts with spans are written; None for formats of units, and for people."""
        return self.file_format.annotation if isinstance(self.file_format, FileFormat) else None

    def text(self, item: SourceSentence, result: TaggedSentence, number: int) -> str:
        """The sentence of ``item``, the ``number``-th of the output, with its labels, in the format of the output."""
        if isinstance(self.file_format, FileFormat):
            return _TEXTS[self.file_format](item, result, self)
        if not result.units:
            return ""
        text, start = None, 0
        if item.part is not None:
            text, start = item.part.record.text, item.part.start
            result = dataclasses.replace(result, offsets=tuple(item.part.tokens))
        found = pieces(result, self.task, text)
        if self.file_format is Readable.SPANS:
            return spans_text(found, sentence=number, start=start)
        if self.file_format is Readable.HTML:
            return html_text(found, self.colours)
        return terminal_text(found, self.colours, task=self.task)

    @functools.cached_property
    def colours(self) -> dict[str, str]:
        """Of tags, or of the types of spans."""
        return label_colours(self.labels) if self.task is Task.POS else kind_colours(self.labels)


def _conllu(item: SourceSentence, result: TaggedSentence, layout: OutputOptions) -> str:
    column = layout.column or _DEFAULT_COLUMN[layout.task]
    block, labels, scores = item.block, result.labels, result.scores
    if layout.task is Task.SEG_POS:
        words = pieces(result, Task.SEG_POS)
        block = _bare_block(tuple(word.text for word in words), item)
        labels, scores = [word.label or "" for word in words], [word.confidence for word in words]
    elif block is None:
        block = _bare_block(result.units, item)
    block = block._replace(text=with_labels(block, labels, column=column))
    if layout.use_scores:
        return with_labels(block, [_shown(score) for score in scores], column=ConlluColumn.MISC, key=SCORE_KEY)
    return block.text


def _bare_block(units: tuple[str, ...], item: SourceSentence) -> ConlluBlock:
    """CoNLL-U lines with only the units, after the comments of the sentence they come from."""
    if not units:
        return ConlluBlock("" if item.block is None else item.block.text, None)
    sentence = Sentence(units, None, item.sentence.line)
    check_fields(sentence, _CONLLU_FIELD, "a CoNLL-U line")
    text = "" if item.block is None else item.block.text.removeprefix(BYTE_ORDER_MARK)
    lines = [line.removesuffix("\r") for line in text.split("\n") if line.startswith("#")]
    rest = "\t".join(["_"] * (NUM_COLUMNS - 2))
    lines += [f"{number}\t{unit}\t{rest}" for number, unit in enumerate(units, 1)]
    return ConlluBlock("\n".join(lines) + "\n\n", sentence)


def _columns(item: SourceSentence, result: TaggedSentence, layout: OutputOptions) -> str:
    if item.rows is not None and not layout.is_bare:
        scores = [_shown(score) for score in result.scores] if layout.use_scores else None
        return item.rows.with_tags(result.labels, scores)
    if not result.units:
        return ""
    check_fields(Sentence(result.units, tuple(result.labels), item.sentence.line), COLUMN_FIELD, "a column file")
    columns: list[Sequence[str]] = [result.units, result.labels]
    if layout.use_scores:
        columns.insert(1, [_shown(score) for score in result.scores])
    return "\n".join(map("\t".join, zip(*columns, strict=True))) + "\n\n"


def _json(item: SourceSentence, result: TaggedSentence, layout: OutputOptions) -> str:
    if not result.units:
        return ""
    row: dict[str, object] = {"units": result.units, "labels": result.labels}
    if layout.use_scores:
        row["scores"] = [round(score, 6) for score in result.scores]
        row["spans"] = [span._replace(confidence=round(span.confidence, 6))._asdict() for span in result.spans]
    if item.part is not None:
        row["offsets"] = [[item.part.start + start, item.part.start + end] for start, end in item.part.tokens]
    return _json_line(row)


def _json_line(row: dict[str, object]) -> str:
    try:
        return json_text(row) + "\n"
    except ValueError:
        raise DiffusionMFError(
            "the model computed scores that are not numbers, which JSON cannot hold; leave out --scores, or train it again."
        ) from None


def _hugging_face(item: SourceSentence, result: TaggedSentence, layout: OutputOptions) -> str:
    if item.row is None and not result.units:
        return ""
    row: dict[str, object] = {"tokens": result.units} if item.row is None else dict(item.row.row)
    key = None if item.row is None else item.row.key
    row[key or ("pos_tags" if layout.task is Task.POS else "ner_tags")] = result.labels
    if layout.use_scores:
        row["scores"] = [round(score, 6) for score in result.scores]
    return _json_line(row)


def _text(item: SourceSentence, result: TaggedSentence, layout: OutputOptions) -> str:
    if not result.units:
        return ""
    words = tuple(word.text for word in pieces(result, Task.SEG_POS))
    check_fields(Sentence(words, None, item.sentence.line), _TEXT_FIELD, "a line of words separated by spaces")
    return " ".join(words) + "\n"


_TEXTS: dict[FileFormat, Callable[[SourceSentence, TaggedSentence, OutputOptions], str]] = {
    FileFormat.CONLLU: _conllu,
    FileFormat.COLUMNS: _columns,
    FileFormat.JSONL: _json,
    FileFormat.TEXT: _text,
    FileFormat.HUGGING_FACE: _hugging_face,
}


class _TextCollector:
    """Collects the labelled sentences of a text and writes the text once it is complete."""

    def __init__(self, write: Callable[[Record], None], layout: OutputOptions) -> None:
        self._write = write
        self._layout = layout
        self._spans: list[TextSpan] = []

    def add(self, item: SourceSentence, result: TaggedSentence) -> None:
        part = item.part
        if part is None:
            if not result.units:
                return
            (record,) = records_of([Sentence(result.units, None, item.sentence.line)], LabelScheme.PLAIN)
            part = TextPart(record, record.tokens or (), is_last=True)
        self._spans += self._text_spans(part.tokens, result)
        if part.is_last:
            self._write(part.record._replace(spans=tuple(self._spans)))
            self._spans = []

    def _text_spans(self, tokens: Sequence[Offsets], result: TaggedSentence) -> Iterator[TextSpan]:
        labelled: Iterable[tuple[int, int, str, float]] = result.spans
        if self._layout.task is Task.POS:
            rows = zip(result.labels, result.scores, strict=True)
            labelled = ((index, index + 1, *row) for index, row in enumerate(rows))
        for start, end, label, score in labelled:
            yield TextSpan(tokens[start][0], tokens[end - 1][1], label, score if self._layout.use_scores else None)


def _shown(score: float) -> str:
    return f"{score:.4f}"


_JSON_LINES_FORMATS = (FileFormat.DOCCANO, FileFormat.PRODIGY, FileFormat.HUGGING_FACE)


_OTHER_READINGS = {
    FileFormat.COLUMNS: "read as columns, one unit per line; use --format text if each line is a sentence",
    FileFormat.TEXT: "read as plain text, one sentence per line; use --format columns if each line is a unit",
    FileFormat.RAW: "read as raw text; use --format columns if each line is a unit, --format text if each is a sentence",
}

_HEAD_SENTENCES = 50
"""of a file, which show what its columns contain"""

_WITHOUT_COLUMNS = (None, FileFormat.TEXT, FileFormat.RAW)

Advance = Callable[[int], None]
"""called with the number of sentences just done"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaggingOptions:
    """How a file's sentences are tagged; None stands for the model's own setting."""

    batch_tokens: int | None = None
    calls: int | None = None
    decoder: str | None = None
    one_document: bool = False
    """treat the file as one document, whatever marks it contains"""
    scheme: LabelScheme | None = None
    """of the labels written"""


def _with_stored_fields(
    fields: FieldChoice, model: StoredModel, path: StrPath, file_format: FileFormat, *, may_add_tag: bool = False
) -> FieldChoice:
    """``fields``, and for what they leave open the fields of the training data: language, names of numbered labels, columns.

    A file's own names of labels are kept. Columns are those that the file has, too; those that were named in training come first. The
    tag column that was detected there serves files whose words are in the same column, if it alone holds tags. With ``may_add_tag``,
    a file that ends before that column has no tags yet: its last column is another. Columns that cannot be meant are an `InputError`.
    """
    data, given = model.config.data, fields
    fields = fields._replace(language=fields.language or data.language)
    is_open = fields.label_names is None and data.label_names is not None
    if is_open and not _states_names(path, file_format, fields, model.config.task):
        fields = fields._replace(label_names=data.label_names)
    # A pipe cannot be read twice.
    if file_format is not FileFormat.COLUMNS or not os.path.isfile(path):
        return fields

    @functools.cache
    def layout(chosen: FieldChoice) -> ColumnLayout | None:
        return _layout(path, chosen, may_add_tag=may_add_tag)

    for form, tag in ((data.form_column, data.tag_column), (data.form_column, None), (None, data.tag_column)):
        chosen = fields._replace(form_column=fields.form_column or form, tag_column=fields.tag_column or tag)
        if chosen != fields and layout(chosen) is not None:
            fields = chosen
            break
    form_number, tag_number = model.source_columns or (0, 0)
    found = layout(fields)
    if fields.tag_column is None and found is not None and found.form_column + 1 == form_number:
        if found.num_columns >= tag_number:
            stored = fields._replace(tag_column=str(tag_number))
            other = layout(stored)
            if other is not None and not _holds_tags(found, model, path) and _holds_tags(other, model, path):
                fields = stored
        elif may_add_tag:
            fields = fields._replace(tag_column=str(found.num_columns + 1))
    if (found := layout(fields)) is not None:  # if there is none, reading the whole file reports it, or repairs it
        misread = _misread_columns(found, model, path, given, may_add_tag=may_add_tag)
        if misread is not None:
            raise InputError(misread[0], path=path, remedy=misread[1])
    return fields


def _states_names(path: StrPath, file_format: FileFormat, fields: FieldChoice, task: Task) -> bool:
    """Whether a Hugging Face dataset can be read without being told the names of its labels."""
    if file_format is not FileFormat.HUGGING_FACE or not os.path.isfile(path):
        return False
    with contextlib.suppress(InputError):
        next(read_token_rows(path, fields, task=task), None)
        return True
    return False


def _has_stored_columns(model: StoredModel, path: StrPath) -> bool:
    """Whether a file that looks like text has tags in the columns that were named in training."""
    data = model.config.data
    if (data.form_column is None and data.tag_column is None) or not os.path.isfile(path):
        return False
    layout = _layout(path, DETECTED._replace(form_column=data.form_column, tag_column=data.tag_column))
    return layout is not None and _holds_tags(layout, model, path)


def _misread_columns(
    layout: ColumnLayout, model: StoredModel, path: StrPath, given: FieldChoice, *, may_add_tag: bool
) -> tuple[str, str] | None:
    """The problem and its remedy if forms are tags or numbers, or tags are text; the latter two may be, in a column that is ``given``.

    Words such as S-Bahn look like tags, too: O, or a type that the model knows, tells them apart.
    """
    first = _first_sentences(path, layout)
    units = {unit for sentence in first for unit in sentence.units}
    found = exchanged_columns(layout, units, {tag for sentence in first for tag in sentence.labels or ()})
    kinds = {"", *(split_label(label)[1] for label in model.vocabulary.labels)}  # O has none
    if found is not None and any(split_label(unit)[1] in kinds for unit in units):
        return found
    added = f" --tag-column {layout.num_columns + 1}" if may_add_tag else ""
    if layout.tag_column is not None and given.tag_column is None:
        text = next((value for value in _other_values(first, model) if " " in value.strip(" ")), None)
        if text is not None:
            how = f"with{added}, which adds it" if added else "with --tag-column"
            return (
                f"column {layout.tag_column + 1}, read as that of the tags, contains text such as {quoted(text)}",
                f"write only the text into a file, or choose the column of the tags {how}",
            )
    return None if given.form_column is not None else _misread_numbers(first, layout, model, path, added)


def _misread_numbers(
    first: Sequence[Sentence], layout: ColumnLayout, model: StoredModel, path: StrPath, added: str
) -> tuple[str, str] | None:
    """The problem and its remedy if the forms of the ``first`` sentences are numbers, perhaps below a name, and another column has words.

    ``added`` is the option that adds a tag column, for files whose only other column is that of the words.
    """
    units = {unit for sentence in first for unit in sentence.units}
    others = [column for column in range(layout.num_columns) if column != layout.form_column]
    # The first may be the column's name.
    below = {unit for number, sentence in enumerate(first) for unit in sentence.units[number == 0 :]} or units
    if numbers_as_forms(layout, below, others) is None:
        return None
    read_as_tags = {column: _first_sentences(path, dataclasses.replace(layout, tag_column=column)) for column in others}
    words = [column for column in others if any(map(_is_word, _other_values(read_as_tags[column], model)))]
    found = numbers_as_forms(layout, below, words)
    if found is not None and numbers_as_forms(layout, units, words) is None:
        problem = f"the first line ({first[0].units[0]} …) looks like a header"
        return (problem, "name its columns with --form-column and --tag-column") if len(below) > 1 else None
    return (found[0], found[1] + added) if found is not None and words == [layout.tag_column] else found


def _is_word(value: str) -> bool:
    """Whether a value that is no known tag does not look like one, either."""
    return any(map(str.isalpha, value)) and not TAG.fullmatch(value)


def _holds_tags(layout: ColumnLayout, model: StoredModel, path: StrPath) -> bool:
    """Whether the first sentences of a file have labels of the kind of the model's in the tag column."""
    first = _first_sentences(path, layout)
    return any(sentence.labels for sentence in first) and not _other_values(first, model)


def _other_values(sentences: Sequence[Sentence], model: StoredModel) -> list[str]:
    """The values in the column read as that of the tags that are not labels of the kind of the model's."""
    numbers = map(str, range(len(model.config.data.label_names or ())))
    known = {*model.vocabulary.labels, *numbers}
    has_spans = model.scheme is not LabelScheme.PLAIN
    values = itertools.chain.from_iterable(sentence.labels or () for sentence in sentences)
    return [value for value in values if value not in known and not (has_spans and is_boundary_label(value))]


def _layout(path: StrPath, fields: FieldChoice, *, may_add_tag: bool = False) -> ColumnLayout | None:
    """The layout of a column file; None if it cannot be read with these columns."""
    form, tag, clamp = fields.form_column, fields.tag_column, fields.clamp_column
    with contextlib.suppress(InputError):
        return detect_layout(path, form_column=form, tag_column=tag, clamp_column=clamp, may_add_tag=may_add_tag)
    return None


def _first_sentences(path: StrPath, layout: ColumnLayout) -> list[Sentence]:
    """Enough sentences to show what the columns of a file contain; none if one of them cannot be read."""
    with contextlib.suppress(InputError):
        return [*itertools.islice(read_columns(path, layout, needs_tags=False), _HEAD_SENTENCES)]
    return []


def read_gold(
    tagger: Tagger,
    path: StrPath,
    *,
    column: ConlluColumn | None = None,
    scheme: LabelScheme | None = None,
    file_format: FileFormat | None = None,
    fields: FieldChoice = DETECTED,
    strict: bool = False,
) -> Corpus:
    """Read a file with the right labels of what ``tagger`` labels; for what is not given, as its training data were read."""
    data = tagger.model.config.data
    file_format = task_format(path, tagger.task, file_format=file_format)
    fields = _with_stored_fields(fields, tagger.model, path, file_format)
    corpus = read_task(
        path,
        tagger.task,
        column=column or data.column,
        scheme=scheme,
        file_format=file_format,
        fields=fields,
        strict=strict,
    )
    check_labels(corpus)
    return corpus


def tag_file(
    tagger: Tagger,
    path: StrPath,
    output: StrPath,
    *,
    options: TaggingOptions | None = None,
    file_format: FileFormat | None = None,
    output_format: FileFormat | Readable | None = None,
    text_format: FileFormat = FileFormat.TEXT,
    fields: FieldChoice = DETECTED,
    column: ConlluColumn | None = None,
    use_scores: bool = False,
    min_confidence: float | None = None,
    least_certain: int | None = None,
    advance: Advance = lambda count: None,
    note: Callable[[str], None] = lambda message: None,
) -> int:
    """Write the sentences of ``path`` with predicted labels to ``output`` (``-`` is a standard stream), and count them.

    Formats that are not given are detected from file names, and for an input from its first lines (`content_format`). Standard
    input is plain text, and an output has the format of its input (columns for plain text). Memory does not grow with the file.
    ``note`` is called with messages about units without a form and about the format assumed for an ambiguous file. Text whose format
    is not named is read as ``text_format``, or as columns if ``fields`` name one, or training named those that have tags here.

    Labels below ``min_confidence`` are left out: an uncertain span is not written, and an uncertain tag is ``_``. With
    ``least_certain``, only that many sentences are written, the least certain first: a sentence is as certain as its least certain unit.
    """
    options = options or TaggingOptions()
    if min_confidence is not None and tagger.task is Task.SEG_POS:
        raise InputError(
            "a minimum confidence would drop words", remedy="leave out --min-confidence, and write --scores"
        )
    if path != "-" and not os.path.exists(path):
        # A missing file is reported before any complaint about its name.
        raise InputError("no such file", path=path, remedy="check the path")
    named = file_format or (None if path == "-" else input_format(path))
    source_format = named or content_format(path)
    if file_format is None and source_format in _WITHOUT_COLUMNS:
        if any((fields.form_column, fields.tag_column, fields.clamp_column)):
            named = source_format = FileFormat.COLUMNS  # text has none
        elif named is None and _has_stored_columns(tagger.model, path):
            source_format = FileFormat.COLUMNS
    if source_format is FileFormat.COLUMNS or (named is None and source_format in _WITHOUT_COLUMNS):
        check_table(path)
    if named is None and source_format is FileFormat.TEXT:
        source_format = text_format
    # The first lines of a pipe cannot be read without consuming them.
    is_guess = source_format is None
    source_format = source_format or text_format
    natural = FileFormat.COLUMNS if source_format in (FileFormat.TEXT, FileFormat.RAW) else source_format
    is_page = os.fspath(output).lower().endswith((".html", ".htm"))
    asked_for = output_format or (Readable.HTML if is_page else suffix_format(output))
    if output_format is None and asked_for is FileFormat.JSONL and natural in _JSON_LINES_FORMATS:
        asked_for = natural  # these formats share the suffix .jsonl
    fields = _with_stored_fields(fields, tagger.model, path, source_format, may_add_tag=True)
    if named is None and not is_guess and (other := _OTHER_READINGS.get(source_format)) is not None:
        note(f"{os.fspath(path)}: {other}")
    layout = OutputOptions(
        task=tagger.task,
        file_format=asked_for or natural,
        labels=tagger.labels,
        column=column or tagger.model.config.data.column,
        use_scores=use_scores,
        is_bare=output_format is FileFormat.COLUMNS,
    )
    pending: deque[SourceSentence] = deque()
    clamps: deque[PlacedClamp | None] = deque()
    repairs = Repairs(path)

    def sentences() -> Iterator[Sentence]:
        items = read_source_sentences(
            path,
            source_format,
            tagger.task,
            fields=fields,
            is_guess=is_guess,
            labels=tagger.labels,
            repairs=repairs,
        )
        for item in items:
            pending.append(item)
            clamps.append(item.clamp)
            yield item.sentence._replace(document=1) if options.one_document else item.sentence

    def known() -> Iterator[PlacedClamp | None]:
        # The tagger always reads a sentence before its clamp.
        while clamps:
            yield clamps.popleft()

    # A program that writes into a pipe may wait for labels before it writes more.
    looks_ahead = source_format is FileFormat.COLUMNS and path != "-" and os.path.isfile(path)
    results = tagger.stream(
        with_first_document(sentences()) if looks_ahead else sentences(),
        batch_tokens=options.batch_tokens,
        calls=options.calls,
        decoder=options.decoder,
        clamp=known(),
        scheme=options.scheme,
        marginals=min_confidence is not None and tagger.task is Task.NER,
    )
    if least_certain is not None and layout.annotation is not None:
        raise InputError(
            f"--least-certain writes single sentences, and {layout.file_format} has whole texts",
            remedy="write jsonl, columns or conllu",
        )
    scheme = LabelScheme(options.scheme or tagger.scheme)

    def labelled() -> Iterator[tuple[SourceSentence, TaggedSentence]]:
        for result in results:
            if min_confidence is not None:
                result = without_uncertain(result, min_confidence, scheme, tagger.labels_in(scheme))
            advance(1)
            yield pending.popleft(), result

    chosen = labelled()
    if least_certain is not None:
        chosen = _least_certain(chosen, least_certain)
    num_sentences = write_results(chosen, output, layout)
    if (message := repairs.describe(is_gold=False)) is not None:
        note(message)
    return num_sentences


def _least_certain(
    pairs: Iterator[tuple[SourceSentence, TaggedSentence]], number: int
) -> Iterator[tuple[SourceSentence, TaggedSentence]]:
    """The ``number`` least certain sentences, the least certain first, after what belongs at the beginning of their file."""
    first = next(pairs, None)
    if first is None:
        return
    yield first[0].detached()[0], TaggedSentence((), [], [], [])
    with_units = (pair for pair in itertools.chain([first], pairs) if pair[1].units)
    for item, result in heapq.nsmallest(number, with_units, key=lambda pair: min(pair[1].scores)):
        yield item.detached()[1], result


def write_results(
    pairs: Iterable[tuple[SourceSentence, TaggedSentence]], output: StrPath, layout: OutputOptions
) -> int:
    """Write labelled sentences to ``output`` (``-`` is standard output), and count them."""
    annotation = layout.annotation
    num_sentences = 0
    with contextlib.ExitStack() as stack:
        if annotation is not None:
            collector = _TextCollector(stack.enter_context(annotation.open(output)), layout)
        else:
            stream = stack.enter_context(open_output(output))
        if layout.file_format is Readable.HTML:
            stream.write(PAGE_START.encode())
        for item, result in pairs:
            if annotation is not None:
                collector.add(item, result)
                if output == "-":
                    sys.stdout.buffer.flush()
                num_sentences += bool(result.units)
                continue
            text = layout.text(item, result, num_sentences + 1)
            is_own = item.rows is None or layout.is_bare
            if num_sentences == 0 and is_own and layout.file_format in (FileFormat.COLUMNS, FileFormat.TEXT):
                # Readers drop a byte order mark at the start of a file, so one that belongs to a unit is doubled.
                text = BYTE_ORDER_MARK * text.startswith(BYTE_ORDER_MARK) + text
            stream.write(text.encode())
            if output == "-":
                # A program that writes sentences into a pipe waits for their labels.
                stream.flush()
            num_sentences += bool(result.units)
        if layout.file_format is Readable.HTML:
            stream.write(PAGE_END.encode())
    return num_sentences


@dataclasses.dataclass(frozen=True)
class CorpusEvaluation:
    """The scores of a model on a corpus."""

    report: Report
    mean_score: float
    """of the predicted labels; equal to their accuracy if scores are calibrated"""
    calibration_error: float
    """see `evaluation.calibration.expected_calibration_error`"""
    span_calibration_error: float | None
    """the same of the confidence of spans; None where there are none"""


def evaluate_corpus(
    tagger: Tagger, corpus: Corpus, *, options: TaggingOptions | None = None, advance: Advance = lambda count: None
) -> CorpusEvaluation:
    """Tag the sentences of a labelled corpus, and evaluate the labels and their scores against the gold labels.

    Labels are compared in the model's own scheme. The default decoder is the best on dev, as in training.
    """
    options = options or TaggingOptions()
    scorer = TaskScorer(tagger.task, corpus.scheme)
    scores: list[float] = []
    is_right: list[bool] = []
    confidences: list[float] = []
    is_right_span: list[bool] = []
    sentences: Iterable[Sentence] = corpus
    if options.one_document:
        sentences = (sentence._replace(document=1) for sentence in corpus)
    results = tagger.stream(
        sentences,
        batch_tokens=options.batch_tokens,
        calls=options.calls,
        decoder=options.decoder or tagger.model.decoder,
        scheme=tagger.model.scheme,
    )
    for sentence, result in zip(corpus, results, strict=True):
        gold = sentence.labels or ()
        scorer.update(gold, result.labels, sentence.units)
        scores.extend(result.scores)
        is_right.extend(map(str.__eq__, gold, result.labels))
        right = {*extract_spans(gold, corpus.scheme)} if result.spans else set()
        confidences.extend(span.confidence for span in result.spans)
        is_right_span.extend(LabelledSpan(*span[:3]) in right for span in result.spans)
        advance(1)
    return CorpusEvaluation(
        scorer.result(),
        sum(scores) / len(scores) if scores else 0.0,
        _calibration_error(scores, is_right),
        _calibration_error(confidences, is_right_span) if confidences else None,
    )


def _calibration_error(scores: Sequence[float], is_right: Sequence[bool]) -> float:
    return expected_calibration_error(
        torch.tensor(scores, dtype=torch.float64), torch.tensor(is_right, dtype=torch.bool)
    )
