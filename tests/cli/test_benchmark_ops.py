from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Callable

import pytest

ARGUMENTS = ("benchmark", "ops", "--device", "cpu", "--shapes", "2x3x2,3x2x40")
FIELDS = {
    "op", "shape", "transitions", "library", "direction", "mode", "milliseconds", "peak_memory_mb",
    "speedup_over_fastest_peer", "share_of_denoiser", "device", "threads",
    "command", "commit", "hardware", "versions", "date",
}  # fmt: skip


@pytest.fixture(autouse=True)
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """One short block each: these tests are about the rows, not the times."""
    from diffusion_mf.lab.benchmarks import ops, timing

    monkeypatch.setattr(
        ops,
        "median_milliseconds",
        lambda runs, device: timing.median_milliseconds(runs, device, blocks=1, block_seconds=0),
    )


def test_rows_are_complete_and_kept(dmf: Callable, tmp_path: pathlib.Path) -> None:
    output = tmp_path / "ops.json"
    outcome = dmf(*ARGUMENTS, "--output", output, "--json")
    assert outcome.status == 0, outcome.stderr
    rows = json.loads(outcome.stdout)
    assert json.loads(output.read_text(encoding="utf-8")) == rows
    assert all(set(row) == FIELDS for row in rows)
    assert all(row["milliseconds"] > 0 and row["peak_memory_mb"] is None and row["mode"] == "eager" for row in rows)
    assert {tuple(row["shape"]) for row in rows} == {(2, 3, 2), (3, 2, 40)}
    assert {row["transitions"] for row in rows} == {"global", "local"}
    assert rows[0]["command"] == f"dmf {' '.join(ARGUMENTS)} --output {output} --json"
    assert {"pytorch-crf", "torch-struct"} <= set(rows[0]["versions"])
    mean_field = {(tuple(row["shape"]), row["transitions"]) for row in rows if row["op"] == "mean-field"}
    assert mean_field == {((2, 3, 2), "local"), ((3, 2, 40), "global")}
    for row in rows:
        rivals = [
            other["milliseconds"]
            for other in rows
            if other["library"] != "diffusion_mf"
            and all(other[name] == row[name] for name in ("op", "shape", "transitions", "direction"))
        ]
        if row["library"] == "diffusion_mf" and rivals:
            expected = min(rivals) / row["milliseconds"]
            assert row["speedup_over_fastest_peer"] == pytest.approx(expected, rel=0.05, abs=0.01)
        else:
            assert row["speedup_over_fastest_peer"] is None
    again = dmf(*ARGUMENTS, "--output", output)
    assert again.status == 0, again.stderr
    assert len(json.loads(output.read_text(encoding="utf-8"))) == len(rows)
    table = again.stdout.decode()
    assert "2 × 3 × 2" in table
    assert table.count("torch-struct") == sum(row["library"] == "torch-struct" for row in rows)


def test_some_operations_can_be_measured_alone(dmf: Callable) -> None:
    outcome = dmf(*ARGUMENTS, "--only", "viterbi, mean-field,viterbi", "--json")
    assert outcome.status == 0, outcome.stderr
    assert {row["op"] for row in json.loads(outcome.stdout)} == {"viterbi", "mean-field"}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--device", "tpu"), "dmf: there is no device 'tpu' here; choose auto"),
        (("--shapes", "32x17"), "dmf: --shapes: '32x17' is not a shape; write"),
        (("--shapes", "4x4x4,"), "dmf: --shapes: '' is not a shape; write"),
        (("--shapes", "0x4x4"), "dmf: --shapes: '0x4x4' is not a shape; write"),
        (("--shapes", "4x1x4"), "dmf: --shapes: '4x1x4' is not a shape; write"),
        (("--shapes", "4x4xk"), "dmf: --shapes: '4x4xk' is not a shape; write"),
        (
            ("--device", "cpu", "--only", "viterby"),
            "dmf: --only: unknown operation 'viterby'; choose from log-partition,",
        ),
    ],
)
def test_bad_usage_is_one_sentence(dmf: Callable, arguments: tuple[str, ...], sentence: str) -> None:
    outcome = dmf("benchmark", "ops", *arguments)
    assert outcome.status == 2
    assert outcome.stdout == b""
    assert outcome.stderr.startswith(sentence)
    assert outcome.stderr.count("\n") == 1


def test_a_gpu_that_is_not_there(dmf: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    outcome = dmf("benchmark", "ops", "--device", "cuda")
    assert (outcome.status, outcome.stderr.count("\n")) == (2, 1)
    assert "no CUDA GPU" in outcome.stderr


def test_a_missing_peer(dmf: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch_struct", None)
    outcome = dmf(*ARGUMENTS)
    assert (outcome.status, outcome.stderr.count("\n")) == (2, 1)
    assert "pip install 'diffusion-mf[benchmarks]'" in outcome.stderr


def test_a_file_of_something_else_is_found_before_measuring(dmf: Callable, tmp_path: pathlib.Path) -> None:
    output = tmp_path / "ops.json"
    output.write_text("{}")
    outcome = dmf(*ARGUMENTS, "--output", output)
    assert outcome.status == 2
    assert "not a list of result rows" in outcome.stderr
    assert output.read_text() == "{}"


def test_runs_as_a_module_without_what_only_other_commands_need() -> None:
    """A machine that measures has PyTorch and little else."""
    code = (
        "import runpy, sys; sys.modules.update(dict.fromkeys(['pydantic', 'zstandard', 'huggingface_hub', 'beartype']));"
        "import diffusion_mf.lab.benchmarks.ops, diffusion_mf.cli, diffusion_mf.lab.results;"
        "del sys.modules['pydantic'];"  # some versions of Typer have their own use for it
        "sys.argv = ['dmf', 'benchmark', 'ops', '--device', 'cpu', '--shapes', 'nothing'];"
        "runpy.run_module('diffusion_mf.cli', run_name='__main__')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("dmf: --shapes: 'nothing' is not a shape")
