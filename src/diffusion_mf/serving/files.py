"""Files that clients send and want: the sentences of a file in any format, and labelled sentences as a file."""

from __future__ import annotations

import itertools
import os
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

from diffusion_mf.data.annotations import Record
from diffusion_mf.data.corpus import Task
from diffusion_mf.data.files import COMPRESSED_SUFFIXES, DETECTED, open_input
from diffusion_mf.data.formats import FileFormat, content_format, input_format
from diffusion_mf.data.label_schemes import LabelScheme
from diffusion_mf.data.repair import Repairs
from diffusion_mf.data.sentence import Sentence
from diffusion_mf.errors import InputError, quoted
from diffusion_mf.evaluation.reconstruction import NO_LABEL
from diffusion_mf.serving.batching import BatchOptions
from diffusion_mf.serving.models import ServedModel, TooLargeError
from diffusion_mf.serving.schemas import LabelledSentence, WriteRequest
from diffusion_mf.tagger.files import OutputOptions, SourceSentence, TextPart, read_source_sentences, write_results
from diffusion_mf.tagger.results import TaggedSentence, scored_spans

MEDIA_TYPES = {
    FileFormat.CONLLU: ("text/plain; charset=utf-8", ".conllu"),
    FileFormat.COLUMNS: ("text/plain; charset=utf-8", ".tsv"),
    FileFormat.TEXT: ("text/plain; charset=utf-8", ".txt"),
    FileFormat.LABEL_STUDIO: ("application/json", ".json"),
}
"""with the suffix of a file; other formats are JSON Lines"""
JSON_LINES_FILE = ("application/x-ndjson", ".jsonl")


def read_file(
    model: ServedModel, name: str, data: bytes, *, file_format: FileFormat | None, max_bytes: int
) -> dict[str, Any]:
    """The sentences of a file as the model's tagger reads them; ``max_bytes`` holds for what a compressed file contains, too.

    A ``.txt`` file that is not columns is read as raw text, as people write it.
    """
    if file_format is FileFormat.BRAT:
        raise InputError("a brat document is two files", remedy="send the .txt file as raw text")
    with tempfile.TemporaryDirectory(prefix="dmf-") as folder:
        # Of the client's name, only what tells the format.
        stem, suffix = os.path.splitext(name.lower())
        is_compressed = suffix in COMPRESSED_SUFFIXES
        inner = os.path.splitext(stem)[1] if is_compressed else suffix
        path = os.path.join(folder, "file" + (inner if inner.isascii() and inner[1:].isalnum() else ""))
        try:
            if is_compressed:
                data = _unpacked(path + suffix, data, max_bytes)
            with open(path, "wb") as stream:
                stream.write(data)
            found = file_format or input_format(path)
            if found is FileFormat.BRAT:
                raise InputError("a brat document is two files", path=path, remedy="send its .txt file")
            if found is None:
                found = content_format(path)
                found = FileFormat.RAW if found is FileFormat.TEXT or found is None else found
            repairs = Repairs(name or "the file")
            fields = DETECTED._replace(language=model.tagger.model.config.data.language)
            sentences = read_source_sentences(path, found, model.tagger.task, fields=fields, repairs=repairs)
            items = list(model.limited(sentences))
        except InputError as error:
            if error.path is not None and error.path.startswith(folder):
                error.path = name or "the file"
            raise
    return _read_answer(found, items, repairs.describe(is_gold=False))


def _unpacked(path: str, data: bytes, max_bytes: int) -> bytes:
    with open(path, "wb") as stream:
        stream.write(data)
    with open_input(path) as unpacked:
        data = unpacked.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise TooLargeError(f"unpacked, the file has more than {max_bytes:,} bytes", remedy="send it in parts")
    return data


def _read_answer(file_format: FileFormat, items: Sequence[SourceSentence], note: str | None) -> dict[str, Any]:
    texts: list[str] = []
    sentences: list[dict[str, Any]] = []
    is_new = True
    for item in items:
        sentence: dict[str, Any] = {"units": item.sentence.units}
        if item.sentence.document:
            sentence["document"] = item.sentence.document
        if item.part is not None:
            if is_new:
                texts.append(item.part.record.text)
            is_new = item.part.is_last
            sentence |= {"text": len(texts) - 1, "offsets": item.part.tokens}
        if item.sentence.units:
            sentences.append(sentence)
    answer = {"format": str(file_format), "texts": texts, "sentences": sentences}
    return answer if note is None else answer | {"note": note}


