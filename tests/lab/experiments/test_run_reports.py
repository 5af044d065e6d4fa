"""What ``dmf experiment run`` says about runs, before and after them."""

from __future__ import annotations

from pathlib import Path

import pytest
from experiment_files import write_plan
from typer.testing import CliRunner

from diffusion_mf.cli import app
from diffusion_mf.errors import InputError
from diffusion_mf.lab.experiments.folders import ExperimentFolder, Outcome
from diffusion_mf.lab.experiments.plan import load_plan


def test_failures_with_the_same_reason_are_told_once(tmp_path: Path) -> None:
    path = write_plan(tmp_path, 'systems = ["unigram", "lcrf"]\nseeds = [1, 2]\n')
    folder = ExperimentFolder(tmp_path / "out")
    for number, run in enumerate(load_plan(path).runs):
        folder.run(run.name).root.mkdir(parents=True)
        folder.run(run.name).add_attempt(Outcome.REFUSED, lines=["one thing" if number else "another"])
    result = CliRunner().invoke(app, ["experiment", "run", str(path), "--output", str(folder.root), "--dry-run"])
    assert result.exit_code == 0
    assert result.stderr.count("one thing") == result.stderr.count("another") == 1
    assert "and 2 more for the same reason failed; the end of" in result.stderr


def test_variants_are_shown_where_there_are_several(tmp_path: Path) -> None:
    text = 'systems = ["unigram"]\nseeds = [1]\n'
    path = write_plan(tmp_path, text)
    assert "variant" not in CliRunner().invoke(app, ["experiment", "run", str(path), "--dry-run"]).stdout
    path = write_plan(tmp_path, text + "[grid]\nencoder.layers = [1, 2]\n")
    shown = CliRunner().invoke(app, ["experiment", "run", str(path), "--dry-run"]).stdout
    assert "layers=1" in shown
    assert "layers=2" in shown


def test_a_dry_run_names_the_corpora_that_are_not_there(tmp_path: Path) -> None:
    path = write_plan(tmp_path, 'systems = ["unigram", "lcrf"]\nseeds = [1]\n')
    arguments = ["experiment", "run", str(path), "--output", str(tmp_path / "out"), "--dry-run"]
    assert CliRunner().invoke(app, arguments).exit_code == 0
    dev = tmp_path / "corpus" / "ner" / "dev.txt"
    dev.unlink()
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
    assert result.stdout.count("tiny.") == 2
    assert result.stderr.count("the corpus tiny is missing") == 1
    assert f"{dev}: no such file; give its path" in result.stderr


@pytest.mark.parametrize("devices", ["cuda:99", "cpu,cuda:99", "gpu"])
def test_devices_that_are_not_there_are_refused_before_any_run(tmp_path: Path, devices: str) -> None:
    path = write_plan(tmp_path, 'systems = ["unigram"]\nseeds = [1]\n')
    arguments = ["experiment", "run", str(path), "--output", str(tmp_path / "out"), "--devices", devices]
    result = CliRunner().invoke(app, arguments)
    assert isinstance(result.exception, InputError)
    assert "; choose among cpu" in str(result.exception)
    assert not (tmp_path / "out").exists()
