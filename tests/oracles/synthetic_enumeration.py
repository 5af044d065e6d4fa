"""What decoders score on a sentence, by going through every label sequence; imports nothing from the package.

A sentence is its number of units, its certain labels (None where uncertain) and its groups, each a tuple of positions and a
list of (labels, probability).
"""

from __future__ import annotations

import itertools

Group = tuple[tuple[int, ...], list[tuple[tuple[str, ...], float]]]


def sequences(certain: list[str | None], groups: list[Group]) -> dict[tuple[str, ...], float]:
    """Every label sequence of positive probability."""
    table: dict[tuple[str, ...], float] = {}
    for choice in itertools.product(*(patterns for _, patterns in groups)):
        labels, probability = list(certain), 1.0
        for (positions, _), (pattern, weight) in zip(groups, choice, strict=True):
            probability *= weight
            for position, label in zip(positions, pattern, strict=True):
                labels[position] = label
        assert None not in labels
        key = tuple(label for label in labels if label is not None)
        assert key not in table
        table[key] = probability
    return table


def label_sets(table: dict[tuple[str, ...], float]) -> list[list[str]]:
    return [sorted({labels[i] for labels in table}) for i in range(len(next(iter(table))))]


def argmax_sequence(table: dict[tuple[str, ...], float]) -> tuple[str, ...]:
    """The most probable label of every position over the whole sentence."""
    chosen = []
    for i, candidates in enumerate(label_sets(table)):
        chosen.append(max(candidates, key=lambda x: sum(p for labels, p in table.items() if labels[i] == x)))
    return tuple(chosen)


def chain_probability(table: dict[tuple[str, ...], float], labels: tuple[str, ...]) -> float:
    """p(y₁) Π p(yᵢ₊₁ | yᵢ) with the true single and pair marginals of the whole sentence, certain units included."""
    probability = sum(p for other, p in table.items() if other[0] == labels[0])
    for i in range(1, len(labels)):
        single = sum(p for other, p in table.items() if other[i - 1] == labels[i - 1])
        pair = sum(p for other, p in table.items() if other[i - 1 : i + 1] == labels[i - 1 : i + 1])
        if pair == 0:
            return 0.0
        probability *= pair / single
    return probability


def all_combinations(table: dict[tuple[str, ...], float]) -> list[tuple[str, ...]]:
    """Every combination of labels that are possible one by one."""
    return list(itertools.product(*label_sets(table)))


def chain_sequence(table: dict[tuple[str, ...], float]) -> tuple[str, ...]:
    """The most probable sequence of the projected chain, by going through all combinations."""
    return max(all_combinations(table), key=lambda labels: chain_probability(table, labels))


def joint_sequence(table: dict[tuple[str, ...], float]) -> tuple[str, ...]:
    return max(table, key=table.__getitem__)


def spans(labels: tuple[str, ...], *, typed: bool) -> set[tuple[int, int, str]]:
    """Complete BMES spans, by trying every start and end."""
    found = set()
    for start in range(len(labels)):
        for end in range(start + 1, len(labels) + 1):
            letters = "".join(label[0] for label in labels[start:end])
            types = {label[2:] for label in labels[start:end]}
            shape = letters == "S" if end - start == 1 else letters == "B" + "M" * (end - start - 2) + "E"
            if shape and (len(types) == 1 or not typed):
                found.add((start, end, labels[start][2:] if typed else ""))
    return found


def expected_counts(
    table: dict[tuple[str, ...], float], predicted: tuple[str, ...], *, typed: bool | None
) -> dict[str, float]:
    """Expected correct units, exact match, and spans (correct, predicted, gold) of a prediction."""
    counts = {
        "units": sum(p * sum(a == b for a, b in zip(y, predicted, strict=True)) for y, p in table.items()),
        "exact": table.get(predicted, 0.0),
    }
    if typed is not None:
        own = spans(predicted, typed=typed)
        counts["predicted"] = len(own)
        counts["correct"] = sum(p * len(own & spans(y, typed=typed)) for y, p in table.items())
        counts["gold"] = sum(p * len(spans(y, typed=typed)) for y, p in table.items())
    return counts
