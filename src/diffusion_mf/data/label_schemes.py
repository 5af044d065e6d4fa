"""Span encodings: what a label such as ``B-PER`` means, which sequences are legal, and conversion between schemes.

A label is a one-letter boundary and, after a hyphen, a type (``B-PER``); ``O`` is outside every span. The schemes:

| scheme | inside a span of one, two, three units | remark |
|---|---|---|
| plain | – | labels have no boundary; every sequence is legal |
| iob1 | I, I I, I I I | B only where a span follows another of its type |
| bio2 | B, B I, B I I | |
| iobes | S, B E, B I E | |
| bmes | S, B E, B M E | M and I are one; without O, the scheme of Chinese words (boundary–XPOS) |
| bilou | U, B L, B I L | |

Paper: “Boundary schemes” and “Fixed constraints” (appendices A.1 and B.3).
"""

from __future__ import annotations

import enum
import functools
import itertools
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from diffusion_mf.data.files import StrPath
from diffusion_mf.data.repair import Repairs
from diffusion_mf.data.sentence import Sentence
from diffusion_mf.errors import InputError

NAME_SCHEME = "specify the scheme with --scheme (data.scheme in a configuration)"
"""the remedy if the scheme of a file's labels cannot be detected"""


class LabelledSpan(NamedTuple):
    """A labelled range of units; ``end`` is exclusive."""

    start: int
    end: int
    label: str


class Span(NamedTuple):
    """A labelled range of units; ``end`` is exclusive."""

    start: int
    end: int
    label: str
    confidence: float
    """the probability that this span with this label is right: exact for a chain, elsewhere estimated from the lowest score of its
    units' BMES labels, which also mark where the span begins and ends (`SpanCalibration`)"""


class Boundary(enum.Enum):
    """The position of a unit in its span."""

    OUTSIDE = enum.auto()
    BEGIN = enum.auto()
    INSIDE = enum.auto()
    END = enum.auto()
    SINGLE = enum.auto()


# Looking up a member in its class is slow in Python 3.11, and the loops below would do it for every unit.
_OUTSIDE, _BEGIN, _INSIDE, _END, _SINGLE = Boundary


class LabelScheme(enum.StrEnum):
    """The label schemes; the value is the name used on the command line and in configuration files."""

    PLAIN = "plain"
    IOB1 = "iob1"
    BIO2 = "bio2"
    IOBES = "iobes"
    BMES = "bmes"
    BILOU = "bilou"

    @property
    def is_closed(self) -> bool:
        """Whether the end of a span is marked (IOBES, BMES, BILOU), so that a fragment can be seen to be incomplete."""
        return self in (LabelScheme.IOBES, LabelScheme.BMES, LabelScheme.BILOU)


# The letters that each scheme reads; it writes the first letter of a boundary.
_LETTERS: dict[LabelScheme, dict[Boundary, str]] = {
    LabelScheme.IOB1: {Boundary.BEGIN: "B", Boundary.INSIDE: "I"},
    LabelScheme.BIO2: {Boundary.BEGIN: "B", Boundary.INSIDE: "I"},
    LabelScheme.IOBES: {Boundary.BEGIN: "B", Boundary.INSIDE: "IM", Boundary.END: "E", Boundary.SINGLE: "S"},
    LabelScheme.BMES: {Boundary.BEGIN: "B", Boundary.INSIDE: "MI", Boundary.END: "E", Boundary.SINGLE: "S"},
    LabelScheme.BILOU: {Boundary.BEGIN: "B", Boundary.INSIDE: "I", Boundary.END: "L", Boundary.SINGLE: "U"},
}
_BOUNDARIES: dict[LabelScheme, dict[str, Boundary]] = {
    scheme: {letter: boundary for boundary, letters in table.items() for letter in letters}
    for scheme, table in _LETTERS.items()
}
# The boundaries of closed schemes as open schemes write them; in IOB1, a span right after another of its type begins with B.
_MERGED: dict[LabelScheme, dict[Boundary, Boundary]] = {
    LabelScheme.BIO2: {Boundary.SINGLE: Boundary.BEGIN, Boundary.END: Boundary.INSIDE},
    LabelScheme.IOB1: dict.fromkeys((Boundary.BEGIN, Boundary.SINGLE, Boundary.END), Boundary.INSIDE),
}
# No letter has different meanings in two schemes, so a repair can read all of them.
_ALL_BOUNDARIES = {letter: boundary for table in _BOUNDARIES.values() for letter, boundary in table.items()}


