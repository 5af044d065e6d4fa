"""Early exit by replay finds what early exit finds directly. Needs a GPU."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor

from diffusion_mf.acceleration.prediction import Predictor
from diffusion_mf.data.batching import Batch
from diffusion_mf.data.encoded import EncodedSentences
from diffusion_mf.data.sentence import Sentence
from diffusion_mf.model import Prediction
from diffusion_mf.ops.chain_scores import unit_mask
from diffusion_mf.tagger import StoredModel

pytestmark = pytest.mark.gpu

BUDGET, TOLERANCE = 400, 0.01


def _real(tensor: Tensor, batch: Batch) -> Tensor:
    rows, columns = batch.form_ids.shape
    return tensor[:rows, :columns].cpu()[unit_mask(batch.lengths, columns)]


def _marginals(prediction: Prediction) -> list[Tensor]:
    return [prediction.marginals]


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_replayed_pieces_in_flight(model: StoredModel, dev: tuple[Sentence, ...], precision: str) -> None:
    device = torch.device("cuda")
    labeller = copy.deepcopy(model.labeller).to(device).eval()
    changes = {"layout": "packed", "precision": precision, "exit_tolerance": TOLERANCE}
    config = model.config.model_copy(update={"inference": model.config.inference.model_copy(update=changes)})
    encoded = EncodedSentences(dev, model.vocabulary, has_labels=False)
    batches = [encoded.batch(list(range(start, start + 20))) for start in range(0, 100, 20)]
    fast = Predictor(labeller, config, device)
    found: list[Tensor] = []
    with torch.inference_mode():
        # Forms are computed directly in the first pass, recorded in the second and replayed in the third.
        for _ in range(3):
            pending = [fast.submit(batch, _marginals, budget=BUDGET) for batch in batches]
            found = [_real(each.wait()[0], batch) for each, batch in zip(pending, batches, strict=True)]
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=precision == "bfloat16"):
            expected = [
                _real(labeller.predict(batch.to(device), exit_tolerance=TOLERANCE).marginals, batch)
                for batch in batches
            ]
    assert fast.num_recordings > 3
    assert fast.mean_calls is not None
    assert 2 < fast.mean_calls < 9
    difference = (torch.cat(found) - torch.cat(expected)).abs().amax(-1)
    if precision == "float32":
        assert difference.max() < 5 * TOLERANCE
        # TF32 aside, the two differ by rounding, which may keep a sentence for a call more.
        assert difference.mean() < 1e-3
    else:
        assert difference.mean() < 0.02
