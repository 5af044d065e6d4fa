"""Dependent groups: positions whose labels hang together by a hidden choice that the units do not reveal.

A group has one table of joint patterns, drawn independently of every unit, so P(labels of the group | units) *is* the table.
Every table has the same form over a head and what follows it,

    head X, followers Y   .44        the favourite
    head L, followers M   .28
    head L, followers N   .28

so the labels most probable one by one are L (.56) and Y (.44): a combination of probability zero. The favourite beats the
runner-up by 61 to 39 and shares more with what is probable position by position than its rivals do, so a decoder that
revises beliefs without rolling dice has something to follow.

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

FAVOURITE = 0.44
RIVAL = (1 - FAVOURITE) / 2


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
    first_rival: str,
    second_rival: str,
    *,
    filling: tuple[WordClass, str] | None = None,
) -> GroupTemplate:
    """A template from patterns written as labels with spaces between, such as ``"ADP ADJ NOUN"``."""
    return GroupTemplate(
        kind,
        tuple(tuple(slot) for slot in slots),
        (
            Pattern(tuple(favourite.split()), FAVOURITE),
            Pattern(tuple(first_rival.split()), RIVAL),
            Pattern(tuple(second_rival.split()), RIVAL),
        ),
        filling,
    )
