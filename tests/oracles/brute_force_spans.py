"""Spans and legality by exhaustion: every (start, end) pair against a regular expression; nothing from the package."""

from __future__ import annotations

import itertools
import re

# What the labels of one span look like in each closed scheme, the type left out.
CLOSED_PATTERNS = {"bmes": "S|B[MI]*E", "iobes": "S|B[MI]*E", "bilou": "U|BI*L"}


def boundary_and_type(label: str) -> tuple[str, str | None]:
    """The letter and the type, None for labels that are not a letter, or a letter, a hyphen and a type."""
    match = re.fullmatch(r"([A-Z])(?:-(.+))?", label, flags=re.DOTALL)
    return (match[1], match[2] or "") if match else ("?", None)


def complete_spans(labels: list[str], scheme: str, *, match_types: bool = True) -> set[tuple[int, int, str]]:
    """All stretches that spell a complete span of a closed scheme; the label is the first unit's type."""
    pairs = [boundary_and_type(label) for label in labels]
    spans = set()
    for start, end in itertools.combinations(range(len(labels) + 1), 2):
        letters = "".join(letter for letter, _ in pairs[start:end])
        types = {kind for _, kind in pairs[start:end]}
        if re.fullmatch(CLOSED_PATTERNS[scheme], letters) and (len(types) == 1 or not match_types):
            spans.add((start, end, pairs[start][1] or ""))
    return spans


def typed_spans(labels: list[str], *, match_types: bool = True) -> list[tuple[int, int, str]]:
    """The same for labels of BMES with types, one search a type, so that a corpus does not take minutes."""
    spans = []
    for wanted in sorted({label[2:] for label in labels}) if match_types else [""]:
        letters = "".join(
            label[0] if label[1:2] == "-" and (not match_types or label[2:] == wanted) else "." for label in labels
        )
        spans += [(match.start(), match.end(), wanted) for match in re.finditer("S|B[MI]*E", letters)]
    return sorted(spans)


def open_spans(labels: list[str], scheme: str) -> set[tuple[int, int, str]]:
    """The spans of a BIO2 or IOB1 sequence as conlleval reads it: a maximal run of one type, cut before every B."""
    pairs = [boundary_and_type(label) for label in labels]

    def is_span(start: int, end: int) -> bool:
        letters = [letter for letter, _ in pairs[start:end]]
        types = {kind for _, kind in pairs[start:end]}
        whole = len(types) == 1 and letters[0] in "BI" and set(letters[1:]) <= {"I"}
        begins = letters[0] == "B" or start == 0 or pairs[start - 1][0] not in "BI" or pairs[start - 1][1] not in types
        ends = end == len(labels) or pairs[end][0] != "I" or pairs[end][1] not in types
        return whole and begins and ends

    return {
        (start, end, pairs[start][1] or "")
        for start, end in itertools.combinations(range(len(labels) + 1), 2)
        if is_span(start, end)
    }


def malformed_fragments(labels: list[str], scheme: str, *, outside: str = "O") -> int:
    """Maximal runs of units that are not outside and stand in no complete span of a closed scheme."""
    covered = {unit for start, end, _ in complete_spans(labels, scheme) for unit in range(start, end)}
    marks = "".join("." if unit in covered or label == outside else "x" for unit, label in enumerate(labels))
    return len(re.findall("x+", marks))


def scores(gold: set, predicted: set) -> tuple[float, float, float]:
    """Precision, recall and F1 in per cent, by the textbook; zero where nothing can be divided."""
    correct = len(gold & predicted)
    precision = 100 * correct / len(predicted) if predicted else 0.0
    recall = 100 * correct / len(gold) if gold else 0.0
    f1 = 2 * precision * recall / (precision + recall) if correct else 0.0
    return precision, recall, f1
