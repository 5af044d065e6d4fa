"""``dmf export``: models with smaller weights; ONNX is tested in tests/onnx_runtime."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable

import pytest
import torch
from safetensors.torch import load_file
from small_models import write_model

from diffusion_mf.data.corpus import Task
from diffusion_mf.lab.synthetic import write_corpus
from diffusion_mf.model.storage import load_model, read_metrics

SENTENCES = [["Ada", "sings"], ["Eve", "and", "Ada", "Byron", "sing"]]


@pytest.mark.parametrize("target", ["float16", "int8"])
def test_a_model_is_made_small(dmf: Callable, tmp_path: pathlib.Path, target: str) -> None:
    folder = write_model(tmp_path / "model")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    outcome = dmf("export", folder, tmp_path / "small", "--to", target, "--json")
    assert outcome.status == 0, outcome.stderr
    assert json.loads(outcome.stdout)["files"]["model.safetensors"] < 0.6 * len(before["model.safetensors"])
    matrices = [tensor for tensor in load_file(tmp_path / "small" / "model.safetensors").values() if tensor.dim() > 1]
    assert getattr(torch, target) in {tensor.dtype for tensor in matrices}
    large, small = load_model(folder), load_model(tmp_path / "small")
    assert (small.vocabulary, small.metrics, small.temperature) == (large.vocabulary, large.metrics, large.temperature)
    for name, tensor in large.labeller.state_dict().items():
        torch.testing.assert_close(
            small.labeller.state_dict()[name], tensor, rtol=0, atol=0.01 * float(tensor.abs().max()) + 1e-6
        )
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


@pytest.mark.parametrize("task", [Task.POS, Task.SEG_POS])
def test_the_card_says_how_fast_it_is(dmf: Callable, tmp_path: pathlib.Path, task: Task) -> None:
    write_corpus(tmp_path, flavours=[str(task)], sizes={"train": 2, "dev": 2, "test": 20}, seed=3)
    file = tmp_path / str(task) / "test.conllu"
    assert file.exists()
    folder = write_model(tmp_path / "model", task=task)
    outcome = dmf("export", folder, tmp_path / "small", "--to", "int8", "--measure", file)
    assert outcome.status == 0, outcome.stderr
    metrics = read_metrics(tmp_path / "small")
    speed = metrics["speed"]["words_per_second"]
    assert speed > 0
    assert metrics.keys() - {"speed"} == read_metrics(folder).keys()
    assert f"{speed:,} words a second on one core" in (tmp_path / "small" / "README.md").read_text(encoding="utf-8")


def test_what_does_not_go_together(dmf: Callable, tmp_path: pathlib.Path) -> None:
    folder = write_model(tmp_path / "model")
    (tmp_path / "empty.txt").touch()
    for arguments, message in (
        (["new", "--to", "int8", "--calls", 2], "--calls and --decoder are fixed by --to onnx only, not by --to int8"),
        (["new", "--measure", tmp_path / "empty.txt"], "--measure is for --to float16 and --to int8"),
        ([folder, "--to", "int8"], "is the model itself"),
    ):
        outcome = dmf("export", folder, *arguments)
        assert outcome.status == 2
        assert message in outcome.stderr


def test_commands_that_need_the_model_itself_say_so(dmf: Callable, tmp_path: pathlib.Path) -> None:
    pytest.importorskip("onnx.defs", reason="the extra onnx is not installed")
    folder, exported = write_model(tmp_path / "model", system="unigram"), tmp_path / "exported"
    outcome = dmf("export", folder, exported, "--to", "onnx")
    assert outcome.status == 0, outcome.stderr
    for arguments in (("tag", exported), ("evaluate", exported, exported / "manifest.json")):
        outcome = dmf(*arguments)
        assert outcome.status == 2
        assert outcome.stderr == (
            f"dmf: {exported}: this is an ONNX export, which only diffusion_mf.onnx.Tagger reads; use that in Python "
            "(docs/deployment.md), or name the model that was exported.\n"
        )
