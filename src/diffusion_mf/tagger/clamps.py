"""Labels known before the model is asked: ``{0: "S-PER", 3: {"O", "S-LOC"}}`` holds two units of a sentence.

A clamp that cannot be honoured is refused before anything is computed, by name: silently giving way would defeat it.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping, Sequence
from typing import TypeAlias

import torch
from jaxtyping import Bool
from torch import Tensor

from diffusion_mf.data.vocabulary import Vocabulary
from diffusion_mf.decoding import Legality
from diffusion_mf.errors import InputError, NoLegalSequenceError

Clamp: TypeAlias = Mapping[int, str | Collection[str]]
"""position to the label, or the labels, it may have; positions count from 0"""


def allowed_labels(
    clamp: Clamp, num_units: int, vocabulary: Vocabulary, legality: Legality | None, *, sentence: int
) -> Bool[Tensor, "N K"]:
    """Which labels each unit may have; `InputError` for a clamp that is mistaken or that no legal sequence fulfils.

    ``sentence`` is the sentence's number, counted from 1, for messages.
    """
    allowed = torch.ones(num_units, len(vocabulary.labels), dtype=torch.bool)
    for position, wanted in clamp.items():
        if not isinstance(position, int) or isinstance(position, bool) or not 0 <= position < num_units:
            raise InputError(
                f"the clamp of sentence {sentence} names the position {position!r}, but it has {num_units} unit(s)",
                remedy="count positions from 0",
            )
        names = [wanted] if isinstance(wanted, str) else list(wanted)
        if not names:
            raise InputError(
                f"the clamp of sentence {sentence} leaves no label at position {position}", remedy="allow a label there"
            )
        allowed[position] = False
        allowed[position, [_label_id(name, vocabulary, sentence) for name in names]] = True
    if legality is not None and num_units:
        _check_possible(allowed, legality, sentence)
    return allowed


def _label_id(name: object, vocabulary: Vocabulary, sentence: int) -> int:
    found = vocabulary.label_ids.get(name) if isinstance(name, str) else None
    if found is None:
        near = difflib.get_close_matches(str(name), vocabulary.labels, n=1, cutoff=0.0)
        raise InputError(
            f"the clamp of sentence {sentence} names the label {name!r}, which this model does not have",
            remedy=f"use one of its labels, such as {near[0]}" if near else "use one of its labels",
        )
    return found


def _check_possible(allowed: Tensor, legality: Legality, sentence: int) -> None:
    """Go through the sentence with all labels that a legal beginning can reach."""
    reachable = legality.starts.cpu()
    transitions, ends = legality.transitions.cpu(), legality.ends.cpu()
    for position in range(len(allowed)):
        if position:
            reachable = transitions[reachable].any(0)
        reachable = reachable & allowed[position]
        if position == len(allowed) - 1:
            reachable = reachable & ends
        if not reachable.any():
            raise NoLegalSequenceError(
                f"no legal sequence of labels fulfils the clamp of sentence {sentence}, at position {position} or before",
                remedy="relax the clamp",
            )


def stack_allowed(rows: Sequence[Tensor | None], num_units: int, num_labels: int) -> Bool[Tensor, "B N K"] | None:
    """The clamps of a batch, everything allowed where there is none and in padding; None if no sentence has any."""
    if all(row is None for row in rows):
        return None
    allowed = torch.ones(len(rows), num_units, num_labels, dtype=torch.bool)
    for index, row in enumerate(rows):
        if row is not None:
            allowed[index, : len(row)] = row
    return allowed
