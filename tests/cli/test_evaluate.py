from __future__ import annotations

import json
import pathlib
import random
from collections.abc import Callable

import pytest
from small_models import WORDS, write_model

from diffusion_mf.data.corpus import Task
from diffusion_mf.data.label_schemes import LabelScheme


def gold_file(task: Task, folder: pathlib.Path) -> pathlib.Path:
    """Sentences of shuffled words or entities of the model's vocabulary, labelled as it knows them."""
    generator = random.Random(4)
    pairs = [pair.rsplit("/", 1) for pair in WORDS[task].split()]
    if task is Task.NER:
        pieces = [pairs[:2], *([pair] for pair in pairs[2:6]), pairs[6:9], pairs[9:]]
    elif task is Task.SEG_POS:
        pieces = [[["ab", "NN"]], [["c", "VV"]], [["def", "VV"]], [["g", "PU"]]]
    else:
        pieces = [[pair] for pair in pairs]
    sentences = [[pair for piece in generator.choices(pieces, k=4) for pair in piece] for _ in range(12)]
    if task is Task.NER:
        path = folder / "gold.bmes"
        path.write_text("\n".join("".join(f"{form}\t{tag}\n" for form, tag in sentence) for sentence in sentences))
        return path
    path = folder / "gold.conllu"
    path.write_text(
        "".join(
            "".join(f"{i}\t{form}\t_\t{tag}\t{tag}\t_\t_\t_\t_\t_\n" for i, (form, tag) in enumerate(sentence, 1))
            + "\n"
            for sentence in sentences
        )
    )
    return path


@pytest.mark.parametrize("task", Task)
@pytest.mark.parametrize("arguments", [[], ["--calls", "3"]])
def test_evaluation_is_tagging_and_scoring(
    dmf: Callable, tmp_path: pathlib.Path, task: Task, arguments: list[str]
) -> None:
    model = write_model(tmp_path / "model", task=task, seed=3)
    gold = gold_file(task, tmp_path)
    predicted = tmp_path / f"predicted{gold.suffix}"
    assert dmf("tag", model, gold, "--output", predicted, *arguments).status == 0
    scored = json.loads(dmf("score", gold, predicted, "--task", task, "--json").stdout)
    outcome = dmf("evaluate", model, gold, "--json", "--batch-tokens", "20", *arguments)
    assert outcome.status == 0, outcome.stderr
    evaluated = json.loads(outcome.stdout)
    assert {name: evaluated[name] for name in scored} == scored
    assert 0 < scored["accuracy"] < 100
    assert 0 <= evaluated["calibration_error"] <= 100
    assert (evaluated["system"], evaluated["calls"]) == ("diffusion-mf", 3 if arguments else None)
    assert "does not know" not in outcome.stderr


def test_readings_of_the_posterior_need_no_training(dmf: Callable, tmp_path: pathlib.Path) -> None:
    model = write_model(tmp_path / "model", task=Task.POS, seed=3)
    # A folder of before there was a choice.
    description = json.loads((model / "config.json").read_text())
    del description["config"]["inference"]["posterior"]
    (model / "config.json").write_text(json.dumps(description))
    (model / "manifest.json").unlink()
    gold = gold_file(Task.POS, tmp_path)
    found = {}
    for arguments in ([], *(["--posterior", name] for name in ("product", "mixture", "sampled"))):
        outcome = dmf("evaluate", model, gold, "--json", "--calls", 4, *arguments)
        assert outcome.status == 0, outcome.stderr
        values = json.loads(outcome.stdout)
        assert values.pop("posterior") == (arguments[1] if arguments else "product")
        found[arguments[1] if arguments else "as trained"] = values
    assert found["product"] == found["as trained"]
    assert len({values["mean_score"] for values in found.values()}) == 3
    unigram = write_model(tmp_path / "unigram", task=Task.POS, system="unigram")
    outcome = dmf("evaluate", unigram, gold, "--posterior", "mixture")
    assert (outcome.status, outcome.stderr) == (
        2, "dmf: the system unigram has no reverse posterior of labels; leave out the posterior.\n",
    )  # fmt: skip


