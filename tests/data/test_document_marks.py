"""Where documents begin: read from every format that can say so, and written on request."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from typer.testing import CliRunner

from diffusion_mf.cli import app
from diffusion_mf.data.columns import detect_layout, read_columns, write_columns
from diffusion_mf.data.conllu import read_conllu, read_conllu_blocks, write_conllu
from diffusion_mf.data.corpus import to_characters, to_words
from diffusion_mf.data.formats import read_json_lines, write_json_lines
from diffusion_mf.data.sentence import Sentence
from diffusion_mf.errors import InputError

SENTENCES = [
    Sentence(("a", "b"), ("X", "Y"), document=1),
    Sentence(("c",), ("X",), document=1),
    Sentence(("d",), ("Y",), document=2),
]


def numbers(sentences) -> list[int]:
    return [sentence.document for sentence in sentences]


def written(write, path: Path, sentences=SENTENCES) -> Path:
    stream = io.BytesIO()
    write(sentences, stream)
    path.write_bytes(stream.getvalue())
    return path


def test_columns(tmp_path: Path) -> None:
    path = written(write_columns, tmp_path / "a.tsv")
    assert path.read_text() == "-DOCSTART-\tO\n\na\tX\nb\tY\n\nc\tX\n\n-DOCSTART-\tO\n\nd\tY\n\n"
    assert numbers(read_columns(path, detect_layout(path))) == [1, 1, 2]
    path = written(write_columns, tmp_path / "b.tsv", [sentence._replace(document=0) for sentence in SENTENCES])
    assert numbers(read_columns(path, detect_layout(path))) == [0, 0, 0]


def test_conllu(tmp_path: Path) -> None:
    path = written(write_conllu, tmp_path / "a.conllu")
    assert path.read_text().count("# newdoc\n1\t") == 2
    assert numbers(read_conllu(path)) == [1, 1, 2]
    assert numbers(block.sentence for block in read_conllu_blocks(path)) == [1, 1, 2]


@pytest.mark.parametrize(("comment", "is_one"), [("# newdoc id = x", 1), ("#newdoc", 1), ("# newdocument", 0), ("# newdoc-part", 0), ("# text = newdoc", 0)])  # fmt: skip
def test_what_begins_a_document_in_conllu(tmp_path: Path, comment: str, is_one: int) -> None:
    line = "1\ta\t_\tX" + "\t_" * 6
    path = tmp_path / "a.conllu"
    path.write_text(f"# sent_id = 1\n{comment}\n{line}\n\n{line}")
    assert numbers(read_conllu(path)) == [is_one, is_one]


def test_json_lines(tmp_path: Path) -> None:
    path = written(write_json_lines, tmp_path / "a.jsonl")
    assert path.read_text().splitlines()[2] == '{"units": ["d"], "labels": ["Y"], "document": 2}'
    assert numbers(read_json_lines(path)) == [1, 1, 2]
    path.write_text(
        '{"units": ["a"], "document": "x"}\n{"units": ["b"]}\n{"units": ["c"], "document": "x"}\n'
        '{"units": ["d"], "document": 0}\n{"units": ["e"], "document": 0}\n'
    )
    assert numbers(read_json_lines(path)) == [1, 0, 2, 3, 3]


@pytest.mark.parametrize("value", ["true", "1.5", "[1]"])
def test_a_document_that_is_no_name(tmp_path: Path, value: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(f'{{"units": ["a"], "document": {value}}}\n')
    with pytest.raises(InputError, match='line 1: "document" is neither a string nor an integer'):
        list(read_json_lines(path))


def test_words_and_characters_stay_in_their_documents() -> None:
    characters = list(to_characters(SENTENCES))
    assert numbers(characters) == [1, 1, 2]
    assert numbers(to_words(characters, path="x")) == [1, 1, 2]


@pytest.mark.parametrize(("write", "read"), [(write_columns, lambda path: read_columns(path, detect_layout(path))), (write_conllu, read_conllu)])  # fmt: skip
def test_sentences_of_no_document_are_not_taken_for_some_documents(write, read, tmp_path: Path) -> None:
    loose = [Sentence(("x",), ("X",), document=number) for number in (0, 1, 1, 0, 0, 2)]
    assert numbers(read(written(write, tmp_path / "a", loose))) == [0, 1, 1, 2, 3, 4]


def test_conversion_writes_them_on_request(tmp_path: Path) -> None:
    source = written(write_columns, tmp_path / "a.tsv")

    def converted(*options: str) -> str:
        found = CliRunner().invoke(app, ["data", "convert", str(source), "-", "--to", "conllu", *options])
        assert found.exit_code == 0, found.output
        return found.stdout

    assert "newdoc" not in converted()
    assert converted("--documents").count("# newdoc\n") == 2
