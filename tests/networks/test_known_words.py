from __future__ import annotations

import random

import pytest
import torch
from small_models import small_tagger

from diffusion_mf.batches.batching import collate
from diffusion_mf.batches.vocabulary import Vocabulary
from diffusion_mf.config import EncoderConfig
from diffusion_mf.data.corpus import Task
from diffusion_mf.data.sentence import Sentence
from diffusion_mf.networks import known_words
from diffusion_mf.networks.encoders import Encoder, build_encoder
from diffusion_mf.networks.known_words import KnownWords
from diffusion_mf.tagger import tagger as tagging

TRAINED = Sentence(("mira", "sel", "da", "toro", "vi", "Lanu", "."), ("N", "V", "D", "N", "A", "P", "."))
VOCABULARY = Vocabulary.build([TRAINED])
SENTENCES = [
    Sentence(("Lanu", "sel", "da", "neverseen", ".")),
    Sentence(("toro",)),
    Sentence(("x" * 50, "mira", "Δ", "mira")),
]


def encoder_of(kind: str, **settings: object) -> Encoder:
    torch.manual_seed(4)
    sizes = {"word_width": 6, "character_width": 4, "character_hidden": 4, "width": 8, "layers": 1, "heads": 2}
    config = EncoderConfig(kind=kind, **(sizes | settings))
    return build_encoder(config, VOCABULARY).eval()


