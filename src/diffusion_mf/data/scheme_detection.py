"""Which scheme a labelled file is in, from all of its labels; what they leave open is asked, never guessed.

| seen in the file | scheme |
|---|---|
| no label with a boundary (a bare letter such as M is one only where every label is a letter) | plain |
| L or U | bilou |
| M; or E or S without I | bmes |
| E or S, and I | iobes |
| only B and I, an I opens a span | iob1 |
| only B and I, a B where IOB1 has none (after O, another type or nothing) | bio2 |
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NoReturn

from diffusion_mf.data.label_schemes import NAME_SCHEME, LabelScheme, split_label
from diffusion_mf.data.sentence import Sentence
from diffusion_mf.errors import InputError
from diffusion_mf.files import StrPath

_LETTERS = frozenset("BIMESLU")


def detect_scheme(sentences: Iterable[Sentence], *, path: StrPath, is_unit_per_line: bool) -> LabelScheme:
    """The scheme of all labels in ``sentences``; `InputError` naming two lines where they contradict each other.

    ``is_unit_per_line`` says whether unit i of a sentence stands i lines below its first (column files) or on the same
    line (JSON Lines). A file with nothing but O is plain: O means the same in every scheme.
    """
    evidence = _Evidence(path)
    for sentence in sentences:
        evidence.add(sentence, 1 if is_unit_per_line else 0)
    return evidence.scheme()


class _Evidence:
    """The first line on which each thing that tells schemes apart was seen."""

    def __init__(self, path: StrPath) -> None:
        self.path = path
        self.letters: dict[str, tuple[int, str]] = {}
        self.typed: tuple[int, str] | None = None
        self.without_boundary: tuple[int, str] | None = None
        self.inside_opens: tuple[int, str] | None = None
        self.begin_opens: tuple[int, str] | None = None

    def add(self, sentence: Sentence, lines_per_unit: int) -> None:
        labels = sentence.labels
        if labels is None or labels.count("O") == len(labels):
            return
        previous = ("O", "")
        for index, label in enumerate(labels):
            letter, kind = split_label(label)
            if letter != "O" or kind:
                place = (sentence.line + index * lines_per_unit, label)
                if letter not in _LETTERS:
                    self.without_boundary = self.without_boundary or place
                else:
                    self.letters.setdefault(letter, place)
                    if kind:
                        self.typed = self.typed or place
                    if previous[0] == "O" or previous[1] != kind:
                        if letter == "I":
                            self.inside_opens = self.inside_opens or place
                        elif letter == "B":
                            self.begin_opens = self.begin_opens or place
            previous = (letter, kind)

    def scheme(self) -> LabelScheme:
        first = {letter: self.letters[letter] for letter in "BIMESLU" if letter in self.letters}
        if self.without_boundary is not None:
            # Tag sets have one-letter tags too: M alone says nothing beside NN, but M-NN does.
            if self.typed is None:
                return LabelScheme.PLAIN
            line, label = self.without_boundary
            other_line, other = self.typed
            raise InputError(
                f"the tag {label!r} has no boundary prefix, but {other!r} on line {other_line} has one",
                path=self.path,
                line=line,
                remedy=f"correct the tag or {NAME_SCHEME}, plain if labels have no boundaries",
            )
        if not first:
            return LabelScheme.PLAIN
        bilou = first.keys() & {"L", "U"}
        others = first.keys() & {"M", "E", "S"}
        if bilou and others:
            self._refuse(min(first[letter] for letter in bilou), min(first[letter] for letter in others))
        if bilou:
            return LabelScheme.BILOU
        if others:
            return LabelScheme.IOBES if "I" in first and "M" not in first else LabelScheme.BMES
        if self.inside_opens and self.begin_opens:
            self._refuse(self.inside_opens, self.begin_opens)
        return LabelScheme.IOB1 if self.inside_opens else LabelScheme.BIO2

    def _refuse(self, one: tuple[int, str], other: tuple[int, str]) -> NoReturn:
        (early_line, early), (late_line, late) = sorted((one, other))
        raise InputError(
            f"{early!r} on line {early_line} and {late!r} on line {late_line} belong to different schemes",
            path=self.path,
            line=late_line,
            remedy=NAME_SCHEME,
        )
