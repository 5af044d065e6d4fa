"""What the scheduler shows of its runs: a line, and a table on a terminal."""

from __future__ import annotations

import io
import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from diffusion_mf.lab.experiments.folders import RunPlace, RunState
from diffusion_mf.lab.experiments.scheduler import RunTable


@pytest.fixture
def table(tmp_path: Path) -> RunTable:
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
    return RunTable(states, running=running, elsewhere={"d"}, started=time.monotonic() - 75.5)


def test_line_counts_each_run_once(table: RunTable) -> None:
    assert str(table) == (
        "1 of 4 runs complete, 1 running, 1 elsewhere, 1 diverged; conll2003.lcrf.scratch.seed1.abc epoch 8/50 dev 81.24"
    )
    assert not table.is_complete


def test_table_on_a_narrow_terminal_keeps_the_figures(table: RunTable) -> None:
    console = Console(width=50, record=True, file=io.StringIO())
    console.print(table)
    text = console.export_text()
    for figure in ("8/50", "0.500", "81.24", "12", "1 of 4 runs complete", "1:15"):
        assert figure in text
