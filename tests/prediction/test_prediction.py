"""`Predictor` on a CPU: packed batches, and those that are computed directly, give what `Labeller.predict` gives."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny_models import VOCABULARY, small_labeller, whole_batch
from torch import Tensor

from diffusion_mf.batches import layouts
from diffusion_mf.batches.batching import Batch
from diffusion_mf.model import Labeller, Prediction
from diffusion_mf.ops.chain_scores import unit_mask
from diffusion_mf.prediction.predictor import Predictor

BUDGET = 40


def packed_predictor(labeller: Labeller, **changes: Any) -> Predictor:
    inference = labeller.config.inference.model_copy(update={"layout": "packed", **changes})
    return Predictor(labeller, labeller.config.model_copy(update={"inference": inference}), torch.device("cpu"))


def real(tensor: Tensor, batch: Batch) -> Tensor:
    """What stands at units, (units, …)."""
    rows, columns = batch.form_ids.shape
    return tensor[:rows, :columns][unit_mask(batch.lengths, columns)]


def predict(predictor: Predictor, batch: Batch, **options: Any) -> Prediction:
    """The whole prediction: on a CPU it need not be brought to the host."""
    found: list[Prediction] = []

    def finish(prediction: Prediction) -> list[Tensor]:
        found.append(prediction)
        return [prediction.marginals]

    (marginals,) = predictor.predict(batch, finish, budget=BUDGET, **options).wait()
    assert torch.equal(marginals, found[0].marginals)
    return found[0]


@pytest.mark.parametrize("num_calls", [None, 1, 3])
@pytest.mark.parametrize("system", ["lcrf", "diffusion-mf", "diffusionsl"])
def test_packed_batches(system: str, num_calls: int | None) -> None:
    labeller, batch = small_labeller(system).eval(), whole_batch()
    predictor = packed_predictor(labeller)
    expected = labeller.predict(batch, num_calls=num_calls)
    found = predict(predictor, batch, num_calls=num_calls)
    assert found.num_calls == expected.num_calls
    assert found.marginals.shape[0] > len(batch.lengths)
    torch.testing.assert_close(real(found.marginals, batch), real(expected.marginals, batch), rtol=1e-3, atol=1e-4)


def test_clamps_and_trajectories_are_computed_directly() -> None:
    predictor, batch = packed_predictor(small_labeller("diffusion-mf").eval()), whole_batch()
    allowed = torch.ones(*batch.form_ids.shape, len(VOCABULARY.labels), dtype=torch.bool)
    allowed[0, 0, 1:] = False
    clamped = predict(predictor, batch, allowed=allowed)
    assert clamped.marginals.shape == allowed.shape
    assert clamped.marginals[0, 0].argmax() == 0
    steps = predict(predictor, batch, num_calls=4, keep_trajectory=True).trajectory
    assert steps is not None
    assert len(steps) == 4


def test_sentences_that_need_windows_are_computed_directly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layouts, "LONGEST_WHOLE", 5)
    monkeypatch.setattr(layouts, "WINDOW", 2)
    labeller, batch = small_labeller("diffusion-mf").eval(), whole_batch()
    assert int(batch.lengths.max()) > 5
    found = predict(packed_predictor(labeller), batch)
    assert torch.equal(found.marginals, labeller.predict(batch).marginals)
