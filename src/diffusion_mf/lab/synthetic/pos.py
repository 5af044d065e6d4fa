"""The POS-like flavour: invented words with universal part-of-speech tags.

A word's class determines its tag, except for homographs (nouns after a determiner, verbs after an auxiliary) and the words of
dependent groups.
"""

from __future__ import annotations

from collections.abc import Iterator

from diffusion_mf.data.label_schemes import LabelScheme
from diffusion_mf.lab.synthetic.grammar import (
    ADJACENT,
    DISTANT,
    Draws,
    Flavour,
    Inventor,
    Phrase,
    group_template,
    word_class,
)

_inventor = Inventor("pos")
_NOUNS = _inventor.word_class(80)
_VERBS = _inventor.word_class(50)
_ADJECTIVES = _inventor.word_class(30)
_ADVERBS = _inventor.word_class(15)
_NAMES = _inventor.word_class(25, style="title")
_HOMOGRAPHS = _inventor.word_class(15)
_DETERMINERS = _inventor.word_class(4, syllables=(1, 1))
_PRONOUNS = _inventor.word_class(6, syllables=(1, 1))
_ADPOSITIONS = _inventor.word_class(6, syllables=(1, 1))
_AUXILIARIES = _inventor.word_class(4, syllables=(1, 1))
_CONJUNCTIONS = _inventor.word_class(3, syllables=(1, 1))
_SUBORDINATORS = _inventor.word_class(3, syllables=(1, 2))
_NUMERALS = _inventor.word_class(6, syllables=(1, 2))
_STOPS = word_class([".", "!", "?"], exponent=2)

# A word that is an adposition before a noun phrase and a subordinator before a clause; the next words are ambiguous too.
_ADJACENT_SLOT = [_inventor.word_class(3, exponent=0) for _ in range(3)]
# A sentence-wide construction: an opener near the beginning, and two distant words that agree with it and with each other.
_DISTANT_SLOTS = [[_inventor.word_class(3, exponent=0)] for _ in range(3)]


def _noun_phrase(draws: Draws) -> Phrase:
    form = draws.integer(1, 10)
    if form == 1:
        return [(draws.word(_NUMERALS), "NUM"), (draws.word(_NOUNS), "NOUN")]
    if form == 2:
        return [(draws.word(_PRONOUNS), "PRON")]
    if form <= 4:
        return [(draws.word(_NAMES), "PROPN")]
    determiner = (draws.word(_DETERMINERS), "DET")
    if form == 5:
        return [determiner, (draws.word(_HOMOGRAPHS), "NOUN")]
    if form <= 7:
        return [determiner, (draws.word(_ADJECTIVES), "ADJ"), (draws.word(_NOUNS), "NOUN")]
    return [determiner, (draws.word(_NOUNS), "NOUN")]


def _verb_phrase(draws: Draws) -> Phrase:
    form = draws.integer(1, 6)
    if form == 1:
        return [(draws.word(_AUXILIARIES), "AUX"), (draws.word(_HOMOGRAPHS), "VERB")]
    phrase = [(draws.word(_VERBS), "VERB")]
    if form <= 3:
        phrase.insert(0, (draws.word(_AUXILIARIES), "AUX"))
    if form in (3, 4):
        phrase.append((draws.word(_ADVERBS), "ADV"))
    return phrase


def _phrases(draws: Draws) -> Iterator[Phrase]:
    """Clauses of subject, verb, perhaps object, perhaps adpositional phrase, joined by a conjunction or a subordinator."""
    while True:
        yield _noun_phrase(draws)
        yield _verb_phrase(draws)
        if draws.chance(0.5):
            yield _noun_phrase(draws)
        if draws.chance(0.4):
            yield [(draws.word(_ADPOSITIONS), "ADP"), *_noun_phrase(draws)]
        if draws.chance(0.3):
            yield [(draws.word(_SUBORDINATORS), "SCONJ"), *_noun_phrase(draws)]
            yield _verb_phrase(draws)
        yield [(",", "PUNCT"), (draws.word(_CONJUNCTIONS), "CCONJ")]


def _ending(draws: Draws) -> Phrase:
    return [(draws.word(_STOPS), "PUNCT")]


POS = Flavour(
    name="pos",
    scheme=LabelScheme.PLAIN,
    phrases=_phrases,
    ending=_ending,
    body=(7, 14),
    templates={
        ADJACENT: group_template(
            ADJACENT,
            [_ADJACENT_SLOT],
            "ADP ADJ NOUN",
            "SCONJ ADV VERB",
            "SCONJ PRON AUX",
            "SCONJ DET PROPN",
        ),
        DISTANT: group_template(
            DISTANT,
            _DISTANT_SLOTS,
            "ADV NOUN NOUN",
            "SCONJ VERB VERB",
            "SCONJ ADJ ADJ",
            "SCONJ PROPN PROPN",
        ),
    },
    span_metrics={},
)
