"""``dmf data check``: every problem with its line and meaning, and whether the corpus can be used."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diffusion_mf.data.check import check_files
from diffusion_mf.data.corpus import Task
from diffusion_mf.data.formats import read_task
from diffusion_mf.errors import InputError


@pytest.fixture
def check(dmf: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, dict, dict]]:
    """Write files and check them: the exit status, the whole answer, and [file, line, text] of the places by kind."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str, **files: str) -> tuple[int, dict[str, Any], dict[str, list]]:
        for name, content in files.items():
            Path(name.replace("_", ".")).write_text(content)
        outcome = dmf("data", "check", *arguments, "--json")
        assert outcome.stderr == ""
        answer = json.loads(outcome.stdout)
        kinds = {row["kind"]: [list(place.values()) for place in row["places"]] for row in answer["problems"]}
        return outcome.status, answer, kinds

    return run


def test_all_problems_of_a_usable_corpus(check: Callable) -> None:
    train = "a\tB-X\nb\tO\n\nc\tI-X\n\nd\tB-Y\n\n" + "e\tO\n" * 257
    dev = "a\tB-X\nb\tO\n\n\tO\n \tO\n\nc\x07\tB-Z\nd\tB-X\n"
    status, answer, kinds = check("--train", "train.tsv", "--dev", "dev.tsv", train_tsv=train, dev_tsv=dev)
    assert status == 0
    assert (answer["usable"], answer["task"]) == (True, "ner")
    assert answer["files"][0] == {"file": "train.tsv", "split": "train", "sentences": 4, "units": 261}
    assert kinds == {
        "irregular tags": [["train.tsv", 4, "I-X read as B-X"]],
        "tag without a form": [["dev.tsv", 4, "read as _"]],
        "sentence in two files": [["dev.tsv", 1, "also in train.tsv, line 1"]],
        "label in one file only": [["train.tsv", 6, "Y, 1 unit"], ["dev.tsv", 7, "Z, 1 unit"]],
        "long sentence": [["train.tsv", 8, "257 units"]],
        "blank form": [["dev.tsv", 5, "' '"]],
        "control character": [["dev.tsv", 7, "'c\\x07'"]],
    }
    by_kind = {row["kind"]: row for row in answer["problems"]}
    assert by_kind["irregular tags"]["severity"] == "repaired"
    assert "a tag that cannot continue a span" in by_kind["irregular tags"]["meaning"]


def test_forms_with_several_labels_are_one_line_a_file(check: Callable) -> None:
    _, _, kinds = check("a.tsv", a_tsv="a\tB-X\nb\tI-X\na\tO\n\nb\tO\nb\tB-Y\n")
    assert kinds == {
        "forms with several labels": [["a.tsv", None, "2 of 2 forms; most labels: b (X 1, O 1, Y 1); a (X 1, O 1)"]]
    }


def test_everything_that_is_refused_is_listed(check: Callable) -> None:
    content = "a\tB-X\nb\tQ-X\nc\tI-X\n\nd\n\ne\t\nf\tI-X\n"
    status, answer, kinds = check("a.tsv", "--task", "ner", a_tsv=content)
    assert (status, answer["usable"]) == (2, False)
    assert [place[1] for place in kinds["unusable"]] == [2, 5, 7]
    assert kinds["irregular tags"] == [["a.tsv", 8, "I-X read as B-X"]]
    with pytest.raises(InputError):
        read_task("a.tsv", Task.NER)


@pytest.mark.parametrize(
    ("name", "content", "lines"),
    [
        ("a.conllu", "1\ta\t_\tX\t_\t_\t_\t_\t_\t_\n2\tb\nx\tc\t_\tX\t_\t_\t_\t_\t_\t_\n\n# lonely\n\n1\ta\t_\t\t_\t_\t_\t_\t_\t_\n", [2, 3, 5, 7]),
        ("a.jsonl", '{"units": ["a"], "labels": ["X"]}\n{"units": []}\nnonsense\n{"units": ["a"], "labels": []}\n', [2, 3, 4]),
        ("a.conllu", "1\ta\t_\tX\t_\t_\t_\t_\t_\t_\n2\tb\t_\t_\t_\t_\t_\t_\t_\t_\n", [1]),
        ("a.conllu", "", [None]),
        ("missing.conllu", None, [None]),
    ],
)  # fmt: skip
def test_other_formats(name: str, content: str | None, lines: list, check: Callable) -> None:
    if content is not None:
        Path(name).write_text(content)
    status, _, kinds = check(name, "--task", "pos")
    assert status == 2
    assert [place[1] for place in kinds["unusable"]] == lines


