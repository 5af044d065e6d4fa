"""Results for people to read, and the choice of those that need a look."""

from __future__ import annotations

import dataclasses
import html
import io
import json
import pathlib
import re
from html.parser import HTMLParser

import pytest
from rich.text import Text
from small_models import small_tagger

from diffusion_mf.data.corpus import Task
from diffusion_mf.data.formats import FileFormat
from diffusion_mf.data.label_schemes import LabelScheme, check_sequence
from diffusion_mf.errors import InputError
from diffusion_mf.tagger import Span, TaggedSentence, Tagger
from diffusion_mf.tagger.files import TaggingOptions, tag_file
from diffusion_mf.tagger.rendering import Readable, kind_colours, label_colours, pieces, readable_on, terminal_text
from diffusion_mf.tagger.results import without_uncertain

TEXT = "Ada  Byron sings <loud> & long\nin Oslo.\n\nEve sings for the royal choir!\n"


@pytest.fixture
def source(tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "text.raw"
    path.write_text(TEXT)
    return path


def written(tagger: Tagger, source: pathlib.Path, output_format: FileFormat | Readable, **options: object) -> str:
    output = source.with_name("output")
    tag_file(tagger, source, output, file_format=FileFormat.RAW, output_format=output_format, **options)  # type: ignore[arg-type]
    return output.read_text()


@pytest.mark.parametrize("task", Task)
def test_spans_have_their_places_in_the_file(task: Task, source: pathlib.Path) -> None:
    tagger = small_tagger(task=task)
    rows = [line.split("\t") for line in written(tagger, source, Readable.SPANS).splitlines()]
    results = tagger.tag_text(TEXT)
    assert rows
    assert (
        rows
        == [
            [str(number), str(start), str(end), label, f"{score:.4f}", " ".join(TEXT[start:end].split())]
            for number, result in enumerate(results, 1)
            for start, end, label, score in (
                [
                    (*place, label, score)
                    for place, label, score in zip(result.offsets or (), result.labels, result.scores, strict=True)
                ]
                if task is Task.POS
                else [(*(result.characters_of(span) or (0, 0)), span.label, span.confidence) for span in result.spans]
            )
        ]
        or task is Task.SEG_POS
    )  # there, characters outside of words are listed, too
    assert all(TEXT[int(row[1]) : int(row[2])].split() == row[5].split() for row in rows)


def test_spans_of_words_are_counted_in_the_sentence(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text('{"units": ["Ada", "Byron", "sings"]}\n{"units": ["the", "royal", "choir"]}\n')
    tagger = small_tagger()
    tag_file(tagger, path, tmp_path / "out", output_format=Readable.SPANS)
    sentences = ["Ada Byron sings", "the royal choir"]
    rows = [line.split("\t") for line in (tmp_path / "out").read_text().splitlines()]
    assert [row[3] for row in rows] == [
        span.label for r in tagger.tag([s.split() for s in sentences]) for span in r.spans
    ]
    assert all(sentences[int(row[0]) - 1][int(row[1]) : int(row[2])] == row[5] for row in rows)


class _Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.paragraphs: list[str] = []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        if tag != "meta":
            self.open.append(tag)
        self.attributes += attributes
        if tag == "p":
            self.paragraphs.append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "p" in self.open and self.open[-1] != "small":
            self.paragraphs[-1] += data


@pytest.mark.parametrize("task", Task)
def test_a_page_needs_nothing_else_and_keeps_the_text(task: Task, source: pathlib.Path) -> None:
    tagger = small_tagger(task=task)
    text = written(tagger, source, Readable.HTML)
    page = _Page(text)
    assert {name for name, _ in page.attributes} <= {"lang", "charset", "style", "title"}
    assert "url(" not in text
    assert "<script" not in text
    results = tagger.tag_text(TEXT)
    assert len(page.paragraphs) == len(results)
    for paragraph, result in zip(page.paragraphs, results, strict=True):
        offsets = result.offsets or ()
        assert html.unescape(paragraph) == TEXT[offsets[0][0] : offsets[-1][1]]
    percents = [value for name, value in page.attributes if name == "title"]
    assert percents
    assert all(re.fullmatch(r"\d+ %", value or "") for value in percents)


def test_the_name_of_a_page(source: pathlib.Path) -> None:
    output = source.with_name("page.html")
    tag_file(small_tagger(), source, output, file_format=FileFormat.RAW)
    assert output.read_text() == written(small_tagger(), source, Readable.HTML)


def test_entities_on_a_terminal() -> None:
    result = TaggedSentence(
        ("Ada", "Byron", "sings", "."), ["B-PER", "I-PER", "O", "O"], [0.9] * 4, [Span(0, 2, "PER", 0.854)],
        offsets=((0, 3), (5, 10), (11, 16), (16, 17)),
    )  # fmt: skip
    colours = kind_colours(["B-PER", "I-PER", "O"])
    shown = terminal_text(pieces(result, Task.NER, "Ada  Byron sings."), colours, task=Task.NER, width=80)
    assert Text.from_ansi(shown).plain.rstrip() == "Ada Byron PER 85 % sings."
    # A line is not broken between an entity and its label.
    shown = terminal_text(pieces(result, Task.NER, "Ada  Byron sings."), colours, task=Task.NER, width=20)
    assert Text.from_ansi(shown).plain.rstrip().split("\n") == ["Ada Byron PER 85 %", "sings."]
    other = dataclasses.replace(result, labels=["O", "B-PER", "O", "O"], spans=[Span(1, 2, "PER", 0.854)])
    shown = terminal_text(pieces(other, Task.NER, "Ada  Byron sings."), colours, task=Task.NER, width=15)
    assert Text.from_ansi(shown).plain.rstrip().split("\n") == ["Ada", "Byron PER 85 %", "sings."]


def test_text_on_colours_is_readable() -> None:
    """The better of white and ink has a contrast of 3.9 to 1 on any colour; WCAG asks for 3 of large text."""

    def luminance(colour: str) -> float:
        values = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
        linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in values]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    for colour in label_colours([f"{letter}-{kind}" for kind in range(18) for letter in "BMES"]).values():
        low, high = sorted((luminance(colour), luminance(readable_on(colour))))
        assert (high + 0.05) / (low + 0.05) > 3.9, colour


def test_tags_on_a_terminal_stand_below_their_words() -> None:
    units = ("新", "闻", "a", "very-long-word")
    result = TaggedSentence(units, ["NOUN", "X", "DET", "NOUN"], [1.0, 0.5, 0.994, 0.0], [])
    shown = terminal_text(pieces(result, Task.POS), label_colours(["DET", "NOUN", "X"]), task=Task.POS, width=24)
    assert Text.from_ansi(shown).plain.rstrip().split("\n") == [
        "新     闻    a",
        "NOUN   X     DET",
        "100 %  50 %  99 %",
        "very-long-word",
        "NOUN",
        "0 %",
    ]


def test_the_least_certain_sentences_come_first(source: pathlib.Path) -> None:
    tagger = small_tagger(task=Task.POS)
    results = sorted(tagger.tag_text(TEXT * 3 + "Ada.\n\nOslo mira sel.\n"), key=lambda result: min(result.scores))
    source.write_text(TEXT * 3 + "Ada.\n\nOslo mira sel.\n")
    for number in (1, 3, 100):
        rows = [
            json.loads(line) for line in written(tagger, source, FileFormat.JSONL, least_certain=number).splitlines()
        ]
        assert [row["units"] for row in rows] == [list(result.units) for result in results[:number]]
    with pytest.raises(InputError, match="--least-certain writes single sentences, and doccano has whole texts"):
        written(tagger, source, FileFormat.DOCCANO, least_certain=1)


@pytest.mark.parametrize("end", ["", "\n", "\n\n"])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize(("file_format", "head", "row"), [
    (FileFormat.COLUMNS, "", "{unit}\tX"),
    (FileFormat.COLUMNS, "\ufeffword\tpos\n", "{unit}\tX"),
    (FileFormat.COLUMNS, "# global.columns = FORM TAG\n", "{unit}\tX"),
    (FileFormat.CONLLU, "\ufeff", "{number}\t{unit}" + "\t_" * 8),
])  # fmt: skip
def test_the_least_certain_are_separate_sentences_after_the_head_of_their_file(
    file_format: FileFormat, head: str, row: str, newline: str, end: str, tmp_path: pathlib.Path
) -> None:
    sentences = ["Oslo", "Eve sings", "the royal choir"]
    blocks = [
        "\n".join(row.format(number=number, unit=unit) for number, unit in enumerate(sentence.split(), 1))
        for sentence in sentences
    ]
    source, output = tmp_path / "in", tmp_path / "out"
    source.write_bytes((head + "\n\n".join(blocks) + end).replace("\n", newline).encode())
    tagger = small_tagger(task=Task.POS)
    expected = sorted(tagger.tag([s.split() for s in sentences]), key=lambda result: min(result.scores))
    for number in (1, 3):
        tag_file(tagger, source, output, file_format=file_format, least_certain=number)
        text = output.read_bytes().decode()
        assert text.startswith(head.replace("\n", newline))
        assert text.count("\ufeff") == head.count("\ufeff")
        *found, rest = text.replace("\r\n", "\n").removeprefix(head).split("\n\n")
        units = [[line.split("\t")[file_format is FileFormat.CONLLU] for line in block.split("\n")] for block in found]
        assert rest == ""
        assert units == [list(result.units) for result in expected[:number]]


@pytest.mark.parametrize("scheme", [LabelScheme.BMES, LabelScheme.BIO2, LabelScheme.IOB1])
def test_uncertain_spans_are_left_out(source: pathlib.Path, scheme: LabelScheme) -> None:
    tagger = small_tagger()
    sure = sorted(span.confidence for result in tagger.tag_text(TEXT) for span in result.spans)
    limit = sure[len(sure) // 2]
    text = written(
        tagger, source, FileFormat.JSONL, min_confidence=limit, use_scores=True, options=TaggingOptions(scheme=scheme)
    )
    rows = [json.loads(line) for line in text.splitlines()]
    kept = [span for row in rows for span in row["spans"]]
    assert len(kept) == len([one for one in sure if one >= limit]) < len(sure)
    outside = tagger.labels_in(scheme).index("O")
    for row, result in zip(rows, tagger.tag_text(TEXT, scheme=scheme, marginals=True), strict=True):
        check_sequence(row["labels"], scheme)
        assert result.marginals is not None
        for index, (label, before) in enumerate(zip(row["labels"], result.labels, strict=True)):
            expected = result.scores[index] if label == before else float(result.marginals[index, outside])
            if label == before or label == "O":
                assert row["scores"][index] == pytest.approx(expected, abs=1e-5)


def test_uncertain_tags_are_unspecified(source: pathlib.Path) -> None:
    tagger = small_tagger(task=Task.POS)
    pairs = [pair for r in tagger.tag_text(TEXT) for pair in zip(r.labels, r.scores, strict=True)]
    limit = sorted(score for _, score in pairs)[len(pairs) // 2]
    text = written(tagger, source, FileFormat.COLUMNS, min_confidence=limit)
    tags = [line.split("\t")[1] for line in text.splitlines() if line]
    assert tags == [label if score >= limit else "_" for label, score in pairs]
    assert "_" in tags
    with pytest.raises(InputError, match="a minimum confidence would drop words"):
        written(small_tagger(task=Task.SEG_POS), source, FileFormat.COLUMNS, min_confidence=0.6)


def test_nothing_uncertain_changes_nothing() -> None:
    result = TaggedSentence(("a",), ["S-X"], [0.7], [Span(0, 1, "X", 0.7)])
    assert without_uncertain(result, 0.7, LabelScheme.BMES, ("O", "S-X")) is result


def test_results_for_people_flow_into_a_pipe(
    monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"Ada sings.")))
    tag_file(small_tagger(), "-", "-", file_format=FileFormat.RAW, output_format=Readable.HTML)
    assert capsysbinary.readouterr().out.decode().endswith("</body>\n</html>\n")
