"""Consistency: whether the labels predicted for a dependent group can occur together.

Groups are recognised from the units alone, so the predictions of any model, or of a file, can be scored.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from diffusion_mf.data.synthetic.flavours import find_flavour
from diffusion_mf.data.synthetic.grammar import Flavour
from diffusion_mf.data.synthetic.groups import KINDS, DependentGroup, GroupTemplate


class Consistency(NamedTuple):
    """How many groups there are and how many have labels that can occur together."""

    groups: int
    consistent: int

    @property
    def percentage(self) -> float | None:
        """The score from 0 to 100; None where there is no group."""
        return 100 * self.consistent / self.groups if self.groups else None


def find_groups(units: Sequence[str], *, flavour: str | Flavour) -> tuple[DependentGroup, ...]:
    """The dependent groups of a sentence, from its units: the words of a template stand nowhere else."""
    groups = []
    for template, vocabulary, places in _group_vocabularies(find_flavour(flavour)):
        positions = tuple(index for index, unit in enumerate(units) if unit in vocabulary)
        if len(positions) == len(places) and all(
            units[position] in words for position, words in zip(positions, places, strict=True)
        ):
            groups.append(DependentGroup(template.kind, positions, template.patterns))
    return tuple(groups)


@functools.cache
def _group_vocabularies(flavour: Flavour) -> list[tuple[GroupTemplate, frozenset[str], list[frozenset[str]]]]:
    """For every template all its words, and the words of each of its units."""
    vocabularies = []
    for template in flavour.templates.values():
        places = [frozenset(words.words) for words in template.word_classes]
        vocabularies.append((template, frozenset().union(*places), places))
    return vocabularies


def is_consistent(group: DependentGroup, labels: Sequence[str]) -> bool:
    """Whether the labels at the group's positions are one of its patterns."""
    predicted = tuple(labels[position] for position in group.positions)
    return any(predicted == pattern.labels for pattern in group.patterns)


def consistency(units: Sequence[str], labels: Sequence[str], *, flavour: str | Flavour) -> dict[str, Consistency]:
    """Groups and consistent groups of one sentence, by kind."""
    counts = dict.fromkeys(KINDS, Consistency(0, 0))
    for group in find_groups(units, flavour=flavour):
        before = counts[group.kind]
        counts[group.kind] = Consistency(before.groups + 1, before.consistent + is_consistent(group, labels))
    return counts


def total_consistency(
    sentences: Iterable[tuple[Sequence[str], Sequence[str]]], *, flavour: str | Flavour
) -> dict[str, Consistency]:
    """`consistency` summed over (units, labels) pairs."""
    totals = dict.fromkeys(KINDS, Consistency(0, 0))
    for units, labels in sentences:
        for kind, count in consistency(units, labels, flavour=flavour).items():
            totals[kind] = Consistency(totals[kind].groups + count.groups, totals[kind].consistent + count.consistent)
    return totals
