"""``benchmarks/kernel_families.py``: what it measures, which families it leaves out, what it keeps."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
import small_runs
import torch

pytest.importorskip("triton")

from diffusion_mf.ops.mean_field import triton as kernels

ROOT = Path(__file__).parents[3]
SMALL = [
    *("encoder.width=16", "encoder.layers=1", "encoder.heads=2", "encoder.word_width=8"),
    *("encoder.character_width=4", "encoder.character_hidden=4", "structure.scorer_width=8"),
]


@pytest.fixture(scope="module")
def benchmark():  # type: ignore[no-untyped-def]
    specification = importlib.util.spec_from_file_location("kernel_families", ROOT / "benchmarks/kernel_families.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def test_all_families_launched_are_recorded_and_left_out(benchmark) -> None:  # type: ignore[no-untyped-def]
    local, everywhere = torch.zeros(2, 39, 17, 17), torch.zeros(17, 17)
    with benchmark.recorded() as launched:
        kernels.family_of(local)
    assert launched == {"local"}
    with benchmark.without("global"), benchmark.recorded() as launched:
        assert kernels.family_of(everywhere) is None
        kernels.family_of(local)
    assert launched == {"local"}
    assert {"global", "local"} == kernels.FAMILIES


def test_runs_take_turns_until_the_time_is_up(benchmark) -> None:  # type: ignore[no-untyped-def]
    order = []

    def run_of(name):  # type: ignore[no-untyped-def]
        def run() -> float:
            order.append((name, name in kernels.FAMILIES))
            return 1.0

        return run

    runs = {None: run_of(None), "global": run_of("global")}
    device = torch.device("cpu")
    found = benchmark.take_turns(runs, repeats=3, seconds=60, device=device)
    assert found == {None: [1.0] * 3, "global": [1.0] * 3}
    assert order == [(None, False), ("global", False)] * 3
    assert benchmark.take_turns(runs, repeats=3, seconds=0, device=device) == {None: [1.0], "global": [1.0]}


def test_rows(benchmark, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """On a CPU no family is launched: the rows of all families are the only ones."""
    folder = small_runs.write_small_corpus(tmp_path)
    data = [f"data.{split}={folder / split}.txt" for split in ("train", "dev", "test")]
    settings = [setting for change in (*SMALL, *data, "data.format=columns") for setting in ("--set", change)]
    options = ["--device", "cpu", "--tasks", "ner", "--repeats", "2"]
    output = tmp_path / "families.json"
    arguments = [*options, *settings, "--sentences", "10", "--output", str(output), "--systems", "mean-field"]
    benchmark.main(arguments)
    rows = json.loads(output.read_text())
    assert [(row["system"], row["phase"], row["without"]) for row in rows] == [
        ("mean-field", "training", None),
        ("mean-field", "inference", None),
    ]
    for row in rows:
        assert len(row["seconds"]) == 2
        assert row["times_all_families"] == 1
        assert (row["sentences"], row["launched"], row["is_compiled"]) == (10, [], False)
        assert {"command", "commit", "hardware", "versions", "date", "parameters"} <= set(row)


def test_other_systems_are_refused(benchmark) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(SystemExit, match="--systems: 'lcrf'"):
        benchmark.main(["--systems", "lcrf", "--device", "cpu"])
