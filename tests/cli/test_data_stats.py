"""``dmf data stats``: fields, order, OOV rates, tables."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


def conllu(*words: str) -> str:
    """Words given as form/upos/xpos."""
    fields = [word.split("/") for word in words]
    return "".join(f"{i}\t{f}\t_\t{u}\t{x}\t_\t_\t_\t_\t_\n" for i, (f, u, x) in enumerate(fields, 1)) + "\n"


@pytest.fixture
def splits(tmp_path: Path) -> dict[str, Path]:
    paths = {name: tmp_path / f"{name}.conllu" for name in ("train", "dev", "test")}
    paths["train"].write_text(conllu("ab/DET/D", "c/NOUN/N") * 2 + conllu("Ab/DET/D", "c/NOUN/N", "c/NOUN/N"))
    paths["dev"].write_text(conllu("ab/DET/D", "d/NOUN/N", "c/NOUN/N"))
    paths["test"].write_text(conllu("d/NOUN/N"))
    return paths


def test_json_is_a_list_in_the_order_given(dmf, splits: dict[str, Path]) -> None:
    outcome = dmf("data", "stats", splits["dev"], splits["train"], "--task", "pos", "--json")
    assert (outcome.status, outcome.stderr) == (0, "")
    dev, train = json.loads(outcome.stdout)
    assert (dev["file"], train["file"]) == (str(splits["dev"]), str(splits["train"]))
    assert dev["oov"] is None
    figures = {
        "sentences": 3,
        "units": 7,
        "mean": 2.3,
        "median": 2,
        "p95": 3,
        "max": 3,
        "labels": 2,
        "duplicates": 1,
        "vocabulary": 3,
        "label_entropy": 0.985,
        "top5_percent": 100.0,
        "label_counts": {"NOUN": 4, "DET": 3},
        "top_labels": [{"label": "NOUN", "percent": 57.1}, {"label": "DET", "percent": 42.9}],
        "label_bins": {">=10": 2, "1-10": 0, "0.1-1": 0, "<0.1": 0},
    }
    assert {name: train[name] for name in figures} == figures


def test_oov_rates_refer_to_train(dmf, splits: dict[str, Path]) -> None:
    arguments = [argument for name, path in splits.items() for argument in (f"--{name}", path)]
    outcome = dmf("data", "stats", "--task", "pos", "--json", *arguments)
    rows = json.loads(outcome.stdout)
    assert [(row["split"], row["oov"], row["oov_units"]) for row in rows] == [
        ("train", None, None),
        ("dev", 33.33, 1),
        ("test", 100.0, 1),
    ]


def test_units_and_columns_follow_the_task(dmf, splits: dict[str, Path]) -> None:
    (row,) = json.loads(dmf("data", "stats", splits["dev"], "--task", "seg-pos", "--json").stdout)
    assert (row["units"], row["label_counts"]) == (4, {"S-N": 2, "B-D": 1, "E-D": 1})
    (row,) = json.loads(dmf("data", "stats", splits["dev"], "--task", "pos", "--column", "xpos", "--json").stdout)
    assert row["label_counts"] == {"N": 2, "D": 1}


def test_the_detected_scheme_is_reported(dmf, tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("a I-X\nb O\n")
    outcome = dmf("data", "stats", path, "--task", "ner", "--json")
    assert "scheme iob1 (detected)" in outcome.stderr
    assert json.loads(outcome.stdout)[0]["label_counts"] == {"O": 1, "S-X": 1}
    assert "scheme iob1 (as given)" in dmf("data", "stats", path, "--task", "ner", "--scheme", "iob1").stderr


def test_tables_show_the_same_figures_whole(dmf, splits: dict[str, Path]) -> None:
    outcome = dmf("data", "stats", "--task", "pos", "--train", splits["train"], "--dev", splits["dev"])
    text = outcome.stdout.decode()
    lines = [line.split() for line in text.splitlines()]
    assert ["train:", "train.conllu", "3", "7", "2.3", "2", "3", "3", "2", "1"] in lines
    assert ["train:", "train.conllu", "3", "–", "0.985"] in lines
    assert ["dev:", "dev.conllu", "3", "33.33", "0.918"] in lines
    assert "NOUN 57.1; DET 42.9" in text


def test_documents_are_counted_where_they_are_marked(dmf, splits: dict[str, Path]) -> None:
    assert "documents" not in dmf("data", "stats", splits["train"], "--task", "pos").stdout.decode()
    splits["dev"].write_text("# newdoc\n" + splits["train"].read_text())
    arguments = ("data", "stats", splits["train"], splits["dev"], "--task", "pos")
    assert [row["documents"] for row in json.loads(dmf(*arguments, "--json").stdout)] == [0, 1]
    lines = [line.split() for line in dmf(*arguments).stdout.decode().splitlines()]
    assert ["dev.conllu", "3", "7", "2.3", "2", "3", "3", "2", "1", "1"] in lines


def test_the_console_script_runs_and_a_pipe_is_read(splits: dict[str, Path]) -> None:
    command = [sys.executable, "-c", "from diffusion_mf.cli import main; main()"]
    done = subprocess.run(
        [*command, "data", "stats", "-", "--task", "pos", "--json"],
        input=splits["train"].read_bytes(),
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert json.loads(done.stdout)[0]["units"] == 7
    refused = subprocess.run([*command, "data", "stats", "no-such", "--task", "pos"], capture_output=True, check=False)
    assert (refused.returncode, refused.stdout) == (2, b"")
    assert refused.stderr.decode() == "dmf: no-such: no such file; check the path.\n"
