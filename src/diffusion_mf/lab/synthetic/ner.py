"""The NER-like flavour: invented words with mentions of four types in BMES.

Outside dependent groups, a word and its neighbours determine its label: some words open mentions, some close them, and shared
names are persons after a title and places after a locative.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from diffusion_mf.data.label_schemes import LabelScheme
from diffusion_mf.lab.synthetic.grammar import (
    ADJACENT,
    DISTANT,
    Draws,
    Flavour,
    Inventor,
    Phrase,
    WordClass,
    group_template,
    word_class,
)

_inventor = Inventor("ner")
_NOUNS = _inventor.word_class(70)
_VERBS = _inventor.word_class(40)
_ADJECTIVES = _inventor.word_class(20)
_DETERMINERS = _inventor.word_class(4, syllables=(1, 1))
_LINKS = _inventor.word_class(5, syllables=(1, 1))
_TITLES = _inventor.word_class(4, syllables=(1, 2))
_LOCATIVES = _inventor.word_class(4, syllables=(1, 1))
_STOPS = word_class([".", "!", "?"], exponent=2)
_SHARED_NAMES = _inventor.word_class(12, style="title")


class _Names(NamedTuple):
    """Words of a mention by place; a mention of one word takes ``single``."""

    single: WordClass
    first: WordClass
    middle: WordClass
    last: WordClass


_given, _family = (_inventor.word_class(20, style="title") for _ in range(2))
_places = _inventor.word_class(20, style="title")
_firms = _inventor.word_class(20, style="title")
_NAMES = {
    "PER": _Names(_given, _given, _inventor.word_class(3, syllables=(1, 1)), _family),
    "LOC": _Names(_places, _inventor.word_class(6, style="title"), _inventor.word_class(5, style="title"), _places),
    "ORG": _Names(
        _inventor.word_class(10, syllables=(2, 2), style="upper"),
        _firms,
        _inventor.word_class(8, style="title"),
        _inventor.word_class(5, style="title"),
    ),
    "MISC": _Names(*(_inventor.word_class(count, style="title") for count in (10, 6, 6, 6))),
}

# A word that opens a long name or precedes a shorter one, so the mention has two possible segmentations.
_ADJACENT_SLOT = [_inventor.word_class(3, style="title", exponent=0) for _ in range(3)]
# The long name of an institution, whose beginning and end depend on each other, on either side of words that
# always belong to it.
_DISTANT_SLOTS = [[_inventor.word_class(3, exponent=0) for _ in range(length)] for length in (2, 3)]
_DISTANT_FILLING = (_inventor.word_class(8), "M-ORG")


def _mention(draws: Draws, kind: str) -> Phrase:
    names = _NAMES[kind]
    length = draws.integer(1, 3)
    if length == 1:
        return [(draws.word(names.single), f"S-{kind}")]
    middle = [(draws.word(names.middle), f"M-{kind}")] if length == 3 else []
    return [(draws.word(names.first), f"B-{kind}"), *middle, (draws.word(names.last), f"E-{kind}")]


def _noun_phrase(draws: Draws) -> Phrase:
    adjective = [(draws.word(_ADJECTIVES), "O")] if draws.chance(0.4) else []
    return [(draws.word(_DETERMINERS), "O"), *adjective, (draws.word(_NOUNS), "O")]


def _participant(draws: Draws) -> Phrase:
    form = draws.integer(1, 20)
    if form == 1:
        return [(draws.word(_TITLES), "O"), (draws.word(_SHARED_NAMES), "S-PER")]
    if form == 2:
        return [(draws.word(_LOCATIVES), "O"), (draws.word(_SHARED_NAMES), "S-LOC")]
    if form == 3:
        return [(draws.word(_LOCATIVES), "O"), *_mention(draws, "LOC")]
    if form <= 6:
        return _mention(draws, ("PER", "ORG", "MISC")[form - 4])
    return _noun_phrase(draws)


def _phrases(draws: Draws) -> Iterator[Phrase]:
    """Participants with verbs between them, and sometimes a link between clauses; two mentions are never adjacent."""
    while True:
        yield _participant(draws)
        yield [(draws.word(_VERBS), "O")]
        yield _participant(draws)
        yield [(draws.word(_LINKS), "O"), *(_noun_phrase(draws) if draws.chance(0.3) else [])]


def _ending(draws: Draws) -> Phrase:
    return [(draws.word(_STOPS), "O")]


NER = Flavour(
    name="ner",
    scheme=LabelScheme.BMES,
    phrases=_phrases,
    ending=_ending,
    body=(7, 14),
    templates={
        ADJACENT: group_template(
            ADJACENT,
            [_ADJACENT_SLOT],
            "B-PER M-PER E-PER",
            "O B-LOC E-LOC",
            "O B-ORG E-ORG",
            "O B-MISC E-MISC",
        ),
        DISTANT: group_template(
            DISTANT,
            _DISTANT_SLOTS,
            "O B-ORG  M-ORG E-ORG O",
            "B-ORG M-ORG  E-ORG O O",
            "B-ORG M-ORG  M-ORG M-ORG E-ORG",
            "B-ORG M-ORG  E-ORG B-LOC E-LOC",
            filling=_DISTANT_FILLING,
        ),
    },
    span_metrics={"f1": True},
)
