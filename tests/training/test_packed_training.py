"""Training and tagging with packed batches: the same model of work, wherever units lie."""

from __future__ import annotations

from pathlib import Path

import pytest
import small_runs

from diffusion_mf.tagger import Tagger
from diffusion_mf.training import loop
from diffusion_mf.training.loop import train

PACKED = {"training": {"layout": "packed", "epochs": 2, "budget": 400}, "inference": {"layout": "packed", "budget": 64}}


@pytest.mark.parametrize("system", ["unigram", "diffusion-mf", "diffusion-lcrf", "diffusionsl"])
def test_a_packed_run_trains_and_tags(corpus: Path, tmp_path: Path, system: str) -> None:
    config = small_runs.small_config(corpus, PACKED, {"system": system})
    folder = train(config, output=tmp_path / "run", device="cpu")
    losses = [entry["loss"] for entry in small_runs.read_log(tmp_path / "run", "step")]
    assert losses[-1] < losses[0]
    sentences = [["Ada", "met", "Bob"], ["Oslo"]]
    packed = Tagger.load(folder, device="cpu")
    padded = Tagger.load(folder, device="cpu")
    padded._predictor.is_packed = False
    assert packed._predictor.is_packed
    for one, other in zip(packed.tag(sentences), padded.tag(sentences), strict=True):
        assert one.labels == other.labels
        assert one.scores == pytest.approx(other.scores, abs=1e-4)


def test_resuming_with_another_layout_is_told(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As on another kind of device, where ``auto`` chooses otherwise."""
    config = small_runs.small_config(corpus, {"training": {"epochs": 1, "budget": 400}})
    train(config, output=tmp_path / "run", device="cpu")
    monkeypatch.setattr(loop, "uses_packing", lambda *arguments, **options: True)
    with caplog.at_level("INFO"):
        train(config, output=tmp_path / "run", device="cpu", resume=True)
    expected = "started with layout padded and continues with packed: its batches will differ, and the current epoch"
    assert any(expected in message for message in caplog.messages)
