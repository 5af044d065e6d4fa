from __future__ import annotations

import contextlib
import json
import os
import pathlib
import re
import threading
from collections.abc import Callable

import pytest
from small_models import write_model

from diffusion_mf.data.corpus import Task
from diffusion_mf.data.formats import FileFormat
from diffusion_mf.errors import InputError
from diffusion_mf.tagger import Tagger
from diffusion_mf.tagger.files import TaggingOptions, tag_file

CONLLU = (
    "\ufeff# sent_id = 1\r\n"
    "1-2\tdamira\t_\t_\t_\t_\t_\t_\t_\tSpaceAfter=No\r\n"
    "1\tda\tda\tX\tx1\tA=b\t2\tdet\t_\tKeep=1|Score=old\r\n"
    "2\tmira\t_\tX\tx2\t_\t0\troot\t_\t_\r\n"
    "2.1\tghost\t_\tNOUN\t_\t_\t_\t_\t_\t_\r\n"
    "\r\n\r\n"
    "# a comment\n"
    "1\tunseen\t_\t_\t_\t_\t_\t_\t_\t_"
)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[Task, pathlib.Path]:
    folder = tmp_path_factory.mktemp("models")
    return {task: write_model(folder / task, task=task) for task in Task}


def lines_with_labels(text: str) -> list[list[str]]:
    return [line.split("\t") for line in text.splitlines() if line[:1].isdigit() or line[1:2].isdigit()]


def test_conllu_keeps_every_other_byte(dmf: Callable, tmp_path: pathlib.Path, models: dict) -> None:
    path, output = tmp_path / "in.conllu", tmp_path / "out.conllu"
    path.write_bytes(CONLLU.encode())
    outcome = dmf("tag", models[Task.POS], path, "--output", output)
    assert (outcome.status, outcome.stdout) == (0, b"")
    before, after = path.read_bytes().decode().split("\n"), output.read_bytes().decode().split("\n")
    assert len(before) == len(after)
    labels = {"NOUN", "VERB", "DET", "ADP", "PROPN", "PUNCT"}
    num_words = 0
    for old, new in zip(before, after, strict=True):
        if not old.split("\t")[0].isdecimal():
            assert old == new
            continue
        num_words += 1
        old_fields, new_fields = old.split("\t"), new.split("\t")
        assert new_fields[3] in labels
        new_fields[3] = old_fields[3]
        assert old_fields == new_fields
    assert num_words == 3


def test_scores_in_conllu(dmf: Callable, models: dict) -> None:
    outcome = dmf(
        "tag", models[Task.POS], "-", "--format", "conllu", "--scores", "--column", "xpos", stdin=CONLLU.encode()
    )
    assert outcome.status == 0, outcome.stderr
    rows = [row for row in lines_with_labels(outcome.stdout.decode()) if row[0].isdecimal()]
    assert [row[3] for row in rows] == ["X", "X", "_"]
    keep, score = rows[0][9].split("|")
    assert keep == "Keep=1"
    assert score.startswith("Score=0.")
    assert len(score) == len("Score=0.1234")


def test_entities_in_conllu_go_to_misc(dmf: Callable, models: dict) -> None:
    outcome = dmf("tag", models[Task.NER], "-", "--format", "conllu", stdin=CONLLU.encode())
    rows = [row for row in lines_with_labels(outcome.stdout.decode()) if row[0].isdecimal()]
    assert all("Label=" in row[9] for row in rows)
    assert rows[0][9].startswith("Keep=1|Score=old|Label=")
    assert rows[0][3] == "X"


def test_words_in_conllu_are_found_anew(dmf: Callable, models: dict) -> None:
    text = "# text = abcd\n1\tab\t_\t_\tNN\t_\t_\t_\t_\t_\n2\tcd\t_\t_\tNN\t_\t_\t_\t_\t_\n\n"
    outcome = dmf("tag", models[Task.SEG_POS], "-", "--format", "conllu", "--scores", stdin=text.encode())
    lines = outcome.stdout.decode().splitlines()
    assert lines[0] == "# text = abcd"
    rows = [line.split("\t") for line in lines[1:-1]]
    assert "".join(row[1] for row in rows) == "abcd"
    assert [row[0] for row in rows] == [str(number + 1) for number in range(len(rows))]
    assert all(row[4] in ("NN", "VV", "PU") and row[9].startswith("Score=") for row in rows)
    segmented = dmf("tag", models[Task.SEG_POS], "-", "--to", "text", stdin=b"ab cd\n")
    assert segmented.stdout.decode() == " ".join(row[1] for row in rows) + "\n"


