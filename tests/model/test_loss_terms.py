"""Each system's loss has exactly the paper's terms and weights: hand-made potentials, oracles of loops and enumeration."""

from __future__ import annotations

import math
import statistics
from typing import Any

import pytest
import torch
from tiny_models import VOCABULARY, FixedScorer, batch_of, small_config, small_labeller

from diffusion_mf.batches.layouts import PaddedLayout
from diffusion_mf.data.label_schemes import LabelScheme
from diffusion_mf.diffusion import one_hot, restrict
from diffusion_mf.model import Labeller
from diffusion_mf.model.core import StepDraws, Target, Use, structured_terms
from diffusion_mf.ops import forward_backward
from diffusion_mf.structures import LinearChain
from diffusion_mf.systems import ObjectiveWeights
from oracles import mean_field_loops, noise_matrices
from oracles.chain_enumeration import Enumerated
from oracles.gaussian_bits import code, linear_betas, marginal_moments

K = len(VOCABULARY.labels)
NUM_ITERATIONS = 2
KEYS = torch.tensor([11, 8, 2])


def short_batch():
    """Sentences of at most four units: what can be enumerated."""
    return batch_of(0, 2, 3)


def fixed_potentials(has_transitions: bool) -> tuple[torch.Tensor, torch.Tensor | None]:
    batch = short_batch()
    generator = torch.Generator().manual_seed(3)
    unary = torch.randn((*batch.form_ids.shape, K), generator=generator, dtype=torch.float64)
    transition = torch.randn((K, K), generator=generator, dtype=torch.float64)
    return unary, transition if has_transitions else None


def gold() -> list[list[int]]:
    batch = short_batch()
    return [row[:length] for row, length in zip(batch.label_ids.tolist(), batch.lengths.tolist(), strict=True)]


def enumeration(unary: torch.Tensor, transition: torch.Tensor) -> tuple[float, list[list[list[float]]]]:
    """L_seq and exact marginals."""
    sequence, marginals = 0.0, []
    for index, labels in enumerate(gold()):
        oracle = Enumerated(unary[index], transition, len(labels))
        log_probs = torch.log_softmax(oracle.scores, 0)
        sequence -= float(log_probs[oracle.paths.index(tuple(labels))])
        marginals.append(oracle.marginals().tolist())
    return sequence, marginals


def cross_entropy(marginals: list[list[list[float]]]) -> float:
    return -sum(
        math.log(row[label])
        for sentence, labels in zip(marginals, gold(), strict=True)
        for row, label in zip(sentence, labels, strict=True)
    )


def posterior_divergence(marginals, noisy_labels, timesteps, *, power=1) -> float:
    """Σ KL(q(y^{t−1} | y^t, y⁰) ‖ q(y^{t−1} | y^t, ŷ⁰)) by explicit matrices."""
    betas = noise_matrices.cosine_betas(1000, power)
    from_zero = noise_matrices.products(betas, K)
    total = 0.0
    eye = torch.eye(K, dtype=torch.float64).tolist()
    for sentence, labels in enumerate(gold()):
        t = timesteps[sentence]
        step = noise_matrices.step_matrix(betas[t], K)
        for position, label in enumerate(labels):
            y_t = eye[noisy_labels[sentence][position]]
            true = noise_matrices.posterior(y_t, eye[label], from_zero[t - 1], step)
            guess = noise_matrices.posterior(y_t, marginals[sentence][position], from_zero[t - 1], step)
            total += noise_matrices.kl(true, guess)
    return total


def fixed_labeller(system: str, **sections):
    """A labeller whose scorer answers with fixed potentials."""
    unary, transition = fixed_potentials("uni" not in system)
    labeller = small_labeller(system, structure={"num_iterations": NUM_ITERATIONS}, **sections)
    labeller.core.scorer = FixedScorer(unary, transition)
    return labeller, unary, transition


def marginals_of(system: str, unary, transition):
    rows = [unary[index, : len(labels)].tolist() for index, labels in enumerate(gold())]
    if "uni" in system:
        return [[mean_field_loops.softmax(scores) for scores in sentence] for sentence in rows]
    table = transition.tolist()
    return [
        mean_field_loops.beliefs(sentence, lambda _, before, after: table[before][after], NUM_ITERATIONS)
        for sentence in rows
    ]


def losses_of(labeller, step=4):
    found = labeller.loss_sums(short_batch(), seed=7, step=step, sentence_keys=KEYS)
    return {name: float(value.detach()) for name, value in found.items()}


