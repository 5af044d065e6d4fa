"""Early exit on packed batches: what the loop with early exit finds sentence by sentence, in fewer calls."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

sys.path.append(str(Path(__file__).parents[1] / "model"))

from tiny_models import VOCABULARY, small_labeller, whole_batch

from diffusion_mf.acceleration.early_exit import ExitLoop
from diffusion_mf.acceleration.prediction import Options, Predictor
from diffusion_mf.data.batching import Batch, collate
from diffusion_mf.data.sentence import Sentence
from diffusion_mf.model import Labeller, Prediction
from diffusion_mf.ops.chain_scores import unit_mask
from diffusion_mf.tagger import StoredModel

CPU = torch.device("cpu")
BUDGET = 1700
TOLERANCE = 0.01


def predictor(labeller: Labeller, **changes: Any) -> Predictor:
    inference = labeller.config.inference.model_copy(update={"layout": "packed", **changes})
    return Predictor(labeller, labeller.config.model_copy(update={"inference": inference}), CPU)


def unlabelled(sentences: Sequence[Sentence], model: StoredModel) -> Batch:
    return collate([Sentence(sentence.units) for sentence in sentences], model.vocabulary)


def real(tensor: Tensor, batch: Batch) -> Tensor:
    """What stands at units, (units, …)."""
    rows, columns = batch.form_ids.shape
    return tensor[:rows, :columns][unit_mask(batch.lengths, columns)]


def best(prediction: Prediction) -> list[Tensor]:
    assert prediction.evidence.unary_scores is not None
    return [prediction.evidence.unary_scores.argmax(-1)]


@torch.no_grad()
def test_labels_of_the_full_loop_in_fewer_calls(model: StoredModel, dev: tuple[Sentence, ...]) -> None:
    batch = unlabelled(dev, model)
    labeller = model.labeller.eval()
    fast = predictor(labeller, exit_tolerance=TOLERANCE)
    found, full = fast(batch, budget=BUDGET), labeller.predict(batch)
    assert full.num_calls == 10
    assert fast.mean_calls is not None
    assert 2 < fast.mean_calls < 8
    assert torch.equal(real(best(found)[0], batch), real(best(full)[0], batch))
    difference = (real(found.marginals, batch) - real(full.marginals, batch)).abs()
    # The tolerance is about one call; later calls might have moved a little further.
    assert difference.max() < 5 * TOLERANCE
    # Early exit has happened: the comparison is not one of equal things.
    assert difference.max() > 1e-5


@torch.no_grad()
@pytest.mark.parametrize(
    ("tolerance", "posterior"),
    [(1e-3, "product"), (0.01, "product"), (0.1, "product"), (0.01, "mixture"), (0.01, "sampled")],
)
def test_every_sentence_fares_as_in_the_direct_loop(
    model: StoredModel, dev: tuple[Sentence, ...], tolerance: float, posterior: str
) -> None:
    batch = unlabelled(dev[:40], model)
    labeller = model.labeller.eval()
    changes = {"exit_tolerance": tolerance, "posterior": posterior}
    fast = predictor(labeller, **changes)
    settings = labeller.config.inference.model_copy(update=changes)
    found, direct = fast(batch, budget=BUDGET), labeller.predict(batch, settings=settings)
    # Samples do not settle: nobody leaves.
    assert (fast.mean_calls is None) == (posterior == "sampled")
    assert found.num_calls == direct.num_calls
    torch.testing.assert_close(real(found.marginals, batch), real(direct.marginals, batch), rtol=1e-4, atol=1e-5)
    scores = [each.evidence.unary_scores for each in (found, direct)]
    beliefs = [real(each, batch).exp() for each in scores if each is not None]
    torch.testing.assert_close(beliefs[0], beliefs[1], rtol=1e-4, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize(
    ("system", "transitions"),
    [
        ("diffusion-uni", "global"),
        ("diffusion-mf", "global"),
        ("diffusion-lcrf", "local"),
        ("diffusion-lcrf", "global"),
    ],
)
def test_potentials_are_those_of_the_last_call_that_a_sentence_had(system: str, transitions: str) -> None:
    labeller = small_labeller(system, structure={"transitions": transitions}).eval()
    batch = whole_batch()
    # A tolerance that nothing meets: all calls are made, each of them on a batch that was packed anew.
    found = predictor(labeller, exit_tolerance=1e-30)(batch, budget=40)
    full = labeller.predict(batch)
    assert found.num_calls == full.num_calls == 10
    ours, expected = found.evidence.potentials, full.evidence.potentials
    assert ours is not None
    assert expected is not None
    unary = [real(potentials.unary_scores, batch) for potentials in (ours, expected)]
    torch.testing.assert_close(unary[0], unary[1], rtol=1e-3, atol=1e-4)
    if expected.transition_scores is None or transitions == "global":
        assert ours.transition_scores is expected.transition_scores
    else:
        assert ours.transition_scores is not None
        rows, columns = batch.form_ids.shape
        has_next = unit_mask(batch.lengths - 1, columns - 1)
        pairs = ours.transition_scores[:rows, : columns - 1][has_next]
        torch.testing.assert_close(pairs, expected.transition_scores[has_next], rtol=1e-3, atol=1e-4)


@torch.no_grad()
def test_batches_in_flight_do_not_meet(model: StoredModel, dev: tuple[Sentence, ...]) -> None:
    """More batches than lanes, of different forms, submitted before any is waited for."""
    batches = [unlabelled(dev[start : start + 9], model) for start in range(0, 45, 9)]
    fast = predictor(model.labeller.eval(), exit_tolerance=TOLERANCE)
    pending = [fast.submit(batch, best, budget=200) for batch in batches]
    for batch, each in zip(batches, pending, strict=True):
        (labels,) = each.wait()
        alone = predictor(model.labeller, exit_tolerance=TOLERANCE)(batch, budget=200)
        assert torch.equal(real(labels, batch), real(best(alone)[0], batch))
    assert fast.mean_calls is not None


@torch.no_grad()
@pytest.mark.parametrize("options", [Options(num_calls=1), Options(num_calls=2), Options(base=4.0)])
def test_short_schedules(model: StoredModel, dev: tuple[Sentence, ...], options: Options) -> None:
    batch = unlabelled(dev[:8], model)
    labeller = model.labeller.eval()
    found = predictor(labeller, exit_tolerance=1e-30)(batch, options, budget=200)
    full = labeller.predict(batch, num_calls=options.num_calls, base=options.base)
    assert found.num_calls == full.num_calls
    torch.testing.assert_close(real(found.marginals, batch), real(full.marginals, batch), rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_half_precision_weights_follow_the_model() -> None:
    """bfloat16 copies of weights are taken anew for each batch, and give what autocast gives."""
    labeller = small_labeller("diffusion-mf").eval()
    batch = whole_batch()
    fast = predictor(labeller, exit_tolerance=1e-30, precision="bfloat16")
    plain = predictor(labeller, precision="bfloat16")
    for _ in range(2):
        found, expected = fast(batch, budget=40), plain(batch, budget=40)
        torch.testing.assert_close(real(found.marginals, batch), real(expected.marginals, batch), rtol=0.05, atol=0.02)
        for parameter in labeller.core.parameters():
            parameter.mul_(1.3)


@torch.no_grad()
def test_clamps_trajectories_and_long_batches_go_the_direct_way(monkeypatch: pytest.MonkeyPatch) -> None:
    labeller = small_labeller("diffusion-mf", inference={"exit_tolerance": TOLERANCE}).eval()
    fast = predictor(labeller)
    batch = whole_batch()

    def refuse(*arguments: object) -> None:
        raise AssertionError("not this way")

    monkeypatch.setattr(ExitLoop, "run", refuse)
    with pytest.raises(AssertionError):
        fast(batch, budget=40)
    allowed = torch.ones(*batch.form_ids.shape, len(VOCABULARY.labels), dtype=torch.bool)
    allowed[0, 0, 1:] = False
    clamped = fast(batch, budget=40, allowed=allowed)
    assert best(clamped)[0][0, 0] == 0
    steps = fast(batch, budget=40, keep_trajectory=True).trajectory
    assert steps is not None
    assert len(steps) == 10
    repeated = collate([Sentence(("Oda",) * 80)], VOCABULARY)
    assert fast(repeated, budget=40).marginals.shape[:2] == (1, 80)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_inside_and_outside_of_inference_mode(precision: str) -> None:
    fast = predictor(small_labeller("diffusion-mf").eval(), exit_tolerance=1e-30, precision=precision)
    batch = whole_batch()
    with torch.inference_mode():
        first = real(fast(batch, budget=40).marginals, batch).clone()
    with torch.no_grad():
        second = real(fast(batch, budget=40).marginals, batch)
    assert torch.equal(first, second)


def test_lanes_are_taken_in_the_same_order_again(model: StoredModel, dev: tuple[Sentence, ...]) -> None:
    """What a lane has recorded in one pass is of use in the next, whatever the number of batches."""
    batches = [unlabelled(dev[start : start + 2], model) for start in range(0, 8, 2)]
    fast = predictor(model.labeller.eval(), exit_tolerance=1.0)
    counts = []
    for _ in range(2):
        for each in [fast.submit(batch, best, budget=64) for batch in batches]:
            each.wait()
        assert fast._exit_lanes is not None
        counts.append([loop.num_sentences for loop in fast._exit_lanes.loops])
    assert counts == [[4, 2, 2], [8, 4, 4]]


def test_systems_without_marginals_to_watch_make_all_their_calls() -> None:
    for system in ("lcrf", "diffusionsl"):
        labeller = small_labeller(system, inference={"exit_tolerance": TOLERANCE}).eval()
        fast = predictor(labeller)
        batch = whole_batch()
        found, expected = fast(batch, budget=40), labeller.predict(batch)
        torch.testing.assert_close(real(found.marginals, batch), real(expected.marginals, batch), rtol=1e-3, atol=1e-4)
        assert fast.mean_calls is None


@torch.no_grad()
@pytest.mark.parametrize("transitions", ["local", "global"])
def test_scores_of_the_first_call_survive_packing_anew(transitions: str) -> None:
    settings = {"inference": {"scores_from": "first"}, "structure": {"transitions": transitions}}
    settings["denoiser"] = {"state_input": transitions == "local"}
    labeller, batch = small_labeller("diffusion-mf", **settings).eval(), whole_batch()
    found = predictor(labeller, exit_tolerance=1e-3)(batch, budget=40)
    expected = labeller.predict(batch, num_calls=1)
    torch.testing.assert_close(real(found.marginals, batch), real(expected.marginals, batch), rtol=1e-4, atol=1e-5)
