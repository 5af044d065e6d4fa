"""Dependent groups: positions whose labels hang together by a hidden choice that the units do not reveal.

A group has one table of joint patterns, drawn independently of every unit, so P(labels of the group | units) *is* the table.
Every table has the same form over a head and what follows it,

    head X, followers Y    .40        the favourite
    head L, followers M₁   .20
    head L, followers M₂   .20
    head L, followers M₃   .20

so the labels most probable one by one are L (.60) and Y (.40): a combination of probability zero. (Where legal sequences
leave room for two rivals only, the table is .44, .28, .28.) The favourite beats every rival by more than 60 to 40, so a
decoder that revises its beliefs without rolling dice has something to follow.

A group of kind *adjacent* stands in one slot, and given its left neighbour a label depends on nothing further left: a
first-order Markov chain describes it exactly. A group of kind *distant* stands in several slots with certain labels in
between, which carry nothing from one slot to the next.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

from diffusion_mf.data.synthetic.draws import Draws, WordClass

ADJACENT, DISTANT = "adjacent", "distant"
KINDS = (ADJACENT, DISTANT)

# Units with certain labels between two slots of a distant group: not even a chain of the third order sees across.
MINIMUM_GAP = 3

# Probability of the favourite and of each rival, by the number of rivals.
_ODDS = {2: (0.44, 0.28), 3: (0.4, 0.2)}


class Pattern(NamedTuple):
    """Labels of all units of a group, and how probable they are."""

    labels: tuple[str, ...]
    probability: float


class DependentGroup(NamedTuple):
    """A group in a sentence: the units it binds and the patterns their labels can have."""

    kind: str
    positions: tuple[int, ...]
    patterns: tuple[Pattern, ...]


class GroupTemplate(NamedTuple):
    """What groups of one kind look like in one flavour.

    ``slots`` are the stretches of adjacent units, each with the word class of its units; words of these classes stand
    nowhere else, so that groups are recognised from the units alone. ``filling``, if any, is what stands between the slots:
    words whose label is certain. Without it ordinary phrases stand there.
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
        """The labels of a group as they stand in a sentence, with the shortest filling between the slots."""
        gap = [self.filling[1]] * MINIMUM_GAP if self.filling else []
        laid_out: list[str] = []
        for start, end in self.slot_bounds:
            laid_out += [*(gap if start else []), *labels[start:end]]
        return laid_out

    def draw_units(self, draws: Draws) -> list[str]:
        """The group's units, which say nothing about its pattern."""
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
    """A template from patterns written as labels with spaces between, such as ``"ADP ADJ NOUN"``."""
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
