"""``dmf benchmark scaling``, ``sharing`` and ``agreement`` on tiny models."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import small_models
import small_runs

SMALL = [
    *("encoder.width=16", "encoder.layers=1", "encoder.heads=2", "encoder.word_width=8"),
    *("encoder.character_width=4", "encoder.character_hidden=4"),
    *("denoiser.width=16", "denoiser.layers=1", "denoiser.heads=2", "denoiser.time_width=8"),
    *("structure.scorer_width=8", "structure.num_iterations=2"),
]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_runs.write_small_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def options(corpus: Path) -> list[str]:
    data = [f"data.{split}={corpus / split}.txt" for split in ("train", "dev", "test")]
    found = ["--device", "cpu"]
    for setting in (*SMALL, *data, "data.format=columns"):
        found += ["--set", setting]
    return found


def test_scaling(dmf, options: list[str], tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    output = tmp_path / "efficiency.json"
    sizes = ("--times", "1,3", "--lengths", "5,60", "--units", "120", "--repeats", "1")
    outcome = dmf("benchmark", "scaling", "--task", "ner", *sizes, *options, "--json", "--output", output)
    assert outcome.status == 0, outcome.stderr
    rows = json.loads(outcome.stdout)
    assert rows == json.loads(output.read_text())
    assert {row["benchmark"] for row in rows} == {"scaling"}
    found = [(row["phase"], row["setting"], row["sentences"]) for row in rows]
    assert found == [
        *[("training", "1× data", 48), ("training", "3× data", 144)],
        *[("inference", "1× data", 16), ("inference", "3× data", 48)],
        *[("inference", "5 units", 24), ("inference", "60 units", 2)],
    ]
    assert rows[0]["relative"] == 1
    assert rows[1]["relative"] == pytest.approx(rows[1]["sentences_per_second"] / rows[0]["sentences_per_second"])
    assert rows[3]["relative"] == pytest.approx(rows[3]["sentences_per_second"] / rows[2]["sentences_per_second"])
    assert rows[1]["sentences_per_second"] == pytest.approx(144 / rows[1]["seconds"][0])
    # Two sentences of 60 units and 24 of 5 take about the same time.
    assert rows[-1]["milliseconds_per_sentence"] > rows[-2]["milliseconds_per_sentence"]
    assert rows[-1]["microseconds_per_unit"] == pytest.approx(1e3 * rows[-1]["milliseconds_per_sentence"] / 60)


def test_sharing(dmf, options: list[str], tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    output = tmp_path / "efficiency.json"
    small = ("--counts", "2", "--seconds", "0.3", "--set", "training.threads=1")
    outcome = dmf("benchmark", "sharing", "--task", "ner", *small, *options, "--output", output)
    assert outcome.status == 0, outcome.stderr
    assert "runs at a time" in outcome.stdout.decode()
    (row,) = json.loads(output.read_text())
    assert (row["benchmark"], row["setting"], row["system"]) == ("sharing", 2, "diffusion-mf")
    assert len(row["sentences_per_second_each"]) == 2
    assert sum(row["sentences_per_second_each"]) == pytest.approx(row["sentences_per_second"])
    assert all(seconds >= 0.3 for seconds in row["seconds"])


def test_data_that_cannot_be_read(dmf, options: list[str]) -> None:  # type: ignore[no-untyped-def]
    outcome = dmf("benchmark", "sharing", "--task", "ner", *options, "--set", "data.train=nowhere.txt")
    assert outcome.status == 2
    assert "nowhere.txt" in outcome.stderr


def test_agreement(dmf, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    folder = small_models.write_model(tmp_path / "model")
    file = tmp_path / "dev.txt"
    file.write_text("Ada B-PER\nByron E-PER\nsings O\n\nEve S-PER\nin O\nOslo S-LOC\n\n")
    arguments = (folder, file, "--device", "cpu", "--json", "--output", tmp_path / "efficiency.json")
    outcome = dmf("benchmark", "agreement", *arguments)
    assert outcome.status == 0, outcome.stderr
    rows = json.loads(outcome.stdout)
    assert [row["implementation"] for row in rows] == ["plain eager", "fast"]
    assert {row["units"] for row in rows} == {6}
    assert rows[1]["share_labelled_differently"] == 0
    assert rows[1]["largest_marginal_difference"] < 1e-4


def test_tables(dmf, options: list[str], tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """What people read: the calls, the time of a sentence, the differences between paths."""
    arguments = ("--tasks", "ner", "--systems", "diffusion-mf")
    outcome = dmf("benchmark", "throughput", *arguments, *options, "--repeats", "1")
    header, row = (line for line in outcome.stdout.decode().splitlines() if "calls" in line or "inference" in line)
    assert header.split()[-3:] == ["%", "peak", "GB"]
    assert "10" in row.split()
    sizes = ("--task", "ner", "--times", "1", "--lengths", "40", "--units", "80", "--repeats", "1")
    table = dmf("benchmark", "scaling", *sizes, *options).stdout.decode()
    assert "1× data" in table
    assert "40 units" in table
    file = tmp_path / "dev.txt"
    file.write_text("Ada B-PER\nByron E-PER\nsings O\n\n")
    folder = small_models.write_model(tmp_path / "model")
    table = dmf("benchmark", "agreement", folder, file, "--device", "cpu").stdout.decode()
    assert "plain eager" in table


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("scaling", "--task", "nar"), "unknown task 'nar'"),
        (("scaling", "--times", "1,x"), "'1,x' is not a list of numbers"),
        (("sharing", "--counts", "0"), "'0' is not a list of numbers"),
        (("agreement", "model", "file", "--precision", "half"), "'half' is not one of"),
    ],
)
def test_what_cannot_be_measured(dmf, arguments: tuple[str, ...], message: str) -> None:  # type: ignore[no-untyped-def]
    outcome = dmf("benchmark", *arguments, "--device", "cpu")
    assert outcome.status == 2
    assert message in outcome.stderr


@pytest.mark.parametrize("benchmark", ["scaling", "agreement"])
def test_repaired_tags_are_told(dmf, options: list[str], corpus: Path, tmp_path: Path, benchmark: str) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "dev.txt"
    path.write_text("Mira E-PER\n\n" + (corpus / "dev.txt").read_text())
    sizes = ("--times", "1", "--lengths", "5", "--units", "20", "--repeats", "1")
    arguments = ("--task", "ner", *sizes, *options, "--set", f"data.dev={path}")
    if benchmark == "agreement":
        arguments = (small_models.write_model(tmp_path / "model"), path, "--device", "cpu")
    outcome = dmf("benchmark", benchmark, *arguments)
    assert outcome.status == 0, outcome.stderr
    assert f"dmf: {path}: 1 span with irregular tags repaired, first on line 1" in outcome.stderr
