"""The generation of synthetic sentences: keyed random choices, invented words, dependent groups, and a grammar."""

from __future__ import annotations

import bisect
import itertools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from diffusion_mf.data.label_schemes import LabelScheme

Item = TypeVar("Item")


class WordClass(NamedTuple):
    """Invented words (or characters) with cumulative weights, most frequent first."""

    words: tuple[str, ...]
    cumulative: tuple[float, ...]


def word_class(words: Sequence[str], *, exponent: float = 1.0) -> WordClass:
    """Zipfian words: the r-th has a weight of 1 / r^exponent; an exponent of 0 makes them equally likely."""
    weights = [1 / rank**exponent for rank in range(1, len(words) + 1)]
    total = sum(weights)
    return WordClass(tuple(words), tuple(itertools.accumulate(weight / total for weight in weights)))


class Draws:
    """A stream of random choices for a key such as (seed, split).

    It uses only `random.random`, the one method whose sequence Python guarantees across versions, so a seed gives the same corpus
    everywhere.
    """

    def __init__(self, *key: object) -> None:
        self._random = random.Random("/".join(map(str, key))).random

    def chance(self, probability: float) -> bool:
        """Whether an event of this probability happens."""
        return self._random() < probability

    def integer(self, low: int, high: int) -> int:
        """One of low … high, both included."""
        return low + int(self._random() * (high - low + 1))

    def pick(self, items: Sequence[Item]) -> Item:
        """One of ``items``, all equally likely."""
        return items[int(self._random() * len(items))]

    def weighted(self, items: Sequence[Item], cumulative: Sequence[float]) -> Item:
        """One of ``items`` by cumulative weights that end at 1."""
        # Rounding may leave the last weight slightly below 1.
        return items[min(bisect.bisect_right(cumulative, self._random()), len(items) - 1)]

    def word(self, words: WordClass) -> str:
        """A word of a class, by its weights."""
        return self.weighted(words.words, words.cumulative)


class Inventor:
    """Invents distinct pronounceable words, the same ones in every process.

    The vocabulary is keyed by a name rather than by the corpus seed, so corpora of different seeds are in the same language, and
    dependent groups can be recognised in any of them.
    """

    _ONSETS = ("b", "d", "f", "g", "h", "k", "l", "m", "n", "p", "r", "s", "t", "v", "z", "br", "dr", "kl", "st", "tr")
    _VOWELS = ("a", "e", "i", "o", "u", "ai", "ou")
    _CODAS = ("", "", "", "n", "r", "s", "l", "k")

    def __init__(self, language: str) -> None:
        self._draws = Draws("synthetic vocabulary", language)
        self._taken: set[str] = set()

    def words(self, count: int, *, syllables: tuple[int, int] = (2, 3), style: str = "lower") -> list[str]:
        """``count`` new words; ``style`` is lower, title or upper, and no two words differ by case only."""
        invented: list[str] = []
        while len(invented) < count:
            word = "".join(self._syllable() for _ in range(self._draws.integer(*syllables)))
            if len(word) > 1 and word not in self._taken:
                self._taken.add(word)
                invented.append({"lower": word, "title": word.title(), "upper": word.upper()}[style])
        return invented

    def word_class(
        self, count: int, *, syllables: tuple[int, int] = (2, 3), style: str = "lower", exponent: float = 1.0
    ) -> WordClass:
        """A class of ``count`` new words."""
        return word_class(self.words(count, syllables=syllables, style=style), exponent=exponent)

    def _syllable(self) -> str:
        return self._draws.pick(self._ONSETS) + self._draws.pick(self._VOWELS) + self._draws.pick(self._CODAS)


ADJACENT, DISTANT = "adjacent", "distant"
KINDS = (ADJACENT, DISTANT)

# Units with certain labels between two slots of a distant group: more than a third-order chain can bridge.
MINIMUM_GAP = 3

# Probability of the most likely pattern and of each alternative, by the number of alternatives.
_ODDS = {2: (0.44, 0.28), 3: (0.4, 0.2)}


class Pattern(NamedTuple):
    """Labels of all units of a group, and their probability."""

    labels: tuple[str, ...]
    probability: float


class DependentGroup(NamedTuple):
    """A dependent group in a sentence: its units, and the patterns their labels can have."""

    kind: str
    positions: tuple[int, ...]
    patterns: tuple[Pattern, ...]


class GroupTemplate(NamedTuple):
    """What groups of one kind look like in one flavour.

    ``slots`` are the ranges of adjacent units, each with the word classes of its units; words of these classes occur nowhere
    else, so groups are recognised from the units alone. ``filling``, if any, are words with a certain label between the slots;
    without it there are ordinary phrases.
    """

    kind: str
    slots: tuple[tuple[WordClass, ...], ...]
    patterns: tuple[Pattern, ...]
    filling: tuple[WordClass, str] | None = None

    @property
    def word_classes(self) -> tuple[WordClass, ...]:
        """The word class of every unit of the group."""
        return tuple(itertools.chain.from_iterable(self.slots))

    @property
    def slot_bounds(self) -> tuple[tuple[int, int], ...]:
        """Start and end of each slot among the group's units."""
        ends = list(itertools.accumulate(len(slot) for slot in self.slots))
        return tuple(zip([0, *ends[:-1]], ends, strict=True))

    def lay_out(self, labels: Sequence[str]) -> list[str]:
        """The labels of a group in a sentence, with the shortest filling between the slots."""
        gap = [self.filling[1]] * MINIMUM_GAP if self.filling else []
        laid_out: list[str] = []
        for start, end in self.slot_bounds:
            laid_out += [*(gap if start else []), *labels[start:end]]
        return laid_out

    def draw_units(self, draws: Draws) -> list[str]:
        """Draw the group's units, which are independent of its pattern."""
        return [draws.word(words) for words in self.word_classes]

    def draw_pattern(self, draws: Draws) -> Pattern:
        """The hidden choice."""
        return draws.weighted(self.patterns, tuple(itertools.accumulate(p.probability for p in self.patterns)))


