from __future__ import annotations

import dataclasses

import pytest
import torch
from tiny_models import KEYS, SENTENCES, VOCABULARY, small_config, small_labeller

from diffusion_mf.data.batching import Batch, collate
from diffusion_mf.data.label_schemes import LabelScheme
from diffusion_mf.data.sentence import Sentence
from diffusion_mf.data.vocabulary import NUM_SPECIAL_IDS, Vocabulary
from diffusion_mf.model import Labeller, hidden_words
from diffusion_mf.model.hidden_words import hide_units

GUESSING = {"encoder": {"unit_dropout": 0.4}, "objective": {"hidden_words": 0.5}}


def hidden_at(batch: Batch, *places: tuple[int, int]) -> Batch:
    is_hidden = torch.zeros(batch.form_ids.shape, dtype=torch.bool)
    for place in places:
        is_hidden[place] = True
    return dataclasses.replace(batch, is_hidden=is_hidden)


def test_of_a_hidden_unit_nothing_is_seen() -> None:
    """Another word in its place, which makes other pairs with its neighbours, changes no state."""
    vocabulary = Vocabulary.build(SENTENCES, min_pair_count=1)
    config = small_config("unigram", encoder={"pair_width": 4})
    labeller = Labeller(config, vocabulary, LabelScheme.BMES).eval()
    batches = [
        collate([Sentence(("she", word, "the", "Tor"), ("O",) * 4)], vocabulary) for word in ("saw", "Bay", "unseen")
    ]
    seen = [labeller.encoder(batch, batch.layout) for batch in batches]
    assert not torch.allclose(seen[0], seen[1])
    first, *others = (labeller.encoder(hidden_at(batch, (0, 1)), batch.layout) for batch in batches)
    for other in others:
        torch.testing.assert_close(other, first)


def test_units_are_hidden_as_often_as_asked_and_padding_never() -> None:
    batch = collate([Sentence(("a",) * 400, ("O",) * 400), Sentence(("a",), ("O",))] * 5, VOCABULARY)
    is_hidden = hide_units(batch, 0.3).is_hidden
    assert is_hidden is not None
    assert 0.25 < is_hidden[::2].float().mean() < 0.35
    assert not is_hidden[1::2, 1:].any()


@pytest.mark.parametrize("most_words", [4, 100])
def test_the_loss_is_that_of_a_loop_over_hidden_words(monkeypatch: pytest.MonkeyPatch, most_words: int) -> None:
    monkeypatch.setattr(hidden_words, "MOST_WORDS", most_words)
    labeller = small_labeller("unigram", **GUESSING)
    batch = hidden_at(collate(SENTENCES, VOCABULARY), (0, 1), (1, 0), (1, 6), (3, 2))
    states = torch.randn(*batch.form_ids.shape, labeller.encoder.width)
    words = labeller.encoder.words.weight
    guesser = labeller.hidden_words
    found = guesser(states, words, batch, batch.layout)
    expected = torch.zeros(())
    num_words = min(len(words), NUM_SPECIAL_IDS + most_words)
    for sentence, unit in batch.is_hidden.nonzero().tolist():
        word = int(batch.form_ids[sentence, unit])
        if word < num_words:
            scores = words[:num_words] @ guesser.norm(guesser.projection(states[sentence, unit])) + guesser.bias
            expected = expected - scores.log_softmax(-1)[word]
    assert expected > 0
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("system", ["lcrf", "diffusion-mf", "diffusionsl"])
def test_the_term_counts_in_training_only(system: str) -> None:
    labeller, batch = small_labeller(system, **GUESSING), collate(SENTENCES, VOCABULARY)
    losses = labeller.train().loss_sums(batch, seed=0, step=0, sentence_keys=KEYS)
    others = {name: value for name, value in losses.items() if name not in ("total", "hidden_words")}
    weights = dataclasses.asdict(labeller.config.weights)
    expected = sum(weights[name] * value for name, value in others.items()) + 0.5 * losses["hidden_words"]
    torch.testing.assert_close(losses["total"], expected)
    losses["total"].backward()
    assert labeller.hidden_words.projection.weight.grad.abs().sum() > 0
    assert "hidden_words" not in labeller.eval().loss_sums(batch, seed=0, step=0, sentence_keys=KEYS)


def test_words_are_learnt_from_their_neighbours() -> None:
    """Of few hidden words at a time, as neighbours are hidden, too."""
    labeller = small_labeller("unigram", encoder={"unit_dropout": 0.1}, objective={"hidden_words": 0.5})
    batch = collate(SENTENCES, VOCABULARY)
    optimizer = torch.optim.Adam(labeller.parameters(), lr=3e-3)
    torch.manual_seed(0)
    course = []
    for step in range(600):
        losses = labeller.train().loss_sums(batch, seed=0, step=step, sentence_keys=KEYS)
        (losses["total"] / batch.lengths.sum()).backward()
        optimizer.step()
        optimizer.zero_grad()
        course.append(losses["hidden_words"].item())
    assert sum(course[-100:]) < 0.5 * sum(course[:100])


def test_guessing_needs_hidden_words() -> None:
    with pytest.raises(ValueError, match=r"set that, too"):
        small_config("unigram", objective={"hidden_words": 0.5})
    with pytest.raises(ValueError, match=r"encoder.kind scratch"):
        small_config("unigram", encoder={"kind": "window", "unit_dropout": 0.2}, objective={"hidden_words": 0.5})