class LabelError(ValueError):
    """A label or sequence that its scheme does not allow; ``index`` is the offending unit."""

    def __init__(self, message: str, index: int) -> None:
        super().__init__(message)
        self.index = index


# A corpus has few distinct labels that are looked up often, so results are cached.
@functools.lru_cache(maxsize=1 << 12)
def split_label(label: str) -> tuple[str, str]:
    """Boundary letter and type; the type is empty for ``O`` and for bare boundaries such as ``B``.

    A label that ends in a hyphen lacks its type: it is not a boundary, and is returned whole.

    >>> split_label("B-PER"), split_label("O"), split_label("S--LRB-"), split_label("B-")
    (('B', 'PER'), ('O', ''), ('S', '-LRB-'), ('B-', ''))
    """
    return (label[0], label[2:]) if label[1:2] == "-" and len(label) > 2 else (label, "")


def is_boundary_label(label: str) -> bool:
    """Whether ``label`` is O, or a boundary letter of any scheme with a type.

    >>> [is_boundary_label(label) for label in ("O", "B-PER", "NN", "M", "O#O")]
    [True, True, False, False, False]
    """
    letter, kind = split_label(label)
    return label == "O" or (letter in _ALL_BOUNDARIES and bool(kind))


@functools.lru_cache(maxsize=1 << 12)
def parse_label(label: str, scheme: LabelScheme) -> tuple[Boundary, str]:
    """The boundary and type of ``label`` in ``scheme``; `ValueError` if the label is not of the scheme."""
    if scheme is LabelScheme.PLAIN:
        raise ValueError(f"label {label!r} has no boundary, because the scheme {scheme} has none")
    letter, kind = split_label(label)
    if letter == "O" and not kind:
        return Boundary.OUTSIDE, ""
    boundary = _BOUNDARIES[scheme].get(letter)
    if boundary is None:
        letters = "".join(_BOUNDARIES[scheme])
        raise ValueError(
            f"label {label!r} is not of the scheme {scheme} (O, or one of {letters} and a type, as in {letters[:1]}-X)"
        )
    return boundary, kind


def format_label(boundary: Boundary, kind: str, scheme: LabelScheme) -> str:
    """The label that ``scheme`` writes for a boundary and a type; `ValueError` if it cannot express the boundary."""
    if boundary is Boundary.OUTSIDE and scheme is not LabelScheme.PLAIN:
        return "O"
    letters = _LETTERS.get(scheme, {}).get(boundary)
    if letters is None:
        raise ValueError(f"the scheme {scheme} has no letter for {boundary.name}")
    letter = letters[0]
    return f"{letter}-{kind}" if kind else letter


def is_legal_start(label: str, scheme: LabelScheme) -> bool:
    """Whether a sentence may begin with ``label``: the same labels as after O."""
    return is_legal_transition("O", label, scheme)


def is_legal_end(label: str, scheme: LabelScheme) -> bool:
    """Whether a sentence may end with ``label``: the same labels as before O, so that closed schemes leave no span open."""
    return is_legal_transition(label, "O", scheme)


@functools.lru_cache(maxsize=1 << 16)
def is_legal_transition(previous: str, label: str, scheme: LabelScheme) -> bool:
    """Whether ``label`` may follow ``previous``: spans open and close completely and keep their type."""
    if scheme is LabelScheme.PLAIN:
        return True
    before, before_kind = parse_label(previous, scheme)
    after, kind = parse_label(label, scheme)
    if scheme is LabelScheme.IOB1:
        return after is not Boundary.BEGIN or (before is not Boundary.OUTSIDE and before_kind == kind)
    if scheme is LabelScheme.BIO2:
        return after is not Boundary.INSIDE or (before is not Boundary.OUTSIDE and before_kind == kind)
    if before in (Boundary.BEGIN, Boundary.INSIDE):
        return after in (Boundary.INSIDE, Boundary.END) and before_kind == kind
    return after in (Boundary.OUTSIDE, Boundary.BEGIN, Boundary.SINGLE)


def check_sequence(labels: Sequence[str], scheme: LabelScheme) -> None:
    """Raise `LabelError` at the first unit where ``labels`` is not a legal sequence of ``scheme``."""
    if scheme is LabelScheme.PLAIN or not labels:
        return
    for index, label in enumerate(labels):
        try:
            parse_label(label, scheme)
        except ValueError as error:
            raise LabelError(str(error), index) from None
    if not is_legal_start(labels[0], scheme):
        raise LabelError(f"a sentence cannot begin with {labels[0]!r} in the scheme {scheme}", 0)
    for index in range(1, len(labels)):
        if not is_legal_transition(labels[index - 1], labels[index], scheme):
            raise LabelError(f"{labels[index]!r} cannot follow {labels[index - 1]!r} in the scheme {scheme}", index)
    if not is_legal_end(labels[-1], scheme):
        raise LabelError(f"a sentence cannot end with {labels[-1]!r} in the scheme {scheme}", len(labels) - 1)


