"""What a runner shows: lines a minute apart, and a table."""

from __future__ import annotations

import io
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from diffusion_mf.lab.experiments.folders import RunPlace, RunState
from diffusion_mf.lab.experiments.runner import LineRunDisplay, PlanStanding, described_counts, standing_table


@pytest.fixture
def standing(tmp_path: Path) -> PlanStanding:
    place = RunPlace(tmp_path / "conll2003.lcrf.scratch.seed1.abc")
    place.describe({"config": {"training": {"epochs": 50}}})
    entries: list[dict[str, Any]] = [
        {"event": "evaluation", "epoch": 7, "score": 81.237},
        {"event": "evaluation", "epoch": 8, "score": 80.0},
        {"event": "step", "epoch": 8, "loss": 0.5},
    ]
    place.log.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    states = {place.name: RunState.PENDING, "b": RunState.COMPLETE, "c": RunState.DIVERGED, "d": RunState.PENDING}
    running: Any = [SimpleNamespace(place=place, seconds=12.3)]
    return PlanStanding(states, running=running, elsewhere={"d"}, seconds=75.0)


def test_counts_each_run_once(standing: PlanStanding) -> None:
    assert described_counts(standing) == "1 of 4 runs complete, 1 running, 1 elsewhere, 1 diverged"
    assert not standing.is_complete


def test_a_line_a_minute(standing: PlanStanding, capsys: pytest.CaptureFixture[str]) -> None:
    times = iter([0.0, 59.0, 61.0, 100.0, 122.0])
    display = LineRunDisplay(clock=lambda: next(times))
    for _ in range(4):
        display.update(standing)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert lines[0].endswith("; conll2003.lcrf.scratch.seed1.abc epoch 8/50 dev 81.24")


def test_table_on_a_narrow_terminal_keeps_the_figures(standing: PlanStanding) -> None:
    console = Console(width=50, record=True, file=io.StringIO())
    console.print(standing_table(standing))
    text = console.export_text()
    for figure in ("8/50", "0.500", "81.24", "12", "1 of 4 runs complete", "1:15"):
        assert figure in text
