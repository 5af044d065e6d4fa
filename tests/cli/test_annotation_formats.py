"""From the files of annotation tools to a model and back, on the command line: train, evaluate, tag and score in the same format."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest
import small_runs
from small_models import write_model

from diffusion_mf.data.annotations import ANNOTATION_FORMATS, Record, TextSpan

FORMATS = [*ANNOTATION_FORMATS, "hugging-face", "columns"]
NAMES = {"label-studio": "a.json", "brat": "folder", "columns": "a.iob2"}


def write_corpus(path: Path, name: str, *, count: int, seed: int) -> None:
    """Texts of two sentences with people and towns, some of them twice in a text."""
    generator = random.Random(seed)
    records = []
    for _ in range(count):
        person, town = generator.choice(["Ada Byron", "Eve", "Kim"]), generator.choice(["Oslo", "Bergen"])
        text = f"{person} lives in {town}.  She doesn't like {town}!"
        towns = [TextSpan(start, start + len(town), "LOC") for start in (len(person) + 10, len(text) - len(town) - 1)]
        records.append(Record(text, (TextSpan(0, len(person), "PER"), *towns)))
    if name in ANNOTATION_FORMATS:
        with ANNOTATION_FORMATS[name].open(path) as write:
            for record in records:
                write(record)
        return
    rows = []
    for record in records:
        words = record.text.replace(".", " .").replace("!", " !").replace("n't", " n't").split()
        tags = ["B-LOC" if word in ("Oslo", "Bergen") else "O" for word in words]
        tags[: 2 if words[0] == "Ada" else 1] = ["B-PER", "I-PER"] if words[0] == "Ada" else ["B-PER"]
        rows.append((words, tags))
    if name == "hugging-face":
        numbers = {"O": 0, "B-PER": 1, "I-PER": 2, "B-LOC": 3}
        dumped = [
            json.dumps({"id": 1, "tokens": words, "ner_tags": [numbers[tag] for tag in tags]}) for words, tags in rows
        ]
        path.write_text("\n".join([json.dumps({"label_names": [*numbers]}), *dumped, ""]))
    else:
        blocks = [
            "# text = x\n"
            + "".join(f"{n}\t{word}\tx\t{tag}\n" for n, (word, tag) in enumerate(zip(*row, strict=True), 1))
            for row in rows
        ]
        path.write_text("\n".join(blocks))


@pytest.mark.parametrize("name", FORMATS)
def test_train_tag_and_score_in_the_same_format(name: str, dmf: Callable, tmp_path: Path) -> None:
    train, dev = tmp_path / "train", tmp_path / "dev"
    train.mkdir()
    dev.mkdir()
    train, dev = train / NAMES.get(name, "a.jsonl"), dev / NAMES.get(name, "a.jsonl")
    write_corpus(train, name, count=30, seed=1)
    write_corpus(dev, name, count=6, seed=2)
    values = small_runs.settings(tmp_path, {"training": {"epochs": 2, "budget": 500}})
    config = small_runs.write_config(tmp_path / "small.toml", values)
    data = [
        f"data.train={train}",
        f"data.dev={dev}",
        "data.test=",
        *(["data.tag_column=4"] if name == "columns" else []),
    ]
    arguments = [argument for setting in (*data, "system=unigram") for argument in ("--set", setting)]
    outcome = dmf("train", config, "--output", tmp_path / "run", "--device", "cpu", *arguments)
    assert outcome.status == 0, outcome.stderr
    model, output = tmp_path / "run" / "model", tmp_path / "out" / dev.name
    output.parent.mkdir()
    choice = ["--tag-column", 4] if name == "columns" else []
    assert dmf("tag", model, dev, "--output", output, "--scheme", "bio2", *choice).status == 0
    scored = dmf("score", dev, output, "--task", "ner", "--json", *choice)
    assert scored.status == 0, scored.stderr
    evaluated = dmf("evaluate", model, dev, "--json", *choice)
    assert evaluated.status == 0, evaluated.stderr
    assert json.loads(scored.stdout)["f1"] == json.loads(evaluated.stdout)["f1"]
    # What is no label stays as it is.
    if name in ANNOTATION_FORMATS:
        read = ANNOTATION_FORMATS[name].read
        assert [each.text for each in read(output, None)] == [each.text for each in read(dev, None)]
    elif name == "hugging-face":
        rows = [json.loads(line) for line in output.read_text().splitlines()]
        assert all(row["id"] == 1 and len(row["ner_tags"]) == len(row["tokens"]) for row in rows)
    else:
        before, after = (path.read_text().splitlines() for path in (dev, output))
        assert [line.split("\t")[:3] for line in after] == [line.split("\t")[:3] for line in before]


def test_what_brat_has_beside_spans_is_no_obstacle_to_tagging(dmf: Callable, tmp_path: Path) -> None:
    model, source, output = write_model(tmp_path / "model"), tmp_path / "in", tmp_path / "out"
    source.mkdir()
    (source / "a.txt").write_text("Ada sings in Oslo.\r\n")
    (source / "a.ann").write_text("T1\tPER 0 3;13 17\tAda Oslo\nR1\tX Arg1:T1 Arg2:T1\n")
    (source / "b.txt").write_text(" ")
    outcome = dmf("tag", model, source, "--output", output, "--to", "brat")
    assert outcome.status == 0
    assert outcome.stderr == f"dmf: {source}: 2 annotations left out, first at a.ann, line 1 (T1 is discontinuous)\n"
    assert sorted(path.name for path in output.iterdir()) == ["a.ann", "a.txt", "b.ann", "b.txt"]
    assert (output / "a.txt").read_bytes() == (source / "a.txt").read_bytes()
    assert (output / "b.ann").read_text() == ""


@pytest.mark.parametrize("command", ["evaluate", "data check", "train", "score"])
def test_a_document_without_labels_is_named(command: str, dmf: Callable, tmp_path: Path) -> None:
    source = tmp_path / "in"
    source.mkdir()
    (source / "a.txt").write_text("Ada sings.\n")
    (source / "a.ann").write_text("T1\tPER 0 3\tAda\n")
    (source / "b.txt").write_text("\n")  # nothing to label
    (source / "c.txt").write_text("Oslo\n")
    before, after = {
        "evaluate": ([write_model(tmp_path / "model")], []),
        "score": ([], [source, "--task", "ner"]),
        "train": ([], ["--output", tmp_path / "run"]),
    }.get(command, ([], []))
    outcome = dmf(*command.split(), *before, source, *after)
    assert outcome.status == 2
    shown = outcome.stderr + outcome.stdout.decode()
    assert shown.count(f"{source / 'c.txt'}, line 1: no labels; annotate this text, or leave it out") == 1
    assert "b.txt" not in shown
    (source / "c.ann").touch()
    assert command == "train" or dmf(*command.split(), *before, source, *after).status == 0


def test_names_of_numbers_and_columns_may_be_set(dmf: Callable, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"words": ["Ada", "sings"], "mine": [1, 0], "other": [0, 0]}\n')
    arguments = ("data", "convert", path, "-", "--to", "columns", "--tag-column", "mine")
    assert dmf(*arguments, "--label-names", "O,B-PER").stdout == b"Ada\tB-PER\nsings\tO\n\n"
    assert dmf(*arguments).stderr.startswith(f'dmf: {path}, line 1: "mine" contains numbers')
    config = tmp_path / "a.toml"
    config.write_text(
        'task = "ner"\nsystem = "unigram"\n[data]\nlabel_names = ["O", "B-PER"]\ntag_column = 2\nlanguage = "en"\n'
    )
    shown = dmf("config", "show", config, "--json")
    assert shown.status == 0, shown.stderr
    assert dmf("config", "show", config, "--set", "data.tag_column=true").status == 2


def test_texts_are_split_as_the_language_says(dmf: Callable, tmp_path: Path) -> None:
    path = tmp_path / "a.raw"
    path.write_text("A long-term e-mail.")
    assert dmf("data", "convert", path, "-", "--to", "text").stdout == b"A long-term e-mail .\n"
    assert dmf("data", "convert", path, "-", "--to", "text", "--language", "en").stdout == b"A long - term e-mail .\n"
    assert "raw text can only be read, not written" in dmf("data", "convert", path, tmp_path / "b.raw").stderr
