"""What docs/tagging.md shows must work."""

from __future__ import annotations

import pathlib
import re

import pytest
from small_models import small_tagger, write_model
from typer.main import get_command

from diffusion_mf.cli import app

DOCUMENT = (pathlib.Path(__file__).parents[2] / "docs" / "tagging.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", DOCUMENT, flags=re.DOTALL)


def test_the_python_examples_run(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_model(tmp_path / "runs" / "ner" / "model")
    monkeypatch.chdir(tmp_path)
    blocks = [block for block in BLOCKS if "sklearn" not in block and "spacy" not in block]
    assert len(blocks) == 5
    # The small model knows no type LOC but its own labels, all of which the examples use.
    exec("\n".join(blocks), {})


def test_the_example_of_scikit_learn_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    module = pytest.importorskip("diffusion_mf.sklearn")
    monkeypatch.setattr(module, "train", lambda **options: small_tagger())
    (block,) = (block for block in BLOCKS if "sklearn" in block)
    exec(block, {"X": [["Ada", "sings"]] * 6, "y": [["S-PER", "O"]] * 6})


def test_the_example_of_spacy_runs(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("diffusion_mf.spacy")
    write_model(tmp_path / "runs" / "ner" / "model")
    monkeypatch.chdir(tmp_path)
    (block,) = (block for block in BLOCKS if "spacy" in block)
    exec(block, {})


@pytest.mark.parametrize("command", ["tag", "evaluate", "errors", "explain"])
def test_the_options_are_those_of_the_command(command: str) -> None:
    usage = re.search(rf"dmf {command} (?:MODEL|\[MODEL\]).*?(?=\n\s+dmf |\n\n)", DOCUMENT, flags=re.DOTALL)
    assert usage is not None
    shown = set(re.findall(r"--[a-z-]+", usage[0]))
    real = {option for parameter in get_command(app).commands[command].params for option in parameter.opts}  # type: ignore[attr-defined]
    assert shown == {option for option in real if option.startswith("--")}
