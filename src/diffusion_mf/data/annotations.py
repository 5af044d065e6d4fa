"""Texts with labelled spans, as exported by annotation tools: doccano, Prodigy, Label Studio and brat.

Spans are ranges of characters. A text is split into sentences and tokens (by `raw_text`, or as in the file), and spans become
token labels in BIO2. Conversion between these formats splits nothing: text, spans and the tool's other entries are unchanged.
"""

from __future__ import annotations

import bisect
import contextlib
import itertools
import json
import os
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple, NoReturn

from diffusion_mf.data.files import (
    SentenceLimits,
    StrPath,
    is_encodable,
    json_problem,
    json_text,
    make_folder,
    open_output,
    read_chunks,
    read_raw_lines,
    refuse_constant,
)
from diffusion_mf.data.label_schemes import LabelledSpan, LabelScheme, encode_spans, extract_spans
from diffusion_mf.data.raw_text import Offsets, joined_offsets, split_sentences
from diffusion_mf.data.repair import Repair, Repairs, refuse
from diffusion_mf.data.sentence import Sentence
from diffusion_mf.errors import InputError


class TextSpan(NamedTuple):
    """A labelled range of a text, in characters counted from 0; ``end`` is exclusive."""

    start: int
    end: int
    label: str
    score: float | None = None


class Record(NamedTuple):
    """One text of a file; ``spans`` is None if it is not annotated, ``tokens`` is None if the file has no tokens.

    ``line`` is where it begins in ``path``. ``source`` is the object of a JSON file, in ``source_format`` (a key of
    `ANNOTATION_FORMATS`), ``name`` the file name of a brat document. ``left_out`` is the reason why annotators excluded it.
    """

    text: str
    spans: tuple[TextSpan, ...] | None = None
    tokens: tuple[Offsets, ...] | None = None
    path: StrPath = ""
    line: int = 0
    source: Mapping[str, Any] | None = None
    name: str | None = None
    left_out: str | None = None
    source_format: str | None = None

    def source_in(self, name: str) -> dict[str, Any]:
        """The object that a record comes from, whose other entries must be kept; empty if it is not of the format ``name``."""
        return dict(self.source or {}) if self.source_format == name else {}

    def shown(self, start: int, end: int) -> str:
        """A range of the text for messages."""
        text = self.text[start:end]
        return repr(text if len(text) <= 40 else f"{text[:39]}…")


Writer = Callable[[Record], None]
_Open = Callable[[StrPath], contextlib.AbstractContextManager[Writer]]

# Reading.


def read_json_values(path: StrPath) -> Iterator[tuple[int, Any]]:
    """Stream JSON values with the lines they begin on: consecutive values, as in JSON Lines, or the elements of one list."""
    limits = SentenceLimits.from_environment()
    decoder = json.JSONDecoder(parse_constant=refuse_constant)
    chunks = read_chunks(path)
    text, position, line = "", 0, 1
    is_list = is_over = False
    is_first, has_begun = True, False
    while True:
        begin, gap = position, "," if is_list else ""
        while position < len(text) and (text[position].isspace() or text[position] == gap):
            position += 1
        line += text.count("\n", begin, position)
        if position == len(text):
            more = next(chunks, None)
            if more is None:
                if is_list and not is_over:
                    _refuse_json("the list is not closed", path, line)
                return
            text, position = more.removeprefix("\ufeff") if is_first else more, 0
            is_first = is_first and not text
            continue
        if is_over or (is_list and text[position] == "]"):
            if is_over:
                _refuse_json("there is something after the list", path, line)
            is_over, position = True, position + 1
            continue
        if text[position] == "[" and not has_begun:
            is_list, has_begun, position = True, True, position + 1
            continue
        has_begun = True
        try:
            value, end = decoder.raw_decode(text, position)
        except (ValueError, RecursionError) as error:
            more = next(chunks, None) if len(text) - position <= limits.size else None
            if more is None:
                _refuse_json(f"not JSON ({json_problem(error)})", path, line)
            text, position = text[position:] + more, 0
            continue
        yield line, value
        line += text.count("\n", position, end)
        position = end


def _refuse_json(problem: str, path: StrPath, line: int) -> NoReturn:
    raise InputError(problem, path=path, line=line, remedy="check that the file is complete, or export it again")


