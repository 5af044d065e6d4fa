"""The table of flavours, and the sentences each one generates."""

from __future__ import annotations

import math
from collections.abc import Iterator

from diffusion_mf.errors import InputError
from diffusion_mf.lab.synthetic.grammar import Draws, Flavour, SyntheticSentence, compose_sentence
from diffusion_mf.lab.synthetic.ner import NER
from diffusion_mf.lab.synthetic.pos import POS
from diffusion_mf.lab.synthetic.segmentation import SEGMENTATION

FLAVOURS: dict[str, Flavour] = {flavour.name: flavour for flavour in (POS, NER, SEGMENTATION)}
DEFAULT_STRENGTH = 0.5


def find_flavour(flavour: str | Flavour) -> Flavour:
    """The flavour called ``flavour``; `InputError` if there is none."""
    if isinstance(flavour, Flavour):
        return flavour
    if flavour not in FLAVOURS:
        raise InputError(f"no flavour is called {flavour!r}", remedy=f"choose one of {', '.join(FLAVOURS)}")
    return FLAVOURS[flavour]


def generate(
    flavour: str | Flavour,
    num_sentences: int,
    seed: int = 0,
    *,
    split: str = "train",
    adjacent: float = DEFAULT_STRENGTH,
    distant: float = DEFAULT_STRENGTH,
) -> Iterator[SyntheticSentence]:
    """Generate sentences of a flavour; the same arguments give the same sentences on every machine.

    ``adjacent`` and ``distant`` are the shares of sentences with a dependent group of that kind. Splits are independent
    streams of one seed, and a longer corpus begins with the sentences of a shorter one.
    """
    found = find_flavour(flavour)
    if num_sentences < 0:
        raise InputError(
            f"the number of sentences cannot be negative, found {num_sentences}", remedy="ask for 0 or more"
        )
    for knob, value in (("adjacent", adjacent), ("distant", distant)):
        if math.isnan(value) or not 0 <= value <= 1:
            raise InputError(
                f"{knob} must be a share of sentences, found {value:g}", remedy="give a number from 0 to 1"
            )
    return _sentences(found, num_sentences, Draws("synthetic corpus", found.name, split, seed), adjacent, distant)


def _sentences(
    flavour: Flavour, num_sentences: int, draws: Draws, adjacent: float, distant: float
) -> Iterator[SyntheticSentence]:
    for _ in range(num_sentences):
        yield compose_sentence(flavour, draws, adjacent=adjacent, distant=distant)
