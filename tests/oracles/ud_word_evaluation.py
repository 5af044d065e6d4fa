"""Word scores as the CoNLL 2018 shared task defines them, from words as text; nothing from the package.

Both files spell the same characters. A word is where its characters stand in that text, spaces ignored; a system word is
aligned when a gold word stands at the same place. Words: precision is aligned ÷ system words, recall is aligned ÷ gold
words. XPOS: the same with aligned words of equal XPOS in the numerator; AligndAcc divides those by the aligned words.
"""

from __future__ import annotations

import itertools


def places(words: list[str]) -> list[tuple[int, int]]:
    """Where each word stands in the text, in characters other than spaces."""
    offsets = [0]
    for word in words:
        offsets.append(offsets[-1] + len(word.replace(" ", "")))
    return list(itertools.pairwise(offsets))


def evaluate(gold: list[tuple[str, str]], system: list[tuple[str, str]]) -> dict[str, float]:
    """F1 of Words, F1 of XPOS and aligned accuracy of XPOS, in per cent, for (form, XPOS) pairs of a whole corpus."""
    assert "".join(form for form, _ in gold) == "".join(form for form, _ in system), "the texts differ"
    return evaluate_at(
        list(zip(places([form for form, _ in gold]), [tag for _, tag in gold], strict=True)),
        list(zip(places([form for form, _ in system]), [tag for _, tag in system], strict=True)),
    )


def evaluate_at(gold: list[tuple[tuple[int, int], str]], system: list[tuple[tuple[int, int], str]]) -> dict[str, float]:
    """The same for words given by their places, so that a system may leave characters without a word."""
    aligned = right = 0
    i = j = 0
    while i < len(gold) and j < len(system):
        (gold_place, gold_tag), (system_place, system_tag) = gold[i], system[j]
        if gold_place == system_place:
            aligned += 1
            right += gold_tag == system_tag
            i, j = i + 1, j + 1
        elif gold_place[0] <= system_place[0]:
            i += 1  # of two different words with one start, neither can be aligned: the next round drops the other
        else:
            j += 1
    total = len(gold) + len(system)
    return {
        "words_f1": 200 * aligned / total if total else 0.0,
        "xpos_f1": 200 * right / total if total else 0.0,
        "xpos_aligned": 100 * right / aligned if aligned else 0.0,
    }


def projected_tag(tags: list[str | None]) -> str | None:
    """The tag a gold word gets from its characters: the most frequent, of equals the earliest; None is no tag."""
    return sorted(tags, key=lambda tag: (-tags.count(tag), tags.index(tag)))[0]
