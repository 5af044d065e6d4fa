from __future__ import annotations

import dataclasses

import pytest
import torch

from diffusion_mf.batches.batching import collate
from diffusion_mf.batches.layouts import PaddedLayout, Rotation
from diffusion_mf.batches.vocabulary import UNKNOWN_ID, Vocabulary
from diffusion_mf.config import EncoderConfig
from diffusion_mf.data.sentence import Sentence
from diffusion_mf.errors import InputError
from diffusion_mf.networks.encoders import ENCODERS, EncoderLayer, build_encoder
from diffusion_mf.networks.transformer import SelfAttention

SENTENCES = [
    Sentence(("one", "small", "bird", "sang"), ("NUM", "ADJ", "NOUN", "VERB")),
    Sentence(("birds", "sang"), ("NOUN", "VERB")),
]
VOCABULARY = Vocabulary.build(SENTENCES)
CONFIG = EncoderConfig(
    word_width=8, character_width=6, character_hidden=5, width=16, layers=2, heads=2, word_dropout=0.5, dropout=0.0
)


def _states(encoder, batch):  # type: ignore[no-untyped-def]
    return encoder(batch, batch.layout)


@pytest.fixture
def encoder():
    torch.manual_seed(0)
    return build_encoder(CONFIG, VOCABULARY)


def test_states_have_the_configured_width_and_order_matters(encoder) -> None:
    encoder.eval()
    forwards = _states(encoder, collate([Sentence(("one", "bird", "sang"))], VOCABULARY))
    backwards = _states(encoder, collate([Sentence(("sang", "bird", "one"))], VOCABULARY))
    assert forwards.shape == (1, 3, 16)
    assert not torch.allclose(forwards, backwards.flip(1), atol=1e-3)


def test_without_positions_order_does_not_matter() -> None:
    torch.manual_seed(0)
    encoder = build_encoder(CONFIG.model_copy(update={"positions": "none"}), VOCABULARY).eval()
    forwards = _states(
        encoder, collate([Sentence(("one", "bird", "sang")), Sentence(("one", "small", "bird", "sang"))], VOCABULARY)
    )
    backwards = _states(encoder, collate([Sentence(("sang", "bird", "one"))], VOCABULARY))
    torch.testing.assert_close(forwards[:1, :3], backwards.flip(1), rtol=1e-5, atol=1e-5)


def test_states_depend_on_no_other_sentence_and_on_no_padding(encoder) -> None:
    encoder.eval()
    together, alone = (
        _states(encoder, collate(SENTENCES, VOCABULARY)),
        _states(encoder, collate(SENTENCES[1:], VOCABULARY)),
    )
    torch.testing.assert_close(together[1, :2], alone[0], rtol=1e-5, atol=1e-5)


def test_unknown_words_are_told_apart_by_their_characters(encoder) -> None:
    encoder.eval()
    batch = collate([Sentence(("sings",)), Sentence(("bis",)), Sentence(("bis",))], VOCABULARY)
    assert (batch.form_ids == UNKNOWN_ID).all()
    first, second, third = _states(encoder, batch)
    assert not torch.allclose(first, second, atol=1e-3)
    torch.testing.assert_close(second, third, rtol=1e-5, atol=1e-5)  # rows of one matrix may be summed in another order


def test_word_dropout_hides_words_in_training_only(encoder) -> None:
    batch = dataclasses.replace(collate(SENTENCES, VOCABULARY))
    seen = []
    encoder.words.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    _states(encoder.eval(), batch)
    assert torch.equal(seen[-1], batch.form_ids)
    encoder.train()
    hidden = 0.0
    for _ in range(200):
        _states(encoder, batch)
        is_changed = seen[-1] != batch.form_ids
        assert (seen[-1][is_changed] == UNKNOWN_ID).all()
        hidden += is_changed.float().mean().item() / 200
    assert hidden == pytest.approx(0.5, abs=0.05)


def test_every_parameter_learns(encoder) -> None:
    _states(encoder, collate(SENTENCES, VOCABULARY)).square().sum().backward()
    for name, parameter in encoder.named_parameters():
        assert parameter.grad is not None, name


def test_an_unknown_kind_is_refused_with_the_nearest() -> None:
    with pytest.raises(InputError, match=r"encoder.kind must be one of scratch.*nearest is scratch"):
        build_encoder(EncoderConfig(kind="scrach"), VOCABULARY)
    assert "scratch" in ENCODERS


def test_rotated_products_depend_on_distance_only() -> None:
    rotation = Rotation.of_positions(torch.arange(9), 8)
    query, key = torch.randn(1, 1, 8).expand(9, 1, 8), torch.randn(1, 1, 8).expand(9, 1, 8)
    products = rotation.turn(query)[:, 0] @ rotation.turn(key)[:, 0].T
    for distance in range(-3, 4):
        diagonal = products.diagonal(distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal), rtol=1e-4, atol=1e-4)
    assert products[0].std() > 1e-3


def test_attention_equals_a_loop_over_pairs() -> None:
    torch.manual_seed(1)
    attention, N = SelfAttention(8, 2), 4
    rotation = Rotation.of_positions(torch.arange(N), 4)
    values, layout = torch.randn(1, N, 8), PaddedLayout(torch.tensor([[True, True, True, False]]))
    found = attention(values, layout, rotation)
    query, key, value = attention.inputs(values)[0].split(8, dim=-1)
    rows = []
    for i in range(N):
        row = []
        for head in (slice(0, 4), slice(4, 8)):
            turned = [rotation.turn(x[:, None, head])[:, 0] for x in (query, key)]
            scores = torch.stack([turned[0][i] @ turned[1][j] / 2 for j in range(3)])
            row.append(scores.softmax(0) @ value[:3, head])
        rows.append(torch.cat(row))
    torch.testing.assert_close(found[0], attention.output(torch.stack(rows)), rtol=1e-4, atol=1e-5)


def test_a_layer_adds_attention_and_then_a_feed_forward_network_to_its_input() -> None:
    torch.manual_seed(0)
    layer = EncoderLayer(CONFIG)
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    layout = PaddedLayout(torch.ones(1, 3, dtype=torch.bool))
    states, rotation = torch.randn(1, 3, 16), layout.rotation(8)
    between = states + layer.attention(layer.attention_norm(states), layout, rotation)
    first, _, second = layer.feed_forward
    hidden = torch.nn.functional.gelu(first(layer.feed_forward_norm(between)), approximate="tanh")
    torch.testing.assert_close(layer(states, layout, rotation), between + second(hidden))


def test_a_layer_has_dropout_after_both_of_its_parts() -> None:
    torch.manual_seed(0)
    layer = EncoderLayer(CONFIG.model_copy(update={"dropout": 0.9999}))
    layout = PaddedLayout(torch.ones(1, 3, dtype=torch.bool))
    states = torch.randn(1, 3, 16)
    torch.testing.assert_close(layer(states, layout, layout.rotation(8)), states)


def test_embeddings_have_dropout_in_training_only() -> None:
    torch.manual_seed(0)
    encoder = build_encoder(CONFIG.model_copy(update={"embedding_dropout": 0.5, "word_dropout": 0.0}), VOCABULARY)
    batch = collate(SENTENCES, VOCABULARY)
    is_dropped = encoder.embed(batch, batch.layout)[0] == 0
    assert 0.3 < is_dropped.float().mean() < 0.7
    encoder.eval()
    assert not (encoder.embed(batch, batch.layout)[0] == 0).any()