class _Object:
    """An object of a JSON file, with methods that read its fields and raise errors."""

    def __init__(self, value: Any, path: StrPath, line: int) -> None:
        self.path, self.line = path, line
        if not isinstance(value, dict):
            self.refuse(
                "not a JSON object",
                'write {"units": ["a", "b"], "labels": ["X", "Y"]}, or choose another format with --format',
            )
        self.value: dict[str, Any] = value

    def refuse(self, problem: str, remedy: str) -> NoReturn:
        raise InputError(problem, path=self.path, line=self.line, remedy=remedy)

    def text(self, value: Any, name: str) -> str:
        if not isinstance(value, str):
            self.refuse(f'no text under the key "{name}"', "choose another format with --format")
        if not is_encodable(value):
            self.refuse(f'"{name}" contains an unpaired surrogate', "write the characters unescaped")
        return value

    def span(self, text: str, start: Any, end: Any, label: Any) -> TextSpan:
        is_place = all(isinstance(value, int) and not isinstance(value, bool) for value in (start, end))
        if not is_place or not isinstance(label, str) or not label:
            self.refuse("a span needs a start, an end and a label", "correct it in the tool that made it")
        if not 0 <= start < end <= len(text):
            self.refuse(
                f"the span {start}–{end} is not within the text of {len(text)} characters", "correct its offsets"
            )
        return TextSpan(start, end, self.text(label, "label"))

    def items(self, value: Any, name: str) -> list[Any]:
        if not isinstance(value, list):
            self.refuse(f'"{name}" is not a list', "choose another format with --format")
        return value


_DOCCANO_KEYS = ("label", "labels", "entities")


def read_doccano(path: StrPath, repairs: Repairs | None = None) -> Iterator[Record]:
    """Stream the texts of doccano's JSON Lines (or JSON): ``text``, and ``label`` or ``labels`` as [start, end, label] lists.

    Projects with relations have ``entities`` instead, as objects.
    """
    for line, value in read_json_values(path):
        row = _Object(value, path, line)
        text = row.text(row.value.get("text"), "text")
        key = next((name for name in _DOCCANO_KEYS if name in row.value), None)
        spans = None
        if key is not None:
            spans = []
            for item in row.items(row.value[key], key):
                if isinstance(item, dict) and "labels" in item:
                    row.refuse("this is Label Studio's JSON-MIN", "export JSON instead")
                if isinstance(item, dict) and "start_offset" in item:
                    item = [item["start_offset"], item.get("end_offset"), item.get("label")]
                if not isinstance(item, list) or len(item) != 3:
                    row.refuse(
                        f'"{key}" contains an entry that is not [start, end, label]',
                        "export a sequence labelling project",
                    )
                spans.append(row.span(text, *item))
        yield Record(
            text, None if spans is None else tuple(spans), None, path, line, row.value, source_format="doccano"
        )


def read_prodigy(path: StrPath, repairs: Repairs | None = None) -> Iterator[Record]:
    """Stream the texts of Prodigy's JSON Lines (text, tokens and spans), leaving out rejected and ignored ones."""
    for line, value in read_json_values(path):
        row = _Object(value, path, line)
        text = row.text(row.value.get("text"), "text")
        spans = None
        if "spans" in row.value:
            items = [item if isinstance(item, dict) else {} for item in row.items(row.value["spans"], "spans")]
            spans = tuple(row.span(text, item.get("start"), item.get("end"), item.get("label")) for item in items)
        tokens = None
        if row.value.get("tokens"):
            items = [item if isinstance(item, dict) else {} for item in row.items(row.value["tokens"], "tokens")]
            found = [row.span(text, item.get("start"), item.get("end"), "token") for item in items]
            # Some tokenizers count white space as tokens.
            tokens = tuple((start, end) for start, end, *_ in found if text[start:end].strip())
            if any(one[1] > other[0] for one, other in itertools.pairwise(tokens)):
                row.refuse("the tokens overlap or are out of order", "export the data again")
        answer = row.value.get("answer", "accept")
        left_out = None if answer == "accept" else f"answer {answer}"
        yield Record(text, spans, tokens, path, line, row.value, left_out=left_out, source_format="prodigy")


