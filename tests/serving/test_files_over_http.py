"""Files through the server: what POST /read finds in them, and what POST /write makes of labelled sentences."""

from __future__ import annotations

import gzip
import json
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi")

from served_models import client_of
from small_models import small_tagger
from starlette.testclient import TestClient

from diffusion_mf.data.corpus import Task
from diffusion_mf.data.formats import FileFormat, read_source
from diffusion_mf.serving import schemas
from diffusion_mf.tagger import Tagger
from diffusion_mf.tagger.files import tag_file

BYTES = {"Content-Type": "application/octet-stream"}
TEXT = "Ada sings in Oslo. Eve 😀 left.\n\nOslo!"
CONLLU = "# newdoc\n1\tAda\t_\t_\t_\t_\t_\t_\t_\t_\n2\tsings\t_\t_\t_\t_\t_\t_\t_\t_\n\n"


@pytest.fixture(scope="module")
def taggers() -> dict[str, Tagger]:
    return {
        "ner": small_tagger("diffusion-mf", Task.NER),
        "pos": small_tagger("mean-field", Task.POS),
        "words": small_tagger("lcrf", Task.SEG_POS),
    }


@pytest.fixture(scope="module")
def client(taggers: dict[str, Tagger]) -> Iterator[TestClient]:
    with client_of(taggers, body_bytes=20_000, request_units=500, sentence_units=100) as client:
        yield client


def read(client: TestClient, name: str, data: bytes | str, model: str = "ner", **query: str) -> Any:
    data = data.encode() if isinstance(data, str) else data
    response = client.post("/read", params={"model": model, "name": name} | query, content=data, headers=BYTES)
    if response.status_code == 200:
        schemas.ReadAnswer.model_validate_json(response.content, strict=True)
    return response


