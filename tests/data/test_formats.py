"""The front door: which format a file is in, and what each task makes of it."""

from __future__ import annotations

import gzip
import io
import sys
from pathlib import Path

import pytest

from diffusion_mf.data.conllu import ConlluColumn
from diffusion_mf.data.corpus import Task, to_characters, to_words
from diffusion_mf.data.formats import (
    FileFormat,
    FormatOptions,
    content_format,
    format_of,
    read_source,
    read_task,
    suffix_format,
)
from diffusion_mf.data.label_schemes import LabelScheme
from diffusion_mf.data.repair import Repairs
from diffusion_mf.data.sentence import Sentence
from diffusion_mf.errors import InputError
from diffusion_mf.tagger.files import read_source_sentences


def conllu(*words: tuple[str, str, str]) -> str:
    rows = [f"{i}\t{form}\t_\t{upos}\t{xpos}\t_\t_\t_\t_\t_\n" for i, (form, upos, xpos) in enumerate(words, 1)]
    return "".join(rows) + "\n"


def write(path: Path, content: str) -> Path:
    path.write_text(content)
    return path


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a.conllu", "conllu"),
        ("a.CONLLU.gz", "conllu"),
        ("a.iob2.xz", "columns"),
        ("a.jsonl.zst", "jsonl"),
        ("a.tok", "text"),
    ],
)
def test_the_suffix_tells_the_format(name: str, expected: str) -> None:
    assert suffix_format(name) is FileFormat(expected)


@pytest.mark.parametrize("name", ["a.txt", "-", "a", "a.gz"])
def test_an_unknown_suffix_is_asked_about(name: str) -> None:
    with pytest.raises(InputError, match=r"--from \(conllu, columns, jsonl, text, raw, doccano, prodigy"):
        format_of(name, option="--from")


def test_pos_reads_the_chosen_column(tmp_path: Path) -> None:
    path = write(tmp_path / "a.conllu", conllu(("a", "DET", "DT"), ("b", "NOUN", "NN")))
    assert [s.labels for s in read_task(path, Task.POS)] == [("DET", "NOUN")]
    assert [s.labels for s in read_task(path, Task.POS, column=ConlluColumn.XPOS)] == [("DT", "NN")]


@pytest.mark.parametrize("name", ["a.txt", "a", "a.tsv", "a.txt.gz"])
@pytest.mark.parametrize("separator", ["\t", " "])
def test_pos_in_two_columns_needs_no_format(name: str, separator: str, tmp_path: Path) -> None:
    path = tmp_path / name
    text = f"the{separator}det\ndogs{separator}noun\n\n1{separator}num\n"
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    corpus = read_task(path, Task.POS)
    assert [(s.units, s.labels) for s in corpus] == [(("the", "dogs"), ("det", "noun")), (("1",), ("num",))]


def test_pos_is_still_conllu_where_the_lines_say_so(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "# sent_id = 1\n" + conllu(("a", "DET", "DT"), ("b", "NOUN", "NN")))
    assert [s.labels for s in read_task(path, Task.POS)] == [("DET", "NOUN")]
    write(path, '{"units": ["a"], "labels": ["X"]}\n')
    assert [s.labels for s in read_task(path, Task.POS)] == [("X",)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"units": ["a"]}\n', "jsonl"),
        ("# text = a\n" + conllu(("a", "X", "_")), "conllu"),
        (conllu(("a", "X", "_")).replace("1\t", "1-2\t", 1), "conllu"),
        ("1\tCD\tO\n", "columns"),
        ("Ada\tnoun\n\nsings\tverb\n", "columns"),
        ("-DOCSTART- -X- O\n\nAda NNP B-PER\n", "columns"),
        ("Ada B-person\nsings O\n", "columns"),
        ("Ada NNP\nsings VBZ\n. .\n", "columns"),
        ("Ada sings .\nEve sleeps .\n", "text"),  # the same number of words, but punctuation is no tag
        ("Ada sings\nEve sleeps\n", "text"),
        ("北京 大学\n上海 大学\n", "text"),
        ("Ada sings in OSLO\nEve sleeps\n", "text"),
        ("Ada\nsings\n", "text"),
        ("a\tb\nc\n", "text"),
        ("\n", "text"),
    ],
)
def test_the_first_lines_tell_the_format(text: str, expected: str, tmp_path: Path) -> None:
    assert content_format(write(tmp_path / "a.txt", text)) is FileFormat(expected)