def read_label_studio(path: StrPath, repairs: Repairs | None = None) -> Iterator[Record]:
    """Stream the texts of Label Studio's JSON: ``data.text``, and the labels of the first annotation not cancelled."""
    for line, value in read_json_values(path):
        row = _Object(value, path, line)
        data = row.value.get("data")
        text = row.text(data.get("text") if isinstance(data, dict) else None, "data.text")
        annotations = [
            each
            for each in row.items(row.value.get("annotations") or [], "annotations")
            if isinstance(each, dict) and not each.get("was_cancelled")
        ]
        spans = None
        if annotations:
            spans = []
            for item in row.items(annotations[0].get("result") or [], "result"):
                if isinstance(item, dict) and item.get("type") == "labels" and isinstance(item.get("value"), dict):
                    region = item["value"]
                    start, end = _code_points(text, region)
                    spans += [row.span(text, start, end, label) for label in row.items(region.get("labels"), "labels")]
        yield Record(
            text, None if spans is None else tuple(spans), None, path, line, row.value, source_format="label-studio"
        )


def _code_points(text: str, region: Mapping[str, Any]) -> tuple[Any, Any]:
    """Start and end of a region in characters, converted if its text shows that they count UTF-16 units as browsers do."""
    start, end, expected = region.get("start"), region.get("end"), region.get("text")
    if (
        not (isinstance(start, int) and isinstance(end, int) and isinstance(expected, str))
        or text[start:end] == expected
    ):
        return start, end
    units = text.encode("utf-16-le")
    found = units[2 * start : 2 * end].decode("utf-16-le", errors="replace")
    if found != expected:
        return start, end
    before = len(units[: 2 * start].decode("utf-16-le", errors="replace"))
    return before, before + len(expected)


_TEXT_BOUND = re.compile(r"(T\S*)\t(\S+) ([0-9]{1,18} [0-9]{1,18}(?:;[0-9]{1,18} [0-9]{1,18})*)(?:\t(.*))?")


def read_brat(path: StrPath, repairs: Repairs | None = None) -> Iterator[Record]:
    """Stream the documents of a folder in brat's standoff format, or one document: a .txt file, with an .ann file if annotated.

    Discontinuous spans, relations, events, attributes and notes are reported to ``repairs`` and left out.
    """
    folder = Path(path)
    if folder.is_dir():
        texts = sorted(_texts_in(folder))
        if not texts:
            raise InputError(
                "this is a directory without .txt files",
                path=path,
                remedy="give a file, or a folder of .txt and .ann files",
            )
    else:
        folder, texts = folder.parent, [folder.with_suffix(".txt")]
    for file in texts:
        text = "".join(read_raw_lines(file, is_end=lambda line: False))
        annotations = file.with_suffix(".ann")
        spans = _brat_spans(annotations, text, repairs) if annotations.exists() else None
        yield Record(text, spans, None, file, 1, name=file.relative_to(folder).with_suffix("").as_posix())


def _texts_in(folder: Path) -> Iterator[Path]:
    """The .txt files of a folder and those in it; one that cannot be listed is an `InputError`, not left out."""

    def refuse(error: OSError) -> NoReturn:
        raise InputError(
            f"cannot be read ({error.strerror})", path=error.filename, remedy="check its permissions"
        ) from None

    for root, _, names in os.walk(folder, onerror=refuse):
        yield from (Path(root, name) for name in names if name.endswith(".txt"))


def _brat_spans(path: Path, text: str, repairs: Repairs | None) -> tuple[TextSpan, ...]:
    spans = []
    for number, raw in enumerate(read_raw_lines(path, is_end=lambda line: True), 1):
        line = raw.rstrip("\r\n")
        if not line.strip():
            continue
        found = _TEXT_BOUND.fullmatch(line)
        if found is None:
            if line[0] == "T":
                raise InputError(
                    "not a text-bound annotation",
                    path=path,
                    line=number,
                    remedy="write T1, a tab, the type, start and end",
                )
            if repairs is not None:
                repairs.add(Repair.LEFT_OUT, f"{path.name}, line {number}", f"{line.split()[0]} is not a span")
            continue
        parts = [tuple(map(int, part.split(" "))) for part in found[3].split(";")]
        pairs = list(itertools.pairwise(parts))
        if any(one[1] > other[0] or text[one[1] : other[0]].strip() for one, other in pairs):
            problem = f"{found[1]} is discontinuous"
            if repairs is None:
                raise InputError(problem, path=path, line=number, remedy="make it one span, or leave out --strict")
            repairs.add(Repair.LEFT_OUT, f"{path.name}, line {number}", problem)
            continue
        spans.append(_Object({}, path, number).span(text, parts[0][0], parts[-1][1], found[2]))
    return tuple(spans)