def test_labels_that_the_model_does_not_know_are_said(dmf: Callable, tmp_path: pathlib.Path) -> None:
    model = write_model(tmp_path / "model", task=Task.POS, seed=3)
    gold = tmp_path / "gold.conllu"
    rows = [(1, "a", "ODD"), (2, "b", "STRANGE"), (3, "c", "ODD")]
    gold.write_text("".join(f"{i}\t{form}\t_\t{tag}\t_\t_\t_\t_\t_\t_\n" for i, form, tag in rows) + "\n")
    outcome = dmf("evaluate", model, gold)
    assert outcome.status == 0
    assert "3 of 3 units have labels that the model does not know (ODD, STRANGE)" in outcome.stderr


def test_malformed_predictions_score_the_same_both_ways(dmf: Callable, tmp_path: pathlib.Path) -> None:
    model = write_model(tmp_path / "model", seed=3)
    gold, predicted = gold_file(Task.NER, tmp_path), tmp_path / "predicted.bmes"
    dmf("tag", model, gold, "--output", predicted, "--decoder", "argmax")
    scored = json.loads(dmf("score", gold, predicted, "--task", "ner", "--json").stdout)
    assert scored["malformed_fragments"] > 0
    evaluated = json.loads(dmf("evaluate", model, gold, "--decoder", "argmax", "--json").stdout)
    assert {name: evaluated[name] for name in scored} == scored
    assert evaluated["decoder"] == "argmax"


@pytest.mark.parametrize(("options", "row"), [
    ({"settings": {"data": {"form_column": "2", "tag_column": "3"}}}, "x\t{}\t{}\tO"),
    ({"source_columns": (1, 3)}, "{}\tx\t{}\tx"),
])  # fmt: skip
def test_columns_are_those_of_the_training_data(dmf: Callable, tmp_path: pathlib.Path, options: dict, row: str) -> None:
    """Unless a file does not have them, or others are named."""
    gold = gold_file(Task.NER, tmp_path)
    text = gold.read_text()
    scores = json.loads(dmf("evaluate", write_model(tmp_path / "plain", seed=3), gold, "--json").stdout)
    model = write_model(tmp_path / "model", seed=3, **options)
    wide = tmp_path / "wide.bmes"
    wide.write_text("".join(f"{row.format(*line.split())}\n" if line else "\n" for line in text.splitlines()))
    for command in (
        ("evaluate", model, wide),
        ("evaluate", model, wide, "--tag-column", "3"),
        ("evaluate", model, gold),
    ):
        outcome = dmf(*command, "--json")
        assert outcome.status == 0, outcome.stderr
        assert json.loads(outcome.stdout) == scores
    assert json.loads(dmf("errors", model, wide, "--json").stdout)["metrics"]["f1"] == scores["f1"]
    other = dmf("evaluate", model, wide, "--tag-column", "4", "--json")
    assert other.stdout != dmf("evaluate", model, wide, "--json").stdout
    tagged = dmf("tag", model, wide).stdout.decode().splitlines()
    predicted = dmf("tag", tmp_path / "plain", gold).stdout.decode().splitlines()
    assert tagged == [row.format(*line.split()) if line else "" for line in predicted]
    # Numbered rows are read as such, whatever column held the words in training.
    numbered = tmp_path / "numbered.iob2"
    places = [index for block in text.split("\n\n") for index in (*range(1, 1 + len(block.splitlines())), 0)]
    numbered.write_text(
        "".join(f"{n}\t{line}\t-\t-\n" if line else "\n" for n, line in zip(places, text.splitlines(), strict=False))
    )
    if "source_columns" in options:
        assert json.loads(dmf("evaluate", model, numbered, "--json").stdout) == scores