def test_what_can_be_read_once_is_not_looked_into() -> None:
    assert content_format("-") is None


def test_a_column_of_underscores_is_no_column_of_labels(tmp_path: Path) -> None:
    path = write(tmp_path / "a.conllu", conllu(("a", "X", "_")) + conllu(("b", "X", "_")))
    with pytest.raises(InputError, match="xpos contains only _"):
        read_task(path, Task.POS, column=ConlluColumn.XPOS)
    write(path, conllu(("a", "X", "_")) + conllu(("b", "X", "T")))
    assert [s.labels for s in read_task(path, Task.POS, column=ConlluColumn.XPOS)] == [("_",), ("T",)]


@pytest.mark.parametrize(
    ("labels", "scheme"),
    [
        (["I-A", "I-A", "B-A", "O"], "iob1"),
        (["B-A", "I-A", "B-A", "O"], "bio2"),
        (["B-A", "E-A", "S-A", "O"], "bmes"),
        (["B-A", "L-A", "U-A", "O"], "bilou"),
    ],
)
@pytest.mark.parametrize("suffix", [".txt", ".jsonl"])
def test_ner_is_bmes_whatever_the_file_is(labels: list[str], scheme: str, suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"a{suffix}"
    if suffix == ".txt":
        write(path, "".join(f"u {label}\n" for label in labels))
    else:
        write(path, '{"units": ["u", "u", "u", "u"], "labels": ' + str(labels).replace("'", '"') + "}\n")
    corpus = read_task(path, Task.NER)
    assert [s.labels for s in corpus] == [("B-A", "E-A", "S-A", "O")]
    assert (corpus.scheme, corpus.source_scheme) == (LabelScheme.BMES, LabelScheme(scheme))


def test_inside_and_middle_are_one_in_bmes(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "u B-A\nu I-A\nu M-A\nu E-A\n")
    assert next(iter(read_task(path, Task.NER))).labels == ("B-A", "M-A", "M-A", "E-A")


def test_an_illegal_sequence_is_refused_in_strict_mode(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "u O\nu B-A\nu L-B\n\nu U-A\nu I-B\n")
    with pytest.raises(InputError, match="'L-B' cannot follow 'B-A'") as caught:
        read_task(path, Task.NER, strict=True)
    assert caught.value.line == 3


def test_ner_without_boundaries_is_refused_but_a_file_of_o_is_not(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "u NN\n")
    with pytest.raises(InputError, match="plain cannot be converted to bmes"):
        read_task(path, Task.NER)
    write(path, "u O\nu O\n")
    assert [s.labels for s in read_task(path, Task.NER)] == [("O", "O")]


def test_seg_pos_makes_characters_of_words(tmp_path: Path) -> None:
    path = write(tmp_path / "a.conllu", conllu(("abc", "X", "NN"), ("d", "X", "PU"), ("ef", "X", "VV")))
    corpus = read_task(path, Task.SEG_POS)
    assert list(corpus) == [
        Sentence(tuple("abcdef"), ("B-NN", "M-NN", "E-NN", "S-PU", "B-VV", "E-VV"), 1),
    ]
    assert list(to_words(corpus, path=path)) == [Sentence(("abc", "d", "ef"), ("NN", "PU", "VV"), 1)]
    written = write(tmp_path / "a.bmes", "".join(map("{}\t{}\n".format, *corpus.sentences[0][:2])))
    assert [s[:2] for s in read_task(written, Task.SEG_POS)] == [s[:2] for s in corpus]


def test_unlabelled_characters_have_no_words() -> None:
    assert list(to_characters([Sentence(("ab", "c"), None, 3)])) == [Sentence(("a", "b", "c"), None, 3)]
    with pytest.raises(InputError, match="no labels"):
        list(to_words([Sentence(("a",), None, 3)], path="a"))
    with pytest.raises(InputError, match="unit 2: every character"):
        list(to_words([Sentence(("a", "b"), ("S-X", "O"), 3)], path="a"))


def test_formats_a_task_cannot_read_and_unlabelled_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match="ner reads columns, jsonl, hugging-face, doccano, prodigy, label-studio or brat, not conllu"
    ):
        read_task(tmp_path / "a.conllu", Task.NER)
    path = write(tmp_path / "a.jsonl", '{"units": ["a"]}\n')
    with pytest.raises(InputError, match="no labels"):
        read_task(path, Task.POS)


