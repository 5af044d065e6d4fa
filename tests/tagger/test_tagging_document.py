"""What docs/tagging.md shows must work."""

from __future__ import annotations

import pathlib
import re

import pytest
from small_models import write_model
from typer.main import get_command

from diffusion_mf.cli import app

DOCUMENT = (pathlib.Path(__file__).parents[2] / "docs" / "tagging.md").read_text(encoding="utf-8")


def test_the_python_examples_run(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_model(tmp_path / "runs" / "ner" / "model")
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", DOCUMENT, flags=re.DOTALL)
    assert len(blocks) == 5
    # The small model knows no type LOC but its own labels, all of which the examples use.
    exec("\n".join(blocks), {})


@pytest.mark.parametrize("command", ["tag", "evaluate"])
def test_the_options_are_those_of_the_command(command: str) -> None:
    usage = re.search(rf"dmf {command} MODEL.*?(?=\n\s+dmf |\n\n)", DOCUMENT, flags=re.DOTALL)
    assert usage is not None
    shown = set(re.findall(r"--[a-z-]+", usage[0]))
    real = {option for parameter in get_command(app).commands[command].params for option in parameter.opts}  # type: ignore[attr-defined]
    assert shown == {option for option in real if option.startswith("--")}