def group_template(
    kind: str,
    slots: Sequence[Sequence[WordClass]],
    favourite: str,
    *rivals: str,
    filling: tuple[WordClass, str] | None = None,
) -> GroupTemplate:
    """A template from patterns written as labels separated by spaces, such as ``"ADP ADJ NOUN"``."""
    odds, rival_odds = _ODDS[len(rivals)]
    return GroupTemplate(
        kind,
        tuple(tuple(slot) for slot in slots),
        (
            Pattern(tuple(favourite.split()), odds),
            *(Pattern(tuple(rival.split()), rival_odds) for rival in rivals),
        ),
        filling,
    )


Phrase = list[tuple[str, str]]
Phrases = Callable[[Draws], Iterator[Phrase]]


class SyntheticSentence(NamedTuple):
    """Units, labels and dependent groups of a sentence."""

    units: tuple[str, ...]
    labels: tuple[str, ...]
    groups: tuple[DependentGroup, ...]


@dataclass(frozen=True, eq=False)
class Flavour:
    """One of the three kinds of text.

    ``phrases`` yields phrases indefinitely, ``ending`` closes a sentence, ``body`` gives the range of lengths of a sentence
    without a distant group, and ``span_metrics`` maps each F1 score that applies to whether types count or only boundaries.
    """

    name: str
    scheme: LabelScheme
    phrases: Phrases
    ending: Callable[[Draws], Phrase]
    body: tuple[int, int]
    templates: Mapping[str, GroupTemplate]
    span_metrics: Mapping[str, bool]


def compose_sentence(flavour: Flavour, draws: Draws, *, adjacent: float, distant: float) -> SyntheticSentence:
    """One sentence: blocks of phrases, the slots of a distant group between blocks, an adjacent group inside a block."""
    has_adjacent, has_distant = draws.chance(adjacent), draws.chance(distant)
    phrases = flavour.phrases(draws)
    if has_distant:
        template = flavour.templates[DISTANT]
        gaps = [_gap(template, phrases, draws) for _ in template.slots[1:]]
        blocks = [_block(phrases, draws.integer(1, 3)), *gaps, _block(phrases, draws.integer(1, 3))]
    else:
        blocks = [_block(phrases, draws.integer(*flavour.body))]
    blocks[-1].append(flavour.ending(draws))

    # The last block has a phrase and an ending, so a group always has certain labels on both sides.
    places = [(block, cut) for block in range(len(blocks)) for cut in range(1, len(blocks[block]))]
    adjacent_place = draws.pick(places) if has_adjacent else None
    present = [kind for kind, has in ((ADJACENT, has_adjacent), (DISTANT, has_distant)) if has]
    units_of = {kind: flavour.templates[kind].draw_units(draws) for kind in present}
    pattern_of = {kind: flavour.templates[kind].draw_pattern(draws) for kind in present}

    units: list[str] = []
    labels: list[str] = []
    positions: dict[str, list[int]] = {kind: [] for kind in present}

    def add_slot(kind: str, start: int, end: int) -> None:
        positions[kind].extend(range(len(units), len(units) + end - start))
        units.extend(units_of[kind][start:end])
        labels.extend(pattern_of[kind].labels[start:end])

    for index, block in enumerate(blocks):
        if index > 0:
            add_slot(DISTANT, *flavour.templates[DISTANT].slot_bounds[index - 1])
        for cut, phrase in enumerate(block):
            if (index, cut) == adjacent_place:
                add_slot(ADJACENT, *flavour.templates[ADJACENT].slot_bounds[0])
            units.extend(unit for unit, _ in phrase)
            labels.extend(label for _, label in phrase)
    groups = tuple(DependentGroup(kind, tuple(positions[kind]), flavour.templates[kind].patterns) for kind in present)
    return SyntheticSentence(tuple(units), tuple(labels), groups)


def _gap(template: GroupTemplate, phrases: Iterator[Phrase], draws: Draws) -> list[Phrase]:
    if template.filling is None:
        return _block(phrases, MINIMUM_GAP)
    words, label = template.filling
    return [[(draws.word(words), label) for _ in range(draws.integer(MINIMUM_GAP, MINIMUM_GAP + 2))]]


def _block(phrases: Iterator[Phrase], size: int) -> list[Phrase]:
    block = [next(phrases)]
    while sum(map(len, block)) < size:
        block.append(next(phrases))
    return block