FILES: dict[str, tuple[str, str, list[list[str]]]] = {
    "a.conllu": (CONLLU, "conllu", [["Ada", "sings"]]),
    "a.tsv": ("Ada\tB-PER\nsings\tO\n\nEve\tO\n", "columns", [["Ada", "sings"], ["Eve"]]),
    "a.jsonl": ('{"units": ["Ada", "sings"]}\n', "jsonl", [["Ada", "sings"]]),
    "hub.jsonl": ('{"tokens": ["Ada"], "ner_tags": ["O"]}\n', "hugging-face", [["Ada"]]),
    "doccano.jsonl": ('{"text": "Ada sings", "label": []}\n{"text": "Eve", "label": []}\n', "doccano", [["Ada", "sings"], ["Eve"]]),
    "prodigy.jsonl": ('{"text": "Ada sings", "spans": []}\n', "prodigy", [["Ada", "sings"]]),
    "studio.json": ('[{"data": {"text": "Ada sings"}}]', "label-studio", [["Ada", "sings"]]),
    "a.tok": ("Ada sings .\n", "text", [["Ada", "sings", "."]]),
    "a.txt": (TEXT, "raw", [["Ada", "sings", "in", "Oslo", "."], ["Eve", "😀", "left", "."], ["Oslo", "!"]]),
    "columns.txt": ("Ada B-PER\nsings O\n\nEve O\n", "columns", [["Ada", "sings"], ["Eve"]]),
    "no name": (TEXT, "raw", [["Ada", "sings", "in", "Oslo", "."], ["Eve", "😀", "left", "."], ["Oslo", "!"]]),
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_sentences_of_a_file_in_any_format(client: TestClient, name: str) -> None:
    contents, file_format, units = FILES[name]
    found = read(client, name, contents).json()
    assert found["format"] == file_format
    assert [sentence["units"] for sentence in found["sentences"]] == units
    for sentence in found["sentences"]:
        if "offsets" in sentence:
            text = found["texts"][sentence["text"]]
            assert [text[start:end] for start, end in sentence["offsets"]] == sentence["units"]
    compressed = read(client, f"{name}.gz", gzip.compress(contents.encode()))
    assert compressed.json() == found
    assert read(client, "unknown", contents, format=file_format).json() == found


def test_documents_and_characters(client: TestClient) -> None:
    columns = "-DOCSTART- O\n\nAda O\n\nEve O\n\n-DOCSTART- O\n\nOslo O\n"
    found = read(client, "a.tsv", columns).json()["sentences"]
    assert [sentence["document"] for sentence in found] == [1, 1, 2]
    assert read(client, "a.conllu", CONLLU, model="words").json()["sentences"][0]["units"] == list("Adasings")


def test_what_cannot_be_read_is_said_with_the_name_of_the_file(client: TestClient) -> None:
    bomb = gzip.compress(b"\n" * 10_000_000)
    bad: dict[str, tuple[bytes | str, dict[str, str], int, str]] = {
        "bad.conllu": ("1\tAda\n", {}, 422, "bad.conllu, line 1: expected 10 columns"),
        "bad.gz": (b"nonsense", {}, 422, "bad.gz: damaged or not gz data"),
        "bad.ann": ("T1", {}, 422, "bad.ann: a brat document is two files; send its .txt file."),
        "x": ("Ada", {"format": "docx"}, 422, "there is no format 'docx'; choose conllu"),
        "y": ("Ada", {"format": "brat"}, 422, "a brat document is two files"),
        "z": ("Ada", {"model": "nerd"}, 404, "no model is called 'nerd'"),
        "bomb.txt.gz": (bomb, {}, 413, "unpacked, the file has more than 20,000 bytes; send it in parts."),
        "long.txt": ("Ada. " * 300, {}, 413, "the file has more than 500 units; send it in parts, or use dmf tag."),
        "line.tok": ("Ada " * 101, {}, 413, "sentence 1 has 101 units, more than 100; divide it."),
        "../../etc/passwd": (b"\xff\xfe", {}, 422, "../../etc/passwd"),
    }
    for name, (data, query, status, sentence) in bad.items():
        response = read(client, name, data, **query)
        assert response.status_code == status
        assert response.json()["error"].startswith(sentence)
        assert tempfile.gettempdir() not in response.text
    assert client.post("/read", content=b"Ada", headers={"Content-Type": "text/plain"}).status_code == 415


def labelled(client: TestClient, model: str) -> tuple[list[dict[str, Any]], list[str]]:
    (answer,) = client.post("/tag", json={"model": model, "texts": [TEXT], "scores": True}).json()["texts"]
    keys = ("units", "labels", "scores", "offsets", "spans")
    return [{"text": 0} | {key: sentence[key] for key in keys} for sentence in answer["sentences"]], [TEXT]


@pytest.mark.parametrize("model", ["ner", "pos", "words"])
@pytest.mark.parametrize("file_format", ["conllu", "columns", "jsonl", "doccano", "label-studio", "prodigy"])
def test_a_file_is_what_dmf_tag_writes(
    client: TestClient, taggers: dict[str, Tagger], tmp_path: Path, model: str, file_format: str
) -> None:
    sentences, texts = labelled(client, model)
    use_scores = file_format != "doccano"
    body = {"model": model, "format": file_format, "sentences": sentences, "texts": texts, "scores": use_scores}
    response = client.post("/write", json=body)
    assert response.status_code == 200, response.text
    assert response.headers["Content-Disposition"].startswith('attachment; filename="labelled.')
    # A text of one record: raw files are read by paragraphs.
    source, output = tmp_path / "in.jsonl", tmp_path / "out"
    source.write_text(json.dumps({"text": TEXT, "label": []}), encoding="utf-8")
    wanted = FileFormat(file_format)
    tag_file(
        taggers[model], source, output, file_format=FileFormat.DOCCANO, output_format=wanted, use_scores=use_scores
    )
    if wanted is FileFormat.DOCCANO:
        assert json.loads(response.text)["text"] == TEXT
        assert json.loads(response.text)["label"] == json.loads(output.read_text(encoding="utf-8"))["label"]
    else:
        assert _rounded(response.text) == _rounded(output.read_text(encoding="utf-8"))


def _rounded(text: str) -> str:
    """Scores were rounded on their way through the server, and may be rounded to another last digit."""
    return re.sub(r"\d\.\d{3,}", lambda match: f"{float(match[0]):.3f}"[:-1], text)


def test_sentences_without_a_text_are_written_too(client: TestClient, tmp_path: Path) -> None:
    body = {"model": "ner", "sentences": [{"units": ["Ada", "sings"], "labels": ["S-PER", "S-LOC"]}]}
    for file_format in ("columns", "jsonl", "doccano", "hugging-face"):
        response = client.post("/write", json=body | {"format": file_format})
        path = tmp_path / file_format
        path.write_bytes(response.content)
        (sentence,) = read_source(path, FileFormat(file_format)).sentences
        assert sentence.units == ("Ada", "sings")


ONE = {"units": ["Ada"], "labels": ["S-PER"]}
BAD: dict[str, tuple[dict[str, Any], str]] = {
    "unknown label": ({"sentences": [ONE | {"labels": ["X"]}]}, "sentence 1 has the label 'X', which the model does not have; use the labels of GET /models."),
    "too few labels": ({"sentences": [ONE | {"labels": []}]}, "sentences.0: there are 0 labels for 1 units."),
    "no such text": ({"sentences": [ONE | {"text": 0, "offsets": [[0, 3]]}]}, "sentence 1 belongs to text 0, but there are 0; count texts from 0."),
    "offsets of others": ({"texts": ["Eve"], "sentences": [ONE | {"text": 0, "offsets": [[0, 3]]}]}, "the offsets of sentence 1 are not those of its units in the text; send offsets as POST /tag or POST /read gave them."),
    "offsets from the end": ({"texts": ["Ada."], "sentences": [ONE | {"text": 0, "offsets": [[-4, -1]]}]}, "the offsets of sentence 1 are not those of its units in the text; send offsets as POST /tag or POST /read gave them."),
    "text without offsets": ({"texts": ["Ada"], "sentences": [ONE | {"text": 0}]}, 'sentences.0: "text" and "offsets" belong together.'),
    "offsets beyond the text": ({"texts": ["Ada"], "sentences": [ONE | {"text": 0, "offsets": [[0, 400]]}]}, "the offsets of sentence 1 are not those of its units in the text; send offsets as POST /tag or POST /read gave them."),
    "no scores": ({"scores": True, "sentences": [ONE | {"scores": [0.5]}, ONE]}, 'sentence 2 has no scores, and scores are to be written; send its scores, or leave out "scores": true.'),
    "texts out of order": ({"texts": ["Ada", "Ada"], "sentences": [ONE | {"text": 1, "offsets": [[0, 3]]}, ONE | {"text": 0, "offsets": [[0, 3]]}]}, "sentence 2 belongs to an earlier text; send sentences in order."),
    "plain text": ({"format": "text", "sentences": [ONE]}, "plain text cannot hold labels; choose conllu, columns, jsonl, doccano, prodigy, label-studio, hugging-face."),
    "raw text": ({"format": "raw", "sentences": [ONE]}, "plain text cannot hold labels; choose conllu, columns, jsonl, doccano, prodigy, label-studio, hugging-face."),
    "two files": ({"format": "brat", "sentences": [ONE]}, "brat's documents are two files each; choose conllu, columns, jsonl, doccano, prodigy, label-studio, hugging-face."),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_written_gets_one_sentence(client: TestClient, name: str) -> None:
    body, sentence = BAD[name]
    response = client.post("/write", json={"model": "ner", "format": "columns"} | body)
    assert (response.status_code, response.json()) == (422, {"error": sentence})


def test_words_can_be_written_as_plain_text(client: TestClient) -> None:
    sentences, texts = labelled(client, "words")
    response = client.post("/write", json={"model": "words", "format": "text", "sentences": sentences, "texts": texts})
    assert response.status_code == 200
    response = client.post("/write", json={"model": "words", "format": "raw", "sentences": sentences, "texts": texts})
    assert "choose conllu, columns, jsonl, text, doccano" in response.json()["error"]


@pytest.mark.parametrize("model", ["ner", "words"])
def test_all_that_can_be_labelled_can_be_written(taggers: dict[str, Tagger], model: str) -> None:
    """Texts that come near the limits of bytes and units, with everything that an answer has."""
    text = "天" * 480 if model == "words" else '\\n"Oslo" ' * 90
    with client_of({model: taggers[model]}, body_bytes=2_500, request_units=500) as client:
        response = client.post("/tag", json={"texts": [text], "scores": True})
        assert response.status_code == 200, response.text
        sentences = [{"text": 0} | sentence for sentence in response.json()["texts"][0]["sentences"]]
        body = {"format": "jsonl", "texts": [text], "sentences": sentences, "scores": True}
        assert len(json.dumps(body)) > 10_000
        assert client.post("/write", json=body).status_code == 200
        many = {"format": "jsonl", "sentences": [{"units": ["a"] * 501, "labels": taggers[model].labels[:1] * 501}]}
        refused = client.post("/write", json=many)
        assert (refused.status_code, refused.json()["error"].split(",")[0]) == (413, "there are 501 units")
        huge = client.post("/write", json=body | {"texts": ["a" * 200_000]})
        assert (huge.status_code, huge.json()["error"]) == (
            413,
            "The body has more than 157,500 bytes; send it in parts.",
        )