def test_columns(dmf: Callable, models: dict, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "in.tsv"
    path.write_text("-DOCSTART-\tO\n\nAda\tI-X\nsings\tnonsense\n\nOslo\tO\n")
    outcome = dmf("tag", models[Task.NER], path)
    rows = [line.split("\t") for line in outcome.stdout.decode().split("\n")]
    assert [row[0] for row in rows] == ["-DOCSTART-", "", "Ada", "sings", "", "Oslo", ""]
    scored = dmf("tag", models[Task.NER], path, "--scores").stdout.decode().split("\n")
    for row, line in zip(rows, scored, strict=True):
        fields = line.split("\t")
        assert (fields[0], fields[-1]) == (row[0], row[-1])
        if len(fields) > 2:
            assert 0 <= float(fields[1]) <= 1
    assert len(scored[2].split("\t")) == 3
    # Units alone, and the columns of other programs, are read as well.
    bare = dmf("tag", models[Task.NER], path, "--to", "columns")
    for text in ("Ada\nsings\n\nOslo\n", "Ada NNP x y\nsings VB x y\n\nOslo NNP x y\n"):
        path.write_text(text)
        assert dmf("tag", models[Task.NER], path, "--to", "columns").stdout == bare.stdout
    labels = [line.split("\t")[1] for line in bare.stdout.decode().split("\n") if line]
    expected = "Ada NNP x {}\nsings VB x {}\n\nOslo NNP x {}\n".format(*labels)
    assert dmf("tag", models[Task.NER], path).stdout.decode() == expected


def test_columns_keep_every_byte_but_the_tags(dmf: Callable, models: dict, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "in.iob2"
    path.write_bytes(
        b"\xef\xbb\xbf# sent_id = 1\r\n# text = Ada sings\r\n1\tAda\t{}\tO#O\ts\r\n2-3\tsings in\t_\t_\t_\r\n"
        b"2\tsings\t{}\tO#O\ts\r\n3\tin\t{}\tO#O\ts\r\n\r\n\r\n# free text\r\n1\tOslo\t{}\tO#O\ts\r\n# end = 1"
    )
    frame = path.read_bytes()
    path.write_bytes(frame.replace(b"{}", b"O"))
    rows = [json.loads(line) for line in dmf("tag", models[Task.NER], path, "--json").stdout.splitlines() if line]
    labels = [label for row in rows for label in row["labels"]]
    assert [row["units"] for row in rows if row["units"]] == [["Ada", "sings", "in"], ["Oslo"]]
    expected = frame.decode().format(*labels).encode()
    assert dmf("tag", models[Task.NER], path).stdout == expected
    # A pipe is not read twice, and another column may be chosen.
    piped = dmf("tag", models[Task.NER], "--format", "columns", stdin=path.read_bytes())
    assert piped.stdout == expected
    other = dmf("tag", models[Task.NER], path, "--tag-column", 5).stdout
    assert other.splitlines()[2] == f"1\tAda\tO\tO#O\t{labels[0]}".encode()


def test_columns_below_a_header_line(dmf: Callable, models: dict, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "in.conll"
    path.write_text("word  pos ner\nAda   NNP O\nsings VB  O\n\nOslo NNP O")
    refused = dmf("tag", models[Task.NER], path)
    assert refused.stderr == (
        f"dmf: {path}, line 1: several columns contain tags (pos, ner); choose one with --tag-column (data.tag_column).\n"
    )
    assert refused.status == 2
    tagged = dmf("tag", models[Task.NER], path, "--tag-column", "NER").stdout.decode().split("\n")
    assert tagged[0] == "word  pos ner"
    assert [line.rpartition(" ")[0] for line in tagged[1:]] == ["Ada   NNP", "sings VB ", "", "Oslo NNP"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Ada\tNNP\nsings\tVB\n\nOslo\tNNP\n", "Ada\tNNP\t{}\nsings\tVB\t{}\n\nOslo\tNNP\t{}\n"),
        ("Ada NNP\nsings VB\n\nOslo NNP\n", "Ada NNP {}\nsings VB {}\n\nOslo NNP {}\n"),
        ("word\tpos\nAda\tNNP\nsings\tVB\n\nOslo\tNNP\n", "word\tpos\ttag\nAda\tNNP\t{}\nsings\tVB\t{}\n\nOslo\tNNP\t{}\n"),
        ("Ada\nsings\n\nOslo\n", "Ada\t{}\nsings\t{}\n\nOslo\t{}\n"),
        ("Ada NNP O x\nsings VB O x\n\nOslo NNP O x\n", "Ada NNP {} x\nsings VB {} x\n\nOslo NNP {} x\n"),
        ("Ada NNP x y\nsings VB x y\n\nOslo NNP x y\n", "Ada NNP x {}\nsings VB x {}\n\nOslo NNP x {}\n"),
    ],
)  # fmt: skip
def test_a_file_with_fewer_columns_than_the_training_data_gets_one_more(
    dmf: Callable, models: dict, tmp_path: pathlib.Path, text: str, expected: str
) -> None:
    model = write_model(tmp_path / "model", source_columns=(1, 3))
    path = tmp_path / "in.tsv"
    path.write_text(text)
    plain = dmf("tag", models[Task.NER], "--format", "text", stdin=b"Ada sings\nOslo\n").stdout.decode()
    labels = [line.split("\t")[1] for line in plain.split("\n") if line]
    outcome = dmf("tag", model, path)
    assert outcome.status == 0, outcome.stderr
    assert outcome.stdout.decode() == expected.format(*labels)
    scored = dmf("tag", model, path, "--scores").stdout.decode()
    gap = "\t" if "\t" in expected else " "
    assert len({len(line.split(gap)) for line in scored.split("\n") if line}) == 1, "below the header, too"
    # A column that is named is replaced, whatever it holds.
    if text.startswith("Ada NNP\n"):
        assert dmf("tag", model, path, "--tag-column", "2").stdout.decode() == expected.replace(" NNP", "").replace(
            " VB", ""
        ).format(*labels)


def test_columns_that_are_named_are_columns_of_what_looks_like_text(
    dmf: Callable, models: dict, tmp_path: pathlib.Path
) -> None:
    path = tmp_path / "in.txt"
    path.write_text("O 0 Ada\nO 4 left\n\nO 0 Oslo\n")
    text = dmf("tag", models[Task.NER], path)
    assert "read as plain text" in text.stderr
    options = ("--form-column", "3", "--tag-column", "1")
    outcome = dmf("tag", models[Task.NER], path, *options, "--json")
    assert [json.loads(line)["units"] for line in outcome.stdout.splitlines()] == [["Ada", "left"], ["Oslo"]]
    piped = dmf("tag", models[Task.NER], *options, stdin=path.read_bytes()).stdout.decode()
    assert [line.split(" ")[1:] for line in piped.split("\n") if line] == [["0", "Ada"], ["4", "left"], ["0", "Oslo"]]
    # The columns of the training data, where they hold tags.
    model = write_model(tmp_path / "model", settings={"data": {"form_column": "3", "tag_column": "1"}})
    outcome = dmf("tag", model, path)
    assert outcome.stdout.decode() == piped
    assert "read as columns" in outcome.stderr
    path.write_text("We left Oslo\nShe was there\n")
    assert dmf("tag", model, path, "--json").stderr.endswith("use --format columns if each line is a unit\n")


def test_columns_of_tags_are_no_words(dmf: Callable, models: dict, tmp_path: pathlib.Path) -> None:
    model = write_model(tmp_path / "model", settings={"data": {"form_column": "3", "tag_column": "1"}})
    path = tmp_path / "other.txt"
    for text in ("Ada NNP B-PER\nleft VBD O\n", "Ada NNP B-PER\n", "Ada NNP O\nleft VBD B-LAW\n"):
        path.write_text(text)
        for command in ("tag", "evaluate"):
            outcome = dmf(command, model, path)
            assert (outcome.status, outcome.stdout) == (2, b"")
            assert "column 3, read as that of the words, contains only tags such as B-" in outcome.stderr
            assert outcome.stderr.endswith("choose the columns, as in --form-column 1 --tag-column 3.\n")
        assert dmf("tag", model, path, "--form-column", "1", "--tag-column", "3").status == 0
        assert dmf("tag", models[Task.NER], path).status == 0
    # Words that look like tags.
    path.write_text("NN x S-Bahn\nNN x U-Bahn\n")
    assert dmf("tag", model, path, "--format", "columns").status == 0
    path.write_text("S-Bahn\tNN\n\nO\tUH\nweh\tUH\n")
    assert dmf("tag", models[Task.POS], path).status == 0


@pytest.mark.parametrize(
    ("text", "problem", "remedy"),
    [
        ("0\tAda\tB-PER\n0\tleft\tO\n\n1\tOslo\tB-LOC\n", "column 1, read as that of the words, contains only numbers", ["--form-column", "2"]),
        ("1\tAda\n2\tleft\n", "column 1, read as that of the words, contains only numbers", ["--form-column", "2", "--tag-column", "3"]),
        ("Ada\tshe left\nleft\tto go\n", "column 2, read as that of the tags, contains text such as 'she left'", ["--tag-column", "3"]),
        ("1\tAda left Oslo\n2\tWell\n", "column 2, read as that of the tags, contains text such as 'Ada left Oslo'", ["--tag-column", "3", "--form-column", "1"]),
    ],
)  # fmt: skip
def test_columns_of_numbers_are_no_words_and_those_of_text_no_tags(
    dmf: Callable, models: dict, tmp_path: pathlib.Path, text: str, problem: str, remedy: list[str]
) -> None:
    path = tmp_path / "in.tsv"
    path.write_text(text)
    for task in (Task.NER, Task.POS):
        outcomes = {command: dmf(command, models[task], path) for command in ("tag", "evaluate")}
        for outcome in outcomes.values():
            assert (outcome.status, outcome.stdout) == (2, b"")
            assert outcome.stderr.startswith(f"dmf: {path}: {problem}; ")
        assert " ".join(remedy[:2]) in outcomes["tag"].stderr
        kept = dmf("tag", models[task], path, *remedy).stdout.decode()
        assert [line.split("\t")[:2] for line in kept.split("\n")] == [
            line.split("\t")[:2] for line in text.split("\n")
        ]


def test_the_names_of_columns_above_numbers_are_a_header(dmf: Callable, models: dict, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "in.tsv"
    path.write_text("id\tword\tgold\n1\tAda\tB-PER\n2\tleft\tO\n")
    outcome = dmf("tag", models[Task.NER], path)
    assert (outcome.status, outcome.stdout) == (2, b"")
    assert "the first line (id …) looks like a header; name its columns with --form-column and" in outcome.stderr
    named = dmf("tag", models[Task.NER], path, "--form-column", "word", "--tag-column", "gold")
    assert named.stdout.startswith(b"id\tword\tgold\n1\tAda\t")
    path.write_text("Page\tpage\tO\n5\tfive\tO\n")
    assert dmf("tag", models[Task.NER], path).status == 0


@pytest.mark.parametrize(
    ("text", "tagged"),
    [
        ("1\n2\n\n2024\n", "1\t{}\n2\t{}\n\n2024\t{}\n"),
        ("5\tCD\tO\n", "5\tCD\t{}\n"),
        ("2024\tNUM\n7\t_\n", "2024\t{}\n7\t{}\n"),
        ("1\tAda\tO\n2\tleft\tO\n\n1\tHi\tO\n", "1\tAda\t{}\n2\tleft\t{}\n\n1\tHi\t{}\n"),
        ("我\tx\n2\ty\n", "我\t{}\n2\t{}\n"),
        ("id\tword\n1\tAda\n2\tleft\n", "id\tword\ttag\n1\tAda\t{}\n2\tleft\t{}\n"),
        ("word lemma\nAda Ada\nleft leave\n", "word lemma tag\nAda Ada {}\nleft leave {}\n"),
    ],
)
def test_words_may_be_numbers_and_headers_need_not_name_tags(
    dmf: Callable, models: dict, tmp_path: pathlib.Path, text: str, tagged: str
) -> None:
    path = tmp_path / "in.tsv"
    path.write_text(text)
    outcome = dmf("tag", models[Task.NER], path)
    assert outcome.status == 0, outcome.stderr
    labels = re.split(r"\{\}", tagged)
    assert re.fullmatch(r"[A-Z](?:-\w+)?".join(map(re.escape, labels)), outcome.stdout.decode())


@pytest.mark.parametrize(
    ("text", "is_refused"),
    [
        ("Ada\tS-PER\n", True),
        ("Ada\tB-GENE\nleft\tO\n", True),
        ("Ada\tNNP\tI-PER\r\nleft\tVBD\tO\r\n", True),
        ("\nThe\tO\n\nleft\tO\n", True),
        ("-DOCSTART- -X- O\n\nAda NNP B-PER\n", True),
        ("Ada\tO\nshe has blood group O\n", False),
        ("vitamin\tB-12\n", False),
        ("vitamin B-12\nvitamin B-6\n", False),
        ("Ada left\tO\nshe left\tO\n", False),
        ("Ada\n", False),
        ("\n", False),
    ],
)
@pytest.mark.parametrize("text_format", [FileFormat.TEXT, FileFormat.RAW])
def test_labelled_words_in_a_pipe_are_not_text(
    text: str, is_refused: bool, text_format: FileFormat, dmf: Callable, models: dict, tmp_path: pathlib.Path
) -> None:
    if text.startswith("\nThe") and text_format is FileFormat.RAW:
        pytest.skip("each line is a paragraph")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=(text,), daemon=True)
    writer.start()
    remedy = r"--format columns, or --format text if every line is a sentence"
    with pytest.raises(InputError, match=remedy) if is_refused else contextlib.nullcontext():
        tag_file(Tagger.load(models[Task.NER], device="cpu"), pipe, tmp_path / "out.jsonl", text_format=text_format)
    writer.join()
    if text_format is FileFormat.TEXT:
        assert dmf("tag", models[Task.NER], "--json", stdin=text.encode()).status == (2 if is_refused else 0)
        assert dmf("tag", models[Task.NER], "--json", "--format", "text", stdin=text.encode()).status == 0


@pytest.mark.parametrize(("text", "is_refused"), [
    (CONLLU, True),
    (CONLLU.split("\n", 1)[1], True),
    ('\n{"tokens": ["Ada"]}\n', True),
    ('[\n {"text": "Ada"}]', True),
    ("# A title\n\nAda sings.\n", False),
    ("# sent_id = 1\nAda sings.\n", False),
    ("1\tAda\n2\tOslo\n", False),
    ("[1] {Ada} sings.\n", False),
])  # fmt: skip
def test_other_formats_in_a_pipe_are_not_raw_text(
    text: str, is_refused: bool, models: dict, tmp_path: pathlib.Path
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(text.encode(),), daemon=True)
    writer.start()
    message = f"pipe, line {1 + text.startswith(chr(10))}: this does not look like plain text; specify its format"
    tagger = Tagger.load(models[Task.NER], device="cpu")
    with pytest.raises(InputError, match=message) if is_refused else contextlib.nullcontext():
        tag_file(tagger, pipe, tmp_path / "out.jsonl", text_format=FileFormat.RAW)
    writer.join()


def test_labelled_words_of_other_tasks_in_a_pipe(dmf: Callable, models: dict) -> None:
    outcome = dmf("tag", models[Task.POS], stdin=b"mira\tNOUN\nsel\tVERB\n")
    assert outcome.status == 2
    assert outcome.stderr == (
        "dmf: standard input: these are words with labels (mira, NOUN), and not text; specify the format: "
        "--format columns, or --format text if every line is a sentence.\n"
    )
    assert dmf("tag", models[Task.POS], stdin=b"mira\tsel\nsel\tmira\n").status == 0


@pytest.mark.parametrize("separator", [",", ";"])
@pytest.mark.parametrize("name", ["in.txt", "in.tsv"])
def test_tables_that_cannot_be_trained_on_are_not_tagged(
    name: str, separator: str, dmf: Callable, models: dict, tmp_path: pathlib.Path
) -> None:
    path = tmp_path / name
    path.write_text("Ada,B-PER\nleft,O\n\nOslo,B-LOC\n".replace(",", separator))
    outcome = dmf("tag", models[Task.NER], path)
    assert (outcome.status, outcome.stdout) == (2, b"")
    assert "the columns are separated by " in outcome.stderr
    path.write_text('"Ada"\t"B-PER"\n"left"\t"O"\n')
    assert "the values are in quotation marks" in dmf("tag", models[Task.NER], path).stderr
    path.write_text("Well, yes\nNo, sir\n")
    assert dmf("tag", models[Task.NER], path, "--format", "text").status == 0
    path.write_text(f"1{separator}000\tCD\nmen\tNNS\n")
    assert dmf("tag", models[Task.NER], path).status == 0


def test_json_lines(dmf: Callable, models: dict, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text('{"units": ["Ada", "sings"], "id": 7}\n{"units": ["Oslo"], "labels": ["O"]}\n')
    rows = [json.loads(line) for line in dmf("tag", models[Task.NER], path).stdout.splitlines()]
    assert [row["units"] for row in rows] == [["Ada", "sings"], ["Oslo"]]
    assert [list(row) for row in rows] == [["units", "labels"]] * 2
    scored = [json.loads(line) for line in dmf("tag", models[Task.NER], path, "--scores").stdout.splitlines()]
    assert [row["labels"] for row in scored] == [row["labels"] for row in rows]
    for row in scored:
        assert len(row["scores"]) == len(row["units"])
        assert all(set(span) == {"start", "end", "label", "confidence"} for span in row["spans"])


def test_plain_text_from_standard_input(dmf: Callable, models: dict) -> None:
    outcome = dmf("tag", models[Task.POS], stdin=b"mira  sel toro\nvi\n")
    assert dmf("tag", models[Task.POS], stdin=b"\nmira sel toro\n\n\nvi\n").stdout == outcome.stdout
    assert outcome.status == 0, outcome.stderr
    assert [line.split("\t")[0] for line in outcome.stdout.decode().split("\n")] == [
        "mira",
        "sel",
        "toro",
        "",
        "vi",
        "",
        "",
    ]
    as_json = dmf("tag", models[Task.POS], "--json", stdin=b"mira sel toro\n")
    assert json.loads(as_json.stdout)["labels"] == [
        line.split("\t")[1] for line in outcome.stdout.decode().split("\n")[:3]
    ]


def test_the_name_of_the_output_tells_its_format(dmf: Callable, models: dict, tmp_path: pathlib.Path) -> None:
    output = tmp_path / "out.jsonl"
    dmf("tag", models[Task.POS], "--output", output, stdin=b"mira\n")
    assert json.loads(output.read_text())["units"] == ["mira"]
    bare = tmp_path / "out.conllu.gz"
    assert dmf("tag", models[Task.POS], "--output", bare, stdin=b"mira sel\n").status == 0
    back = dmf("tag", models[Task.POS], bare, "--to", "columns")
    assert back.stdout == dmf("tag", models[Task.POS], stdin=b"mira sel\n").stdout


def test_another_scheme(dmf: Callable, models: dict) -> None:
    text = b"Ada Byron sings in Oslo for the royal choir\n" * 3
    own = dmf("tag", models[Task.NER], "--json", "--scores", stdin=text).stdout.splitlines()[0]
    other = dmf("tag", models[Task.NER], "--json", "--scheme", "bio2", stdin=text).stdout.splitlines()[0]
    labels = json.loads(other)["labels"]
    assert {label[0] for label in labels} <= {"B", "I", "O"}
    spans = json.loads(own)["spans"]
    assert spans
    assert [index for index, label in enumerate(labels) if label[0] == "B"] == [span["start"] for span in spans]
    refused = dmf("tag", models[Task.POS], "--scheme", "bio2", stdin=b"mira\n")
    assert (refused.status, refused.stderr) == (
        2, "dmf: labels of the task pos cannot be written in the scheme bio2; leave out the scheme.\n",
    )  # fmt: skip


@pytest.mark.parametrize("file_format", ["conllu", "columns", "jsonl", "text"])
def test_empty_input_gives_empty_output(dmf: Callable, models: dict, file_format: str) -> None:
    for content in (b"", b"\n\n" if file_format in ("columns", "jsonl") else b""):
        outcome = dmf("tag", models[Task.NER], "--format", file_format, stdin=content)
        assert (outcome.status, outcome.stdout, outcome.stderr) == (0, b"", "")


def test_options_reach_the_model(dmf: Callable, models: dict) -> None:
    text = b"Ada Byron sings in Oslo for the royal choir\n"
    own = dmf("tag", models[Task.NER], "--scores", stdin=text)
    assert dmf("tag", models[Task.NER], "--scores", "--batch-tokens", "1", "--device", "cpu", stdin=text) == own
    assert dmf("tag", models[Task.NER], "--scores", "--calls", "1", stdin=text).stdout != own.stdout
    assert dmf("tag", models[Task.NER], "--scores", "--decoder", "argmax", stdin=text).stdout != own.stdout


def test_tagging_reads_what_evaluation_reads(dmf: Callable, models: dict, tmp_path: pathlib.Path) -> None:
    path, named = tmp_path / "a.txt", tmp_path / "a.tsv"
    for file in (path, named):
        file.write_text("Ada\tS-PER\nsings\tO\n\nin\tO\nOslo\tS-LOC\n")
    outcome = dmf("tag", models[Task.NER], path)
    assert outcome.stdout == dmf("tag", models[Task.NER], named).stdout
    assert (
        outcome.stderr
        == f"dmf: {path}: read as columns, one unit per line; use --format text if each line is a sentence\n"
    )
    assert dmf("evaluate", models[Task.NER], path).status == 0
    path.write_text("Ada sings\nin Oslo\n")
    outcome = dmf("tag", models[Task.NER], path)
    assert outcome.stdout == dmf("tag", models[Task.NER], stdin=path.read_bytes()).stdout
    assert (
        outcome.stderr
        == f"dmf: {path}: read as plain text, one sentence per line; use --format columns if each line is a unit\n"
    )
    assert dmf("tag", models[Task.NER], path, "--format", "text") == outcome._replace(stderr="")
    path.write_bytes(CONLLU.encode())
    assert dmf("tag", models[Task.NER], path).stderr == ""


@pytest.mark.parametrize(("arguments", "stdin", "message"), [
    (["--decoder", "beam"], "a\n", "no decoder is called 'beam'; choose one of argmax, mask-viterbi, viterbi, native"),
    (["--calls", "0"], "a\n", "0 calls are not possible; ask for 1 to 1000 of them"),
    (["--device", "toaster"], "a\n", "there is no device 'toaster' here; choose auto"),
    (["--to", "text"], "a\n", "plain text cannot hold labels; write columns, jsonl or conllu"),
    (["--json", "--to", "conllu"], "a\n", "--json and --to conllu contradict each other; leave one of them out"),
    (["none.conllu"], "", "none.conllu: no such file; check the path"),
    (["none.txt"], "", "none.txt: no such file; check the path"),
    ([], '{"units": ["a"]}\n', "standard input, line 1: this does not look like plain text; specify its format with --format"),
    ([], "# sent_id = 1\n", "standard input, line 1: this does not look like plain text; specify its format with --format"),
    ([], CONLLU.split("\n", 2)[2].replace("\r", ""), "standard input, line 1: this does not look like plain text"),
])  # fmt: skip
def test_bad_usage_is_one_sentence(dmf: Callable, models: dict, arguments: list[str], stdin: str, message: str) -> None:
    outcome = dmf("tag", models[Task.NER], *arguments, stdin=stdin.encode())
    assert outcome.status == 2
    assert outcome.stderr.startswith(f"dmf: {message}"), outcome.stderr
    assert outcome.stderr.count("\n") == 1


def test_bad_models_are_one_sentence(dmf: Callable, models: dict, tmp_path: pathlib.Path) -> None:
    folder = write_model(tmp_path / "model")
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    for command in (["tag", folder], ["evaluate", folder, "x.tsv"]):
        outcome = dmf(*command, stdin=b"a\n")
        assert (outcome.status, outcome.stdout) == (2, b"")
        assert outcome.stderr == f"dmf: {weights}: damaged or changed since it was saved; copy the model again.\n"
    (tmp_path / "empty").mkdir()
    outcome = dmf("tag", tmp_path / "empty", stdin=b"a\n")
    assert (outcome.status, outcome.stderr.count("\n")) == (2, 1)


def test_nothing_is_left_half_written(dmf: Callable, models: dict, tmp_path: pathlib.Path) -> None:
    path, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    path.write_text('{"units": ["Ada"]}\n{"units": 3}\n')
    outcome = dmf("tag", models[Task.NER], path, "--output", output, "--batch-tokens", "1")
    assert outcome.status == 2
    assert f"{path}, line 2" in outcome.stderr
    assert [each.name for each in tmp_path.iterdir()] == ["in.jsonl"]


@pytest.mark.corpora
def test_a_real_treebank_keeps_every_other_byte(
    dmf: Callable, corpora: pathlib.Path, models: dict, tmp_path: pathlib.Path
) -> None:
    path = corpora / "ud-2.15" / "UD_French-GSD" / "fr_gsd-ud-test.conllu"
    output = tmp_path / "out.conllu"
    assert dmf("tag", models[Task.POS], path, "--output", output).status == 0
    num_changed = 0
    for old, new in zip(path.read_bytes().split(b"\n"), output.read_bytes().split(b"\n"), strict=True):
        if old != new:
            old_fields, new_fields = old.split(b"\t"), new.split(b"\t")
            assert old_fields[:3] + old_fields[4:] == new_fields[:3] + new_fields[4:]
            num_changed += 1
    assert num_changed > 1000


def test_options_that_mean_nothing_to_a_model_are_named(dmf: Callable, models: dict, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "a.tok"
    path.write_text("Ada sings\n")
    outcome = dmf("tag", models[Task.NER], path, "--on-long", "error", "--one-document")
    assert outcome.status == 0
    assert outcome.stderr == (
        "dmf: --on-long has no effect: this model's encoder accepts sentences of any length\n"
        "dmf: --one-document has no effect: this model was trained without recall (denoiser.recall, encoder.recall)\n"
    )


def test_a_labelled_file_with_units_without_a_form_is_tagged_and_scored(
    dmf: Callable, models: dict, tmp_path: pathlib.Path
) -> None:
    gold, predicted = tmp_path / "gold.bmes", tmp_path / "predicted.bmes"
    gold.write_text("Ada\tS-PER\n\tO\nsings\tO\n")
    outcome = dmf("tag", models[Task.NER], gold, "--output", predicted)
    assert outcome.status == 0
    assert outcome.stderr == f"dmf: {gold}: 1 unit without a form read as _, first on line 2\n"
    assert [line.partition("\t")[0] for line in predicted.read_text().splitlines()] == ["Ada", "", "sings"]
    assert dmf("score", gold, predicted, "--task", "ner").status == 0


def test_words_without_end_are_refused(dmf: Callable, models: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIFFUSION_MF_MAX_SENTENCE_MIB", "1")
    outcome = dmf("tag", models[Task.POS], "-", "--batch-tokens", "1", stdin=b"mira\n" + b"a " * (1 << 20))
    assert outcome.status == 2
    assert outcome.stderr == (
        "dmf: standard input, line 2: a line of more than 1 MiB; check that this is a text file with line ends, "
        "or raise the limit with DIFFUSION_MF_MAX_SENTENCE_MIB=2.\n"
    )


@pytest.mark.parametrize("file_format", ["text", "columns", "jsonl", "conllu"])
def test_sentences_of_a_named_pipe_are_labelled_while_it_is_open(
    file_format: str, tmp_path: pathlib.Path, models: dict
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    is_labelled = threading.Event()
    words = ["mira"]
    sentence = {
        "text": " ".join(words) + "\n",
        "columns": "\n".join(words) + "\n\n",
        "jsonl": json.dumps({"units": words}) + "\n",
        "conllu": "".join(f"{number}\t{word}" + "\t_" * 8 + "\n" for number, word in enumerate(words, 1)) + "\n",
    }[file_format]
    was_labelled: list[bool] = []

    def write() -> None:
        with pipe.open("w") as stream:
            stream.write(sentence)
            stream.flush()
            was_labelled.append(is_labelled.wait(10))
            stream.write(sentence)

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    count = tag_file(
        Tagger.load(models[Task.POS], device="cpu"),
        pipe,
        tmp_path / "out.jsonl",
        file_format=FileFormat(file_format),
        options=TaggingOptions(batch_tokens=1),
        advance=lambda count: is_labelled.set(),
    )
    writer.join()
    assert (count, was_labelled) == (2, [True])


RAW = "Ada Byron sings. She doesn't\nsing in Oslo!\n\n  Eve left.\n"


def test_raw_text(dmf: Callable, models: dict, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "in.raw"
    path.write_text(RAW)
    outcome = dmf("tag", models[Task.NER], path, "--to", "jsonl")
    rows = [json.loads(line) for line in outcome.stdout.splitlines()]
    assert [" ".join(row["units"]) for row in rows] == [
        "Ada Byron sings .",
        "She does n't sing in Oslo !",
        "Eve left .",
    ]
    for row in rows:
        assert [RAW[start:end] for start, end in row["offsets"]] == row["units"]
    columns = dmf("tag", models[Task.NER], "--format", "raw", stdin=RAW.encode()).stdout.decode()
    assert [block.split("\n")[0].split("\t")[0] for block in columns.strip().split("\n\n")] == ["Ada", "She", "Eve"]
    results = Tagger.load(models[Task.NER], device="cpu").tag_text(RAW)
    assert [(list(result.units), result.labels) for result in results] == [
        (row["units"], row["labels"]) for row in rows
    ]
    assert [[list(offsets) for offsets in result.offsets or ()] for result in results] == [
        row["offsets"] for row in rows
    ]
    assert Tagger.load(models[Task.NER], device="cpu").tag_text(" \n") == []
    # Chinese models read characters.
    (words,) = Tagger.load(models[Task.SEG_POS], device="cpu").tag_text("ab cd")
    assert (words.units, words.offsets) == (("a", "b", "c", "d"), ((0, 1), (1, 2), (3, 4), (4, 5)))


@pytest.mark.parametrize("task", [Task.POS, Task.NER, Task.SEG_POS])
def test_raw_text_becomes_spans(task: Task, dmf: Callable, models: dict) -> None:
    outcome = dmf("tag", models[task], "--format", "raw", "--to", "label-studio", "--scores", stdin=RAW.encode())
    tasks = json.loads(outcome.stdout)
    assert "".join(each["data"]["text"] for each in tasks) == RAW
    regions = [region for each in tasks for region in each["annotations"][0]["result"]]
    assert regions
    assert all(0 <= region["score"] <= 1 and region["value"]["text"].strip() for region in regions)
    refused = dmf("tag", models[task], "--format", "raw", "--to", "doccano", "--scores", stdin=RAW.encode())
    assert refused.stderr == "dmf: the format doccano has no place for scores; leave out --scores.\n"
    refused = dmf("tag", models[task], "--format", "raw", "--to", "brat", stdin=RAW.encode())
    assert refused.stderr == (
        "dmf: brat's format needs files in a folder; give a folder, or a file that ends in .ann.\n"
    )
    refused = dmf("tag", models[task], "--to", "raw", stdin=b"a\n")
    assert refused.stderr == "dmf: raw text cannot hold labels; write columns, jsonl or another format.\n"


def test_units_become_spans(dmf: Callable, models: dict) -> None:
    rows = dmf("tag", models[Task.POS], "--to", "doccano", stdin=b"mira sel\nvi\n").stdout.decode().splitlines()
    spans = [[span[:2] for span in json.loads(row)["label"]] for row in rows]
    assert spans == [[[0, 4], [5, 8]], [[0, 2]]]
