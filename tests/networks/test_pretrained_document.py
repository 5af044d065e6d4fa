"""docs/pretrained.md: its settings exist, none is left out, its example runs."""

from __future__ import annotations

import pathlib
import re

import pytest
from typer.main import get_command

from diffusion_mf.cli import app
from diffusion_mf.config import EncoderConfig, TrainingConfig
from diffusion_mf.config.files import config_names

ROOT = pathlib.Path(__file__).parents[2]
DOCUMENT = (ROOT / "docs" / "pretrained.md").read_text(encoding="utf-8")
OF_OTHER_ENCODERS = {
    "kind", "window", "word_width", "character_width", "character_hidden", "max_characters", "width", "layers", "heads",
    "pair_width", "min_pair_count", "affix_width", "affix_dropout", "features", "min_feature_count", "word_dropout", "unit_dropout",
    "embedding_dropout", "positions",
}  # fmt: skip


def test_every_setting_is_there() -> None:
    table = DOCUMENT.partition("## Settings")[2].partition("Of `[training]`")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    assert set(re.findall(r"`(\w+)`", "".join(rows))) == set(EncoderConfig.model_fields) - OF_OTHER_ENCODERS
    for name in re.findall(r"`(encoder_\w+|warmup_\w+)`", DOCUMENT):
        assert name in TrainingConfig.model_fields


def test_commands_and_options_exist() -> None:
    commands = get_command(app).commands  # type: ignore[attr-defined]
    assert set(re.findall(r"dmf ([a-z-]+)", DOCUMENT)) <= set(commands)
    for name in ("train", "tag", "evaluate"):
        assert any("--on-long" in parameter.opts for parameter in commands[name].params)


def test_configurations_exist() -> None:
    for name in re.findall(r"dmf train ([a-z]\S+/\S+)", DOCUMENT):
        assert name in config_names()


def test_the_example_runs(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tests" / "tagger"))
    from small_models import write_model

    write_model(tmp_path / "runs" / "ner" / "model")
    monkeypatch.chdir(tmp_path)
    (block,) = re.findall(r"```python\n(.*?)```", DOCUMENT, flags=re.DOTALL)
    exec(block, {})
