"""From phrases and dependent groups to sentences.

A sentence is made in this order, each choice from the seeded stream: whether it holds an adjacent group (with the
probability of the knob ``adjacent``), whether it holds a distant one (``distant``, independently), all its units, and only
then the hidden pattern of each group. Units outside groups have certain labels: given the units, only groups are uncertain,
and different groups are independent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from diffusion_mf.data.label_schemes import LabelScheme
from diffusion_mf.data.synthetic.draws import Draws
from diffusion_mf.data.synthetic.groups import ADJACENT, DISTANT, MINIMUM_GAP, DependentGroup, GroupTemplate

Phrase = list[tuple[str, str]]
Phrases = Callable[[Draws], Iterator[Phrase]]


class SyntheticSentence(NamedTuple):
    """Units, labels and the truth about the dependent groups."""

    units: tuple[str, ...]
    labels: tuple[str, ...]
    groups: tuple[DependentGroup, ...]


@dataclass(frozen=True, eq=False)
class Flavour:
    """One of the three kinds of text.

    ``phrases`` yields phrases without end, ``ending`` closes a sentence, ``body`` bounds the units of a sentence without a
    distant group, and ``span_metrics`` names the F1 scores that apply, with whether types count (labels) or only boundaries.
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

    # The last block has a phrase and an ending, so there is always a place with certain labels on both sides.
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
