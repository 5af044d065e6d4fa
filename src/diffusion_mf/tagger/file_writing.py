"""Tagged sentences as text of any format.

| output | what stands there |
|---|---|
| CoNLL-U | the input's bytes but for the label column (MISC for entities); Seg-POS: the predicted words, comments kept |
| columns | unit and label; with scores the score stands between them, for readers expect the label last |
| JSON Lines | units and labels; with scores also spans with their confidence |
| plain text | Seg-POS only: the predicted words |
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from diffusion_mf.data.columns import DOCUMENT_START
from diffusion_mf.data.conllu import NUM_COLUMNS, ConlluBlock, ConlluColumn, with_labels
from diffusion_mf.data.corpus import Task
from diffusion_mf.data.formats import FileFormat
from diffusion_mf.data.label_schemes import LabelScheme, encode_spans, split_label
from diffusion_mf.data.label_schemes import Span as LabelledSpan
from diffusion_mf.data.sentence import Sentence
from diffusion_mf.data.text_lines import BYTE_ORDER_MARK, check_fields
from diffusion_mf.errors import InputError
from diffusion_mf.tagger.file_reading import Item
from diffusion_mf.tagger.results import TaggedSentence

SCORE_KEY = "Score"
_COLUMN_FIELD = re.compile(rf"(?!{DOCUMENT_START})[^\t\n\r\0]+")
_CONLLU_FIELD = re.compile(r"[^\t\n\r\0]+")
_TEXT_FIELD = re.compile(r"[^ \t\n\r\0]+")
_DEFAULT_COLUMN = {Task.POS: ConlluColumn.UPOS, Task.NER: ConlluColumn.MISC, Task.SEG_POS: ConlluColumn.XPOS}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Layout:
    """How results are to be written."""

    task: Task
    file_format: FileFormat
    column: ConlluColumn | None = None
    """of CoNLL-U; None: UPOS for POS, MISC for entities, XPOS for Seg-POS"""
    scheme: LabelScheme | None = None
    """of entities; None: the model's own, and spans that are not complete stay visible"""
    use_scores: bool = False

    def __post_init__(self) -> None:
        if self.scheme is not None and (self.task is not Task.NER or self.scheme is LabelScheme.PLAIN):
            raise InputError(
                f"labels of the task {self.task} cannot be written in the scheme {self.scheme}",
                remedy="leave out --scheme",
            )
        if self.file_format is FileFormat.TEXT and self.task is not Task.SEG_POS:
            raise InputError("plain text cannot hold labels", remedy="write columns, jsonl or conllu")

    def text(self, item: Item, result: TaggedSentence) -> str:
        """The sentence of ``item`` as the output is to have it."""
        labels = result.labels
        if self.scheme is not None:
            spans = [LabelledSpan(*span[:3]) for span in result.spans]
            labels = encode_spans(spans, len(labels), self.scheme)
        return _TEXTS[self.file_format](item, dataclasses.replace(result, labels=labels), self)


class _Words(NamedTuple):
    units: tuple[str, ...]
    tags: list[str]
    scores: list[float]


def _words(result: TaggedSentence) -> _Words:
    """The predicted words with tags and confidence; a character in no complete word stands by itself."""
    words: list[tuple[str, str, float]] = []
    starts = {span.start: span for span in result.spans}
    position = 0
    while position < len(result.units):
        span = starts.get(position)
        end = position + 1 if span is None else span.end
        label, score = result.labels[position], result.scores[position]
        tag = split_label(label)[1] or label if span is None else span.label
        words.append(("".join(result.units[position:end]), tag, score if span is None else span.confidence))
        position = end
    return _Words(tuple(word for word, _, _ in words), [tag for _, tag, _ in words], [score for _, _, score in words])


def _conllu(item: Item, result: TaggedSentence, layout: Layout) -> str:
    column = layout.column or _DEFAULT_COLUMN[layout.task]
    block, labels, scores = item.block, result.labels, result.scores
    if layout.task is Task.SEG_POS:
        words = _words(result)
        block, labels, scores = _bare_block(words.units, item), words.tags, words.scores
    elif block is None:
        block = _bare_block(result.units, item)
    block = block._replace(text=with_labels(block, labels, column=column))
    if layout.use_scores:
        return with_labels(block, [_shown(score) for score in scores], column=ConlluColumn.MISC, key=SCORE_KEY)
    return block.text


def _bare_block(units: tuple[str, ...], item: Item) -> ConlluBlock:
    """Lines with nothing but the units, below the comments of the sentence they come from."""
    if not units:
        return ConlluBlock("" if item.block is None else item.block.text, None)
    sentence = Sentence(units, None, item.sentence.line)
    check_fields(sentence, _CONLLU_FIELD, "a CoNLL-U line")
    text = "" if item.block is None else item.block.text.removeprefix(BYTE_ORDER_MARK)
    lines = [line.removesuffix("\r") for line in text.split("\n") if line.startswith("#")]
    rest = "\t".join(["_"] * (NUM_COLUMNS - 2))
    lines += [f"{number}\t{unit}\t{rest}" for number, unit in enumerate(units, 1)]
    return ConlluBlock("\n".join(lines) + "\n\n", sentence)


def _columns(item: Item, result: TaggedSentence, layout: Layout) -> str:
    if not result.units:
        return ""
    check_fields(Sentence(result.units, tuple(result.labels), item.sentence.line), _COLUMN_FIELD, "a column file")
    columns: list[Sequence[str]] = [result.units, result.labels]
    if layout.use_scores:
        columns.insert(1, [_shown(score) for score in result.scores])
    return "\n".join(map("\t".join, zip(*columns, strict=True))) + "\n\n"


def _json(item: Item, result: TaggedSentence, layout: Layout) -> str:
    row: dict[str, object] = {"units": result.units, "labels": result.labels}
    if layout.use_scores:
        row["scores"] = [round(score, 6) for score in result.scores]
        row["spans"] = [span._replace(confidence=round(span.confidence, 6))._asdict() for span in result.spans]
    return json.dumps(row, ensure_ascii=False) + "\n"


def _text(item: Item, result: TaggedSentence, layout: Layout) -> str:
    words = _words(result).units
    check_fields(Sentence(words, None, item.sentence.line), _TEXT_FIELD, "a line of words parted by blanks")
    return " ".join(words) + "\n"


_TEXTS: dict[FileFormat, Callable[[Item, TaggedSentence, Layout], str]] = {
    FileFormat.CONLLU: _conllu,
    FileFormat.COLUMNS: _columns,
    FileFormat.JSONL: _json,
    FileFormat.TEXT: _text,
}


def _shown(score: float) -> str:
    return f"{score:.4f}"
