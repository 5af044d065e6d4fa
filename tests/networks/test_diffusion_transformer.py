from __future__ import annotations

import math

import pytest
import torch

from diffusion_mf.batches.layouts import PaddedLayout
from diffusion_mf.config import DenoiserConfig
from diffusion_mf.config.sections import StructureConfig
from diffusion_mf.networks.denoisers import BitDenoiser, DiffusionTransformer, LabelDenoiser, TimeEmbedding, sinusoid
from diffusion_mf.networks.scorers import Scorer
from diffusion_mf.structures import LinearChain, MeanField

CONFIG = DenoiserConfig(layers=2, heads=2, width=16, dropout=0.0, time_width=8)
IS_UNIT = torch.tensor([[True, True, True], [True, False, False]])
LAYOUT = PaddedLayout(IS_UNIT)


def shaken(module):
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(std=0.3)
    return module


def test_sinusoids_are_sines_and_cosines_at_falling_rates() -> None:
    found = sinusoid(torch.tensor([0, 7]), 4)
    assert found[0].tolist() == [0, 0, 1, 1]
    expected = [math.sin(7), math.sin(0.07), math.cos(7), math.cos(0.07)]
    torch.testing.assert_close(found[1], torch.tensor(expected))


def test_the_last_timestep_is_near_the_one_before_it() -> None:
    """t = T is never trained: what is learnt at T − 1 must carry over, as it cannot from a row of a table."""
    torch.manual_seed(0)
    embedding = TimeEmbedding(64)
    optimizer = torch.optim.Adam(embedding.parameters(), lr=3e-3)
    target = torch.linspace(-1, 1, 64)
    trained = torch.arange(900, 1000)
    for _ in range(100):
        optimizer.zero_grad()
        (embedding(trained) - target).square().mean().backward()
        optimizer.step()
    seen, unseen = embedding(torch.tensor([999])), embedding(torch.tensor([1000]))
    assert (unseen - target).square().mean() < 0.01
    assert (seen - unseen).abs().max() < 0.2


def test_fresh_blocks_pass_their_input_through_and_states_matter_from_the_start() -> None:
    torch.manual_seed(0)
    network = DiffusionTransformer(CONFIG, 5)
    inputs, t = torch.randn(2, 3, 16), torch.tensor([3, 900])
    conditions = network.prepare(torch.randn(2, 3, 5))
    for condition in conditions.blocks:
        assert not condition.any()
    shift, scale = (conditions.final + network.modulation.of_time(network.time(t)[:, None])).chunk(2, -1)
    expected = torch.nn.functional.layer_norm(inputs, (16,)) * (1 + scale) + shift
    torch.testing.assert_close(network(inputs, t, conditions, LAYOUT), expected)
    states = torch.randn(2, 3, 5, requires_grad=True)
    network(inputs, t, network.prepare(states), LAYOUT).square().sum().backward()
    assert states.grad.abs().amax(-1).min() > 0


def test_states_are_added_to_the_input_where_asked_for() -> None:
    torch.manual_seed(0)
    network = shaken(DiffusionTransformer(CONFIG.model_copy(update={"state_input": True}), 5))
    plain = DiffusionTransformer(CONFIG, 5)
    assert not plain.load_state_dict(network.state_dict(), strict=False).missing_keys
    inputs, states, t = torch.randn(2, 3, 16), torch.randn(2, 3, 5), torch.tensor([3, 900])
    expected = plain(inputs + states @ network.input_of_state.weight.T, t, plain.prepare(states), LAYOUT)
    torch.testing.assert_close(network(inputs, t, network.prepare(states), LAYOUT), expected)


def test_modulation_is_a_linear_map_of_state_and_time_together() -> None:
    torch.manual_seed(0)
    modulation = shaken(DiffusionTransformer(CONFIG, 5)).blocks[0].modulation
    state, time = torch.randn(5), torch.randn(8)
    weight = torch.cat([modulation.of_state.weight, modulation.of_time[1].weight], dim=1)
    expected = weight @ torch.nn.functional.silu(torch.cat([state, time])) + modulation.of_time[1].bias
    torch.testing.assert_close(
        modulation.of_state(torch.nn.functional.silu(state)) + modulation.of_time(time), expected
    )


