"""What `predict` hands to decoders: schedules, clamps, trajectories, and one pass of the encoder."""

from __future__ import annotations

import pytest
import torch
from tiny_models import KEYS, VOCABULARY, small_labeller, whole_batch

from diffusion_mf.config import InferenceConfig
from diffusion_mf.data.label_schemes import LabelScheme
from diffusion_mf.decoding import DECODERS
from diffusion_mf.diffusion import one_hot
from diffusion_mf.errors import InputError
from diffusion_mf.systems import SYSTEMS

K = len(VOCABULARY.labels)
DIFFUSION = [name for name, system in SYSTEMS.items() if system.process == "categorical"]
DIRECT = [name for name, system in SYSTEMS.items() if system.process == "direct"]


def units(batch):
    return torch.arange(batch.form_ids.shape[1]) < batch.lengths[:, None]


def clamps():
    """One label at two positions of the long sentence, two at another; everything elsewhere."""
    allowed = torch.ones(4, 7, K, dtype=torch.bool)
    allowed[1, 0] = allowed[1, 3] = allowed[1, 5] = False
    allowed[1, 0, VOCABULARY.label_ids["S-PER"]] = True
    allowed[1, 3, VOCABULARY.label_ids["B-LOC"]] = True
    allowed[1, 5, [VOCABULARY.label_ids["E-LOC"], VOCABULARY.label_ids["M-LOC"]]] = True
    return allowed


@pytest.mark.parametrize("system", SYSTEMS)
def test_every_decoder_honours_clamps(system) -> None:
    labeller, batch = small_labeller(system).eval(), whole_batch()
    allowed = clamps()
    prediction = labeller.predict(batch, allowed=allowed, keep_trajectory=True)
    assert not prediction.marginals[~allowed & units(batch)[..., None]].any()
    torch.testing.assert_close(prediction.marginals.sum(-1), units(batch).float())
    for _, beliefs in prediction.trajectory or []:
        assert not beliefs[~allowed & units(batch)[..., None]].any()
    for name in {*labeller.decoders, "mask-viterbi", "argmax"}:
        labels = DECODERS[name](prediction.decoder_input)
        assert allowed.gather(-1, labels[..., None].clamp(min=0))[units(batch)].all()
        if "viterbi" in name:
            assert labeller.legality.permits(labels, batch.lengths).all()


@pytest.mark.parametrize("system", ["mean-field", "lcrf", "diffusion-mf", "diffusion-lcrf"])
def test_neighbours_listen_to_a_clamp_through_the_structure(system) -> None:
    labeller, batch = small_labeller(system).eval(), whole_batch()
    free = labeller.predict(batch).marginals
    clamped = labeller.predict(batch, allowed=clamps()).marginals
    assert (free[1, 1] - clamped[1, 1]).abs().max() > 1e-3


def test_a_sentence_that_clamps_make_impossible_is_an_input_error() -> None:
    labeller = small_labeller("lcrf").eval()
    allowed = torch.ones(4, 7, K, dtype=torch.bool)
    allowed[1, 2] = False
    allowed[1, 2, VOCABULARY.label_ids["B-PER"]] = True
    allowed[1, 3] = False
    allowed[1, 3, VOCABULARY.label_ids["O"]] = True
    with pytest.raises(InputError, match="no legal label sequence"):
        DECODERS["viterbi"](labeller.predict(whole_batch(), allowed=allowed).decoder_input)


@pytest.mark.parametrize("system", [*DIFFUSION, "diffusionsl"])
def test_the_flag_marks_positions_with_one_label_left(system) -> None:
    labeller, batch = small_labeller(system).eval(), whole_batch()
    marked = []
    labeller.core.denoiser.flag.register_forward_pre_hook(lambda _, args: marked.append(args[1]))
    labeller.predict(batch, num_calls=2)
    labeller.predict(batch, num_calls=2, allowed=clamps())
    assert marked[:2] == [None, None]
    expected = torch.zeros(4, 7, dtype=torch.bool)
    expected[1, [0, 3]] = True
    assert torch.equal(marked[2], expected)
    assert torch.equal(marked[3], expected)