def test_the_scheme_shown_is_that_of_the_training_data(dmf: Callable, tmp_path: pathlib.Path) -> None:
    model = write_model(tmp_path / "model", source_scheme=LabelScheme.BIO2)
    shown = dmf("evaluate", model, gold_file(Task.NER, tmp_path)).stdout.decode()
    assert "bio2" in shown
    assert "bmes" not in shown


def test_tables(dmf: Callable, tmp_path: pathlib.Path) -> None:
    model = write_model(tmp_path / "model", task=Task.POS)
    outcome = dmf("evaluate", model, gold_file(Task.POS, tmp_path), "--details")
    text = outcome.stdout.decode()
    for words in ("accuracy", "exact match", "calibration error", "diffusion-mf, argmax", "units in the sentence"):
        assert words in text


def test_calibration_of_scores_is_measured(dmf: Callable, tmp_path: pathlib.Path) -> None:
    gold = gold_file(Task.POS, tmp_path)
    errors = []
    for temperature in (0.1, 50.0):
        model = write_model(tmp_path / f"model-{temperature}", task=Task.POS, temperature=temperature)
        values = json.loads(dmf("evaluate", model, gold, "--json").stdout)
        errors.append((values["accuracy"], values["mean_score"], values["calibration_error"]))
    (sure_accuracy, sure_score, sure_error), (modest_accuracy, modest_score, modest_error) = errors
    assert sure_accuracy == modest_accuracy
    assert sure_score > 95
    assert modest_score < 50
    # A random model that is always sure is off by almost all of its errors.
    assert sure_error > modest_error
    assert sure_error == pytest.approx(sure_score - sure_accuracy, abs=5)


@pytest.mark.parametrize(("text", "message"), [
    ("", "contains no sentences"),
    ("Ada\tB-PER\nsings\tQ-ORG\n", "line 2: the tag 'Q-ORG' has no boundary prefix"),
    ("Ada\n", "no labels"),
])  # fmt: skip
def test_bad_files_are_one_sentence(dmf: Callable, tmp_path: pathlib.Path, text: str, message: str) -> None:
    model = write_model(tmp_path / "model")
    path = tmp_path / "gold.bmes"
    path.write_text(text)
    outcome = dmf("evaluate", model, path)
    assert outcome.status == 2
    assert message in outcome.stderr
    assert outcome.stderr.count("\n") == 1


def test_irregular_gold_is_repaired_unless_strict(dmf: Callable, tmp_path: pathlib.Path) -> None:
    model = write_model(tmp_path / "model")
    path = tmp_path / "gold.bmes"
    path.write_text("Ada\tB-PER\nsings\tM-ORG\n")
    outcome = dmf("evaluate", model, path, "--json", "--details")
    assert outcome.status == 0
    assert f"{path}: 2 spans with irregular tags repaired, first on line 1 (B-PER read as S-PER)" in outcome.stderr
    support = {row["label"]: row["support"] for row in json.loads(outcome.stdout)["types"]}
    assert (support["PER"], support["ORG"]) == (1, 1)
    outcome = dmf("evaluate", model, path, "--strict")
    assert outcome.status == 2
    assert "line 2: 'M-ORG' cannot follow 'B-PER' in the scheme bmes" in outcome.stderr


def test_gold_without_a_label_is_one_sentence(dmf: Callable, tmp_path: pathlib.Path) -> None:
    model = write_model(tmp_path / "model", task=Task.POS)
    path = tmp_path / "gold.conllu"
    path.write_text("1\ta\t_\tX\t_\t_\t_\t_\t_\t_\n2\tb\t_\t_\t_\t_\t_\t_\t_\t_\n\n")
    outcome = dmf("evaluate", model, path)
    assert (outcome.status, outcome.stderr.count("\n")) == (2, 1)
    assert "'b' has no label" in outcome.stderr