def test_a_block_is_attention_and_feed_forward_on_modulated_norms_each_with_a_gate() -> None:
    torch.manual_seed(0)
    block = shaken(DiffusionTransformer(CONFIG, 5)).blocks[0]
    values, condition, time = torch.randn(2, 3, 16), torch.randn(2, 3, 96), torch.randn(2, 8)
    rotation = LAYOUT.rotation(8)
    parts = condition + block.modulation.of_time(time)[:, None]
    first_shift, first_scale, first_gate, second_shift, second_scale, second_gate = parts.unflatten(-1, (6, 16)).unbind(
        -2
    )

    def norm(vectors: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.layer_norm(vectors, (16,))

    attended = block.attention(norm(values) * (1 + first_scale) + first_shift, LAYOUT, rotation)
    between = values + first_gate * attended
    expected = between + second_gate * block.feed_forward(norm(between) * (1 + second_scale) + second_shift)
    torch.testing.assert_close(block(values, condition, time, LAYOUT, rotation), expected)


def test_a_block_has_dropout_after_both_of_its_parts() -> None:
    torch.manual_seed(0)
    block = shaken(DiffusionTransformer(CONFIG.model_copy(update={"dropout": 0.9999}), 5)).blocks[0]
    values, condition, time = torch.randn(2, 3, 16), torch.randn(2, 3, 96), torch.randn(2, 8)
    torch.testing.assert_close(block(values, condition, time, LAYOUT, LAYOUT.rotation(8)), values)


@pytest.mark.parametrize("part", ["inputs", "states", "time"])
def test_a_position_hears_of_the_whole_sentence_and_of_the_time(part) -> None:
    torch.manual_seed(0)
    network = shaken(DiffusionTransformer(CONFIG, 5))
    inputs, states, t = torch.randn(2, 3, 16), torch.randn(2, 3, 5), torch.tensor([3, 3])
    before = network(inputs, t, network.prepare(states), LAYOUT)
    if part == "inputs":
        inputs = inputs.clone()
        inputs[0, 2, 0] += 1  # the same to all of them would be taken away by the norm
    elif part == "states":
        states = states.clone()
        states[0, 2] += 1
    else:
        t = torch.tensor([500, 3])
    after = network(inputs, t, network.prepare(states), LAYOUT)
    assert (before[0, 0] - after[0, 0]).abs().max() > 1e-3
    torch.testing.assert_close(before[1, 0], after[1, 0])


def test_one_step_for_all_equals_one_per_sentence() -> None:
    torch.manual_seed(0)
    network = shaken(DiffusionTransformer(CONFIG, 5))
    inputs, conditions = torch.randn(2, 3, 16), network.prepare(torch.randn(2, 3, 5))
    shared = network(inputs, torch.tensor([40]), conditions, LAYOUT)
    torch.testing.assert_close(shared, network(inputs, torch.tensor([40, 40]), conditions, LAYOUT))


def test_beliefs_enter_as_expected_embeddings() -> None:
    torch.manual_seed(0)
    denoiser = LabelDenoiser(CONFIG, num_labels=3, state_width=5)
    seen = []
    denoiser.transformer.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    beliefs = torch.tensor([0.2, 0.5, 0.3]).expand(2, 3, 3)
    denoiser(beliefs, torch.tensor([9]), denoiser.prepare(torch.randn(2, 3, 5)), LAYOUT)
    table = denoiser.labels.weight.T
    torch.testing.assert_close(seen[0][0, 0], 0.2 * table[0] + 0.5 * table[1] + 0.3 * table[2])


def test_the_flag_is_silent_until_trained_and_then_a_vector_added_to_known_positions() -> None:
    torch.manual_seed(0)
    denoiser = LabelDenoiser(CONFIG, num_labels=3, state_width=5)
    arguments = (torch.randn(2, 3, 3).softmax(-1), torch.tensor([9]), denoiser.prepare(torch.randn(2, 3, 5)), LAYOUT)
    is_known = torch.tensor([[True, False, True], [False, False, False]])
    assert torch.equal(denoiser(*arguments), denoiser(*arguments, is_known))
    shaken(denoiser.flag)
    seen = []
    denoiser.transformer.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    denoiser(*arguments)
    denoiser(*arguments, is_known)
    expected = seen[0].clone()
    expected[0, [0, 2]] += denoiser.flag.vector
    torch.testing.assert_close(seen[1], expected)


def test_self_conditioning_reads_the_previous_estimate_zeros_at_first() -> None:
    torch.manual_seed(0)
    denoiser = shaken(BitDenoiser(CONFIG, num_bits=2, state_width=5, use_self_conditioning=True))
    conditions, t, noisy = denoiser.prepare(torch.randn(2, 3, 5)), torch.tensor([9]), torch.randn(2, 3, 2)
    seen = []
    denoiser.bits.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    previous = torch.randn(2, 3, 2)
    first, second = (denoiser(noisy, t, conditions, LAYOUT, previous=each) for each in (None, previous))
    assert first.shape == (2, 3, 2)
    assert torch.equal(seen[0], torch.cat([noisy, torch.zeros(2, 3, 2)], -1))
    assert torch.equal(seen[1], torch.cat([noisy, previous], -1))
    assert not torch.allclose(first, second)


@pytest.mark.parametrize("use_gradients", [False, True])
@pytest.mark.parametrize("structure", [MeanField, LinearChain])
def test_scores_are_those_of_two_small_networks(structure, use_gradients: bool) -> None:
    """A unit's transitions are [its label, the next one's], the last unit's are not used."""
    torch.manual_seed(0)
    scorer = Scorer(16, 3, StructureConfig(transitions="local", scorer_width=8), structure).eval()
    vectors = torch.randn(2, 3, 16)

    def network(layers: torch.nn.Sequential) -> torch.Tensor:
        hidden = torch.nn.functional.gelu(vectors @ layers[0].weight.T + layers[0].bias, approximate="tanh")
        return hidden @ layers[3].weight.T + layers[3].bias

    with torch.set_grad_enabled(use_gradients):
        found = scorer(vectors, LAYOUT)
    torch.testing.assert_close(found.unary_scores[IS_UNIT], network(scorer.unary)[IS_UNIT])
    expected = network(scorer.local_transitions)[0, :2].reshape(2, 3, 3)
    torch.testing.assert_close(found.transition_scores[0], expected)


def test_scorers_have_dropout_in_training_only() -> None:
    torch.manual_seed(0)
    scorer = Scorer(16, 3, StructureConfig(scorer_dropout=0.5), MeanField)
    vectors = torch.randn(2, 3, 16)
    assert not torch.equal(scorer(vectors, LAYOUT).unary_scores, scorer(vectors, LAYOUT).unary_scores)
    scorer.eval()
    assert torch.equal(scorer(vectors, LAYOUT).unary_scores, scorer(vectors, LAYOUT).unary_scores)
