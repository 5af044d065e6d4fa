"""Losses and predictions do not depend on how sentences are put together, nor on padding."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from tiny_models import KEYS, batch_of, small_labeller, whole_batch

from diffusion_mf.systems import SYSTEMS

SAMPLED = {
    "diffusion": {"own_trajectory_share": 1.0, "own_trajectory_calls": 2},
    "inference": {"posterior": "sampled"},
}
EXTRAS = {
    "diffusion": {"clamp_share": 0.5, "own_trajectory_share": 0.5, "own_trajectory_calls": 2},
    "objective": {"encoder_auxiliary": 0.5, "posterior": 0.5},
    "bits": {"self_conditioning": True},
}
STATE_SCORES = {**EXTRAS, "denoiser": {"state_scores": True}}


def sums(labeller, batch, keys, step):
    return labeller.loss_sums(batch, seed=3, step=step, sentence_keys=keys)


@pytest.mark.parametrize("extras", [{}, EXTRAS], ids=["paper", "ours"])
@pytest.mark.parametrize("transitions", ["local", "global"])
@pytest.mark.parametrize("system", SYSTEMS)
def test_losses_of_two_halves_add_up_to_the_whole(system, transitions, extras) -> None:
    labeller = small_labeller(system, structure={"transitions": transitions}, **extras)
    for step in range(3):
        whole = sums(labeller, whole_batch(), KEYS, step)
        first = sums(labeller, batch_of(1, 2), KEYS[[1, 2]], step)
        second = sums(labeller, batch_of(3, 0), KEYS[[3, 0]], step)
        assert whole.keys() == first.keys()
        for name, value in whole.items():
            torch.testing.assert_close(first[name] + second[name], value, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("extras", [{}, EXTRAS, STATE_SCORES], ids=["paper", "ours", "state scores"])
@pytest.mark.parametrize("system", SYSTEMS)
def test_gradients_do_not_depend_on_padding(system, extras) -> None:
    labeller = small_labeller(system, structure={"transitions": "local"}, **extras)
    gradients = []
    for batch in (whole_batch(), whole_batch(more_padding=3)):
        labeller.zero_grad()
        sums(labeller, batch, KEYS, 1)["total"].backward()
        gradients.append([parameter.grad for parameter in labeller.parameters() if parameter.grad is not None])
    assert len(gradients[0]) > 10
    for short, long in zip(*gradients, strict=True):
        assert short.isfinite().all()
        torch.testing.assert_close(short, long, rtol=1e-4, atol=1e-5)


def test_own_trajectories_are_read_as_inference_reads_them() -> None:
    seen = {}
    for posterior in ("product", "mixture", "sampled"):
        labeller = small_labeller("diffusion-mf", **{**SAMPLED, "inference": {"posterior": posterior}})
        given = []
        labeller.core.denoiser.register_forward_pre_hook(lambda _, args, given=given: given.append(args[0]))
        for step in range(6):
            sums(labeller, whole_batch(), KEYS, step)
        seen[posterior] = torch.cat(given)
    assert seen["product"].shape == seen["sampled"].shape
    assert not torch.equal(seen["product"], seen["mixture"])
    assert ((seen["sampled"] == 0) | (seen["sampled"] == 1)).all()
    labeller = small_labeller("diffusion-mf", **SAMPLED)
    for step in range(6):
        whole = sums(labeller, whole_batch(), KEYS, step)["total"]
        halves = sums(labeller, batch_of(1, 2), KEYS[[1, 2]], step), sums(labeller, batch_of(3, 0), KEYS[[3, 0]], step)
        torch.testing.assert_close(halves[0]["total"] + halves[1]["total"], whole, rtol=1e-5, atol=1e-5)


def with_rubbish(batch):
    """The same sentences with other numbers in the padding."""
    is_padding = torch.arange(batch.form_ids.shape[1]) >= batch.lengths[:, None]
    return dataclasses.replace(
        batch,
        form_ids=batch.form_ids.masked_fill(is_padding, 3),
        word_rows=batch.word_rows.masked_fill(is_padding, 2),
        label_ids=batch.label_ids.masked_fill(is_padding, 1),
    )


@pytest.mark.parametrize("system", SYSTEMS)
def test_what_stands_in_the_padding_changes_nothing(system) -> None:
    labeller = small_labeller(system).eval()
    clean, dirty = whole_batch(more_padding=2), with_rubbish(whole_batch(more_padding=2))
    for name, value in sums(labeller, clean, KEYS, 0).items():
        assert torch.equal(sums(labeller, dirty, KEYS, 0)[name], value)
    assert torch.equal(labeller.predict(clean).marginals, labeller.predict(dirty).marginals)


@pytest.mark.parametrize(
    ("system", "posterior"),
    [*((system, "product") for system in SYSTEMS), ("diffusion-mf", "mixture"), ("diffusion-mf", "sampled")],
)
def test_predictions_do_not_depend_on_the_batch(system, posterior) -> None:
    labeller = small_labeller(system, structure={"transitions": "local"}, inference={"posterior": posterior}).eval()
    whole = labeller.predict(whole_batch(more_padding=2))
    assert whole.marginals.isfinite().all()
    for index in range(4):
        batch = batch_of(index)
        length = int(batch.lengths[0])
        alone = labeller.predict(batch)
        torch.testing.assert_close(alone.marginals[0], whole.marginals[index, :length], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(
            alone.decoder_input.unary_scores[0], whole.decoder_input.unary_scores[index, :length], rtol=1e-4, atol=1e-3
        )
        assert not whole.marginals[index, length:].any()


def test_sentences_of_other_words_get_other_ddim_noise() -> None:
    labeller = small_labeller("diffusionsl").eval()
    seen = []
    labeller.core.denoiser.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    labeller.predict(whole_batch(), num_calls=1)
    starts = seen[0][:, 0]
    assert len({tuple(row) for row in starts.tolist()}) == 4
