"""``dmf train`` with a labelled file and no configuration, from the outside."""

from __future__ import annotations

import json
import os
import random
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import small_runs

from diffusion_mf.evaluation import NO_LABEL
from diffusion_mf.lab.synthetic import write_corpus
from diffusion_mf.tagger import Tagger
from diffusion_mf.tagger.files import read_gold

TINY = [
    f"{section}.{name}={json.dumps(value)}"
    for section, values in small_runs.SMALL_MODEL.items()
    for name, value in values.items()
    if name not in ("pair_width", "min_pair_count")
]
OPTIONS = [
    "--device",
    "cpu",
    "--set",
    "training.evaluate_every=1",
    *(part for setting in TINY for part in ("--set", setting)),
]


def write_pos(path: Path, count: int, *, tags: tuple[str, ...] = ("NOUN", "VERB", "ADJ")) -> Path:
    """Sentences of invented words whose last letter tells the tag."""
    draw = random.Random(count)
    rows = []
    for _ in range(count):
        chosen = [draw.randrange(len(tags)) for _ in range(draw.randint(2, 7))]
        rows.append("".join(f"{draw.choice('klmnp')}a{'xyz'[index]}\t{tags[index]}\n" for index in chosen))
    path.write_text("\n".join(rows) + "\n")
    return path