@pytest.mark.parametrize("system", ["unigram", "mean-field"])
def test_direct_factorised_systems_have_cross_entropy_alone(system) -> None:
    labeller, unary, transition = fixed_labeller(system)
    expected = cross_entropy(marginals_of(system, unary, transition))
    assert losses_of(labeller) == pytest.approx({"denoising": expected, "total": expected}, rel=1e-9)


def test_lcrf_has_the_sequence_likelihood_alone() -> None:
    labeller, unary, transition = fixed_labeller("lcrf")
    expected, _ = enumeration(unary, transition)
    assert losses_of(labeller) == pytest.approx({"sequence": expected, "total": expected}, rel=1e-6)


def noise_of(labeller, step=4):
    """The noisy labels and timesteps that step draws, read off the denoiser's input."""
    seen = {}
    hook = labeller.core.denoiser.register_forward_pre_hook(lambda _, args: seen.update(beliefs=args[0], t=args[1]))
    losses = losses_of(labeller, step)
    hook.remove()
    return losses, seen["beliefs"].argmax(-1).tolist(), seen["t"].tolist()


@pytest.mark.parametrize("power", [1.0, 2.0])
@pytest.mark.parametrize("system", ["diffusion-uni", "diffusion-mf"])
def test_diffusion_adds_the_posterior_term_with_weight_one(system, power) -> None:
    labeller, unary, transition = fixed_labeller(system, diffusion={"cosine_power": power})
    losses, noisy, timesteps = noise_of(labeller)
    marginals = marginals_of(system, unary, transition)
    denoising, posterior = cross_entropy(marginals), posterior_divergence(marginals, noisy, timesteps, power=power)
    expected = {"denoising": denoising, "posterior": posterior, "total": denoising + posterior}
    assert losses == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("weight", [0.0, 0.1])
def test_diffusion_lcrf_has_sequence_marginal_and_weighted_posterior_terms(weight) -> None:
    labeller, unary, transition = fixed_labeller("diffusion-lcrf", objective={"posterior": weight})
    losses, noisy, timesteps = noise_of(labeller)
    sequence, marginals = enumeration(unary, transition)
    marginal = cross_entropy(marginals)
    expected = {"sequence": sequence, "marginal": marginal, "total": sequence + marginal}
    if weight:
        expected["posterior"] = posterior_divergence(marginals, noisy, timesteps)
        expected["total"] += weight * expected["posterior"]
    assert losses == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("objective", [{}, {"posterior": 0.1}, {"marginal": 0.0, "posterior": 0.1}], ids=str)
def test_diffusion_lcrf_makes_one_pass_over_a_chain_per_step(objective, monkeypatch) -> None:
    """L_seq takes log Z from the pass that found the marginals of the other terms; gradients are those of two passes."""
    labeller, unary, transition = fixed_labeller("diffusion-lcrf", objective=objective)
    calls, messages = [], forward_backward._messages
    monkeypatch.setattr(
        forward_backward, "_messages", lambda *arguments: calls.append(arguments) or messages(*arguments)
    )
    losses_of(labeller)
    assert len(calls) == 1

    batch, weights = short_batch(), ObjectiveWeights(sequence=1, marginal=1)
    is_unit = torch.arange(unary.shape[1]) < batch.lengths[:, None]
    scores = unary.requires_grad_(), transition.requires_grad_()
    terms = structured_terms(LinearChain(*scores, batch.lengths), batch.label_ids, is_unit, weights)
    found = torch.autograd.grad(sum(terms.values()), scores)
    likelihood = LinearChain(*scores, batch.lengths).log_prob(batch.label_ids).sum()
    log_marginals = LinearChain(*scores, batch.lengths).log_marginals()
    chosen = log_marginals.gather(-1, batch.label_ids[..., None])[..., 0][is_unit].sum()
    expected = torch.autograd.grad(-likelihood - chosen, scores)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


def test_given_weights_replace_the_systems_own() -> None:
    labeller, unary, transition = fixed_labeller("diffusion-mf", objective={"denoising": 0.5, "posterior": 0})
    expected = cross_entropy(marginals_of("diffusion-mf", unary, transition))
    assert losses_of(labeller) == pytest.approx({"denoising": expected, "total": expected / 2}, rel=1e-6)


