"""Which scheme a labelled file is in, from all of its labels: the one they contradict least.

| seen in the file | scheme |
|---|---|
| no label with a boundary (a bare letter such as M is one only where every label is a letter) | plain |
| L or U | bilou |
| M; or E or S without I | bmes |
| E or S, and I | iobes |
| only B and I, an I opens a span | iob1 |
| only B and I, a B where IOB1 has none (after O, another type or nothing) | bio2 |

Published corpora have mistakes, so that a single tag decides nothing: a label contradicts a scheme where it cannot follow the
one before it, and twice where the scheme does not have its letter. Schemes contradicted equally often are preferred in the order
bmes or iobes, bilou, bio2, iob1.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping

from diffusion_mf.data.label_schemes import NAME_SCHEME, LabelScheme, is_legal_transition, parse_label, split_label
from diffusion_mf.data.repair import Repairs, refuse
from diffusion_mf.data.sentence import Sentence
from diffusion_mf.errors import InputError
from diffusion_mf.files import StrPath

_LETTERS = frozenset("BIMESLU")


def detect_scheme(
    sentences: Iterable[Sentence], *, path: StrPath, is_unit_per_line: bool, repairs: Repairs | None = None
) -> LabelScheme:
    """The scheme of all labels in ``sentences``; `InputError` where some have a boundary and a type and some have none.

    ``is_unit_per_line`` says whether unit i of a sentence stands i lines below its first (column files) or on the same
    line (JSON Lines). A file with nothing but O is plain: O means the same in every scheme.
    """
    lines: dict[str, int] = {}  # of the first unit that has the label
    pairs: Counter[tuple[str, str]] = Counter()
    for sentence in sentences:
        labels = sentence.labels
        if labels is None or labels.count("O") == len(labels):
            continue
        num_pairs = len(pairs)
        # The ends of a sentence allow what O does.
        pairs.update(itertools.pairwise(("O", *labels, "O")))
        if len(pairs) > num_pairs:  # a label that is new comes in a pair that is
            for index, label in enumerate(labels):
                lines.setdefault(label, sentence.line + (index if is_unit_per_line else 0))
    lines.pop("O", None)
    letters = {label: split_label(label)[0] for label in lines}
    without_boundary = [label for label, letter in letters.items() if letter not in _LETTERS]
    typed = [label for label, letter in letters.items() if letter in _LETTERS and letter != label]
    # Tag sets have one-letter tags too: M alone says nothing beside NN, but M-NN does.
    if not lines or (without_boundary and not typed):
        return LabelScheme.PLAIN
    if without_boundary:
        label, other = without_boundary[0], typed[0]
        error = InputError(
            f"the tag {label!r} has no boundary prefix, but {other!r} on line {lines[other]} has one",
            path=path,
            line=lines[label],
            remedy=f"correct the tag or {NAME_SCHEME}, plain if labels have no boundaries",
        )
        refuse(repairs, error)
    seen = set(letters.values())
    closed = LabelScheme.IOBES if "I" in seen and "M" not in seen else LabelScheme.BMES
    candidates = (closed, LabelScheme.BILOU, LabelScheme.BIO2, LabelScheme.IOB1)
    return min(candidates, key=lambda scheme: _num_contradictions(pairs, scheme))


def _num_contradictions(pairs: Mapping[tuple[str, str], int], scheme: LabelScheme) -> int:
    labels = {label for pair in pairs for label in pair}
    known = {label for label in labels if _is_label(label, scheme)}
    total = 0
    for (before, label), count in pairs.items():
        if label not in known:
            total += 2 * count
        elif before in known and not is_legal_transition(before, label, scheme):
            total += count
    return total


def _is_label(label: str, scheme: LabelScheme) -> bool:
    try:
        parse_label(label, scheme)
    except ValueError:
        return False
    return True
