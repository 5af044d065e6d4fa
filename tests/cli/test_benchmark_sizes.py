from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy
import pytest

from diffusion_mf.lab.experiments.folders import ExperimentFolder
from diffusion_mf.lab.experiments.sizes import load_sizes_plan
from diffusion_mf.lab.synthetic import write_corpus

PLAN = """
systems = ["unigram", "python-crfsuite"]
sizes = [500]
corpora = ["tiny"]
seeds = [1]
device = "cuda"
"""
WHERE = {"command": "dmf benchmark sizes", "commit": "c", "hardware": "h", "versions": {}, "date": "d"}


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    write_corpus(tmp_path, flavours=["pos"], sizes={"train": 501, "dev": 2, "test": 2}, seed=3)
    files = "".join(f'{split} = "{tmp_path / "pos" / split}.conllu"\n' for split in ("train", "dev", "test"))
    (tmp_path / "corpora.toml").write_text(f'[tiny]\ntask = "pos"\n{files}')
    path = tmp_path / "sizes.toml"
    path.write_text(PLAN)
    return path


def test_finished_runs_are_shown_compared_and_recorded(dmf: Callable, plan: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    record = tmp_path / "sizes.json"
    plan.write_text(f'record = "{record}"\n{PLAN}')
    for run, right in zip(load_sizes_plan(plan).runs, (7, 8), strict=True):
        place = ExperimentFolder(tmp_path / "runs").run(run.name)
        place.root.mkdir(parents=True)
        metrics = {"accuracy": 10.0 * right, "exact_match": 0.0}
        facts = {"task": "pos", "metric": "accuracy", "dev": metrics, "test": metrics, "seconds": 2.0, "sentences": 500}
        place.save_result({**run.coordinates(), **facts, **WHERE, "name": run.name})
        numpy.savez_compressed(place.root / "counts.npz", test=numpy.array([[right, 10, 10]] * 50))
    outcome = dmf("benchmark", "sizes", plan, "--output", tmp_path / "runs", "--dry-run", "--record")
    assert outcome.status == 0, outcome.stderr
    shown = outcome.stdout.decode()
    assert "unigram" in shown
    assert "-10.00 to -10.00" in shown
    assert "yes" in shown
    assert "2 of 2 runs complete" in outcome.stderr
    assert (tmp_path / "runs" / "sizes.png").exists()
    rows = json.loads(record.read_text(encoding="utf-8"))
    assert [row["experiment"] for row in rows] == ["sizes", "sizes", "significance"]
    assert rows[2]["is_below"] is True
    assert all({"command", "commit", "hardware", "versions", "date"} <= row.keys() for row in rows)


def test_bad_usage_is_one_sentence(dmf: Callable, plan: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = dmf("benchmark", "sizes", plan, "--output", tmp_path / "runs", "--record")
    assert outcome.status == 2
    assert outcome.stderr == (
        f"dmf: {plan}: the plan names no result file; add record = FILE to the plan, or leave out --record.\n"
    )
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    outcome = dmf("benchmark", "sizes", plan, "--output", tmp_path / "runs")
    assert outcome.status == 2
    assert outcome.stderr.count("\n") == 1
    assert not (tmp_path / "runs").exists()