def test_diffusionsl_has_the_squared_error_of_its_bits_alone() -> None:
    labeller = small_labeller("diffusionsl", bits={"scale": 2.0})
    seen = {}
    labeller.core.denoiser.register_forward_hook(
        lambda _, args, answer: seen.update(noisy=args[0], t=args[1], x0=answer)
    )
    losses = losses_of(labeller)
    num_bits = 3
    expected, drawn = 0.0, []
    draws = StepDraws(7, 4, KEYS)
    for sentence, labels in enumerate(gold()):
        coefficient, variance = marginal_moments(linear_betas(1000, 1e-4, 0.02))[int(seen["t"][sentence])]
        for position, label in enumerate(labels):
            clean = code(label, num_bits, 2.0)
            predicted = (2.0 * seen["x0"][sentence, position]).tolist()
            expected += sum((a - b) ** 2 for a, b in zip(predicted, clean, strict=True)) / num_bits
            noise = [
                (a - coefficient * b) / math.sqrt(variance)
                for a, b in zip(seen["noisy"][sentence, position].tolist(), clean, strict=True)
            ]
            drawn += noise
            keyed = draws.normals(Use.BIT_NOISE, (4, num_bits))[sentence, position].tolist()
            assert noise == pytest.approx(keyed, abs=1e-2)
    assert losses == pytest.approx({"bits": expected, "total": expected}, rel=1e-5)
    assert 0.5 < statistics.pstdev(drawn) < 1.5


def test_the_auxiliary_term_is_the_cross_entropy_of_a_scorer_on_the_states() -> None:
    labeller = small_labeller("diffusion-uni", objective={"encoder_auxiliary": 0.5})
    batch = short_batch()
    scores = labeller.auxiliary(labeller.encoder(batch, batch.layout)).double()
    marginals = scores.softmax(-1).tolist()
    expected = cross_entropy([row[: len(labels)] for row, labels in zip(marginals, gold(), strict=True)])
    losses = losses_of(labeller)
    assert losses["auxiliary"] == pytest.approx(expected, rel=1e-5)
    total = losses["denoising"] + losses["posterior"] + 0.5 * losses["auxiliary"]
    assert losses["total"] == pytest.approx(total, rel=1e-6)


STATE_SCORES: dict[str, Any] = {"denoiser": {"state_scores": True}, "objective": {"encoder_auxiliary": 0.5}}


def test_a_denoiser_that_sees_no_states_begins_with_their_scores() -> None:
    torch.manual_seed(0)
    labeller = Labeller(small_config("diffusion-uni", **STATE_SCORES), VOCABULARY, LabelScheme.BMES).eval()
    batch = short_batch()
    scores = labeller.core.denoiser.state_scorer(labeller.encoder(batch, batch.layout))
    is_unit = torch.arange(4) < batch.lengths[:, None]
    for num_calls in (1, 3):
        found = labeller.predict(batch, num_calls=num_calls).marginals
        torch.testing.assert_close(found[is_unit], scores.softmax(-1)[is_unit])


def test_scores_of_the_states_have_the_auxiliary_term() -> None:
    labeller = small_labeller("diffusion-uni", **STATE_SCORES)
    assert labeller.auxiliary is None
    batch = short_batch()
    scores = labeller.core.denoiser.state_scorer(labeller.encoder(batch, batch.layout)).double()
    marginals = scores.softmax(-1).tolist()
    expected = cross_entropy([row[: len(labels)] for row, labels in zip(marginals, gold(), strict=True)])
    assert losses_of(labeller)["auxiliary"] == pytest.approx(expected, rel=1e-5)
    assert "auxiliary" not in losses_of(small_labeller("diffusion-uni", denoiser={"state_scores": True}))


@pytest.mark.parametrize("system", ["diffusion-uni", "diffusion-mf", "diffusion-lcrf"])
def test_with_scores_of_the_states_labels_are_all_that_the_denoiser_sees(system) -> None:
    labeller, batch = small_labeller(system, **STATE_SCORES).eval(), short_batch()
    with torch.no_grad():
        for parameter in labeller.core.denoiser.state_scorer.parameters():
            parameter.zero_()
    before = labeller.predict(batch, num_calls=2).marginals
    with torch.no_grad():
        labeller.encoder.words.weight.add_(1.0)
    torch.testing.assert_close(labeller.predict(batch, num_calls=2).marginals, before)
    # Labels it does see: a clamp changes what is believed of other units of the sentence.
    allowed = torch.ones(3, 4, K, dtype=torch.bool)
    allowed[0, 0, 1:] = False
    assert (labeller.predict(batch, num_calls=2, allowed=allowed).marginals - before)[0, 2].abs().max() > 1e-4