@pytest.mark.parametrize("system", [*DIFFUSION, "diffusionsl"])
def test_clamp_training_gives_clean_flagged_labels_that_cost_nothing(system) -> None:
    labeller, batch = small_labeller(system, diffusion={"clamp_share": 1.0, "num_steps": 10}), whole_batch()
    seen = []
    labeller.core.denoiser.flag.register_forward_pre_hook(lambda _, args: seen.append(args[1]))
    inputs = []
    labeller.core.denoiser.register_forward_pre_hook(lambda _, args: inputs.append(args[0]))
    total_marked = num_noisy = 0
    for step in range(4):
        losses = labeller.loss_sums(batch, seed=0, step=step, sentence_keys=KEYS)
        assert losses["total"].isfinite()
        losses["total"].backward()
        is_marked = seen[-1] & units(batch)
        total_marked += int(is_marked.sum())
        clean = labeller.codes.encode(batch.label_ids) if system == "diffusionsl" else one_hot(batch.label_ids, K)
        assert torch.equal(inputs[-1][is_marked], clean[is_marked])
        num_noisy += int((inputs[-1] != clean)[~is_marked & units(batch)].any(-1).sum())
    assert num_noisy > 0
    assert 0 < total_marked < 4 * int(units(batch).sum())
    assert labeller.core.denoiser.flag.vector.grad.abs().sum() > 0
    for parameter in labeller.parameters():
        assert parameter.grad is None or parameter.grad.isfinite().all()


@pytest.mark.parametrize("system", [*DIFFUSION, "diffusionsl"])
def test_a_sentence_with_all_labels_given_costs_nothing(system, monkeypatch) -> None:
    labeller, batch = small_labeller(system, diffusion={"clamp_share": 1.0}), whole_batch()
    everything = torch.ones(4, 7, dtype=torch.bool)
    monkeypatch.setattr("diffusion_mf.model.core.StepDraws.clamps", lambda self, target: everything)
    losses = labeller.loss_sums(batch, seed=0, step=0, sentence_keys=KEYS)
    assert losses["total"].item() == pytest.approx(0, abs=1e-4)


@pytest.mark.parametrize("system", SYSTEMS)
def test_the_encoder_runs_once_per_prediction(system) -> None:
    labeller = small_labeller(system).eval()
    encoder_calls, denoiser_calls = [], []
    labeller.encoder.register_forward_hook(lambda *_: encoder_calls.append(1))
    if SYSTEMS[system].is_diffusion:
        labeller.core.denoiser.register_forward_hook(lambda *_: denoiser_calls.append(1))
    prediction = labeller.predict(whole_batch())
    assert len(encoder_calls) == 1
    assert len(denoiser_calls) == prediction.num_calls == (10 if SYSTEMS[system].is_diffusion else 0)


def visited(labeller, **options):
    steps = []
    hook = labeller.core.denoiser.register_forward_pre_hook(lambda _, args: steps.append(int(args[1][0])))
    prediction = labeller.predict(whole_batch(), keep_trajectory=True, **options)
    hook.remove()
    assert prediction.num_calls == len(steps)
    return steps, [t for t, _ in prediction.trajectory]


@pytest.mark.parametrize("system", DIFFUSION)
def test_schedules_by_base_and_by_number_of_calls(system) -> None:
    labeller = small_labeller(system).eval()
    assert visited(labeller) == ([1000, 500, 250, 125, 62, 31, 15, 7, 3, 1], [500, 250, 125, 62, 31, 15, 7, 3, 1, 0])
    by_base = visited(labeller, settings=InferenceConfig(base=4.0))
    assert by_base == ([1000, 250, 62, 15, 3], [250, 62, 15, 3, 0])
    assert visited(labeller, num_calls=5) == by_base
    configured = small_labeller(system, inference={"num_calls": 5}).eval()
    assert visited(configured) == by_base
    assert visited(configured, num_calls=10) == visited(labeller)


def test_ddim_visits_evenly_spaced_steps() -> None:
    labeller = small_labeller("diffusionsl").eval()
    assert visited(labeller, num_calls=4) == ([1000, 750, 500, 250], [750, 500, 250, 0])


@pytest.mark.parametrize("system", DIFFUSION)
def test_trajectories_end_at_the_decoder_input_and_reported_marginals_are_the_last_calls(system) -> None:
    labeller = small_labeller(system).eval()
    prediction = labeller.predict(whole_batch(), keep_trajectory=True)
    is_unit = units(whole_batch())
    last = prediction.trajectory[-1][1]
    torch.testing.assert_close(prediction.decoder_input.unary_scores.exp()[is_unit], last[is_unit])
    for _, beliefs in prediction.trajectory:
        torch.testing.assert_close(beliefs.sum(-1), torch.ones(4, 7))
    # π₀ is a product over all calls, ρ₀ is not: a nearly constant ρ₀ leaves π₀ much sharper.
    assert last[is_unit].amax(-1).mean() > prediction.marginals[is_unit].amax(-1).mean() + 0.05


