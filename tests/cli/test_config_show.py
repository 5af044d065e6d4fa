"""``dmf config show``: every setting and where it comes from; names of configurations on the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from diffusion_mf.config import load_config

CONFIG = """\
extends = "pos/unigram"
system = "diffusion-mf"
size = "S"

[data]
train = "train.conllu"

[denoiser]
layers = 2
"""


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "run.toml"
    path.write_text(CONFIG, encoding="utf-8")
    return path


def test_every_setting_is_shown_with_its_origin(dmf: Callable, config: Path) -> None:
    outcome = dmf("config", "show", "run.toml", "--set", "training.epochs=3")
    assert outcome.status == 0
    lines = [" ".join(line.split()) for line in outcome.stdout.decode().splitlines()]
    assert lines[1] == 'system = "diffusion-mf" # run.toml:2'
    assert "[denoiser]" in lines
    for line in ("layers = 2 # run.toml:9", "width = 512 # size S", "time_width = 256 # default", "epochs = 3 # --set"):
        assert line in lines
    (inherited,) = (line for line in lines if line.startswith("patience = 30"))
    assert inherited.endswith("base/paper.toml:15")
    assert "# num_calls is not set # default" in lines


def test_what_is_shown_is_a_configuration_with_the_same_settings(dmf: Callable, config: Path, tmp_path: Path) -> None:
    shown = dmf("config", "show", config).stdout
    (tmp_path / "again.toml").write_bytes(shown)
    assert load_config(tmp_path / "again.toml") == load_config(config)
    (tmp_path / "again.toml").write_bytes(dmf("config", "show", config, "--changed").stdout)
    assert load_config(tmp_path / "again.toml") == load_config(config)


def test_defaults_can_be_left_out(dmf: Callable) -> None:
    shown = dmf("config", "show", "ours/ner/diffusion-mf", "--changed").stdout.decode()
    assert "default" not in shown
    assert "scores_from" in shown
    assert "# the configuration's name" in shown.splitlines()[0]


def test_json_is_a_list_of_settings(dmf: Callable, config: Path) -> None:
    found = {
        each["key"]: each for each in json.loads(dmf("config", "show", "run.toml", "--set", "seed=2", "--json").stdout)
    }
    assert found["denoiser.layers"] == {
        "key": "denoiser.layers", "value": 2, "origin": "file", "file": "run.toml", "line": 9,
    }  # fmt: skip
    assert (found["seed"]["origin"], found["denoiser.width"]["origin"]) == ("--set", "size")
    assert (found["bits.eta"]["origin"], found["bits.eta"]["file"]) == ("default", None)


def test_names_work_on_the_command_line(dmf: Callable, tmp_path: Path) -> None:
    wrong = dmf("train", "ner/difusion-mf", "--output", tmp_path / "run")
    assert (wrong.status, wrong.stdout) == (2, b"")
    assert wrong.stderr == (
        "dmf: ner/difusion-mf: no such file or configuration; the nearest name is ner/diffusion-mf.\n"
    )
    missing = dmf(
        "train",
        "ner/diffusion-mf",
        "--set",
        "data.train=no.txt",
        "--set",
        "data.dev=",
        "--set",
        "data.test=",
        "--count",
    )
    assert (missing.status, missing.stderr.startswith("dmf: no.txt: no such file")) == (2, True)