def test_diffusionsl_has_no_scores_of_states_but_its_auxiliary_scorer() -> None:
    assert small_labeller("diffusionsl", **STATE_SCORES).auxiliary is not None


def test_states_act_through_scores_or_in_the_denoiser() -> None:
    with pytest.raises(ValueError, match="state_input must be false"):
        small_config("diffusion-uni", denoiser={"state_scores": True, "state_input": True})


@pytest.mark.parametrize("system", ["diffusion-uni", "diffusionsl"])
def test_timesteps_lie_between_one_and_the_last_but_one_and_a_sentence_has_one(system) -> None:
    labeller = small_labeller(system, diffusion={"num_steps": 4})
    seen = set()
    for step in range(30):
        _, _, timesteps = noise_of(labeller, step)
        assert len(timesteps) == len(KEYS)
        seen.update(timesteps)
    assert seen == {1, 2, 3}


def test_noise_depends_on_seed_step_and_sentence_only() -> None:
    labeller = small_labeller("diffusion-uni", diffusion={"num_steps": 1000})
    first = noise_of(labeller, step=1)[1:]
    torch.manual_seed(99)
    assert noise_of(labeller, step=1)[1:] == first
    assert noise_of(labeller, step=2)[1:] != first


@pytest.mark.parametrize("system", ["mean-field", "lcrf", "diffusion-mf", "diffusion-lcrf"])
def test_the_structure_is_computed_by_the_backend_asked_for(system) -> None:
    labeller, batch = small_labeller(system), short_batch()
    plain, triton = (
        Labeller(labeller.config, VOCABULARY, LabelScheme.BMES, backend=backend).eval()
        for backend in ("reference", "triton")
    )
    plain.load_state_dict(labeller.state_dict())
    expected = labeller.eval().loss_sums(batch, seed=7, step=4, sentence_keys=KEYS)["total"]
    torch.testing.assert_close(plain.loss_sums(batch, seed=7, step=4, sentence_keys=KEYS)["total"], expected)
    # There is no GPU's tensor here: whoever asked for Triton is told so.
    with pytest.raises(RuntimeError, match="backend 'triton' needs"):
        triton.predict(batch)
    with pytest.raises(RuntimeError, match="backend 'triton' needs"):
        triton.loss_sums(batch, seed=7, step=4, sentence_keys=KEYS)


def clamp_target(num_sentences: int, length: int, *, labels=None, **options) -> Target:
    is_unit = torch.ones(num_sentences, length + 2, dtype=torch.bool)
    is_unit[:, length:] = False
    labels = torch.zeros(num_sentences, length + 2, dtype=torch.int64) if labels is None else labels
    return Target(labels, torch.full((num_sentences,), length), is_unit, PaddedLayout(is_unit), **options)


def test_labels_are_given_in_a_share_of_the_steps() -> None:
    flags = [StepDraws(1, step, torch.arange(3)).has_clamps(0.4) for step in range(3000)]
    assert sum(flags) / len(flags) == pytest.approx(0.4, abs=0.03)
    assert not any(StepDraws(1, step, torch.arange(3)).has_clamps(0.0) for step in range(100))


def test_given_labels_are_those_before_a_position_or_a_part_of_all() -> None:
    is_given = StepDraws(1, 2, torch.arange(4000)).clamps(clamp_target(4000, 50))
    assert not is_given[:, 50:].any()
    counts = is_given.sum(1)
    is_before = (is_given == (torch.arange(52) < counts[:, None])).all(1)
    # Of the others few have none, or look like a beginning by chance.
    assert is_before.float().mean().item() == pytest.approx(0.58, abs=0.05)
    assert counts[is_before & (counts > 3)].float().mean().item() == pytest.approx(27, abs=1.5)
    drawn = counts[~is_before].float() / 50
    assert drawn.mean().item() == pytest.approx(0.4, abs=0.04)


def test_with_recall_sentences_are_done_or_not_begun() -> None:
    others = torch.full((4000, 52, 2), -1)
    for step in range(4):
        is_given = StepDraws(1, step, torch.arange(4000)).clamps(clamp_target(4000, 50, others=others))
        share_done = (is_given.sum(1) == 50).float().mean().item()
        share_not_begun = (is_given.sum(1) == 0).float().mean().item()
        # The share of the step is U[0, 1]; half of the rest has not been begun.
        assert share_not_begun == pytest.approx(0.55 * (1 - share_done), abs=0.06)
    whole = StepDraws(1, 3, torch.arange(4000)).clamps(clamp_target(4000, 50, others=others))
    part = StepDraws(1, 3, torch.arange(1000, 4000)).clamps(clamp_target(3000, 50, others=others[:3000]))
    assert torch.equal(whole[1000:], part)