def write_file(model: ServedModel, body: WriteRequest) -> bytes:
    """Labelled sentences in a file format, as ``dmf tag`` would write them."""
    tagger = model.tagger
    scheme = tagger.scheme if body.scheme is None else body.scheme
    labels = frozenset(tagger.labels if body.scheme is None else tagger.labels_in(body.scheme)) | {NO_LABEL}
    _check_writable(body.format, tagger.task)
    model.check_sizes((len(sentence.units) for sentence in body.sentences), BatchOptions())
    layout = OutputOptions(
        task=tagger.task,
        file_format=body.format,
        labels=tagger.labels,
        column=tagger.model.config.data.column,
        use_scores=body.scores,
    )
    with tempfile.TemporaryDirectory(prefix="dmf-") as folder:
        path = os.path.join(folder, "file")
        # Characters are written without spaces between them.
        separator = "" if tagger.task is Task.SEG_POS else " "
        write_results(_pairs(body, labels, scheme, separator=separator), path, layout)
        with open(path, "rb") as stream:
            return stream.read()


def _check_writable(file_format: FileFormat, task: Task) -> None:
    left_out = {FileFormat.RAW, FileFormat.BRAT}
    # The labels of other tasks have no place between words.
    if task is not Task.SEG_POS:
        left_out.add(FileFormat.TEXT)
    if file_format in left_out:
        reason = (
            "brat's documents are two files each" if file_format is FileFormat.BRAT else "plain text cannot hold labels"
        )
        writable = ", ".join(each for each in FileFormat if each not in left_out)
        raise InputError(reason, remedy=f"choose {writable}")


def _pairs(
    body: WriteRequest, labels: frozenset[str], scheme: LabelScheme, *, separator: str
) -> Iterator[tuple[SourceSentence, TaggedSentence]]:
    last = -1
    following = itertools.chain(body.sentences[1:], [None])
    for number, (sentence, after) in enumerate(zip(body.sentences, following, strict=True), 1):
        unknown = next((label for label in sentence.labels if label not in labels), None)
        if unknown is not None:
            raise InputError(
                f"sentence {number} has the label {quoted(unknown)}, which the model does not have",
                remedy="use the labels of GET /models",
            )
        if body.scores and sentence.scores is None:
            raise InputError(
                f"sentence {number} has no scores, and scores are to be written",
                remedy='send its scores, or leave out "scores": true',
            )
        part = None
        if sentence.text is not None:
            if sentence.text < last:
                raise InputError(f"sentence {number} belongs to an earlier text", remedy="send sentences in order")
            last = sentence.text
            part = _text_part(body, sentence, number, is_last=after is None or after.text != sentence.text)
        units, scores = tuple(sentence.units), sentence.scores or [1.0] * len(sentence.units)
        spans = [] if scheme is LabelScheme.PLAIN else scored_spans(sentence.labels, scores, scheme)
        known = {(span.start, span.end, span.label): span.confidence for span in sentence.spans or ()}
        spans = [span._replace(confidence=known.get(span[:3], span.confidence)) for span in spans]
        offsets = part and tuple(part.tokens)
        result = TaggedSentence(units, sentence.labels, scores, spans, offsets=offsets, separator=separator)
        yield SourceSentence(Sentence(units, None, number), part=part), result


def _text_part(body: WriteRequest, sentence: LabelledSentence, number: int, *, is_last: bool) -> TextPart:
    assert sentence.text is not None
    offsets = [(start, end) for start, end in sentence.offsets or ()]
    if sentence.text >= len(body.texts):
        raise InputError(
            f"sentence {number} belongs to text {sentence.text}, but there are {len(body.texts)}",
            remedy="count texts from 0",
        )
    text = body.texts[sentence.text]
    is_within = all(0 <= start <= end <= len(text) for start, end in offsets)
    if not is_within or [text[start:end] for start, end in offsets] != sentence.units:
        raise InputError(
            f"the offsets of sentence {number} are not those of its units in the text",
            remedy="send offsets as POST /tag or POST /read gave them",
        )
    return TextPart(Record(text), offsets, is_last)
