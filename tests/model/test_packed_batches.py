"""A packed batch is the same batch: losses, gradients and predictions do not depend on how units lie in memory."""

from __future__ import annotations

import pytest
import torch
from tiny_models import small_labeller, whole_batch

from diffusion_mf.batches.packing import PackedShape, pack
from diffusion_mf.systems import SYSTEMS

SYSTEMS_AND_TRANSITIONS = [
    (system, transitions)
    for system, entry in SYSTEMS.items()
    for transitions in (["local", "global"] if entry.structure in ("mean-field", "linear-chain") else ["global"])
]


def _packed(batch):  # type: ignore[no-untyped-def]
    """With filling of every kind: units, rows, places, words and characters."""
    num_words, num_characters = batch.character_ids.shape
    num_units = int(batch.lengths.sum())
    return pack(batch, PackedShape(num_units + 5, len(batch.lengths) + 3, 9, num_words + 2, num_characters + 1))


@pytest.mark.parametrize("has_state_scores", [False, True])
@pytest.mark.parametrize(("system", "transitions"), SYSTEMS_AND_TRANSITIONS)
def test_losses_and_gradients(system: str, transitions: str, has_state_scores: bool) -> None:
    if has_state_scores and SYSTEMS[system].process != "categorical":
        pytest.skip("it has no labels to denoise")
    labeller = small_labeller(
        system, structure={"transitions": transitions}, denoiser={"state_scores": has_state_scores}
    ).train()
    for module in labeller.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    labeller.encoder.word_dropout = 0.0
    batch = whole_batch()
    keys = torch.arange(len(batch.lengths))
    found = []
    for each in (batch, _packed(batch)):
        labeller.zero_grad()
        filled_keys = torch.nn.functional.pad(keys, (0, len(each.lengths) - len(keys)))
        terms = labeller.loss_sums(each, seed=1, step=3, sentence_keys=filled_keys)
        terms["total"].backward()
        gradients = {
            name: parameter.grad.clone()
            for name, parameter in labeller.named_parameters()
            if parameter.grad is not None
        }
        found.append((terms, gradients))
    (terms, gradients), (packed_terms, packed_gradients) = found
    assert terms.keys() == packed_terms.keys()
    for name, value in terms.items():
        torch.testing.assert_close(packed_terms[name], value, rtol=1e-5, atol=1e-5)
    for name, gradient in gradients.items():
        torch.testing.assert_close(packed_gradients[name], gradient, rtol=1e-3, atol=2e-5, msg=name)
    assert any(gradient.abs().max() > 1e-3 for gradient in gradients.values())


@pytest.mark.parametrize(("system", "transitions"), SYSTEMS_AND_TRANSITIONS)
def test_predictions(system: str, transitions: str) -> None:
    labeller = small_labeller(system, structure={"transitions": transitions}).eval()
    batch = whole_batch()
    expected, found = labeller.predict(batch), labeller.predict(_packed(batch))
    B, N = batch.form_ids.shape
    torch.testing.assert_close(found.marginals[:B, :N], expected.marginals, rtol=1e-4, atol=1e-5)
    assert not found.marginals[:, N:].any()
    assert not found.marginals[B:].any()