# Splitting.


def sentences_of(record: Record, *, language: str | None = None) -> list[list[Offsets]]:
    """The tokens of a text, sentence by sentence; a sentence does not end inside a span."""
    sentences = split_sentences(record.text, language=language)
    if record.tokens is not None:
        starts = [sentence[0][0] for sentence in sentences]
        own: list[list[Offsets]] = [[] for _ in sentences]
        for token in record.tokens:
            own[max(0, bisect.bisect_right(starts, token[0]) - 1)].append(token)
        sentences = [sentence for sentence in own if sentence]
    merged: list[list[Offsets]] = []
    spans = deque(sorted((span.start, span.end) for span in record.spans or ()))
    reached = 0  # the last end of the spans that start before the sentence
    for sentence in sentences:
        begin = sentence[0][0]
        while spans and spans[0][0] < begin:
            reached = max(reached, spans.popleft()[1])
        if merged and begin < reached:
            merged[-1] += sentence
        else:
            merged.append(sentence)
    return merged


def token_spans(record: Record, tokens: Sequence[Offsets], repairs: Repairs | None) -> list[LabelledSpan]:
    """The spans of a text as ranges of its tokens.

    A span that cuts a token is extended to the whole token, and of overlapping spans the longest is kept (the first of
    equally long ones); both are reported to ``repairs``, or are errors without it.
    """
    place = f"line {record.line}" if record.name is None else f"{record.name}.ann"

    def report(kind: Repair, text: str) -> None:
        if repairs is None:
            raise InputError(text, path=record.path, line=record.line, remedy="correct the span, or leave out --strict")
        repairs.add(kind, place, text)

    starts, ends = [start for start, _ in tokens], [end for _, end in tokens]
    kept: list[LabelledSpan] = []
    for span in sorted(record.spans or (), key=lambda span: (span.start - span.end, span.start)):
        first, last = bisect.bisect_right(ends, span.start), bisect.bisect_left(starts, span.end)
        shown = record.shown(span.start, span.end)
        if first >= last:
            report(Repair.LEFT_OUT, f"the span {shown} ({span.label}) contains no token")
            continue
        # Spans that are kept do not overlap, so that the first to end after this one starts is the first to overlap it.
        index = bisect.bisect_right(kept, first, key=lambda other: other.end)
        if index < len(kept) and kept[index].start < last:
            clash = kept[index]
            other = record.shown(starts[clash.start], ends[clash.end - 1])
            report(Repair.OVERLAP, f"the span {shown} ({span.label}) overlaps {other} ({clash.label})")
            continue
        if span.start > starts[first] or span.end < ends[last - 1]:
            cut = first if span.start > starts[first] else last - 1
            report(Repair.WIDENED, f"the span {shown} ({span.label}) cuts the token {record.shown(*tokens[cut])}")
        kept.insert(index, LabelledSpan(first, last, span.label))
    return kept


def labelled_sentences(
    records: Iterable[Record],
    *,
    language: str | None = None,
    use_sentences: bool = True,
    needs_labels: bool = False,
    repairs: Repairs | None = None,
) -> Iterator[Sentence]:
    """Stream the sentences of texts with labels in BIO2, one document per text; without ``use_sentences``, one sentence per text.

    With ``needs_labels``, a text without annotations is an error.
    """
    limits = SentenceLimits.from_environment()
    for number, record in enumerate(records, 1):
        if record.left_out is not None:
            if repairs is not None:
                repairs.add(Repair.LEFT_OUT, f"line {record.line}", record.left_out)
            continue
        sentences = sentences_of(record, language=language)
        tokens = [token for sentence in sentences for token in sentence]
        labels: Sequence[str] | None = None
        if record.spans is not None:
            labels = encode_spans(token_spans(record, tokens, repairs), len(tokens), LabelScheme.BIO2)
        elif needs_labels and tokens:
            remedy = "annotate this text, or leave it out"
            refuse(repairs, InputError("no labels", path=record.path, line=record.line, remedy=remedy))
            continue
        position, line, counted = 0, record.line, 0
        for sentence in sentences if use_sentences else [tokens] if tokens else []:
            end = position + len(sentence)
            units = tuple(record.text[slice(*token)] for token in sentence)
            own = None if labels is None else tuple(labels[position:end])
            if record.name is not None:  # a file of its own
                line, counted = line + record.text.count("\n", counted, sentence[0][0]), sentence[0][0]
            result = Sentence(units, own, line, number)
            limits.check_units(result, record.path)
            yield result
            position = end