def test_spans_are_given_as_a_whole() -> None:
    # Labels 1 and 2 continue a span: 0 | 0 1 2 | 0 | 0 2
    labels = torch.tensor([[0, 0, 1, 2, 0, 0, 2, 0, 0]]).expand(500, 9)
    is_continuation = torch.tensor([False, True, True])
    target = clamp_target(500, 7, labels=labels, is_continuation=is_continuation)
    is_given = StepDraws(1, 2, torch.arange(500)).clamps(target)
    assert torch.equal(is_given[:, 1], is_given[:, 2])
    assert torch.equal(is_given[:, 1], is_given[:, 3])
    assert torch.equal(is_given[:, 5], is_given[:, 6])
    assert not torch.equal(is_given[:, 0], is_given[:, 1])
    assert not torch.equal(is_given[:, 4], is_given[:, 5])
    assert not is_given[:, 7:].any()
    alone = StepDraws(1, 2, torch.arange(500)).clamps(target._replace(is_continuation=None))
    assert (alone & ~is_given).sum() == 0
    assert (is_given & ~alone).sum() > 0


def test_a_share_of_the_steps_continues_after_any_number_of_own_calls() -> None:
    labeller = small_labeller("diffusion-mf", diffusion={"own_trajectory_share": 0.4, "own_trajectory_calls": 2})
    choices = [labeller.choice(seed=1, step=step) for step in range(3000)]
    for num_calls, share in ((None, 0.6), (0, 0.4 / 3), (1, 0.4 / 3), (2, 0.4 / 3)):
        assert choices.count((num_calls, False)) / len(choices) == pytest.approx(share, abs=0.03)


@pytest.mark.parametrize("clamp_share", [0.0, 1.0])
@pytest.mark.parametrize("num_calls", [0, 1, 2])
def test_own_steps_see_the_beliefs_that_inference_reaches(num_calls, clamp_share, monkeypatch) -> None:
    changes = {"own_trajectory_share": 1.0, "own_trajectory_calls": 2, "clamp_share": clamp_share}
    labeller = small_labeller("diffusion-mf", diffusion=changes, inference={"num_calls": 5}).eval()
    is_given = torch.zeros_like(short_batch().label_ids, dtype=torch.bool)
    is_given[:, 0] = True
    monkeypatch.setattr("diffusion_mf.model.core.StepDraws.clamps", lambda self, target: is_given)
    allowed = None if not clamp_share else ~is_given[..., None] | (one_hot(short_batch().label_ids, K) > 0)
    step = next(step for step in range(50) if labeller.choice(seed=7, step=step)[0] == num_calls)
    seen = []
    labeller.core.denoiser.register_forward_pre_hook(lambda _, args: seen.append((args[0], args[1].tolist())))
    losses_of(labeller, step)
    schedule = labeller.process.schedule(num_calls=5)
    assert [t for _, t in seen] == [[t] for t in schedule[: num_calls + 1]]
    found = seen[-1][0]
    first = torch.full_like(found, 1 / K)
    trajectory = [(None, first if allowed is None else restrict(first, allowed))]
    trajectory += labeller.predict(short_batch(), keep_trajectory=True, allowed=allowed).trajectory
    torch.testing.assert_close(found, trajectory[num_calls][1])


def test_half_of_the_steps_see_a_first_estimate_within_the_scale() -> None:
    labeller = small_labeller("diffusionsl", bits={"self_conditioning": True, "scale": 0.1})
    choices = [labeller.choice(seed=7, step=step).has_estimate for step in range(3000)]
    assert sum(choices) / len(choices) == pytest.approx(0.5, abs=0.03)
    with torch.no_grad():
        labeller.core.denoiser.output[-1].weight.mul_(20)
    seen = []
    labeller.core.denoiser.register_forward_hook(
        lambda _, args, options, answer: seen.append((options["previous"], 0.1 * answer)), with_kwargs=True
    )
    losses_of(labeller, step=choices.index(False))
    assert [previous for previous, _ in seen] == [None]
    seen.clear()
    losses_of(labeller, step=choices.index(True))
    (nothing, first), (previous, _) = seen
    assert nothing is None
    assert first.abs().max() > 0.1, "an estimate within the scale would prove nothing"
    torch.testing.assert_close(previous, first.clamp(-0.1, 0.1))
