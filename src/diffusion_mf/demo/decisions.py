"""When a trajectory makes up its mind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from diffusion_mf.tagger import TaggedSentence


class Decision(NamedTuple):
    """The moment from which a unit keeps its label: ``call`` counts calls from 1."""

    call: int
    label: str


def decisions(result: TaggedSentence, labels: Sequence[str]) -> list[Decision]:
    """For every unit the first call after which its final label leads, with more than half of the belief, to the end."""
    if result.trajectory is None:
        raise ValueError("the sentence was tagged without its trajectory")
    found = []
    for position, label in enumerate(result.labels):
        column = labels.index(label)
        call = len(result.trajectory)
        for number in range(len(result.trajectory), 0, -1):
            if result.trajectory[number - 1].beliefs[position, column] <= 0.5:
                break
            call = number
        found.append(Decision(call, label))
    return found
