"""Statistics on corpora small enough to count by hand."""

from __future__ import annotations

import math

import hypothesis.strategies as st
import pytest
from hypothesis import given

from diffusion_mf.data.sentence import Sentence
from diffusion_mf.data.statistics import corpus_statistics, nearest_rank, out_of_vocabulary


def sentence(units: str, labels: str) -> Sentence:
    return Sentence(tuple(units.split()), tuple(labels.split()))


CORPUS = [
    sentence("a b", "X X"),
    sentence("a b", "X Y"),
    sentence("A b c d", "X X Y Z"),
    sentence("a", "X"),
    sentence("a b", "X X"),
]


def test_counts() -> None:
    s = corpus_statistics(CORPUS)
    assert (s.sentences, s.units, s.median, s.p95, s.max, s.duplicates) == (5, 11, 2, 4, 4, 2)
    assert s.mean == 11 / 5
    assert s.vocabulary == {"a", "A", "b", "c", "d"}
    assert s.label_counts == {"X": 8, "Y": 2, "Z": 1}
    assert list(s.label_counts) == ["X", "Y", "Z"]
    p = [8 / 11, 2 / 11, 1 / 11]
    assert s.label_entropy == pytest.approx(-sum(x * math.log(x) for x in p) / math.log(3))
    assert s.top_labels(2) == [("X", pytest.approx(800 / 11)), ("Y", pytest.approx(200 / 11))]
    assert s.top_mass(2) == pytest.approx(1000 / 11)
    assert s.label_bins() == {">=10": 2, "1-10": 1, "0.1-1": 0, "<0.1": 0}


def test_bins_include_their_lower_bound() -> None:
    units = 10_000
    counts = {"A": 1000, "B": 999, "C": 100, "D": 99, "E": 10, "F": 9}
    counts["G"] = units - sum(counts.values())
    labels = [label for label, count in counts.items() for _ in range(count)]
    bins = corpus_statistics([Sentence(("u",) * units, tuple(labels))]).label_bins()
    assert bins == {">=10": 2, "1-10": 2, "0.1-1": 2, "<0.1": 1}


def test_median_lies_between_the_middle_lengths_and_ties_are_alphabetical() -> None:
    s = corpus_statistics(
        [sentence("a", "Y"), sentence("a b", "X Y"), sentence("a b c", "X X Y"), sentence("d " * 9, "Z " * 9)]
    )
    assert s.median == 2.5
    assert list(s.label_counts) == ["Z", "X", "Y"]


def test_one_label_has_no_entropy_and_no_sentence_no_statistics() -> None:
    assert corpus_statistics([sentence("a b", "X X")]).label_entropy == 0
    with pytest.raises(ValueError, match="at least one"):
        corpus_statistics([])
    with pytest.raises(ValueError, match="labelled"):
        corpus_statistics([Sentence(("a",))])


@given(values=st.lists(st.integers(0, 30), min_size=1, max_size=60), percent=st.integers(1, 100))
def test_nearest_rank_is_the_least_value_that_covers_the_share(values: list[int], percent: int) -> None:
    covering = [v for v in values if sum(other <= v for other in values) * 100 >= percent * len(values)]
    assert nearest_rank(sorted(values), percent) == min(covering)


def test_out_of_vocabulary_counts_units_case_sensitively() -> None:
    assert out_of_vocabulary(CORPUS, frozenset({"a", "b"})) == 3
