"""``dmf benchmark throughput``, ``mean-field`` and ``schedule`` on tiny models: what they measure, print and keep."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import small_runs

from diffusion_mf.tagger import load_model
from diffusion_mf.training.loop import train

SMALL = [
    *("encoder.width=16", "encoder.layers=1", "encoder.heads=2", "encoder.word_width=8"),
    *("encoder.character_width=4", "encoder.character_hidden=4"),
    *("denoiser.width=16", "denoiser.heads=2", "denoiser.time_width=8", "structure.scorer_width=8"),
]


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = small_runs.write_small_corpus(tmp_path_factory.mktemp("corpus"))
    data = [f"data.{split}={folder / split}.txt" for split in ("train", "dev", "test")]
    found = ["--device", "cpu"]
    for setting in (*SMALL, *data, "data.format=columns"):
        found += ["--set", setting]
    return found


def test_throughput(dmf, options: list[str], tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    arguments = ("--tasks", "ner", "--systems", "diffusion-uni,diffusion-mf", "--compare")
    outcome = dmf("benchmark", "throughput", *arguments, *options, "--json", "--output", tmp_path / "efficiency.json")
    assert outcome.status == 0, outcome.stderr
    rows = json.loads(outcome.stdout)
    assert rows == json.loads((tmp_path / "efficiency.json").read_text())
    cells = {(row["system"], row["phase"], row["implementation"]) for row in rows}
    assert len(cells) == len(rows) == 8
    for row in rows:
        assert row["corpus"] == "conll2003"
        assert row["sentences_per_second"] > 0
        assert len(row["seconds"]) == 5
        assert 0 < row["utilisation"] < 1
        assert {"command", "commit", "hardware", "versions", "date", "parameters"} <= set(row)
    published = {(row["system"], row["phase"]): row["paper_sentences_per_second"] for row in rows}
    assert published["diffusion-mf", "training"] == 237.1
    assert published["diffusion-uni", "inference"] == 345.9


def test_the_table_and_repaired_tags(dmf, options: list[str], tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    corpus = small_runs.write_small_corpus(tmp_path)
    path = tmp_path / "repaired.txt"
    path.write_text("Mira E-PER\n\n" + (corpus / "dev.txt").read_text())
    arguments = ("--tasks", "ner", "--systems", "diffusion-mf", *options, "--repeats", "1", "--set", f"data.dev={path}")
    outcome = dmf("benchmark", "throughput", *arguments)
    assert outcome.status == 0, outcome.stderr
    header, row = (line for line in outcome.stdout.decode().splitlines() if "calls" in line or "inference" in line)
    assert header.split()[-3:] == ["%", "peak", "GB"]
    assert "10" in row.split()
    assert f"dmf: {path}: 1 span with irregular tags repaired, first on line 1" in outcome.stderr


def test_schedules_make_fewer_calls_with_a_larger_base(dmf, options: list[str]) -> None:  # type: ignore[no-untyped-def]
    outcome = dmf("benchmark", "schedule", *options, "--json")
    assert outcome.status == 0, outcome.stderr
    rows = [row for row in json.loads(outcome.stdout) if row["system"] == "diffusion-mf"]
    assert [row["setting"] for row in rows] == [1.5, 2.0, 3.0, 4.0]
    calls = [row["num_calls"] for row in rows]
    assert calls == sorted(calls, reverse=True)
    assert calls[1] == 10
    # The paper's models have a pretrained encoder, these have not.
    assert {row["paper_sentences_per_second"] for row in rows} == {row["ratio_to_paper"] for row in rows} == {None}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(("--tasks", "nar"), "unknown task 'nar'"), (("--systems", "lcrf"), "'lcrf' is not measured here")],
)
def test_what_cannot_be_measured(dmf, arguments: tuple[str, str], message: str) -> None:  # type: ignore[no-untyped-def]
    outcome = dmf("benchmark", "throughput", *arguments, "--device", "cpu")
    assert outcome.status == 2
    assert message in outcome.stderr


def test_iterations_are_those_asked_for(dmf, options: list[str]) -> None:  # type: ignore[no-untyped-def]
    outcome = dmf("benchmark", "mean-field", "--iterations", "2,20", *options, "--json")
    assert outcome.status == 0, outcome.stderr
    rows = [row for row in json.loads(outcome.stdout) if row["phase"] == "inference"]
    assert [row["setting"] for row in rows if row["system"] == "diffusion-mf"] == [2, 20]
    assert {row["relative"] for row in rows if row["setting"] == 2} == {1}
    # The paper has no figure for twenty.
    assert {row["setting"]: row["paper_relative"] is None for row in rows} == {2: False, 20: True}
    outcome = dmf("benchmark", "mean-field", "--iterations", "0,1", *options)
    assert (outcome.status, outcome.stderr.count("\n")) == (2, 1)
    assert outcome.stderr.startswith("dmf: --iterations: '0,1' is not a list of numbers")


def test_a_trained_model_is_measured_with_ten_calls_and_its_own(dmf, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    corpus = small_runs.write_small_corpus(tmp_path / "conll2003").rename(tmp_path / "conll2003" / "renamed")
    config = small_runs.small_config(corpus, {"inference": {"num_calls": "auto"}, "training": {"epochs": 1}})
    model = train(config, output=tmp_path / "run", device="cpu")
    arguments = ("--model", model, "--device", "cpu", "--repeats", "2")
    outcome = dmf("benchmark", "throughput", *arguments, "--json", "--output", tmp_path / "efficiency.json")
    assert outcome.status == 0, outcome.stderr
    rows = json.loads(outcome.stdout)
    assert rows == json.loads((tmp_path / "efficiency.json").read_text())
    chosen = load_model(model).chosen_calls
    assert [row["num_calls"] for row in rows] == sorted({10, chosen}, reverse=True)
    table = {row["calls"]: row for row in load_model(model).metrics["calls"]}
    for row in rows:
        assert (row["setting"], row["chosen_calls"], len(row["seconds"])) == ("trained", chosen, 2)
        assert row["dev_score"] == table[row["num_calls"]]["f1"]
        assert row["dev_exact_match"] == table[row["num_calls"]]["exact_match"]
        # Not the paper's corpus, by its place.
        assert (row["corpus"], row["ratio_to_paper"]) == ("dev", None)