@pytest.mark.parametrize("system", ["diffusion-uni", "diffusion-mf", "diffusion-lcrf"])
def test_scores_may_be_reported_from_the_first_call(system) -> None:
    """Labels are those of all calls; marginals are what one call alone says."""
    usual, labeller = (small_labeller(system, inference={"scores_from": call}).eval() for call in ("last", "first"))
    expected, first = usual.predict(whole_batch()), usual.predict(whole_batch(), num_calls=1)
    prediction = labeller.predict(whole_batch())
    torch.testing.assert_close(prediction.decoder_input.unary_scores, expected.decoder_input.unary_scores)
    torch.testing.assert_close(prediction.marginals, first.marginals)
    assert not torch.allclose(prediction.marginals, expected.marginals)


@pytest.mark.parametrize("system", DIRECT)
def test_direct_systems_give_decoder_input_for_all_decoders(system) -> None:
    labeller, batch = small_labeller(system).eval(), whole_batch()
    decoder_input = labeller.predict(batch).decoder_input
    for name in ("argmax", "mask-viterbi"):
        assert DECODERS[name](decoder_input).shape == (4, 7)
    assert labeller.legality.permits(DECODERS["mask-viterbi"](decoder_input), batch.lengths).all()
    if system == "unigram":
        with pytest.raises(InputError, match="learned transitions"):
            DECODERS["viterbi"](decoder_input)
    else:
        assert labeller.legality.permits(DECODERS["viterbi"](decoder_input), batch.lengths).all()


def test_diffusionsl_gives_decoder_input_for_native_nearest_and_mask_viterbi() -> None:
    labeller, batch = small_labeller("diffusionsl", bits={"num_samples": 2, "eta": 0.5}).eval(), whole_batch()
    prediction = labeller.predict(batch)
    assert prediction.num_calls == 20
    decoder_input = prediction.decoder_input
    native, nearest = DECODERS["native"](decoder_input), DECODERS["argmax"](decoder_input)
    is_label = (native >= 0) & units(batch)
    assert torch.equal(native[is_label], nearest[is_label])
    assert labeller.legality.permits(DECODERS["mask-viterbi"](decoder_input), batch.lengths).all()
    assert small_labeller("diffusionsl", bits={"projection": "nearest"}).decoders == ("argmax", "mask-viterbi")


def test_without_a_scheme_every_sequence_is_legal() -> None:
    labeller = small_labeller("diffusion-uni", scheme=LabelScheme.PLAIN).eval()
    assert labeller.legality is None
    assert labeller.decoders == ("argmax",)
    decoder_input = labeller.predict(whole_batch()).decoder_input
    assert torch.equal(DECODERS["mask-viterbi"](decoder_input), DECODERS["argmax"](decoder_input))


def test_predicting_in_training_mode_is_refused() -> None:
    with pytest.raises(RuntimeError, match="eval"):
        small_labeller("unigram").predict(whole_batch())


@pytest.mark.parametrize("system", SYSTEMS)
def test_scores_are_float32_under_autocast(system) -> None:
    labeller, batch = small_labeller(system, structure={"transitions": "local"}), whole_batch()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        losses = labeller.loss_sums(batch, seed=0, step=0, sentence_keys=KEYS)
        prediction = labeller.eval().predict(batch)
    exact = labeller.train().loss_sums(batch, seed=0, step=0, sentence_keys=KEYS)
    for name, value in losses.items():
        assert value.dtype == torch.float32
        torch.testing.assert_close(value, exact[name], rtol=0.1, atol=0.1)
    assert prediction.marginals.dtype == torch.float32
    potentials = prediction.decoder_input.potentials
    if potentials is not None:
        # Mean-Field's local transitions only weigh beliefs; three digits do.
        is_coarse = system.endswith(("mean-field", "-mf"))
        assert potentials.unary_scores.dtype == torch.float32
        if potentials.transition_scores is not None:
            assert potentials.transition_scores.dtype == (torch.bfloat16 if is_coarse else torch.float32)