@pytest.mark.parametrize("spelling", [{}, {"affix_width": 5}, {"character_hidden": 0}])
@pytest.mark.parametrize("kind", ["scratch", "window"])
def test_states_are_those_of_the_words_themselves(kind: str, spelling: dict[str, object]) -> None:
    encoder = encoder_of(kind, **spelling)
    words = KnownWords(encoder, VOCABULARY)
    expected_batch = collate(SENTENCES, VOCABULARY)
    expected = encoder(expected_batch, expected_batch.layout)
    for keeps_vocabulary in (False, True):
        if keeps_vocabulary:
            words.keep_vocabulary()
        batch = words.look_up(SENTENCES).batch(range(3))
        num_units = expected_batch.form_ids.shape[1]
        assert torch.equal(batch.form_ids[:, :num_units], expected_batch.form_ids)
        assert not batch.form_ids[:, num_units:].any()
        assert torch.equal(batch.lengths, expected_batch.lengths)
        states = batch.layout.unpack(encoder(batch, batch.layout))
        for row, sentence in enumerate(SENTENCES):
            size = len(sentence.units)
            torch.testing.assert_close(states[row, :size], expected[row, :size], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("spelling", [{"affix_width": 5}, {"word_width": 0, "character_hidden": 0}])
def test_states_from_features_are_those_of_the_words_themselves(spelling: dict[str, object]) -> None:
    test_states_are_those_of_the_words_themselves("window", {"features": True, **spelling})


def test_words_are_computed_once_and_forgotten_when_told(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = encoder_of("window")
    computed: list[int] = []
    inner = encoder.word_vectors
    monkeypatch.setattr(
        encoder,
        "word_vectors",
        # Beyond the words there is filling, of the first of them once more.
        lambda forms, spellings: (computed.append(len(spellings.unique(dim=0))), inner(forms, spellings))[1],
    )
    words = KnownWords(encoder, VOCABULARY)
    words.keep_vocabulary()
    assert (computed, len(words)) == ([7], 7)
    words.look_up(SENTENCES).batch(range(3))
    words.look_up(SENTENCES).batch(range(3))
    assert (computed, len(words)) == ([7, 3], 10)
    words.forget()
    assert len(words) == 7
    words.look_up(SENTENCES[:1])
    assert (computed, len(words)) == ([7, 3, 1], 8)


def test_the_table_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_words, "MAX_OTHER_WORDS", 20)
    encoder = encoder_of("window")
    words = KnownWords(encoder, VOCABULARY)
    words.keep_vocabulary()
    for start in range(0, 200, 5):
        sentences = [Sentence(tuple(f"w{number}" for number in range(start, start + 5))), TRAINED._replace(labels=None)]
        batch, expected = words.look_up(sentences).batch([0, 1]), collate(sentences, VOCABULARY)
        assert len(words) <= 7 + 20 + 5
        states = batch.layout.unpack(encoder(batch, batch.layout))
        torch.testing.assert_close(states[0, :5], encoder(expected, expected.layout)[0, :5], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("window", [0, 1, 3])
def test_a_state_sees_its_window_and_no_further(window: int) -> None:
    encoder = encoder_of("window", window=window)
    units = tuple("abcdefghij")
    batch = collate([Sentence(units)], VOCABULARY)
    states = encoder(batch, batch.layout)[0]
    changed_batch = collate([Sentence((*units[:4], "mira", *units[5:]))], VOCABULARY)
    changed = encoder(changed_batch, changed_batch.layout)[0]
    differing = {
        index for index in range(10) if not torch.allclose(states[index], changed[index], rtol=1e-5, atol=1e-6)
    }
    assert differing == {index for index in range(10) if abs(index - 4) <= window}


def test_a_state_is_the_gelu_of_a_sum_over_the_places_of_its_window() -> None:
    encoder = encoder_of("window", window=1)
    torch.nn.init.normal_(encoder.bias)
    batch = collate(SENTENCES[:1], VOCABULARY)
    words = encoder.embed_units(batch, batch.form_ids, batch.word_rows)[0]
    before, itself, after = encoder.places.weight.split(8)  # of the word on the left, in the middle, on the right
    sums = words @ itself.T + encoder.bias
    sums[1:] += words[:-1] @ before.T
    sums[:-1] += words[1:] @ after.T
    expected = torch.nn.functional.gelu(sums, approximate="tanh")
    torch.testing.assert_close(encoder(batch, batch.layout)[0], expected)


def test_windows_have_dropout_in_training_only() -> None:
    encoder = encoder_of("window", dropout=0.5, word_dropout=0.0, embedding_dropout=0.0)
    batch = collate(SENTENCES, VOCABULARY)
    assert torch.equal(encoder(batch, batch.layout), encoder(batch, batch.layout))
    encoder.train()
    assert not torch.equal(encoder(batch, batch.layout), encoder(batch, batch.layout))


def test_padding_has_no_influence_on_windows() -> None:
    encoder = encoder_of("window")
    alone = collate(SENTENCES[:1], VOCABULARY)
    longer = collate([SENTENCES[0], Sentence(TRAINED.units * 3)], VOCABULARY)
    torch.testing.assert_close(
        encoder(longer, longer.layout)[0, :5], encoder(alone, alone.layout)[0], rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("system", ["unigram", "mean-field", "lcrf", "diffusion-mf", "diffusionsl"])
@pytest.mark.parametrize("kind", ["scratch", "window"])
def test_taggers_say_the_same_with_and_without_a_table(system: str, kind: str) -> None:
    if kind == "window" and system == "diffusionsl":
        pytest.skip("enough is enough")
    settings = {"encoder": {"kind": kind, "width": 16, "heads": 2, "layers": 1, "word_width": 8, "character_hidden": 4}}
    tagger = small_tagger(system, Task.POS, settings=settings)
    generator = random.Random(7)
    pool = ["mira", "sel", "da", "toro", "Lanu", ".", "unseen", "words", "Too"]
    sentences = [[generator.choice(pool) for _ in range(generator.randint(1, 9))] for _ in range(20)]
    tagger.keep_words()
    with_table = tagger.tag(sentences, batch_tokens=40)
    tagger.forget_words()
    assert tagger._words is not None
    tagger._words = None
    for known, plain in zip(with_table, tagger.tag(sentences, batch_tokens=40), strict=True):
        assert known.labels == plain.labels
        assert known.scores == pytest.approx(plain.scores, abs=1e-4)


@pytest.mark.parametrize(
    ("system", "kind", "has_small_batches"),
    [("mean-field", "window", False), ("diffusion-mf", "window", True), ("unigram", "scratch", True)],
)
def test_a_cpu_works_on_small_batches_where_there_is_a_transformer(
    system: str, kind: str, has_small_batches: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tagging, "CPU_BATCH_UNITS", 12)
    settings = {"encoder": {"kind": kind, "width": 16, "heads": 2, "layers": 1, "word_width": 8, "character_hidden": 4}}
    tagger = small_tagger(system, Task.POS, settings=settings)
    sizes: list[int] = []
    inner = tagger._predictor.predict
    monkeypatch.setattr(
        tagger._predictor,
        "predict",
        lambda batch, finish, **options: (sizes.append(len(batch.lengths)), inner(batch, finish, **options))[1],
    )
    results = tagger.tag([["mira", "sel", str(number)] for number in range(10)], batch_tokens=30)
    assert [result.units[2] for result in results] == [str(number) for number in range(10)]
    assert sizes == ([4, 4, 2] if has_small_batches else [10])
