from __future__ import annotations

import json
import pathlib
from collections.abc import Callable

import pytest
from small_models import write_model
from test_evaluate import gold_file

from diffusion_mf.data.corpus import Task
from diffusion_mf.data.label_schemes import LabelScheme

METRIC = {Task.POS: "accuracy", Task.NER: "f1", Task.SEG_POS: "joint_f1"}


@pytest.mark.parametrize("task", Task)
def test_mistakes_are_what_tagging_gets_wrong(dmf: Callable, tmp_path: pathlib.Path, task: Task) -> None:
    model, gold = write_model(tmp_path / "model", task=task, seed=3), gold_file(task, tmp_path)
    outcome = dmf("errors", model, gold, "--json", "--uncertain", 4)
    assert outcome.status == 0, outcome.stderr
    found = json.loads(outcome.stdout)
    predicted = tmp_path / f"predicted{gold.suffix}"
    assert dmf("tag", model, gold, "--output", predicted).status == 0
    scored = json.loads(dmf("score", gold, predicted, "--task", task, "--json", "--details").stdout)
    assert found["metrics"] == {name: scored[name] for name in found["metrics"]}
    wrong = {
        (row["gold"], row["predicted"]): row["count"] for row in scored["confusion"] if row["gold"] != row["predicted"]
    }
    assert {(row["gold"], row["predicted"]): row["count"] for row in found["confusions"]} == wrong
    assert all(len(row["units"]) == row["count"] for row in found["confusions"])
    assert found["mistakes"] == sum(wrong.values())
    assert found["units"] == scored["units"]
    labels = found["matrix"]["labels"]
    for row, counts in zip(labels, found["matrix"]["counts"], strict=True):
        for column, count in zip(labels, counts, strict=True):
            assert row == column or wrong.get((row, column), 0) == count
    assert len(found["least_certain"]) == 4
    scores = [unit["score"] for unit in found["least_certain"]]
    assert scores == sorted(scores)
    units = [unit for row in found["confusions"] for unit in row["units"]]
    assert all(unit["second"] != unit["predicted"] and 0 <= unit["second_score"] <= 1 for unit in units)
    assert bool(found["spans"]) == (task is not Task.POS)


def test_lines_name_the_units_of_a_column_file(dmf: Callable, tmp_path: pathlib.Path) -> None:
    model, gold = write_model(tmp_path / "model", seed=3), gold_file(Task.NER, tmp_path)
    lines = gold.read_text().splitlines()
    found = json.loads(dmf("errors", model, gold, "--json").stdout)
    for row in found["confusions"]:
        for unit in row["units"]:
            form, label = lines[unit["line"] - 1].split("\t")
            assert f"[{form}]" in unit["context"]
            assert label == unit["gold"]


def test_labels_are_in_the_scheme_of_the_training_data(dmf: Callable, tmp_path: pathlib.Path) -> None:
    model = write_model(tmp_path / "model", seed=3, source_scheme=LabelScheme.BIO2)
    found = json.loads(dmf("errors", model, gold_file(Task.NER, tmp_path), "--json").stdout)
    assert {label[0] for label in found["matrix"]["labels"]} == {"B", "I", "O"}


def test_the_tables(dmf: Callable, tmp_path: pathlib.Path) -> None:
    model, gold = write_model(tmp_path / "model", seed=3), gold_file(Task.NER, tmp_path)
    outcome = dmf("errors", model, gold, "--groups", 2, "--examples", 1, "--uncertain", 2)
    assert outcome.status == 0, outcome.stderr
    text = outcome.stdout.decode()
    assert "units in 12 sentences have a wrong label" in text
    assert "The 2 most frequent of" in text
    assert text.count("most confident first") == 2
    for words in ("missed", "Labels with the most mistakes", "Least certain, right or wrong", "second best"):
        assert words in text


@pytest.mark.parametrize("task", Task)
def test_two_models_are_compared(dmf: Callable, tmp_path: pathlib.Path, task: Task) -> None:
    first = write_model(tmp_path / "first", task=task, seed=3)
    second = write_model(tmp_path / "second", "lcrf", task=task, seed=5)
    gold = gold_file(task, tmp_path)
    outcome = dmf("errors", first, second, gold, "--json")
    assert outcome.status == 0, outcome.stderr
    found = json.loads(outcome.stdout)
    alone = [json.loads(dmf("errors", model, gold, "--json").stdout) for model in (first, second)]
    test = found["tests"][METRIC[task]]
    assert (test["first"], test["second"]) == pytest.approx([each["metrics"][METRIC[task]] for each in alone])
    assert 0 < test["p_value"] <= 1
    only_first, only_second = (len(found[f"only_{name}_right"]) for name in ("first", "second"))
    assert only_second + found["both_wrong"] == alone[0]["mistakes"]
    assert only_first + found["both_wrong"] == alone[1]["mistakes"]
    assert found["both_right"] + only_first + only_second + found["both_wrong"] == found["units"]
    text = dmf("errors", first, second, gold).stdout.decode()
    assert "approximate randomisation" in text
    assert "Only the first right" in text


def test_a_model_does_not_differ_from_itself(dmf: Callable, tmp_path: pathlib.Path) -> None:
    model, gold = write_model(tmp_path / "model"), gold_file(Task.NER, tmp_path)
    found = json.loads(dmf("errors", model, model, gold, "--json").stdout)
    assert found["tests"]["f1"]["p_value"] == 1.0
    assert found["only_first_right"] == found["only_second_right"] == []


def test_what_cannot_be_compared_is_said(dmf: Callable, tmp_path: pathlib.Path) -> None:
    ner, pos = (write_model(tmp_path / task, task=task) for task in (Task.NER, Task.POS))
    gold = gold_file(Task.NER, tmp_path)
    outcome = dmf("errors", ner, pos, gold)
    assert (outcome.status, outcome.stderr) == (
        2,
        f"dmf: {pos}: a model of the task pos, but {ner} is one of the task ner; compare models of one task.\n",
    )
    outcome = dmf("errors", ner)
    assert (outcome.status, outcome.stderr) == (
        2,
        "dmf: there is 1 argument; give one or two models, and then one labelled file.\n",
    )
    assert dmf("errors", ner, ner, ner, gold).status == 2