def text_spans(labels: Sequence[str], tokens: Sequence[Offsets], scheme: LabelScheme) -> list[TextSpan]:
    """The spans in a text that token labels encode; without boundaries, every token with a label other than O is a span."""
    if scheme is LabelScheme.PLAIN:
        found = [LabelledSpan(index, index + 1, label) for index, label in enumerate(labels) if label != "O"]
    else:
        found = extract_spans(labels, scheme)
    return [TextSpan(tokens[start][0], tokens[end - 1][1], label) for start, end, label in found]


def records_of(sentences: Iterable[Sentence], scheme: LabelScheme) -> Iterator[Record]:
    """Stream sentences as texts with spaces between units; the sentences of a document become the lines of one text."""
    lines: list[Sentence] = []
    for sentence in sentences:
        if lines and (not sentence.document or sentence.document != lines[-1].document):
            yield _record(lines, scheme)
            lines = []
        lines.append(sentence)
    if lines:
        yield _record(lines, scheme)


def _record(sentences: Sequence[Sentence], scheme: LabelScheme) -> Record:
    text = "\n".join(" ".join(sentence.units) for sentence in sentences)
    tokens = joined_offsets([unit for sentence in sentences for unit in sentence.units])
    if sentences[0].labels is None:
        return Record(text, None, tuple(tokens), line=sentences[0].line)
    spans: list[TextSpan] = []
    remaining = iter(tokens)
    for sentence in sentences:
        own = list(itertools.islice(remaining, len(sentence.units)))
        spans += text_spans(sentence.labels or (), own, scheme)
    return Record(text, tuple(spans), tuple(tokens), line=sentences[0].line)


# Writing.


def _doccano(record: Record) -> dict[str, Any]:
    source = record.source_in("doccano")
    key = next((name for name in _DOCCANO_KEYS if name in source), "label")
    row = {**source, "text": record.text}
    if record.spans is not None and key == "entities":
        row.pop("relations", None)  # they are between the entities that were there before
        row[key] = [
            {"id": number, "label": span.label, "start_offset": span.start, "end_offset": span.end}
            for number, span in enumerate(record.spans, 1)
        ]
    elif record.spans is not None:
        row[key] = [[span.start, span.end, span.label] for span in record.spans]
    return row


def _prodigy(record: Record) -> dict[str, Any]:
    source = record.source_in("prodigy")
    tokens = record.tokens or tuple(token for sentence in split_sentences(record.text) for token in sentence)
    row: dict[str, Any] = {**source, "text": record.text}
    if "tokens" not in source:
        row["tokens"] = [
            {
                "text": record.text[start:end],
                "start": start,
                "end": end,
                "id": number,
                "ws": record.text[end : end + 1] == " ",
            }
            for number, (start, end) in enumerate(tokens)
        ]
    if record.spans is not None:
        own = [(token["start"], token["end"]) for token in row["tokens"]]
        row["spans"] = [_prodigy_span(span, own) for span in record.spans]
    return row


def _prodigy_span(span: TextSpan, tokens: Sequence[Offsets]) -> dict[str, Any]:
    row: dict[str, Any] = {"start": span.start, "end": span.end, "label": span.label}
    inside = [index for index, (start, end) in enumerate(tokens) if start < span.end and span.start < end]
    if inside:
        # Prodigy's last token is inclusive.
        row |= {"token_start": inside[0], "token_end": inside[-1]}
    return row if span.score is None else row | {"score": round(span.score, 6)}


def _label_studio(record: Record) -> dict[str, Any]:
    source = record.source_in("label-studio")
    row: dict[str, Any] = {**source, "data": source.get("data", {"text": record.text})}
    if record.spans is not None:
        old = [
            each for each in row.get("annotations") or [] if isinstance(each, dict) and not each.get("was_cancelled")
        ]
        results = [item for each in old[:1] for item in each.get("result") or [] if isinstance(item, dict)]
        names = {"from_name": "label", "to_name": "text"}
        names |= {key: results[0][key] for key in names if results and key in results[0]}
        row["annotations"] = [{"result": [_label_studio_region(span, record.text, names) for span in record.spans]}]
        row.pop("predictions", None)
    return row