@pytest.mark.parametrize("task", list(Task))
@pytest.mark.parametrize("suffix", [".conllu", ".tsv", ".jsonl"])
@pytest.mark.parametrize("content", ["", "\n\n", "\ufeff"])
def test_an_empty_file_is_refused(task: Task, suffix: str, content: str, tmp_path: Path) -> None:
    if task is Task.NER and suffix == ".conllu":
        suffix = ""
    path = write(tmp_path / f"a{suffix}", content)
    with pytest.raises(InputError, match="contains no sentences"):
        read_task(path, task)


def test_standard_input_is_read_once_for_detection_and_sentences(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"u I-A\n\nu O\n")))
    corpus = read_task("-", Task.NER)
    assert [s.labels for s in corpus] == [("S-A",), ("O",)]
    assert corpus.unit_line(corpus.sentences[1], 0) == 3


def test_a_given_scheme_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    """With nothing to detect, the first sentence is there before the second is read."""

    class Endless(io.RawIOBase):
        served = 0

        def readable(self) -> bool:
            return True

        def readinto(self, buffer) -> int:
            if self.served > 100:
                raise AssertionError("read on without being asked")
            self.served += 1
            buffer[:5] = b"u O\n\n"
            return 5

    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(Endless())))
    source = read_source("-", FileFormat.COLUMNS, FormatOptions())
    assert [next(source.sentences).line for _ in range(3)] == [1, 3, 5]


@pytest.mark.parametrize(
    ("tags", "expected", "scheme"),
    [
        ("B I B B", "B E S S", LabelScheme.BIO2),
        ("B-W I-W B-W B-W", "B-W E-W S-W S-W", LabelScheme.BIO2),
        ("B-W L-W U-W U-W", "B-W E-W S-W S-W", LabelScheme.BILOU),
    ],
)
def test_characters_may_be_labelled_in_any_scheme(
    tags: str, expected: str, scheme: LabelScheme, tmp_path: Path
) -> None:
    rows = zip("我们走路", tags.split(), strict=True)
    path = write(tmp_path / "a.tsv", "".join(f"{unit}\t{tag}\n" for unit, tag in rows))
    corpus = read_task(path, Task.SEG_POS, strict=True)
    assert corpus.sentences[0].labels == tuple(expected.split())
    assert corpus.source_scheme is scheme
    assert read_task(path, Task.SEG_POS).repaired is None


def test_characters_without_boundaries_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="label 'NN' is neither O nor one of"):
        read_task(write(tmp_path / "a.tsv", "我\tNN\n"), Task.SEG_POS)


@pytest.mark.parametrize(
    ("file_format", "text"),
    [
        (FileFormat.HUGGING_FACE, '{"tokens": ["Ada", "left"], "ner_tags": [0, 7]}\n'),
        (FileFormat.HUGGING_FACE, '{"tokens": ["Ada", "left"], "ner_tags": [null, ""]}\n'),
        (FileFormat.COLUMNS, "Ada\t\nleft\tO\n"),
        (FileFormat.COLUMNS, "word\tlemma\ttag\nAda\tAda\t\nleft\tleave\t\n"),
    ],
)
def test_tagging_needs_no_labels(file_format: FileFormat, text: str, tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text(text)
    (item,) = read_source_sentences(path, file_format, Task.NER)
    assert (item.sentence.units, item.sentence.labels) == (("Ada", "left"), None)
    if item.row is not None:
        assert item.row.key == "ner_tags"
    if item.rows is not None:
        assert item.rows.with_tags(["X", "Y"]).endswith(
            "\tX\nleft\tY\n" if "word" not in text else "\tX\nleft\tleave\tY\n"
        )
    with pytest.raises(InputError):
        read_task(path, Task.NER, file_format=file_format)


def test_tagging_repairs_a_missing_form(tmp_path: Path) -> None:
    path = tmp_path / "a.conllu"
    path.write_text("1\t\t_\tX\t_\t_\t_\t_\t_\t_\n")
    repairs = Repairs(path)
    (item,) = read_source_sentences(path, FileFormat.CONLLU, Task.POS, repairs=repairs)
    assert item.sentence.units == ("_",)
    assert repairs.describe() is not None
    with pytest.raises(InputError, match="a column is empty"):
        list(read_source_sentences(path, FileFormat.CONLLU, Task.POS))