def test_seg_pos_characters_outside_words_are_unusable(check: Callable) -> None:
    status, _, kinds = check("a.tsv", "--task", "seg-pos", a_tsv="a\tS-X\nb\tO\n\nc\tM-X\nd\tM-X\n")
    assert (status, [place[1] for place in kinds["unusable"]]) == (2, [2])
    assert kinds["irregular tags"] == [["a.tsv", 4, "M-X M-X read as B-X E-X"]]


@pytest.mark.parametrize(
    ("name", "content", "task"),
    [
        ("a.conllu", "1\ta\t_\tX\t_\t_\t_\t_\t_\t_\n2\tb\t_\tY\t_\t_\t_\t_\t_\t_\n", "pos"),
        ("a.txt", "ab B-X\n", "ner"),
        ("a.txt", "a NN\nb VB\n", "pos"),
        ("a.jsonl", '{"units": ["ab"], "labels": ["S-X"]}\n', "ner"),
    ],
)
def test_the_task_is_told_by_the_file(name: str, content: str, task: str, check: Callable) -> None:
    Path(name).write_text(content)
    status, answer, _ = check(name)
    assert (status, answer["task"]) == (0, task)


@pytest.mark.parametrize(
    ("content", "line", "fragment"),
    [
        ("a O\nb O\n", None, "nothing to learn"),
        ("a PER\nb O\nc O\n", None, "write prefixes"),
        ("a,B-X\nb,O\n", None, "separated by commas"),
        ("Dogs bark .\nThe cats do not .\n", None, "text without labels"),
        ("0\ta\tB-X\n0\tb\tO\n", None, "contains only numbers"),
        ("Wort Marke\na NN\nb VB\n", 1, "looks like a header"),
    ],
)
def test_what_training_refuses_is_unusable(content: str, line: int | None, fragment: str, check: Callable) -> None:
    status, answer, kinds = check("a.txt", a_txt=content)
    assert (status, answer["usable"]) == (2, False)
    assert [place[1] for place in kinds["unusable"]] == [line]
    assert fragment in kinds["unusable"][0][2]
    assert check("a.txt", "--task", "ner")[0] == 2
    # A dev split need not be good for training.
    if "nothing" in fragment:
        assert check("--dev", "a.txt", a_txt=content)[0] == 0


