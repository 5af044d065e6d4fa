"""Rows of learning curves, significance on made-up counts, tables and plots."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy
import pytest

from diffusion_mf.errors import InputError
from diffusion_mf.lab.experiments.folders import ExperimentFolder
from diffusion_mf.lab.experiments.plots import new_figure, save_figure
from diffusion_mf.lab.experiments.size_curves import (
    compare,
    read_size_rows,
    significance_rows,
    summary_rows,
    write_size_plot,
)

WHERE = {"command": "dmf benchmark sizes", "commit": "c", "hardware": "h", "versions": {}, "date": "d"}


def counts_with(accuracy: float, *, number: int = 400, seed: int = 0) -> Any:
    """Sentences of ten labels, of which a share is right."""
    right = numpy.random.default_rng(seed).binomial(10, accuracy, size=number)
    return numpy.stack([right, numpy.full(number, 10), numpy.full(number, 10)], axis=1)


def save(folder: ExperimentFolder, counts: Any, **values: Any) -> None:
    name = ".".join(str(values[key]) for key in ("corpus", "system", "size", "seed", "device"))
    place = folder.run(name)
    place.root.mkdir(parents=True)
    score = 100 * counts[:, 0].sum() / counts[:, 2].sum()
    metrics = {"accuracy": score, "exact_match": 50.0}
    size = 12_000 if values["size"] == "all" else values["size"]
    place.save_result(
        {
            "name": name, "task": "pos", "metric": "accuracy", "dev": metrics, "test": metrics, "seconds": 2.0,
            "sentences": size, **values, **WHERE,
        }
    )  # fmt: skip
    numpy.savez_compressed(place.root / "counts.npz", test=counts.astype(numpy.uint16))


@pytest.fixture
def folder(tmp_path: Path) -> ExperimentFolder:
    """Unigram is far below python-crfsuite on 500 sentences, as good on 1,000, and better on all."""
    found = ExperimentFolder(tmp_path / "runs")
    for size, accuracy in ((100, 0.5), (500, 0.8), (1000, 0.9), ("all", 0.95)):
        for seed in (1, 2):
            where = {"corpus": "c", "size": size, "seed": seed}
            save(found, counts_with(accuracy, seed=seed), **where, system="unigram", device="cuda")
            if size != "all" or seed == 1:
                save(found, counts_with(0.9, seed=seed), **where, system="python-crfsuite", device="cpu")
    return found


def names(folder: ExperimentFolder) -> list[str]:
    return sorted(path.name for path in (folder.root / "runs").iterdir())


def test_runs_of_other_plans_in_the_folder_do_not_count(folder: ExperimentFolder) -> None:
    rows, counts = read_size_rows(folder, [*names(folder)[:2], "not-finished"])
    assert [row["name"] for row in rows] == [*counts] == names(folder)[:2]


def test_differences_between_counts() -> None:
    low, high = counts_with(0.8), counts_with(0.9, seed=1)
    below = compare([low], [high], resamples=500)
    assert below["p_below"] == 0
    assert below["difference"] == pytest.approx(10 * (low[:, 0].mean() - high[:, 0].mean()), abs=0.001)
    assert below["low"] < below["difference"] < below["high"] < 0
    above = compare([high], [low], resamples=500)
    assert above["p_below"] == 1
    assert above["difference"] == -below["difference"]
    assert compare([low], [low], resamples=100)["p_below"] == 1
    # Means over seeds: one seed below and one above say nothing together.
    assert compare([low, high], [high, low], resamples=100)["difference"] == 0
    with pytest.raises(ValueError, match="different test sentences"):
        compare([low], [high[:-1]])


def test_bootstrap_agrees_with_the_standard_error() -> None:
    ours, theirs = counts_with(0.85, seed=1), counts_with(0.85, seed=2)
    found = compare([ours], [theirs], resamples=4000)
    error = 10 * (ours[:, 0] - theirs[:, 0]).std() / numpy.sqrt(len(ours))
    assert found["high"] - found["low"] == pytest.approx(2 * 1.96 * error, rel=0.06)


def test_f1_is_of_summed_counts() -> None:
    counts = numpy.array([[1, 2, 1], [0, 0, 3], [2, 2, 2]])
    nothing = numpy.array([[0, 0, 1], [0, 0, 3], [0, 0, 2]])
    assert compare([counts], [nothing], resamples=10)["difference"] == pytest.approx(100 * 6 / 10)


def test_rows_are_complete_and_ordered(folder: ExperimentFolder) -> None:
    rows, counts = read_size_rows(folder, names(folder))
    assert len(rows) == 15
    assert [row["size"] for row in rows[::4]] == [100, 500, 1000, "all"]
    assert counts.keys() == {row["name"] for row in rows}
    assert all({"dev", "test", "exact_match", "seconds", *WHERE} <= row.keys() for row in rows)
    json.dumps(rows, allow_nan=False)
    (all_of_unigram,) = [row for row in summary_rows(rows) if (row["size"], row["system"]) == ("all", "unigram")]
    assert all_of_unigram["seeds"] == [1, 2]
    assert all_of_unigram["test_sd"] is not None


def test_significance_from_500_sentences_on(folder: ExperimentFolder) -> None:
    rows, counts = read_size_rows(folder, names(folder))
    found = significance_rows(rows, counts, resamples=200)
    assert [(row["size"], row["is_below"], row["seeds"]) for row in found] == [
        (500, True, [1, 2]), (1000, False, [1, 2]), ("all", False, [1, 2]),
    ]  # fmt: skip
    assert found[1]["difference"] == 0
    assert found[2]["low"] > 0
    assert all(row["experiment"] == "significance" for row in found)
    # Seeds without a counterpart are left out: they learnt from other samples.
    without = [row for row in rows if (row["system"], row["seed"], row["size"]) != ("python-crfsuite", 2, 500)]
    assert significance_rows(without, counts, resamples=20)[0]["seeds"] == [1]


def test_the_plot_is_written(folder: ExperimentFolder, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    rows, _ = read_size_rows(folder, names(folder))
    write_size_plot(rows, tmp_path / "plots" / "sizes.png")
    assert (tmp_path / "plots" / "sizes.png").read_bytes().startswith(b"\x89PNG")
    write_size_plot([row for row in rows if row["size"] == 500], tmp_path / "one-size.svg")
    assert "<svg" in (tmp_path / "one-size.svg").read_text()


def test_a_plot_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="the folder cannot be created"):
        save_figure(new_figure(), tmp_path / "file" / "plot.png")
    with pytest.raises(InputError, match="this is a directory"):
        save_figure(new_figure(), tmp_path)
