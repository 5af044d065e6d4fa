"""Texts with spans: files as the tools write them, tokens and spans, round trips between all formats."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from small_models import small_tagger

from diffusion_mf.data.annotations import ANNOTATION_FORMATS, Record, TextSpan, read_json_values
from diffusion_mf.data.check import check_files
from diffusion_mf.data.conversion import Conversion, convert
from diffusion_mf.data.corpus import Task
from diffusion_mf.data.files import LIMIT_VARIABLE, FieldChoice
from diffusion_mf.data.formats import FileFormat, FormatOptions, format_of, input_format, read_source, read_task
from diffusion_mf.errors import InputError
from diffusion_mf.tagger.files import tag_file

TEXT = "Ada Byron sings in Oslo. She left."
SPANS = (TextSpan(0, 9, "PER"), TextSpan(19, 23, "LOC"))

DOCCANO = {"id": 3, "text": TEXT, "label": [[0, 9, "PER"], [19, 23, "LOC"]], "Comments": []}
PRODIGY = {
    "text": TEXT,
    "_input_hash": 5,
    "tokens": [
        {"text": TEXT[start:end], "start": start, "end": end, "id": number, "ws": True}
        for number, (start, end) in enumerate(
            [(0, 3), (4, 9), (10, 15), (16, 18), (19, 23), (23, 24), (25, 28), (29, 34)]
        )
    ],
    "spans": [
        {"start": 0, "end": 9, "token_start": 0, "token_end": 1, "label": "PER"},
        {"start": 19, "end": 23, "token_start": 4, "token_end": 4, "label": "LOC"},
    ],
    "answer": "accept",
}
LABEL_STUDIO = {
    "id": 1,
    "data": {"text": TEXT, "source": "x"},
    "annotations": [
        {"id": 7, "was_cancelled": True, "result": []},
        {
            "id": 8,
            "was_cancelled": False,
            "result": [
                {
                    "id": "r1",
                    "from_name": "ner",
                    "to_name": "my_text",
                    "type": "labels",
                    "value": {"start": 0, "end": 9, "text": "Ada Byron", "labels": ["PER"]},
                },
                {"type": "choices", "value": {"choices": ["good"]}},
                {"type": "labels", "value": {"start": 19, "end": 23, "text": "Oslo", "labels": ["LOC"]}},
            ],
        },
    ],
    "predictions": [],
}
BRAT = "T1\tPER 0 9\tAda Byron\nT2\tLOC 19 23\tOslo\n"


def write_all(folder: Path) -> dict[str, Path]:
    (folder / "doccano.jsonl").write_text(json.dumps(DOCCANO) + "\n")
    (folder / "prodigy.jsonl").write_text(json.dumps(PRODIGY) + "\n")
    (folder / "label-studio.json").write_text(json.dumps([LABEL_STUDIO], indent=1))
    (folder / "brat").mkdir()
    (folder / "brat" / "a.txt").write_text(TEXT)
    (folder / "brat" / "a.ann").write_text(BRAT)
    return {"doccano": folder / "doccano.jsonl", "prodigy": folder / "prodigy.jsonl",
            "label-studio": folder / "label-studio.json", "brat": folder / "brat"}  # fmt: skip


def test_files_of_the_tools(tmp_path: Path) -> None:
    for name, path in write_all(tmp_path).items():
        assert format_of(path) == name
        (record,) = ANNOTATION_FORMATS[name].read(path, None)
        assert (record.text, record.spans) == (TEXT, SPANS), name
        sentences = read_task(path, Task.NER, strict=True).sentences
        assert sentences[0].units == ("Ada", "Byron", "sings", "in", "Oslo", ".")
        assert {each.document for each in sentences} == {1}
        assert [each.labels for each in sentences] == [
            ("B-PER", "E-PER", "O", "O", "S-LOC", "O"),
            ("O",) * (2 if name == "prodigy" else 3),
        ]
    # One document of a folder is read, too.
    assert [each.spans for each in ANNOTATION_FORMATS["brat"].read(tmp_path / "brat" / "a.ann", None)] == [SPANS]


def test_a_tool_finds_its_other_entries_again(tmp_path: Path) -> None:
    paths = write_all(tmp_path)
    for name, source in (("doccano", DOCCANO), ("prodigy", PRODIGY), ("label-studio", LABEL_STUDIO)):
        (record,) = ANNOTATION_FORMATS[name].read(paths[name], None)
        with ANNOTATION_FORMATS[name].open(tmp_path / "out") as write:
            write(record)
        ((_, row),) = read_json_values(tmp_path / "out")
        if name != "label-studio":
            assert row == source
            continue
        assert (row["id"], row["data"]) == (1, LABEL_STUDIO["data"])
        (annotation,) = row["annotations"]
        first = LABEL_STUDIO["annotations"][1]["result"][0]  # type: ignore[index]
        assert annotation["result"][0] == {key: value for key, value in first.items() if key != "id"}
    old = {"text": "a b", "labels": [[0, 1, "X"]]}
    (tmp_path / "old.jsonl").write_text(json.dumps(old))
    convert(tmp_path / "old.jsonl", tmp_path / "new.jsonl", conversion("doccano", "doccano"))
    assert json.loads((tmp_path / "new.jsonl").read_text()) == old


@pytest.mark.parametrize(("name", "entry"), [
    ("doccano", {"id": 3, "text": "Ada sings.", "meta": {"a": 1}}),
    ("prodigy", {"text": "Ada sings.", "meta": {"a": 1}, "_input_hash": 5}),
    ("label-studio", {"id": 1, "data": {"text": "Ada sings.", "a": 1}}),
])  # fmt: skip
def test_a_text_without_annotations_keeps_its_entries_in_its_own_format_only(
    name: str, entry: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "in").write_text(json.dumps(entry))
    (record,) = ANNOTATION_FORMATS[name].read(tmp_path / "in", None)
    for target in ("doccano", "prodigy", "label-studio"):
        with ANNOTATION_FORMATS[target].open(tmp_path / "out") as write:
            write(record._replace(spans=SPANS[:1]))
        ((_, row),) = read_json_values(tmp_path / "out")
        assert (entry.items() <= row.items()) == (target == name), target


@pytest.mark.parametrize(("name", "entry"), [
    ("doccano", '{"text": "Ada sings.", "label": [[0, 3, "PER"]], "\\ud800": 1}'),
    ("label-studio", '[{"id": 1, "data": {"text": "Ada sings."}, "\\ud800": 1}]'),
])  # fmt: skip
def test_an_unpaired_surrogate_in_other_entries_is_passed_on(name: str, entry: str, tmp_path: Path) -> None:
    (tmp_path / "in").write_text(entry)
    (record,) = ANNOTATION_FORMATS[name].read(tmp_path / "in", None)
    with ANNOTATION_FORMATS[name].open(tmp_path / "out") as write:
        write(record)
    ((_, row),) = read_json_values(tmp_path / "out")
    assert row["\ud800"] == 1


def conversion(source: str, target: str, **options: Any) -> Conversion:
    return Conversion(
        source_format=FileFormat(source), target_format=FileFormat(target), options=FormatOptions(), **options
    )


PROBLEMS = {
    "text": "Berlin's wall. Ada",
    "label": [[0, 3, "CUT"], [9, 13, "LONG"], [10, 12, "IN"], [6, 13, "LONGER"], [14, 15, "BLANK"], [15, 18, "PER"]],
}


def test_what_does_not_fit_tokens_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(PROBLEMS))
    corpus = read_task(path, Task.NER)
    assert [each.labels for each in corpus] == [("S-CUT", "B-LONGER", "E-LONGER", "O"), ("S-PER",)]
    assert corpus.repaired == (
        f"{path}: 1 span that cuts a token extended to it, first at line 1 (the span 'Ber' (CUT) cuts the token 'Berlin'); "
        "2 overlapping spans left out, first at line 1 (the span 'wall' (LONG) overlaps \"'s wall\" (LONGER)); "
        "1 annotation left out, first at line 1 (the span ' ' (BLANK) contains no token); "
        "dmf data check lists them, --strict (data.strict) refuses them"
    )
    found = [(problem.kind.title, problem.text) for problem in check_files([(path, None)]).problems]
    assert found == [
        ("span that cuts a token", "line 1: the span 'Ber' (CUT) cuts the token 'Berlin'"),
        ("overlapping spans", "line 1: the span 'wall' (LONG) overlaps \"'s wall\" (LONGER)"),
        ("overlapping spans", "line 1: the span 'al' (IN) overlaps \"'s wall\" (LONGER)"),
        ("annotation left out", "line 1: the span ' ' (BLANK) contains no token"),
    ]
    path.write_text(json.dumps({"text": "Berlin", "label": [[0, 3, "CUT"]]}))
    with pytest.raises(InputError) as caught:
        read_task(path, Task.NER, strict=True)
    assert str(caught.value) == (
        f"{path}, line 1: the span 'Ber' (CUT) cuts the token 'Berlin'; correct the span, or leave out --strict."
    )


def test_what_brat_has_beside_spans_is_reported(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"Ada\nByron sings in Oslo")
    (tmp_path / "a.ann").write_text(
        "T1\tPER 0 3;4 9\tAda Byron\nT2\tLOC 0 3;19 23\tAda Oslo\nR1\tLives Arg1:T1 Arg2:T2\n#1\tAnnotatorNotes T1\tgood\n"
    )
    corpus = read_task(tmp_path, Task.NER)
    assert [each.labels for each in corpus] == [("B-PER", "E-PER", "O", "O", "O")]
    assert "3 annotations left out, first at a.ann, line 2 (T2 is discontinuous)" in str(corpus.repaired)
    with pytest.raises(InputError, match=r"a\.ann, line 2: T2 is discontinuous; make it one span"):
        read_task(tmp_path, Task.NER, strict=True)
    convert(tmp_path, tmp_path / "out", conversion("brat", "brat"))
    assert (tmp_path / "out" / "a.ann").read_text() == "T1\tPER 0 3;4 9\tAda Byron\n"


def test_rejected_texts_are_left_out_and_offsets_of_browsers_understood(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(PRODIGY) + "\n" + json.dumps({**PRODIGY, "answer": "reject"}) + "\n")
    corpus = read_task(path, Task.NER)
    assert len(corpus) == 2
    assert "1 annotation left out, first at line 2 (answer reject)" in str(corpus.repaired)
    region = {"start": 3, "end": 7, "text": "Oslo", "labels": ["LOC"]}
    task = {"data": {"text": "👍 Oslo"}, "annotations": [{"result": [{"type": "labels", "value": region}]}]}
    (tmp_path / "a.json").write_text(json.dumps([task]))
    (record,) = ANNOTATION_FORMATS["label-studio"].read(tmp_path / "a.json", None)
    assert record.spans == (TextSpan(2, 6, "LOC"),)


def test_a_sentence_does_not_end_inside_a_span(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"text": "At Yahoo! Inc. Ada works.", "label": [[3, 14, "ORG"]]}))
    assert [each.units for each in read_task(path, Task.NER)] == [("At", "Yahoo", "!", "Inc."), ("Ada", "works", ".")]


TEXTS = st.text(alphabet="aB.'’ \n-é中👍\"\\", max_size=20)


@st.composite
def records(draw: st.DrawFn) -> list[Record]:
    found = []
    for text in draw(st.lists(TEXTS, min_size=1, max_size=4)):
        places = st.integers(0, max(0, len(text) - 1))
        spans = set()
        for _ in range(draw(st.integers(0, 3)) if text.strip() else 0):
            start = draw(places)
            end = draw(st.integers(start + 1, len(text)))
            if text[start:end].strip() == text[start:end] and "\n" not in text[start:end]:
                spans.add((start, end, draw(st.sampled_from(["PER", "X-Y", "é"]))))
        found.append(Record(text, tuple(TextSpan(*span) for span in sorted(spans))))
    return found


@pytest.mark.parametrize("name", list(ANNOTATION_FORMATS))
@given(written=records())
@settings(max_examples=40, deadline=None)
def test_round_trips(name: str, written: list[Record]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "out"
        with ANNOTATION_FORMATS[name].open(target) as write:
            for record in written:
                write(record)
        found = list(ANNOTATION_FORMATS[name].read(target, None))
        assert [(each.text, each.spans) for each in found] == [(each.text, each.spans) for each in written]
        # Through every other format and back.
        for other in ANNOTATION_FORMATS:
            convert(target, Path(folder) / f"{other}-there", conversion(name, other))
            convert(Path(folder) / f"{other}-there", Path(folder) / f"{other}-back", conversion(other, name))
            back = list(ANNOTATION_FORMATS[name].read(Path(folder) / f"{other}-back", None))
            assert [(each.text, each.spans) for each in back] == [(each.text, each.spans) for each in written]


WORDS = st.sampled_from(["Ada", "sings", "Oslo", "x", "long-term"])


@pytest.mark.parametrize("name", [*ANNOTATION_FORMATS, "hugging-face", "jsonl", "columns"])
@given(sentences=st.lists(st.lists(st.tuples(WORDS, st.sampled_from(["O", "B-PER", "B-LOC"])), min_size=1), min_size=1))
@settings(max_examples=20, deadline=None)
def test_labelled_units_come_back(name: str, sentences: list[list[tuple[str, str]]]) -> None:
    rows = [{"units": [u for u, _ in each], "labels": [label for _, label in each]} for each in sentences]
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        (folder / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        convert(folder / "a.jsonl", folder / "there", conversion("jsonl", name))
        convert(folder / "there", folder / "back.jsonl", conversion(name, "jsonl"))
        assert [json.loads(line) for line in (folder / "back.jsonl").read_text().splitlines()] == rows


def test_documents_become_texts(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("-DOCSTART-\tO\n\nAda\tB-PER\n\nOslo\tB-LOC\n\n-DOCSTART-\tO\n\nx\tO\n")
    convert(tmp_path / "a.tsv", tmp_path / "b.jsonl", conversion("columns", "doccano", keep_documents=True))
    assert [json.loads(line) for line in (tmp_path / "b.jsonl").read_text().splitlines()] == [
        {"text": "Ada\nOslo", "label": [[0, 3, "PER"], [4, 8, "LOC"]]},
        {"text": "x", "label": []},
    ]


@pytest.mark.parametrize(("content", "problem"), [
    ('{"text": "a", "label": [[0, 2, "X"]]}', "line 1: the span 0–2 is not within the text of 1 characters"),
    ('\n{"text": "a", "label": [[0, 1]]}', 'line 2: "label" contains an entry that is not [start, end, label]'),
    ('{"text": "a", "label": [[0, 1, 5]]}', "line 1: a span needs a start, an end and a label"),
    ('{"text": "a", "label": []}\n{"text": "b", "lab', "line 2: not JSON (Unterminated string starting at)"),
    ('[{"text": "a", "label": []}', "the list is not closed"),
    ('[{"text": "a", "label": []}] x', "there is something after the list"),
    ('{"text": "a", "label": []}\n5', "line 2: not a JSON object"),
    ('{"text": "\\ud800", "label": []}', 'line 1: "text" contains an unpaired surrogate'),
    ('{"text": "a"}', "the format of texts without annotations cannot be detected; specify it with --format doccano or"),
])  # fmt: skip
def test_bad_files_are_refused_in_one_sentence(content: str, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(content)
    with pytest.raises(InputError) as caught:
        list(ANNOTATION_FORMATS["doccano"].read(path, None)) and input_format(path)
    assert problem in str(caught.value)


def test_json_values_stream_within_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LIMIT_VARIABLE, "1")
    path = tmp_path / "a.json"
    values = [{"text": "x" * 1000 + str(number), "label": []} for number in range(3000)]
    for text in (json.dumps(values, indent=1), "\ufeff" + "\n".join(map(json.dumps, values))):
        path.write_text(text)
        assert [value for _, value in read_json_values(path)] == values
    path.write_text('[\n{"text": "' + "x\n" * (1 << 20))
    with pytest.raises(InputError, match="line 2: not JSON"):
        list(read_json_values(path))


def test_hugging_face_datasets(tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    row = {"id": "0", "tokens": ["Ada", "sings"], "pos_tags": ["PROPN", "VERB"], "ner_tags": [1, 0]}
    path.write_text(json.dumps(row) + "\n")
    assert format_of(path) is FileFormat.HUGGING_FACE
    assert read_task(path, Task.POS).sentences[0].labels == ("PROPN", "VERB")
    with pytest.raises(InputError, match='line 1: "ner_tags" contains numbers whose label names are unknown'):
        read_task(path, Task.NER)
    names = FieldChoice(label_names=("O", "B-PER"))
    assert read_task(path, Task.NER, fields=names).sentences[0].labels == ("S-PER", "O")
    features = {
        "features": {"ner_tags": {"feature": {"names": ["O", "B-LOC"], "_type": "ClassLabel"}, "_type": "Sequence"}}
    }
    (tmp_path / "dataset_info.json").write_text(json.dumps(features))
    assert read_task(path, Task.NER).sentences[0].labels == ("S-LOC", "O")
    path.write_text(json.dumps({"label_names": ["O", "B-ORG"]}) + "\n" + json.dumps(row) + "\n")
    assert read_task(path, Task.NER).sentences[0].labels == ("S-ORG", "O")
    path.write_text(json.dumps({"tokens": ["a"], "one": ["X"], "two": ["Y"]}))
    with pytest.raises(InputError, match=r"several keys may hold the tags \(one, two\); choose one with --tag-column"):
        read_task(path, Task.POS)
    assert read_task(path, Task.POS, fields=FieldChoice(tag_column="two")).sentences[0].labels == ("Y",)


def test_hugging_face_rows_without_tokens_are_tagged_but_not_learnt_from(tmp_path: Path) -> None:
    path, output = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    rows = [
        {"id": id, "tokens": tokens, "ner_tags": ["O"] * len(tokens)} for id, tokens in enumerate([[], ["Ada"], []])
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert len(read_task(path, Task.NER).sentences) == 1
    assert tag_file(small_tagger(), path, output, file_format=FileFormat.HUGGING_FACE) == 1
    found = [json.loads(line) for line in output.read_text().splitlines()]
    assert [found[0], found[2]] == [rows[0], rows[2]]
    assert found[1]["tokens"] == ["Ada"]


def test_a_list_may_begin_after_blank_lines(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('\n \n[\n{"a": 1}]\n')
    assert list(read_json_values(path)) == [(4, {"a": 1})]
    path.write_text('{"a": 1} [2]')
    assert list(read_json_values(path)) == [(1, {"a": 1}), (1, [2])]


def test_a_folder_with_files_is_no_output(tmp_path: Path) -> None:
    (tmp_path / "000001.txt").write_text("mine")
    with (
        pytest.raises(InputError, match=r"the folder is not empty; choose a new one, or remove its files"),
        ANNOTATION_FORMATS["brat"].open(tmp_path),
    ):
        pass
    assert [path.read_text() for path in tmp_path.iterdir()] == ["mine"]
    (tmp_path / "new").mkdir()
    with ANNOTATION_FORMATS["brat"].open(tmp_path / "new") as write:
        write(Record("Ada"))
    assert (tmp_path / "new" / "000001.txt").read_text() == "Ada"


def test_another_text_beside_an_ann_file_is_kept(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(TEXT)
    record = next(ANNOTATION_FORMATS["brat"].read(tmp_path / "a.txt", None))
    with ANNOTATION_FORMATS["brat"].open(tmp_path / "a.ann") as write:
        write(record)
    (tmp_path / "a.txt").write_text("Notes of another day.")
    with (
        pytest.raises(InputError, match=r"a\.txt: the file holds another text; choose another name"),
        ANNOTATION_FORMATS["brat"].open(tmp_path / "a.ann") as write,
    ):
        write(record)
    assert (tmp_path / "a.txt").read_text() == "Notes of another day."


@pytest.mark.parametrize("tags", ["ner_tags", "mine"])
def test_all_rows_have_their_tags_under_one_key(tags: str, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"

    def read(*rows: dict[str, list[str]], **choice: str) -> list[tuple[str, ...] | None]:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        options = FormatOptions(fields=FieldChoice(**choice))
        return [sentence.labels for sentence in read_source(path, FileFormat.HUGGING_FACE, options).sentences]

    first = {"tokens": ["Ada", "left"], tags: ["B-PER", "O"]}
    other = {"iob": ["B-X", "O"]}
    problem = rf'line 2: 2 tokens but 1 tags under the key "{tags}"; give every token one tag'
    for row in ({"tokens": ["Bob", "ran"], tags: ["B-PER"]}, {"tokens": ["Bob", "ran"], tags: ["B-PER"], **other}):
        with pytest.raises(InputError, match=problem):
            read(first, row)
    assert read(first, {"tokens": ["Bob", "ran"], **other}) == [("B-PER", "O"), None]
    assert read(first, {"tokens": ["Bob", "ran"], tags: []}) == [("B-PER", "O"), None]
    assert read({**first, **other}, {**first, **other}, tag_column="iob") == [("B-X", "O")] * 2
    with pytest.raises(InputError, match='line 1: no tags under the key "iob"'):
        read(first, tag_column="iob")
    with pytest.raises(InputError, match="line 1: 2 tokens but 1 tags"):
        read({**first, "ner_tags": ["O"], **other})


def test_digits_in_quotes_are_numbers_of_label_names(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"tokens": ["Ada", "left"], "ner_tags": ["1", "0"]}\n')
    names = FieldChoice(label_names=("O", "B-PER"))
    assert [sentence.labels for sentence in read_task(path, Task.NER, fields=names)] == [("S-PER", "O")]
