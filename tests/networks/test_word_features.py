from __future__ import annotations

import pydantic
import pytest
import torch

from diffusion_mf.batches.batching import collate
from diffusion_mf.batches.vocabulary import Vocabulary
from diffusion_mf.config import EncoderConfig
from diffusion_mf.data.sentence import Sentence
from diffusion_mf.networks.encoders import Encoder, build_encoder
from diffusion_mf.networks.words import WordFeatures

TRAINED = [
    Sentence(("Mira", "walks", "home", "today"), ("N", "V", "A", "A")),
    Sentence(("They", "talk", "a", "lot"), ("P", "V", "D", "N")),
]
VOCABULARY = Vocabulary.build(TRAINED, min_pair_count=1)
CONFIG = EncoderConfig(kind="window", features=True, word_width=0, character_hidden=0, width=8, heads=2, layers=1)


def encoder_of(**settings: object) -> Encoder:
    torch.manual_seed(1)
    return build_encoder(CONFIG.model_copy(update=settings), VOCABULARY).eval()


def state(encoder: Encoder, *words: str) -> torch.Tensor:
    """Of the word in the middle."""
    batch = collate([Sentence(words)], VOCABULARY)
    return encoder(batch, batch.layout)[0, len(words) // 2].detach()


def test_a_word_is_known_by_its_parts() -> None:
    encoder = encoder_of()
    nothing = state(encoder, "ΩΩΩ")
    assert not torch.equal(state(encoder, "walkers"), nothing)  # walk
    assert not torch.equal(state(encoder, "oooo"), nothing)  # lower case
    assert not torch.equal(state(encoder, "mira"), state(encoder, "Mira"))


@pytest.mark.parametrize(
    ("near", "far"),
    [
        (("mira", "Mira"), ("mira", "Mira")),  # in lower case they are the same, but their shapes differ
        (
            ("unlike", "unmike"),
            ("unlike", "unmike"),
        ),  # they share their endings; of a neighbour, beginnings are not seen
    ],
)
def test_of_neighbours_less_is_seen_than_of_the_word(near: tuple[str, str], far: tuple[str, str]) -> None:
    encoder = encoder_of()
    far_states = [state(encoder, word, "they", "talk", "they", "talk") for word in far]
    torch.testing.assert_close(*far_states)
    near_states = [state(encoder, word, "talk", "they") for word in near]
    same_shape = near[0].islower() and near[1].islower()
    assert torch.allclose(*near_states) == same_shape


def test_pairs_of_words_are_seen() -> None:
    encoder = encoder_of(window=0)
    assert not torch.equal(state(encoder, "Mira", "walks", "today"), state(encoder, "They", "walks", "today"))
    assert torch.equal(state(encoder, "today", "walks", "lot"), state(encoder, "a", "walks", "Mira"))


def test_features_of_rare_words_can_be_left_out() -> None:
    vocabulary = Vocabulary.build([*TRAINED, Sentence(("Mira", "hoed"), ("N", "V"))])

    def num_features(min_count: int) -> list[int]:
        features = WordFeatures(vocabulary, width=2, radius=1, max_characters=20, min_count=min_count)
        return [len(features.keys(distance)) for distance in range(2)]

    # Of the word itself: Mira, mira, m, mi, mir, mira, a, ra, ira, mira (twice); w, t, ta, ...: of several words.
    assert num_features(1)[0] > num_features(2)[0] > num_features(3)[0]
    encoder = build_encoder(CONFIG.model_copy(update={"min_feature_count": 2}), vocabulary)
    assert isinstance(encoder.features, WordFeatures)
    assert [len(table.weight) - 1 for table in encoder.features.tables[:2]] == num_features(2)
    # In lower case only "mira" is seen twice, endings of three letters only in "mira"; of shapes there are two, both more than once.
    assert num_features(2)[1] == 4


def test_all_vectors_are_learnt_but_those_of_unknown_features() -> None:
    encoder = encoder_of(dropout=0.0).train()
    batch = collate(TRAINED, VOCABULARY)
    encoder(batch, batch.layout).square().sum().backward()
    assert isinstance(encoder.features, WordFeatures)
    for table in encoder.features.tables:
        assert table.weight.grad is not None
        assert table.weight.grad[1:].any(dim=1).all()
        assert not table.weight.grad[0].any()


def test_features_need_a_window_and_words_may_be_left_to_them_alone() -> None:
    with pytest.raises(pydantic.ValidationError, match="window"):
        EncoderConfig(features=True)
    with pytest.raises(pydantic.ValidationError, match="word_width"):
        EncoderConfig(kind="window", word_width=0)


def test_parameters_can_be_counted_without_memory() -> None:
    with torch.device("meta"):
        counted = build_encoder(CONFIG, VOCABULARY)
    sizes = {name: tensor.shape for name, tensor in counted.state_dict().items()}
    assert sizes == {name: tensor.shape for name, tensor in encoder_of().state_dict().items()}