def extract_spans(labels: Sequence[str], scheme: LabelScheme, *, match_types: bool = True) -> list[LabelledSpan]:
    """The complete spans of a possibly malformed sequence.

    Closed schemes: S-x, or B-x (M-x)* E-x of one type; any other fragment is not a span, and scanning resumes at the next unit.
    With ``match_types=False`` only boundaries count (Chinese segmentation: B-NN E-VV is a word) and the label is the first
    unit's type. Open schemes: a span runs as far as its type does; an I that nothing opened starts a span (as conlleval
    reads it). Labels that are not of the scheme at all (a DiffusionSL code with no label) belong to no span.
    """
    if scheme is LabelScheme.PLAIN:
        return []
    return (_closed_spans if scheme.is_closed else _lenient_spans)(labels, _BOUNDARIES[scheme], match_types)


class SpanCalibration(NamedTuple):
    """σ(slope · logit(p) + offset): from the lowest score p of a span's units to the probability that the span is right.

    The lowest score is an estimate that ignores how the units of a span depend on each other; two numbers fitted on development
    data (Platt, 1999) make it a probability. They never change which of two spans is the more probable.
    """

    slope: float = 1.0
    offset: float = 0.0

    def __call__(self, lowest: float) -> float:
        """The confidence of a span; 0 and 1 stay as they are, and so does what a clamp has fixed."""
        if self == UNFITTED or not 0 < lowest < 1:
            return lowest
        return 1 / (1 + math.exp(-min(max(self.slope * math.log(lowest / (1 - lowest)) + self.offset, -700), 700)))


UNFITTED = SpanCalibration()


def scored_spans(
    labels: Sequence[str],
    scores: Sequence[float],
    scheme: LabelScheme,
    *,
    calibration: SpanCalibration = UNFITTED,
    chain: tuple[Sequence[float], Sequence[float]] | None = None,
) -> list[Span]:
    """The complete spans of a possibly malformed sequence, each with its confidence.

    ``chain`` holds log P(yᵢ) and log P(yᵢ₊₁ | yᵢ) of a chain, whose product along a span is its probability.
    """
    found = []
    for start, end, label in extract_spans(labels, scheme):
        if chain is None:
            confidence = calibration(min(scores[start:end]))
        else:
            confidence = math.exp(min(chain[0][start] + sum(chain[1][start : end - 1]), 0.0))
        found.append(Span(start, end, label, confidence))
    return found


def repair_spans(labels: Sequence[str]) -> list[LabelledSpan]:
    """The spans of an irregular gold sequence of any scheme, by conlleval's conventions; `LabelError` for a malformed label.

    A span begins at B and S (U), and at any other tag that cannot continue one: no span is open, the type differs, or E (L) has
    closed the previous span. It ends after E, L, S and U, or before the first tag that cannot continue it.

    >>> repair_spans(["O", "I-PER", "E-PER", "M-ORG", "M-ORG"])
    [LabelledSpan(start=1, end=3, label='PER'), LabelledSpan(start=3, end=5, label='ORG')]
    """
    for index, label in enumerate(labels):
        letter, kind = split_label(label)
        if letter not in _ALL_BOUNDARIES and (letter != "O" or kind):
            letters = "".join(_ALL_BOUNDARIES)
            raise LabelError(f"label {label!r} is neither O nor one of {letters} and a type, as in B-X", index)
    return _lenient_spans(labels, _ALL_BOUNDARIES)


def _closed_spans(labels: Sequence[str], boundaries: Mapping[str, Boundary], match_types: bool) -> list[LabelledSpan]:
    spans: list[LabelledSpan] = []
    start, kind = -1, ""  # the open span, if start >= 0
    for index, label in enumerate(labels):
        letter, label_kind = split_label(label)
        boundary = boundaries.get(letter, _OUTSIDE)
        continues = start >= 0 and (label_kind == kind or not match_types)
        if boundary is _INSIDE and continues:
            continue
        if boundary is _END and continues:
            spans.append(LabelledSpan(start, index + 1, kind))
        elif boundary is _SINGLE:
            spans.append(LabelledSpan(index, index + 1, label_kind))
        start = index if boundary is _BEGIN else -1
        kind = label_kind
    return spans


