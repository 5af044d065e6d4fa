"""The fast path scores what the reference scores, on a trained model."""

from __future__ import annotations

import pytest
import torch

from diffusion_mf.config import Config
from diffusion_mf.data.sentence import Sentence
from diffusion_mf.errors import InputError
from diffusion_mf.lab.benchmarks.load import measure_agreement
from diffusion_mf.model import Labeller
from diffusion_mf.prediction.predictor import Predictor
from diffusion_mf.tagger import StoredModel

CPU = torch.device("cpu")


def test_packed(model: StoredModel, dev: tuple[Sentence, ...]) -> None:
    own = model.labeller.config
    plain, fast = (row for rows in measure_agreement(model, dev, device=CPU) for row in rows)
    # It has learnt: most common label, half of the units.
    assert plain["score"] > 70
    assert plain["units"] == sum(len(sentence.units) for sentence in dev)
    assert plain["score"] == pytest.approx(model.metrics["dev"]["accuracy"])
    assert abs(fast["score_difference"]) <= 0.05
    assert fast["share_labelled_differently"] <= 0.0005
    assert fast["largest_marginal_difference"] < 1e-4
    assert model.labeller.config is own


def test_bfloat16(model: StoredModel, dev: tuple[Sentence, ...]) -> None:
    """Three digits decide a few units otherwise where a small model is undecided; the score hardly changes."""
    _, fast = (row for rows in measure_agreement(model, dev, device=CPU, precision="bfloat16") for row in rows)
    assert abs(fast["score_difference"]) <= 0.3
    assert fast["share_labelled_differently"] <= 0.01
    assert fast["mean_marginal_difference"] < 0.02


def test_a_difference_is_seen(model: StoredModel, dev: tuple[Sentence, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """A fast path that makes one call, of ten."""

    def hasty(labeller: Labeller, config: Config, device: torch.device) -> Predictor:
        calls = 1 if config.inference.layout == "packed" else 10
        inference = config.inference.model_copy(update={"num_calls": calls})
        return Predictor(labeller, config.model_copy(update={"inference": inference}), device)

    monkeypatch.setattr("diffusion_mf.lab.benchmarks.load.Predictor", hasty)
    _, fast = (row for rows in measure_agreement(model, dev[:50], device=CPU) for row in rows)
    assert fast["largest_marginal_difference"] > 0.05


def test_nothing_to_label(model: StoredModel) -> None:
    with pytest.raises(InputError, match="nothing to label"):
        next(measure_agreement(model, [], device=CPU))
