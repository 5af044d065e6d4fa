"""Bad input through the command line: one sentence with file, line and remedy, exit 2, nothing written."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path

import pytest

WORD = "1\ta\t_\tX\tT\t_\t_\t_\t_\t_\n"

# name, content, line, what the sentence says, what it advises
CONTENTS = [
    ("a.conllu", WORD + "2\tb\tX\n", 2, "expected 10 columns", "check that the file is CoNLL-U"),
    ("a.tsv", "a\tx\tO\nb\tO\n", 2, "expected 3 tab-separated", "complete the line"),
    ("a.tsv", "a\tB-P\n\nb\tQ-P\n", 3, "'Q-P' has no boundary prefix", "--scheme"),
    ("a.tsv", "a\tB-P\n\nb\t\n", 3, "the tag is empty", "complete the line"),
    ("a.tsv", "a\tB-P\nb\tE-P\nc\tI-P\nd\t\n", 4, "the tag is empty", "complete the line"),
    ("a.tsv", "a,B-P\nb,O\n", None, "separated by commas", "with tabs"),
    ("a.conllu", "", None, "contains no sentences", "right file"),
    ("a.jsonl", "", None, "contains no sentences", "right file"),
    ("a.tok", "", None, "contains no sentences", "right file"),
    ("a.tsv", "\n", None, "contains no sentences", "right file"),
    ("a.conllu", f"{WORD}\n# lonely\n\n{WORD}", 3, "without words", "remove"),
    ("a.jsonl", '{"units": ["a"]}\n{"units": []}\n', 2, "empty sentence", "remove"),
    ("a.tok", "\n \n", None, "contains no sentences", "right file"),
    ("a.jsonl", '{"units": ["a"], "labels": []}\n', 1, "1 units but 0 labels", "one label"),
    ("a.conllu", b"# \x00\x01\n", 1, "binary file", "text file"),
    ("a.tsv", b"a\tO\ncaf\xe9\tO\n", 2, "not UTF-8", "iconv"),
    ("a.conllu.gz", b"not compressed", None, "damaged or not gz", "again"),
    (
        "a.conllu.gz",
        gzip.compress(WORD.encode() * 1000, mtime=0)[:-20],
        None,
        "ends in the middle of its compressed data",
        "again",
    ),
    ("a.conllu.zst", b"not compressed", None, "damaged or not zst", "again"),
]


def check(outcome, path: Path, line: int | None, *parts: str) -> None:
    assert outcome.status == 2
    assert outcome.stdout == b""
    assert outcome.stderr.count("\n") == 1, outcome.stderr
    place = f"dmf: {path}: " if line is None else f"dmf: {path}, line {line}: "
    assert outcome.stderr.startswith(place)
    assert all(part in outcome.stderr for part in parts), outcome.stderr


@pytest.mark.parametrize(("name", "content", "line", "problem", "remedy"), CONTENTS)
def test_bad_content(name, content, line, problem, remedy, dmf, tmp_path: Path) -> None:
    source, target = tmp_path / name, tmp_path / "out.jsonl"
    source.write_bytes(content if isinstance(content, bytes) else content.encode())
    target.write_text("what was there before\n")
    check(dmf("data", "convert", source, target), source, line, problem, remedy)
    assert target.read_text() == "what was there before\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([name, "out.jsonl"])
    if name.endswith(".tsv") or name == "a.conllu":
        task = "ner" if name.endswith(".tsv") else "pos"
        check(dmf("data", "stats", source, "--task", task, "--json"), source, line, problem, remedy)


def test_limits_hold_whatever_the_command(dmf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIFFUSION_MF_MAX_SENTENCE_MIB", "1")
    source, gold = tmp_path / "a.conllu", tmp_path / "gold.conllu"
    source.write_text(f"{WORD}\n" + "".join(f"{number}{WORD[1:]}" for number in range(1, 70_001)))
    gold.write_text(f"{WORD}\n" * 2)
    for command in (
        ["data", "stats", source, "--task", "pos"],
        ["data", "convert", source, tmp_path / "out.jsonl"],
        ["data", "convert", source, tmp_path / "out.conllu"],
        ["score", source, gold, "--task", "pos"],
        ["score", gold, source, "--task", "pos"],
    ):
        limit = "a sentence of more than 1 MiB begins here"
        check(
            dmf(*command), source, 3, limit, "put a blank line after every sentence", "DIFFUSION_MF_MAX_SENTENCE_MIB=2"
        )
    monkeypatch.setenv("DIFFUSION_MF_MAX_SENTENCE_MIB", "2")
    assert dmf("data", "stats", source, "--task", "pos").status == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.conllu", "gold.conllu"]


def test_a_copy_of_bad_conllu_is_not_written_either(dmf, tmp_path: Path) -> None:
    source, target = tmp_path / "a.conllu", tmp_path / "b.conllu"
    for content, line in ((WORD + "\n2\tb\n", 3), ("\n", None)):
        source.write_text(content)
        check(dmf("data", "convert", source, target), source, line)
        assert [path.name for path in tmp_path.iterdir()] == ["a.conllu"]


@pytest.mark.parametrize("command", ["stats", "convert"])
def test_a_directory_and_a_missing_file(command: str, dmf, tmp_path: Path) -> None:
    folder, missing = tmp_path / "folder.conllu", tmp_path / "missing.conllu"
    folder.mkdir()
    for path, problem in ((folder, "this is a directory"), (missing, "no such file")):
        rest = ["--task", "pos"] if command == "stats" else [tmp_path / "out.jsonl"]
        check(dmf("data", command, path, *rest), path, None, problem)
    assert [path.name for path in tmp_path.iterdir()] == ["folder.conllu"]


def test_an_output_that_cannot_be(dmf, tmp_path: Path) -> None:
    source, folder = tmp_path / "a.conllu", tmp_path / "out.jsonl"
    source.write_text(WORD)
    folder.mkdir()
    check(dmf("data", "convert", source, folder), folder, None, "directory")
    nowhere = tmp_path / "no" / "such" / "out.jsonl"
    check(dmf("data", "convert", source, nowhere), nowhere, None, "cannot be written")


def test_a_label_in_dev_never_seen_in_train(dmf, tmp_path: Path) -> None:
    train, dev = tmp_path / "train.tsv", tmp_path / "dev.tsv"
    train.write_text("a\tS-P\nb\tO\n")
    dev.write_text("a\tO\n\nb\tO\nc\tS-Q\n")
    outcome = dmf("data", "stats", "--task", "ner", "--train", train, "--dev", dev)
    assert outcome.status == 0
    assert outcome.stderr.splitlines()[-1] == (
        f"dmf: {dev}: 1 of 3 units have labels that {train} does not have (S-Q), first on line 4: they count as wrong"
    )
    # Only in spans of one unit so far, but the type is known.
    dev.write_text("a\tB-P\nb\tM-P\nc\tE-P\n")
    assert "count as wrong" not in dmf("data", "stats", "--task", "ner", "--train", train, "--dev", dev).stderr


IRREGULAR = [
    ("a\tO\nb\tB-P\nc\tI-P\n\nd\tI-P\n", 5, "cannot begin with 'I-P'", "I-P read as B-P", ["O", "B-P", "E-P", "S-P"]),
    ("a\tB-P\nb\tM-P\n", 2, "cannot end with 'M-P'", "B-P M-P read as B-P E-P", ["B-P", "E-P"]),
    ("a\tO\n\tO\nc\tO\n", 2, "the unit is empty", "1 unit without a form read as _", ["O", "O", "O"]),
]


@pytest.mark.parametrize(("content", "line", "problem", "repair", "labels"), IRREGULAR)
@pytest.mark.parametrize("command", ["stats", "convert"])
def test_irregular_gold_is_repaired_unless_strict(
    command, content, line, problem, repair, labels, dmf, tmp_path
) -> None:
    source, target = tmp_path / "a.tsv", tmp_path / "out.jsonl"
    source.write_text(content)
    rest = ["--task", "ner", "--json"] if command == "stats" else [target, "--to-scheme", "bmes"]
    check(dmf("data", command, source, *rest, "--strict"), source, line, problem)
    assert not target.exists()
    if command == "convert" and set(labels) == {"O"}:
        rest = rest[:1]  # O alone is plain, which has no other scheme to go to
    outcome = dmf("data", command, source, *rest)
    assert outcome.status == 0
    told = [message for message in outcome.stderr.splitlines() if repair in message]
    assert len(told) == 1
    assert told[0].startswith(f"dmf: {source}: 1 ")
    assert f"first on line {line}" in told[0]
    assert told[0].endswith("--strict (data.strict) refuses them")
    if command == "stats":
        assert json.loads(outcome.stdout)[0]["label_counts"] == dict(Counter(sorted(labels)).most_common())
    else:
        rows = [json.loads(row) for row in target.read_text().splitlines()]
        assert [label for row in rows for label in row["labels"]] == labels


def test_what_the_target_cannot_hold_is_named_by_its_source(dmf, tmp_path: Path) -> None:
    source = tmp_path / "a.jsonl"
    source.write_text('{"units": ["a"]}\n{"units": ["New York"]}\n')
    check(dmf("data", "convert", source, tmp_path / "out.tok"), source, 2, "'New York' does not fit", "JSON Lines")
    assert not (tmp_path / "out.tok").exists()


@pytest.mark.parametrize("target_format", ["doccano", "prodigy", "label-studio", "brat"])
def test_tools_need_types(target_format: str, dmf, tmp_path: Path) -> None:
    source = tmp_path / "a.tsv"
    source.write_text("a\tO\n\nb\tB\nc\tI\n")
    check(dmf("data", "convert", source, tmp_path / "out", "--to", target_format), source, 3, "no type", "B-NAME")
    assert not (tmp_path / "out").is_file()


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("a.txt", "b.jsonl"), "--from"),
        (("a.jsonl", "b.txt"), "--to"),
        (("a.conllu", "b.conllu", "--to-scheme", "bio2"), "only copies the file"),
        (("a.jsonl", "b.tsv", "--characters"), "leave out --characters"),
        (("mixed.conllu", "b.tsv", "--column", "misc"), "line 1: only some words"),
    ],
)
def test_usage(arguments: tuple[str, ...], part: str, dmf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a.txt", "a.conllu"):
        Path(name).write_text(WORD)
    Path("mixed.conllu").write_text(WORD.replace("_\n", "Label=B-X\n") + WORD.replace("1", "2"))
    Path("a.jsonl").write_text('{"units": ["a"]}\n')
    outcome = dmf("data", "convert", *arguments)
    assert (outcome.status, outcome.stderr.count("\n")) == (2, 1)
    assert part in outcome.stderr
    assert not any(path.name.startswith(("b.", ".b")) for path in tmp_path.iterdir())


def test_no_files_and_unknown_choices(dmf, tmp_path: Path) -> None:
    outcome = dmf("data", "stats", "--task", "pos")
    assert (outcome.status, outcome.stderr) == (
        2,
        "dmf: no files were given; give files, or splits with --train, --dev and --test.\n",
    )
    assert dmf("data", "stats", tmp_path, "--task", "parsing").status == 2
    assert dmf("data", "convert", "a", "b", "--from", "xml").status == 2


def test_debug_shows_the_traceback(dmf, tmp_path: Path) -> None:
    from diffusion_mf.errors import InputError

    with pytest.raises(InputError):
        dmf("data", "stats", tmp_path / "missing", "--task", "pos", "--debug")
