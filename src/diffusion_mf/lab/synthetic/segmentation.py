"""The segmentation-like flavour: words of one to three characters, each character labelled with boundary and tag.

Some characters begin words of two or three characters, some are in the middle, some end them. The tag depends on the whole word,
not on single characters. Characters that end a word after another character are words by themselves elsewhere. The characters are
lower-case letters of four alphabets, without phonetic meaning.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from diffusion_mf.data.label_schemes import LabelScheme, characters_of_words
from diffusion_mf.lab.synthetic.grammar import (
    ADJACENT,
    DISTANT,
    Draws,
    Flavour,
    Phrase,
    WordClass,
    group_template,
    word_class,
)

_ALPHABETS = (("α", "ρ"), ("σ", "ω"), ("а", "я"), ("ա", "ֆ"), ("ა", "ჰ"))
_characters = iter([chr(code) for first, last in _ALPHABETS for code in range(ord(first), ord(last) + 1)])


def _take(count: int) -> list[str]:
    return list(itertools.islice(_characters, count))


def _words(draws: Draws, count: int, taken: set[str], *places: Sequence[str]) -> WordClass:
    words: list[str] = []
    while len(words) < count:
        word = "".join(draws.pick(place) for place in places)
        if word not in taken:
            taken.add(word)
            words.append(word)
    return word_class(words)


_openers, _middles, _closers, _free_closers = _take(22), _take(6), _take(18), _take(4)
_draws, _taken = Draws("synthetic vocabulary", "seg-pos"), set[str]()
_two = (_openers, _closers + _free_closers)
_three = (_openers, _middles, _closers + _free_closers)
_NOUNS = _words(_draws, 50, _taken, *_two)
_LONG_NOUNS = _words(_draws, 20, _taken, *_three)
_VERBS = _words(_draws, 40, _taken, *_two)
_ADJECTIVES = _words(_draws, 15, _taken, *_two)
_ADVERBS = _words(_draws, 10, _taken, *_two)
_NAMES = _words(_draws, 12, _taken, *_three)
_PARTICLES = word_class(_free_closers)
_ADPOSITIONS = word_class(_take(4))
_DETERMINERS = word_class(_take(3))
_NUMERALS = word_class(_take(4))
_SHORT_VERBS = word_class(_take(5))
_STOPS = word_class(["。", "!"], exponent=2)
_COMMA = ","

# Three characters that are segmented a|bc, ab|c or abc.
_ADJACENT_SLOT = [word_class(_take(3), exponent=0) for _ in range(3)]
# A long compound, whose beginning and end depend on each other, on either side of characters that always belong to it.
_DISTANT_SLOTS = [[word_class(_take(3), exponent=0) for _ in range(length)] for length in (2, 4)]
_DISTANT_FILLING = (word_class(_take(5)), "M-NN")


def _phrase(words: Sequence[tuple[str, str]]) -> Phrase:
    characters, labels = characters_of_words(*zip(*words, strict=True))
    return list(zip(characters, labels, strict=True))


def _noun_words(draws: Draws) -> list[tuple[str, str]]:
    form = draws.integer(1, 8)
    if form == 1:
        return [(draws.word(_NUMERALS), "CD"), (draws.word(_NOUNS), "NN")]
    if form == 2:
        return [(draws.word(_NAMES), "NR")]
    if form == 3:
        return [(draws.word(_ADJECTIVES), "JJ"), (draws.word(_NOUNS), "NN")]
    noun = (draws.word(_LONG_NOUNS if form <= 5 else _NOUNS), "NN")
    return [(draws.word(_DETERMINERS), "DT"), noun] if form <= 6 else [noun]


def _verb_words(draws: Draws) -> list[tuple[str, str]]:
    form = draws.integer(1, 5)
    if form == 1:
        return [(draws.word(_SHORT_VERBS), "VV"), (draws.word(_PARTICLES), "AS")]
    if form == 2:
        return [(draws.word(_ADVERBS), "AD"), (draws.word(_VERBS), "VV")]
    return [(draws.word(_VERBS), "VV")]


def _phrases(draws: Draws) -> Iterator[Phrase]:
    """Clauses of subject, verb, optional object and optional adpositional phrase, followed by a comma."""
    while True:
        yield _phrase(_noun_words(draws))
        yield _phrase(_verb_words(draws))
        if draws.chance(0.5):
            yield _phrase(_noun_words(draws))
        if draws.chance(0.4):
            yield _phrase([(draws.word(_ADPOSITIONS), "P"), *_noun_words(draws)])
        yield _phrase([(_COMMA, "PU")])


def _ending(draws: Draws) -> Phrase:
    return _phrase([(draws.word(_STOPS), "PU")])


SEGMENTATION = Flavour(
    name="seg-pos",
    scheme=LabelScheme.BMES,
    phrases=_phrases,
    ending=_ending,
    body=(10, 20),
    templates={
        ADJACENT: group_template(
            ADJACENT,
            [_ADJACENT_SLOT],
            "S-P B-NN E-NN",
            "B-VV E-VV S-AS",
            "B-VV M-VV E-VV",
        ),
        DISTANT: group_template(
            DISTANT,
            _DISTANT_SLOTS,
            "S-P B-NN  M-NN E-NN S-VV S-AS",
            "B-NN M-NN  E-NN B-VV M-VV E-VV",
            "B-NN M-NN  M-NN M-NN E-NN S-VV",
            "B-NN M-NN  E-NN S-AD B-JJ E-JJ",
            filling=_DISTANT_FILLING,
        ),
    },
    span_metrics={"seg_f1": False, "joint_f1": True},
)