def _lenient_spans(
    labels: Sequence[str], boundaries: Mapping[str, Boundary], match_types: bool = True
) -> list[LabelledSpan]:
    spans: list[LabelledSpan] = []
    start, kind = -1, ""  # the open span, if start >= 0
    for index, label in enumerate(labels):
        letter, label_kind = split_label(label)
        boundary = boundaries.get(letter, _OUTSIDE)
        continues = (boundary is _INSIDE or boundary is _END) and (label_kind == kind or not match_types)
        if start < 0 or not continues:
            if start >= 0:
                spans.append(LabelledSpan(start, index, kind))
            start = -1 if boundary is _OUTSIDE else index
            kind = label_kind
        if boundary is _END or boundary is _SINGLE:
            spans.append(LabelledSpan(start, index + 1, kind))
            start = -1
    if start >= 0:
        spans.append(LabelledSpan(start, len(labels), kind))
    return spans


def encode_spans(spans: Iterable[LabelledSpan], length: int, scheme: LabelScheme) -> list[str]:
    """The labels of ``length`` units that encode ``spans``, which must not overlap; `ValueError` for the plain scheme."""
    if scheme is LabelScheme.PLAIN:
        raise ValueError(f"the scheme {scheme} has no spans to encode")
    labels = ["O"] * length
    previous = LabelledSpan(-1, -1, "")
    for span in sorted(spans):
        if not max(previous.end, 0) <= span.start < span.end <= length:
            raise ValueError(f"spans must be within the sentence and not overlap, found {span}")
        if scheme is LabelScheme.IOB1:
            first = Boundary.BEGIN if (previous.end, previous.label) == (span.start, span.label) else Boundary.INSIDE
            roles = [first] + [Boundary.INSIDE] * (span.end - span.start - 1)
        elif scheme is LabelScheme.BIO2:
            roles = [Boundary.BEGIN] + [Boundary.INSIDE] * (span.end - span.start - 1)
        elif span.end - span.start == 1:
            roles = [Boundary.SINGLE]
        else:
            roles = [Boundary.BEGIN] + [Boundary.INSIDE] * (span.end - span.start - 2) + [Boundary.END]
        labels[span.start : span.end] = [format_label(role, span.label, scheme) for role in roles]
        previous = span
    return labels


def complete_labels(labels: Iterable[str], scheme: LabelScheme) -> list[str]:
    """O and every label of ``scheme`` for each type in ``labels``, in sorted order.

    >>> complete_labels(["S-X"], LabelScheme.BMES)
    ['B-X', 'E-X', 'M-X', 'O', 'S-X']
    """
    parsed = [parse_label(label, scheme) for label in labels]
    kinds = {kind for boundary, kind in parsed if boundary is not Boundary.OUTSIDE}
    return sorted({"O", *(format_label(boundary, kind, scheme) for boundary in _LETTERS[scheme] for kind in kinds)})


def convert_labels(labels: Sequence[str], source: LabelScheme, target: LabelScheme | None) -> Sequence[str]:
    """Re-encode a legal sequence in another scheme, without loss, or only check it if ``target`` is None.

    `LabelError` if the sequence is not legal in ``source``. From BMES to BMES, I becomes M.
    """
    if LabelScheme.PLAIN in (source, target) and target not in (None, source):
        raise LabelError(f"labels of the scheme {source} cannot be converted to {target}", 0)
    check_sequence(labels, source)
    if target is None or source is LabelScheme.PLAIN:
        return labels
    return encode_spans(extract_spans(labels, source), len(labels), target)


def begins_after_its_type(previous: str, label: str, scheme: LabelScheme) -> bool:
    """Whether ``label`` of the closed scheme ``scheme``, after a unit of its type, begins another span, which IOB1 marks by B."""
    boundary, kind = parse_label(label, scheme)
    before, before_kind = parse_label(previous, scheme)
    return boundary in (_BEGIN, _SINGLE) and before is not _OUTSIDE and before_kind == kind


def translate_label(label: str, source: LabelScheme, target: LabelScheme) -> str:
    """The label of ``target`` for a label of the closed scheme ``source``, assuming no span of its type right before it.

    >>> [translate_label(label, LabelScheme.BMES, LabelScheme.BIO2) for label in ("O", "B-X", "M-X", "E-X", "S-X")]
    ['O', 'B-X', 'I-X', 'I-X', 'B-X']
    """
    if source is target:
        return label
    boundary, kind = parse_label(label, source)
    return format_label(_MERGED.get(target, {}).get(boundary, boundary), kind, target)