def _label_studio_region(span: TextSpan, text: str, names: Mapping[str, str]) -> dict[str, Any]:
    value = {"start": span.start, "end": span.end, "text": text[span.start : span.end], "labels": [span.label]}
    score = {} if span.score is None else {"score": round(span.score, 6)}
    return {**names, "type": "labels", "value": value, **score}


def _json_lines(
    make: Callable[[Record], dict[str, Any]],
) -> _Open:
    @contextlib.contextmanager
    def open_lines(target: StrPath) -> Iterator[Writer]:
        with open_output(target) as stream:
            yield lambda record: _put(stream, json_text(make(record)) + "\n")

    return open_lines


@contextlib.contextmanager
def _open_label_studio(target: StrPath) -> Iterator[Writer]:
    with open_output(target) as stream:
        before = "["

        def write(record: Record) -> None:
            nonlocal before
            _put(stream, f"{before}\n{json_text(_label_studio(record))}")
            before = ","

        yield write
        _put(stream, "[]\n" if before == "[" else "\n]\n")


def _put(stream: IO[bytes], text: str) -> None:
    stream.write(text.encode())


@contextlib.contextmanager
def _open_brat(target: StrPath) -> Iterator[Writer]:
    """Writes one document if the target ends in .ann or .txt, otherwise a folder of documents."""
    path = Path(target)
    is_file = path.suffix in (".ann", ".txt")
    if os.fspath(target) == "-":
        raise InputError("brat's format needs files in a folder", remedy="give a folder, or a file that ends in .ann")
    if not is_file:
        make_folder(path)
        if any(path.iterdir()):
            raise InputError("the folder is not empty", path=path, remedy="choose a new one, or remove its files")
    count = 0

    def write(record: Record) -> None:
        nonlocal count
        count += 1
        if is_file and count > 1:
            raise InputError("one file cannot hold more than one text", path=target, remedy="give a folder")
        base = path.with_suffix("") if is_file else path / (record.name or f"{count:06}")
        make_folder(base.parent)
        _write_text(Path(f"{base}.txt"), record.text)
        if record.spans is not None:
            with open_output(f"{base}.ann") as stream:
                for number, span in enumerate(record.spans, 1):
                    _put(stream, _text_bound(number, span, record))

    yield write


def _write_text(path: Path, text: str) -> None:
    """The text that an .ann file annotates: usually there already, and not to be lost if it is another one."""
    if path.exists():
        if path.read_bytes() == text.encode():
            return
        raise InputError("the file holds another text", path=path, remedy="choose another name, or remove the file")
    with open_output(path) as stream:
        _put(stream, text)


def _text_bound(number: int, span: TextSpan, record: Record) -> str:
    if not re.fullmatch(r"\S+", span.label):
        raise InputError(
            f"the label {span.label!r} does not fit brat's format", line=record.line, remedy="use labels without spaces"
        )
    # An annotation is one line, so a span over several lines is written as several parts.
    parts = [found.span() for found in re.finditer(r"[^\r\n]+", record.text[span.start : span.end])]
    places = ";".join(f"{span.start + start} {span.start + end}" for start, end in parts)
    text = " ".join(record.text[span.start + start : span.start + end] for start, end in parts)
    return f"T{number}\t{span.label} {places}\t{text}\n"


class AnnotationFormat(NamedTuple):
    """How the texts of a tool are read and written."""

    read: Callable[[StrPath, Repairs | None], Iterator[Record]]
    writer: _Open
    has_scores: bool

    @contextlib.contextmanager
    def open(self, target: StrPath) -> Iterator[Writer]:
        """A function that writes texts to ``target``; spans without a type, as of the labels B and I, are an `InputError`."""
        with self.writer(target) as write:

            def checked(record: Record) -> None:
                if any(not span.label for span in record.spans or ()):
                    raise InputError(
                        "the spans have no type, but files of annotation tools need one",
                        line=record.line or None,
                        remedy="write labels with a type, as in B-NAME and I-NAME, or choose columns, conllu or jsonl",
                    )
                write(record)

            yield checked


ANNOTATION_FORMATS = {
    "doccano": AnnotationFormat(read_doccano, _json_lines(_doccano), False),
    "prodigy": AnnotationFormat(read_prodigy, _json_lines(_prodigy), True),
    "label-studio": AnnotationFormat(read_label_studio, _open_label_studio, True),
    "brat": AnnotationFormat(read_brat, _open_brat, False),
}
"""keyed by the values of `formats.FileFormat`"""