def test_twenty_sentences(dmf, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """What was detected and chosen is said on stderr; scores, confusions and certainty are on stdout."""
    path = write_pos(tmp_path / "train.tsv", 20)
    outcome = dmf("train", path, "--test", path, "--output", tmp_path / "run", *OPTIONS)
    assert outcome.status == 0, outcome.stderr
    lines = outcome.stderr.splitlines()
    starts = [line.removeprefix("dmf: ").partition(":")[0] for line in lines[:7]]
    assert starts == ["format", "task", "train", "dev", "test", "system", "training"]
    assert "4 sentences held out from the training file" in lines[3]
    assert re.fullmatch(
        r"dmf: time: [\d.]+ s to the first step, ([\d.]+ s|\d+:\d\d min) of training and evaluation, [\d.]+ s from the last step to the saved model",
        lines[-4],
    )
    assert lines[-3] == f"dmf: the model is in {tmp_path / 'run/model'}"
    for line in lines[-2:]:
        command = line.removeprefix("dmf: next: ").replace(
            "dmf ", f"{shlex.quote(sys.executable)} -m diffusion_mf.cli "
        )
        done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert done.stdout
    assert "dmf tag" in lines[-2]
    assert "dmf errors" in lines[-1]
    shown = outcome.stdout.decode()
    assert "accuracy" in shown
    assert "f1" not in shown  # the same as the accuracy
    assert "most frequent confusions on test: " in shown
    metrics = json.loads((tmp_path / "run/model/metrics.json").read_text())
    certainty = metrics["certainty"]
    assert certainty["accuracy"] == metrics["test"]["accuracy"]
    assert 0 < certainty["confidence"] <= 100
    assert f"confidence on test: {certainty['confidence']:.1f} % on average" in shown
    assert len(metrics["confusions"]["most_frequent"]) <= 3


def test_what_is_wrong_with_the_folder_is_said_first(dmf, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    path = write_pos(tmp_path / "train.tsv", 20)
    (tmp_path / "run/model").mkdir(parents=True)
    for arguments, problem in (
        ((), "no folder was given"),
        (("--output", tmp_path / "run"), "another run was started"),
    ):
        outcome = dmf("train", path, *arguments)
        assert outcome.status == 2
        assert problem in outcome.stderr
        assert len(outcome.stderr.splitlines()) == 1


@pytest.mark.parametrize("count", [1, 3])
def test_sentences_too_few_to_divide(dmf, tmp_path: Path, count: int) -> None:  # type: ignore[no-untyped-def]
    path = write_pos(tmp_path / "train.tsv", count)
    outcome = dmf("train", path, "--output", tmp_path / "run", *OPTIONS)
    assert outcome.status == 0, outcome.stderr
    assert f"dev: none, for {count} sentence{'s' * (count > 1)} cannot be divided" in outcome.stderr
    assert "dmf: next: echo" in outcome.stderr
    assert "dmf errors" not in outcome.stderr


def test_files_are_read_once_after_detection(  # type: ignore[no-untyped-def]
    dmf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from diffusion_mf.training import corpora

    real, paths = corpora.read_task, []

    def counted(path, *args, **options):  # type: ignore[no-untyped-def]
        paths.append(Path(path).name)
        return real(path, *args, **options)

    monkeypatch.setattr(corpora, "read_task", counted)
    train, dev = write_pos(tmp_path / "train.tsv", 20), write_pos(tmp_path / "dev.tsv", 6)
    outcome = dmf("train", train, "--dev", dev, "--minutes", "0.1", "--output", tmp_path / "run", *OPTIONS)
    assert outcome.status == 0, outcome.stderr
    assert paths == ["train.tsv", "dev.tsv"]


def test_the_configuration_printed_gives_the_same_model(dmf, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    path = write_pos(tmp_path / "train.tsv", 24)
    arguments = ("train", path, *OPTIONS, "--seed", 5)
    printed = dmf(*arguments, "--print-config")
    assert printed.status == 0, printed.stderr
    (tmp_path / "config.toml").write_bytes(printed.stdout)
    assert b"# the recipe" in printed.stdout
    assert not (tmp_path / "run").exists()
    assert dmf(*arguments, "--output", tmp_path / "one").status == 0
    assert dmf("train", tmp_path / "config.toml", "--output", tmp_path / "two", "--device", "cpu").status == 0
    small_runs.assert_same_outcome(tmp_path / "one", tmp_path / "two")


def test_the_same_command_resumes(dmf, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """The sentences held out are those of the beginning: other data would be refused."""
    path = write_pos(tmp_path / "train.tsv", 20)
    arguments = ("train", path, "--output", tmp_path / "run", "--system", "unigram", *OPTIONS)
    assert dmf(*arguments).status == 0
    outcome = dmf(*arguments, "--resume")
    assert outcome.status == 0, outcome.stderr
    assert "the run is complete" in outcome.stderr
    longer = dmf("train", "--output", tmp_path / "run", "--resume", "--set", "training.epochs=3", "--device", "cpu")
    assert longer.status == 0, longer.stderr
    assert [entry["epoch"] for entry in small_runs.read_log(tmp_path / "run", "evaluation")] == [1, 2, 3]
    refused = dmf(*arguments[: -len(OPTIONS)], "--resume", "--device", "cpu", "--set", "data.held_out=5")
    assert refused.status == 2
    assert "data.held_out = 4, not 5" in refused.stderr


def test_a_time_is_kept_as_a_number_of_epochs(dmf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    from diffusion_mf.training import loop

    monkeypatch.setattr(loop._Run, "measure_pace", lambda self, at_most: (1.0, 0.0))
    path = write_pos(tmp_path / "train.tsv", 20)
    arguments = ("train", path, "--output", tmp_path / "run", *OPTIONS, "--set", "training.epochs=1000")
    outcome = dmf(*arguments, "--minutes", "0.5")
    assert outcome.status == 0, outcome.stderr
    assert "steps fit into 0.5 min" in outcome.stderr
    assert "steps planned, which is too few for a good model" in outcome.stderr
    num_epochs = json.loads((tmp_path / "run/model/config.json").read_text())["config"]["training"]["epochs"]
    assert 0 < num_epochs < 1000
    resumed = dmf("train", "--output", tmp_path / "run", "--resume", "--device", "cpu")
    assert "the run is complete" in resumed.stderr


def test_dev_labels_that_training_lacks(dmf, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    train = write_pos(tmp_path / "train.tsv", 20)
    dev = write_pos(tmp_path / "dev.tsv", 6, tags=("NOUN", "VERB", "NEW"))
    outcome = dmf("train", train, "--dev", dev, "--output", tmp_path / "run", *OPTIONS)
    assert outcome.status == 0, outcome.stderr
    assert f"{train} does not have (NEW)" in outcome.stderr


@pytest.mark.parametrize(("task", "options"), [("ner", ()), ("seg-pos", ("--task", "seg-pos"))])
def test_other_tasks(dmf, tmp_path: Path, task: str, options: tuple[str, ...]) -> None:  # type: ignore[no-untyped-def]
    write_corpus(tmp_path, flavours=[task], sizes={"train": 24, "dev": 8, "test": 4}, seed=3)
    train, dev = (next((tmp_path / task).glob(f"{split}.*")) for split in ("train", "dev"))
    outcome = dmf("train", train, "--dev", dev, "--output", tmp_path / "run", *options, *OPTIONS)
    assert outcome.status == 0, outcome.stderr
    assert f"dmf: task: {task}, " in outcome.stderr


def test_json_lines_and_json_results(dmf, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    rows = [{"units": ["Ada", "sleeps"], "labels": ["B-PER", "O"]}, {"units": ["Rome"], "labels": ["B-LOC"]}] * 10
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    outcome = dmf("train", tmp_path / "a.jsonl", "--output", tmp_path / "run", "--json", *OPTIONS)
    assert outcome.status == 0, outcome.stderr
    assert {"model", "dev", "certainty", "confusions"} <= set(json.loads(outcome.stdout))
    assert "are also in the training data" in outcome.stderr


@pytest.mark.parametrize(
    ("text", "fragments"),
    [
        ("a X\nb X\n\n", ("every unit has the label X",)),
        ("Ada PER\nis O\nhere O\n\n", ("--task pos",)),
        ("Dogs bark .\nThe cats do not .\n", ("text without labels",)),
    ],
)
def test_one_clear_sentence(dmf, tmp_path: Path, text: str, fragments: tuple[str, ...]) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "a.txt").write_text(text)
    outcome = dmf("train", tmp_path / "a.txt", "--output", tmp_path / "run")
    assert outcome.status == 2
    assert len(outcome.stderr.splitlines()) == 1
    assert all(fragment in outcome.stderr for fragment in ("a.txt", *fragments))
    assert not (tmp_path / "run").exists()


def test_the_command_that_comes_next_names_what_was_named(dmf, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    path = write_pos(tmp_path / "train data", 20)
    path.write_text("".join(f"x\t{line}\n" if line else "\n" for line in path.read_text().splitlines()))
    choices = ("--format", "columns", "--form-column", "2", "--tag-column", "3")
    settings = ("--set", "training.epochs=1")
    outcome = dmf("train", path, "--test", path, "--output", tmp_path / "run", *choices, *settings, *OPTIONS)
    assert outcome.status == 0, outcome.stderr
    command = outcome.stderr.splitlines()[-1].removeprefix("dmf: next: ")
    assert command.endswith(f"'{path}' --format columns --form-column 2 --tag-column 3")
    assert dmf(*shlex.split(command)[1:]).status == 0


@pytest.mark.parametrize("scheme", ["bio2", "iob1"])
def test_a_scheme_may_be_named_without_the_task(dmf, tmp_path: Path, scheme: str) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "train.txt"
    path.write_text(
        "Ada\tI-PER\nleft\tO\n\nRome\tI-LOC\n\n" * 20 if scheme == "iob1" else "Ada\tB-PER\nleft\tO\n\n" * 20
    )
    outcome = dmf("train", path, "--scheme", scheme, "--print-config")
    assert outcome.status == 0, outcome.stderr
    assert re.search(rf'^scheme += "{scheme}"', outcome.stdout.decode(), flags=re.MULTILINE)
    assert dmf("train", write_pos(path, 20), "--scheme", scheme, "--print-config").status == 2


def test_a_model_of_the_package_can_be_continued(dmf, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "train.txt"
    path.write_text("Ada\tB-PER\nleft\tO\n\n" * 20)
    outcome = dmf("train", path, "--from", "en-ner", "--print-config")
    assert outcome.status == 0, outcome.stderr
    assert "shipped/en-ner" in outcome.stdout.decode()


def test_the_columns_found_are_remembered(dmf, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "train.txt"
    path.write_text("Ada\tNNP\tB-PER\nleft\tVBD\tO\n\nBob\tNNP\tO\n\n" * 20)
    outcome = dmf("train", path, "--output", tmp_path / "run", "--set", "training.epochs=1", *OPTIONS)
    assert outcome.status == 0, outcome.stderr
    assert json.loads((tmp_path / "run/model/config.json").read_text())["source_columns"] == [1, 3]
    new = tmp_path / "new.txt"
    new.write_text("Ada\tNNP\nleft\tVBD\n")
    rows = [line.split("\t") for line in dmf("tag", tmp_path / "run/model", new).stdout.decode().splitlines()]
    assert [row[:2] for row in rows] == [["Ada", "NNP"], ["left", "VBD"]]
    assert {len(row) for row in rows} == {3}
    # In a file with yet another column, too.
    new.write_text("".join(f"{line}\tx\n" if line else "\n" for line in path.read_text().splitlines()))
    scores = [json.loads(dmf("evaluate", tmp_path / "run/model", file, "--json").stdout) for file in (path, new)]
    assert scores[0] == scores[1]


def test_standard_input_cannot_be_trained_on(dmf, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    outcome = dmf("train", "-", "--output", tmp_path / "run", stdin=b"a X\nb Y\n\n")
    assert outcome.status == 2
    assert "save training data to a file first, since resuming reads it again" in outcome.stderr
    path = write_pos(tmp_path / "train.tsv", 20)
    outcome = dmf("train", path, "--dev", "-", "--output", tmp_path / "run", *OPTIONS)
    assert outcome.stderr == (
        "dmf: data.dev cannot be standard input, since resuming reads it again; save it to a file first.\n"
    )
    assert outcome.status == 2
    assert not (tmp_path / "run").exists()


def test_pipes_cannot_be_trained_on(dmf, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    os.mkfifo(tmp_path / "pipe")
    for name in (tmp_path / "pipe", "/dev/null"):
        outcome = dmf("train", name, "--output", tmp_path / "run")
        assert outcome.status == 2
        assert outcome.stderr == (
            f"dmf: {name}: this is a pipe or a device; save training data to a file first, since resuming reads it again.\n"
        )


@pytest.mark.parametrize("option", ["--dev", "--test"])
def test_a_second_file_for_dev_or_test_is_not_ignored(dmf, option: str, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    path = write_pos(tmp_path / "train.tsv", 20)
    outcome = dmf("train", path, option, path, option, path, "--print-config")
    assert (outcome.status, outcome.stderr) == (2, f"dmf: there are 2 {option} files; give one.\n")


@pytest.mark.parametrize(
    ("options", "key"),
    [
        (["--set", "data.train=other.txt"], "data.train"),
        (["--dev", "train.tsv", "--set", "data.dev=other.txt"], "data.dev"),
        (["--encoder", "x", "--set", "encoder.kind=window"], "encoder.kind"),
    ],
)
def test_settings_given_twice_are_not_ignored(  # type: ignore[no-untyped-def]
    dmf, options: list[str], key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = write_pos(Path("train.tsv"), 20)
    outcome = dmf("train", path, *options, "--print-config")
    assert outcome.status == 2
    assert f"--set {key}=" in outcome.stderr
    assert outcome.stderr.endswith("leave out one of them.\n")
    assert outcome.stderr.count("\n") == 1
    same = ("--set", "data.train=train.tsv", "--seed", "3", "--set", "seed=3")
    assert dmf("train", path, *same, "--print-config").status == 0


def test_names_of_numbered_labels_are_remembered(dmf, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    path = write_pos(tmp_path / "train.tsv", 40, tags=("0", "1", "2"))
    settings = ("--system", "unigram", "--set", "training.epochs=1")
    for names, problem in (("NOUN,,ADJ", "an empty name"), ("NOUN,VERB, NOUN", "NOUN twice")):
        refused = dmf("train", path, "--label-names", names, "--output", tmp_path / "run")
        assert refused.stderr == (
            f"dmf: --label-names has {problem}; list the names in the order of their numbers, from 0.\n"
        )
    outcome = dmf("train", path, "--label-names", "NOUN, VERB ,ADJ", "--output", tmp_path / "run", *settings, *OPTIONS)
    assert outcome.status == 0, outcome.stderr
    model = tmp_path / "run/model"
    given = dmf("evaluate", model, path, "--label-names", "NOUN,VERB,ADJ", "--json")
    assert dmf("evaluate", model, path, "--json") == given
    assert "labels that the model does not know" not in given.stderr
    # A dataset that has its own names keeps them.
    rows = [{"label_names": ["ADJ", "NOUN"]}, {"tokens": ["a", "b"], "tags": [0, 1]}]
    (tmp_path / "own.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "none.jsonl").write_text(json.dumps(rows[1]) + "\n")
    tagger = Tagger.load(model, device="cpu")
    for name, labels in (("own", ("ADJ", "NOUN")), ("none", ("NOUN", "VERB"))):
        (sentence,) = read_gold(tagger, tmp_path / f"{name}.jsonl")
        assert sentence.labels == labels


def test_a_name_of_a_configuration_is_one_beside_a_folder_of_that_name(  # type: ignore[no-untyped-def]
    dmf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ner/quick").mkdir(parents=True)
    outcome = dmf("train", "ner/quick", "--print-config", "--set", "data.train=x")
    assert outcome.status == 0, outcome.stderr
    assert b"quick.toml" in outcome.stdout


def test_options_work_with_configurations_too(dmf, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    outcome = dmf("train", "ner/quick", "--dev", "d.txt", "--system", "lcrf", "--tag-column", "2", "--print-config")
    assert outcome.status == 0, outcome.stderr
    shown = [line.split("#")[0].split("=")[-1].strip() for line in outcome.stdout.decode().splitlines()]
    assert {'"d.txt"', '"lcrf"', '"2"'} <= set(shown)


def test_confusions_are_in_the_scheme_of_the_data(dmf, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    blocks = [f"Ada{i % 7}\tB-PER\nLace{i % 5}\tI-PER\nsaw\tO\nRome{i % 3}\tB-LOC\n" for i in range(20)]
    (tmp_path / "train.tsv").write_text("\n".join(blocks) + "\n")
    settings = ("--set", "training.epochs=1", "--set", "training.learning_rate=1e-9")
    outcome = dmf("train", tmp_path / "train.tsv", "--output", tmp_path / "run", *OPTIONS, *settings)
    assert outcome.status == 0, outcome.stderr
    pairs = json.loads((tmp_path / "run/model/metrics.json").read_text())["confusions"]["most_frequent"]
    named = {name for pair in pairs for name in (pair["gold"], pair["predicted"])}
    assert pairs
    assert named <= {"O", "B-PER", "I-PER", "B-LOC", "I-LOC", NO_LABEL}
    assert all(pair["gold"] != pair["predicted"] for pair in pairs)