def test_what_was_read_is_said(dmf: Callable, tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_text("id\ttoken\tner_tag\tcomment\n1\ta\tB-X\t\n2\tb\tO\twho?\n\n1\tc\tO\t\n")
    outcome = dmf("data", "check", path)
    assert outcome.status == 0
    first, second, *_ = outcome.stdout.decode().splitlines()
    assert first.startswith(
        "format: columns, 4 tab-separated columns after a header line, units in column 2, tags in column 3"
    )
    assert second.startswith("task: ner, spans of 1 type (X)")


def test_decomposed_characters_are_named_once_a_file(check: Callable) -> None:
    composed, decomposed = "K\u00f6ln\tB-X\nis\tO\n", "Ko\u0308ln\tB-X\nis\tO\n"
    status, _, kinds = check("--train", "train.tsv", "--dev", "dev.tsv", train_tsv=composed, dev_tsv=decomposed)
    assert status == 0
    assert kinds["decomposed characters"] == [["dev.tsv", None, "1 of 2 forms, such as Ko\u0308ln"]]


def test_standard_input_needs_a_task(dmf: Callable) -> None:
    outcome = dmf("data", "check", "-", stdin=b"a B-X\nb O\n\nc I-X\n")
    assert (outcome.status, outcome.stdout) == (2, b"")
    assert "specify it with --task" in outcome.stderr
    outcome = dmf("data", "check", "-", "--task", "ner", stdin=b"a B-X\nb O\n\nc I-X\n\nd B-X\n")
    assert outcome.status == 0
    assert "-, line 4: I-X read as B-X" in outcome.stdout.decode()


def test_many_problems_are_cut_and_counted_unless_all_are_asked_for(dmf: Callable, tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_text("ab\tB-X\nb\tI-X\n\n" * 20 + "c\tI-X\n\n" * 15)
    outcome = dmf("data", "check", path)
    text = outcome.stdout.decode()
    assert outcome.status == 0
    assert text.count("read as B-X\n") == 10
    assert "irregular tags: 15 (repaired)\n  Read as in conlleval" in text
    assert "… and 5 more; --all lists them" in text
    assert text.endswith("The corpus can be used as ner data (repaired 15).\n")
    assert dmf("data", "check", path, "--all").stdout.decode().count("read as B-X\n") == 15
    path.write_text("a\tB-X\nb\tQ-X\n")
    outcome = dmf("data", "check", path, "--task", "ner")
    assert outcome.status == 2
    assert outcome.stdout.decode().endswith("The corpus cannot be used as ner data (error 1).\n")


TAGS = st.sampled_from(["O", "B-X", "I-X", "E-X", "S-X", "B-Y", "I-Y", "Q-X", "X", ""])
UNITS = st.sampled_from(["a", "b", "", " ", "c\x07"])


@given(rows=st.lists(st.lists(st.tuples(UNITS, TAGS), min_size=1, max_size=5), min_size=1, max_size=4))
def test_a_corpus_is_usable_if_and_only_if_it_is_read(rows: list, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("check") / "a.tsv"
    path.write_text("".join("".join(f"{unit}\t{tag}\n" for unit, tag in row) + "\n" for row in rows))
    result = check_files([(path, "dev")], task=Task.NER)  # a dev split need not be good for training
    lines = [problem.line for problem in result.problems if problem.kind.severity == "error"]
    if not result.is_usable:
        with pytest.raises(InputError) as caught:
            read_task(path, Task.NER)
        assert caught.value.line in lines
        return
    corpus = read_task(path, Task.NER)
    assert result.files[0].sentences == len(corpus)
    repaired = sum(problem.kind.severity == "repaired" for problem in result.problems)
    assert (repaired > 0) is (corpus.repaired is not None)


CORPORA = ["conll2003", "small/btc", "small/sec", "small/ta-ttb", *(f"ud-2.15/UD_{name}" for name in
    ["Chinese-GSDSimp", "Dutch-LassySmall", "English-EWT", "French-GSD", "German-GSD"])]  # fmt: skip


@pytest.mark.corpora
@pytest.mark.parametrize("folder", CORPORA)
def test_published_corpora_are_used_as_they_are(folder: str, dmf: Callable, corpora: Path) -> None:
    """Checked, counted and read for training without a change by hand."""
    from diffusion_mf.config import Config
    from diffusion_mf.training.corpora import read_training_data

    files = {
        split: next((corpora / folder).glob(f"*{split}*.[ct][ox][nt]*"), None) for split in ("train", "dev", "test")
    }
    splits = {split: str(path) for split, path in files.items() if path is not None}
    task = "seg-pos" if "Chinese" in folder else "pos" if next(iter(splits.values())).endswith(".conllu") else "ner"
    options = [part for split, path in splits.items() for part in (f"--{split}", path)]
    outcome = dmf("data", "check", "--task", task, *options, "--json")
    assert (outcome.status, json.loads(outcome.stdout)["usable"]) == (0, True)
    outcome = dmf("data", "stats", "--task", task, *options, "--json")
    assert outcome.status == 0, outcome.stderr
    # Two have no train split to be had.
    config = {"task": task, "system": "unigram", "data": {"train": splits.get("train", splits.get("dev")), **splits}}
    data = read_training_data(Config.model_validate(config))
    sizes = [row["sentences"] for row in json.loads(outcome.stdout)]
    expected = [part for part in (data.train if "train" in splits else None, data.dev, data.test) if part is not None]
    assert [len(part) for part in expected] == sizes
    labels = {"conll2003": 17, "small/sec": 17, "small/btc": 13, "ud-2.15/UD_Chinese-GSDSimp": 104}
    assert len(data.vocabulary.labels) == labels.get(folder, len(data.vocabulary.labels))
