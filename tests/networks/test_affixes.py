from __future__ import annotations

from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st

from diffusion_mf.batches.batching import collate
from diffusion_mf.batches.vocabulary import Vocabulary
from diffusion_mf.config import Config, EncoderConfig
from diffusion_mf.data.label_schemes import LabelScheme
from diffusion_mf.data.sentence import Sentence
from diffusion_mf.model import Labeller, count_parameters
from diffusion_mf.networks.encoders import build_encoder
from diffusion_mf.networks.words import LONGEST_AFFIX, Affixes

WORDS = ("Walking", "talking", "walks", "Talks", "USA", "UK", "1999", "199", "-", "+", "a", "aha")
TRAINED = Sentence(WORDS, ("X",) * len(WORDS))
VOCABULARY = Vocabulary.build([TRAINED])


def affixes_of(**settings: Any) -> Affixes:
    """With embeddings that training may have left."""
    torch.manual_seed(2)
    affixes = Affixes(VOCABULARY, **{"width": 3, "dropout": 0.0, "max_characters": 20, **settings})
    torch.nn.init.normal_(affixes.embedding.weight[1:])
    return affixes


def rows_of(words: list[str]) -> list[list[int]]:
    """Of each word: its shape, prefixes of one character to four, suffixes of one to four."""
    affixes = affixes_of()
    batch = collate([Sentence(tuple(words))], VOCABULARY)
    found = affixes.rows(batch.character_ids, batch.character_lengths)
    return found[batch.word_rows[0]].tolist()


PREFIXES, SUFFIXES = slice(1, 1 + LONGEST_AFFIX), slice(1 + LONGEST_AFFIX, None)


def test_words_share_the_rows_of_the_affixes_that_they_share() -> None:
    upper, talking, walks, talks = rows_of(["Walking", "talking", "walks", "Talks"])
    assert upper[PREFIXES] == walks[PREFIXES]  # walk, whatever its case
    assert upper[SUFFIXES] == talking[SUFFIXES]
    assert not set(talking[PREFIXES]) & set(walks[PREFIXES])
    assert not set(upper[PREFIXES]) & set(upper[SUFFIXES])
    assert all(row > 0 for rows in (upper, talking, walks, talks) for row in rows)


def test_affixes_of_one_form_are_nothing() -> None:
    (usa,) = rows_of(["USA"])
    # uk, too, begins with u; aha and a, too, end in a; two words are all capitals.
    assert [row > 0 for row in usa] == [True, True, False, False, False, True, False, False, False]


def test_shapes_tell_case_digits_and_marks_apart() -> None:
    shapes = [rows[0] for rows in rows_of(["Walking", "talking", "USA", "1999", "-", "walks", "a"])]
    assert shapes[1] == shapes[5] == shapes[6]
    assert len(set(shapes[:5])) == 5
    assert min(shapes) > 0


def test_affixes_longer_than_the_word_are_nothing() -> None:
    (rows,) = rows_of(["a"])
    assert [row > 0 for row in rows] == [True] + 2 * [True, False, False, False]


def test_codes_do_not_depend_on_the_vocabulary() -> None:
    other = Vocabulary.build([Sentence(("zz", "zzz", *WORDS), ("X",) * (len(WORDS) + 2))])
    assert VOCABULARY.character_ids != other.character_ids
    keys, others = (
        set(Affixes(vocabulary, width=3, dropout=0.0, max_characters=20).keys.tolist())
        for vocabulary in (VOCABULARY, other)
    )
    # z and zz, at both ends.
    assert keys < others
    assert len(others) == len(keys) + 4


@given(st.lists(st.text("Waglnikt19-é", min_size=1, max_size=30), min_size=1, max_size=5))
def test_words_of_no_batch_have_the_same_vectors(words: list[str]) -> None:
    affixes = affixes_of(dropout=0.5, max_characters=9).eval()
    batch = collate([Sentence(tuple(words))], VOCABULARY)
    with torch.no_grad():
        expected = affixes(batch.character_ids, batch.character_lengths)[batch.word_rows[0]]
        torch.testing.assert_close(affixes.vectors_of(words, VOCABULARY.character_ids), expected)


def test_in_training_affixes_are_hidden() -> None:
    affixes = affixes_of(dropout=1.0 - 1e-9)
    batch = collate([TRAINED], VOCABULARY)
    assert not affixes(batch.character_ids, batch.character_lengths).any()
    assert affixes.eval()(batch.character_ids, batch.character_lengths).any()


def test_an_encoder_sees_words_it_does_not_know_by_their_affixes() -> None:
    sizes = {"word_width": 6, "character_hidden": 0, "width": 8, "layers": 1, "heads": 2}
    batch = collate([Sentence(("talk",)), Sentence(("wing",))], VOCABULARY)
    for width, is_seen in ((0, False), (4, True)):
        encoder = build_encoder(EncoderConfig(**sizes, affix_width=width), VOCABULARY).eval()
        if encoder.affixes is not None:
            torch.nn.init.normal_(encoder.affixes.embedding.weight[1:])
        states = encoder(batch, batch.layout)
        assert torch.allclose(states[0], states[1]) != is_seen


def test_parameters_are_counted_without_allocating_them() -> None:
    values = {
        "task": "pos",
        "system": "unigram",
        "encoder": {"kind": "window", "affix_width": 3, "character_hidden": 0},
    }
    config = Config.model_validate(values)
    built = Labeller(config, VOCABULARY, LabelScheme.PLAIN).num_parameters()
    assert count_parameters(config, VOCABULARY, LabelScheme.PLAIN) == built
