from __future__ import annotations

import dataclasses

import pytest
import torch

from diffusion_mf.batches.batching import collate
from diffusion_mf.batches.vocabulary import PADDING_ID, UNKNOWN_ID, Vocabulary
from diffusion_mf.config import EncoderConfig
from diffusion_mf.data.sentence import Sentence
from diffusion_mf.networks.encoders import build_encoder
from diffusion_mf.networks.known_words import KnownWords
from diffusion_mf.networks.words import NeighbourPairs

TRAINED = [
    Sentence(("a", "b", "a", "b", "c"), ("X",) * 5),
    Sentence(("a", "c"), ("X",) * 2),
    Sentence(("d", "c"), ("X",) * 2),
]
VOCABULARY = Vocabulary.build(TRAINED, min_count=2, min_pair_count=2)
CONFIG = EncoderConfig(
    word_width=6, character_width=4, character_hidden=4, width=8, layers=1, heads=2, pair_width=3, word_dropout=0.5
)
SENTENCES = [Sentence(("b", "a", "b", "unseen")), Sentence(("c",)), Sentence(("a", "b"))]


def test_the_vocabulary_keeps_frequent_pairs_and_ends_of_sentences() -> None:
    a, b, c = (VOCABULARY.form_ids[form] for form in "abc")
    # (a, b) twice, (start, a) twice, (c, end) three times; d itself is too rare, and (start, d) with it.
    assert set(VOCABULARY.pairs) == {(a, b), (PADDING_ID, a), (c, PADDING_ID)}
    assert Vocabulary.from_dict(VOCABULARY.to_dict()) == VOCABULARY
    assert Vocabulary.build(TRAINED).pairs == ()


def test_rows_are_those_of_a_loop_over_the_pairs() -> None:
    pairs = NeighbourPairs(VOCABULARY, width=3, dropout=0.0)
    batch = collate(SENTENCES, VOCABULARY)
    known = {pair: row for row, pair in enumerate(sorted(VOCABULARY.pairs), 1)}
    found = pairs.rows(batch)
    for number, sentence in enumerate(SENTENCES):
        ids = [PADDING_ID, *(VOCABULARY.form_ids.get(form, UNKNOWN_ID) for form in sentence.units), PADDING_ID]
        for place in range(1, len(ids) - 1):
            expected = [known.get((ids[place - 1], ids[place]), 0), known.get((ids[place], ids[place + 1]), 0)]
            assert found[number, place - 1].tolist() == expected
    assert {1, 2, 3} <= set(found.flatten().tolist())


def test_what_stands_at_padding_changes_no_row() -> None:
    pairs = NeighbourPairs(VOCABULARY, width=3, dropout=0.0)
    batch = collate(SENTENCES, VOCABULARY)
    forms = batch.form_ids.clone()
    forms[1, 1:] = 3
    changed = pairs.rows(dataclasses.replace(batch, form_ids=forms))
    assert torch.equal(changed[1, 0], pairs.rows(batch)[1, 0])


def test_hidden_pairs_are_unknown_ones() -> None:
    pairs = NeighbourPairs(VOCABULARY, width=3, dropout=1.0 - 1e-9)
    rows = torch.tensor([[1, 2], [3, 0]])
    assert not pairs(rows).any()
    pairs.eval()
    torch.testing.assert_close(pairs(rows)[0, :3], pairs.embeddings.weight[1])


@pytest.mark.parametrize("kind", ["scratch", "window"])
def test_states_are_the_same_alone_together_and_from_known_words(kind: str) -> None:
    torch.manual_seed(0)
    encoder = build_encoder(CONFIG.model_copy(update={"kind": kind}), VOCABULARY).eval()
    batch = collate(SENTENCES, VOCABULARY)
    expected = encoder(batch, batch.layout)
    known = KnownWords(encoder, VOCABULARY).look_up(SENTENCES).batch(range(len(SENTENCES)))
    for number, sentence in enumerate(SENTENCES):
        size = len(sentence.units)
        states = known.layout.unpack(encoder(known, known.layout))
        torch.testing.assert_close(states[number, :size], expected[number, :size], rtol=1e-5, atol=1e-6)
        alone = collate([sentence], VOCABULARY)
        torch.testing.assert_close(encoder(alone, alone.layout)[0], expected[number, :size], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["scratch", "window"])
def test_pairs_are_learnt(kind: str) -> None:
    torch.manual_seed(0)
    encoder = build_encoder(CONFIG.model_copy(update={"kind": kind, "word_dropout": 0.0}), VOCABULARY)
    batch = collate(SENTENCES, VOCABULARY)
    encoder(batch, batch.layout)[0, :2].square().sum().backward()
    grads = encoder.pairs.embeddings.weight.grad
    assert grads[1:].any()
    assert not grads[0].any()


def test_a_window_encoder_of_an_earlier_version_knows_no_pairs() -> None:
    encoder = build_encoder(CONFIG.model_copy(update={"kind": "window"}), Vocabulary.build(TRAINED))
    assert encoder.pairs is None


def test_of_a_hidden_unit_nothing_is_seen() -> None:
    """Another word in its place, which makes other pairs with its neighbours, changes no state."""
    vocabulary = Vocabulary.build(TRAINED, min_pair_count=1)
    others = {"word_dropout": 0.0, "embedding_dropout": 0.0, "dropout": 0.0}
    encoder = build_encoder(CONFIG.model_copy(update={**others, "unit_dropout": 0.5}), vocabulary).train()
    states = []
    for word in ("b", "c", "unseen"):
        batch = collate([Sentence(("a", word, "a", "b"))], vocabulary)
        encoder.eval()
        seen = encoder(batch, batch.layout)
        encoder.train()
        torch.manual_seed(2)  # hides the second unit and the last
        states.append((seen, encoder(batch, batch.layout)))
    torch.manual_seed(2)
    assert (torch.rand(1, 4) < 0.5).tolist() == [[False, True, False, True]]
    for seen, hidden in states[1:]:
        assert not torch.allclose(seen, states[0][0])
        torch.testing.assert_close(hidden, states[0][1])