def characters_of_words(words: Iterable[str], tags: Iterable[str]) -> tuple[list[str], list[str]]:
    """One unit per character with boundary–tag labels (BMES), as for Chinese segmentation and tagging.

    >>> characters_of_words(["ab", "c"], ["NN", "PU"])
    (['a', 'b', 'c'], ['B-NN', 'E-NN', 'S-PU'])
    """
    characters: list[str] = []
    labels: list[str] = []
    for word, tag in zip(words, tags, strict=True):
        if not word or not tag:
            raise ValueError(f"a word needs a character and a tag, found the word {word!r} with the tag {tag!r}")
        characters.extend(word)
        labels.extend([f"S-{tag}"] if len(word) == 1 else [f"B-{tag}", *[f"M-{tag}"] * (len(word) - 2), f"E-{tag}"])
    return characters, labels


def words_of_characters(characters: Sequence[str], labels: Sequence[str]) -> tuple[list[str], list[str]]:
    """Words and tags back from characters and legal boundary–tag labels; the inverse of `characters_of_words`."""
    if len(characters) != len(labels):
        raise ValueError(f"one label per character is needed, found {len(characters)} and {len(labels)}")
    check_sequence(labels, LabelScheme.BMES)
    if "O" in labels:
        raise LabelError("every character must belong to a word, found O", labels.index("O"))
    spans = extract_spans(labels, LabelScheme.BMES)
    return ["".join(characters[span.start : span.end]) for span in spans], [span.label for span in spans]


def detect_scheme(
    sentences: Iterable[Sentence], *, path: StrPath, is_unit_per_line: bool, repairs: Repairs | None = None
) -> LabelScheme:
    """The scheme of all labels in ``sentences``; `InputError` if only some of them have a boundary and a type.

    ``is_unit_per_line`` says whether unit i of a sentence is i lines below its first (column files) or on the same line (JSON
    Lines). A file with only O is plain: O means the same in every scheme.
    """
    lines: dict[str, int] = {}  # of the first unit that has the label
    pairs: Counter[tuple[str, str]] = Counter()
    for sentence in sentences:
        labels = sentence.labels
        if labels is None or labels.count("O") == len(labels):
            continue
        num_pairs = len(pairs)
        # The beginning and end of a sentence allow the same neighbours as O.
        pairs.update(itertools.pairwise(("O", *labels, "O")))
        if len(pairs) > num_pairs:  # a new label always comes in a new pair
            for index, label in enumerate(labels):
                lines.setdefault(label, sentence.line + (index if is_unit_per_line else 0))
    lines.pop("O", None)
    letters = {label: split_label(label)[0] for label in lines}
    without_boundary = [label for label, letter in letters.items() if letter not in _ALL_BOUNDARIES]
    typed = [label for label, letter in letters.items() if letter in _ALL_BOUNDARIES and letter != label]
    # Tag sets have one-letter tags too: M alone is no evidence of boundaries, but M-NN is.
    if not lines or (without_boundary and not typed):
        return LabelScheme.PLAIN
    # Where errors are collected, each of these labels is one when it is converted.
    if without_boundary and not (repairs is not None and repairs.collects):
        label, other = without_boundary[0], typed[0]
        raise InputError(
            f"the tag {label!r} has no boundary prefix, but {other!r} on line {lines[other]} has one",
            path=path,
            line=lines[label],
            remedy=f"correct the tag or {NAME_SCHEME}, plain if labels have no boundaries",
        )
    seen = set(letters.values())
    closed = LabelScheme.IOBES if "I" in seen and "M" not in seen else LabelScheme.BMES
    candidates = (closed, LabelScheme.BILOU, LabelScheme.BIO2, LabelScheme.IOB1)
    return min(candidates, key=lambda scheme: _num_contradictions(pairs, scheme))


def _num_contradictions(pairs: Mapping[tuple[str, str], int], scheme: LabelScheme) -> int:
    labels = {label for pair in pairs for label in pair}
    known = {label for label in labels if is_label(label, scheme)}
    total = 0
    for (before, label), count in pairs.items():
        if label not in known:
            total += 2 * count
        elif before in known and not is_legal_transition(before, label, scheme):
            total += count
    return total


def is_label(label: str, scheme: LabelScheme) -> bool:
    """Whether ``label`` is one of ``scheme``."""
    try:
        parse_label(label, scheme)
    except ValueError:
        return False
    return True
