from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diffusion_mf.data import label_schemes
from diffusion_mf.data.label_schemes import (
    Boundary,
    LabelError,
    LabelledSpan,
    LabelScheme,
    characters_of_words,
    check_sequence,
    convert_labels,
    encode_spans,
    extract_spans,
    format_label,
    is_legal_end,
    is_legal_start,
    is_legal_transition,
    parse_label,
    split_label,
    words_of_characters,
)
from oracles.brute_force_spans import complete_spans, open_spans

SPAN_SCHEMES = [scheme for scheme in LabelScheme if scheme is not LabelScheme.PLAIN]
CLOSED_SCHEMES = [scheme for scheme in SPAN_SCHEMES if scheme.is_closed]
OPEN_SCHEMES = [scheme for scheme in SPAN_SCHEMES if not scheme.is_closed]
# A type may contain hyphens, look like a label or be missing altogether.
TYPES = ["PER", "LOC", "-LRB-", "B-X", "O", ""]
# Letters of every scheme, and what is no label at all.
DAMAGED_LABELS = ["O", *(f"{letter}-{kind}" for letter in "BMIESUL" for kind in ("X", "Y-Z")), "B", "E", "I", "_", "", "B-", "O-X", "XX"]  # fmt: skip


@st.composite
def spans_and_length(draw: st.DrawFn) -> tuple[list[LabelledSpan], int]:
    """Disjoint spans, adjacent ones of equal type included, and the length of the sentence."""
    spans, position = [], 0
    for gap, length, kind in draw(
        st.lists(st.tuples(st.integers(0, 2), st.integers(1, 4), st.sampled_from(TYPES)), max_size=6)
    ):
        spans.append(LabelledSpan(position + gap, position + gap + length, kind))
        position += gap + length
    return spans, position + draw(st.integers(0, 2))


def is_legal(labels: list[str], scheme: LabelScheme) -> bool:
    try:
        check_sequence(labels, scheme)
    except LabelError:
        return False
    return True


def test_table_in_the_module_docstring_is_what_the_code_writes() -> None:
    rows = re.findall(r"^\| (\w+) \| ([A-Z ,]+) \|", label_schemes.__doc__ or "", flags=re.MULTILINE)
    assert [name for name, _ in rows] == [scheme.value for scheme in SPAN_SCHEMES]
    for name, examples in rows:
        for example in examples.split(","):
            letters = example.split()
            written = encode_spans([LabelledSpan(0, len(letters), "T")], len(letters), LabelScheme(name))
            assert written == [f"{letter}-T" for letter in letters]
        assert [len(example.split()) for example in examples.split(",")] == [1, 2, 3]


@pytest.mark.parametrize(("label", "parts"), [
    ("B-PER", ("B", "PER")), ("O", ("O", "")), ("B", ("B", "")), ("B-LOC-GPE", ("B", "LOC-GPE")), ("S--LRB-", ("S", "-LRB-")),
    ("S--", ("S", "-")), ("B-", ("B-", "")), ("", ("", "")), ("-", ("-", "")), ("BB-PER", ("BB-PER", "")),
])  # fmt: skip
def test_split_label(label: str, parts: tuple[str, str]) -> None:
    assert split_label(label) == parts


@pytest.mark.parametrize("scheme", SPAN_SCHEMES)
@pytest.mark.parametrize("kind", TYPES)
def test_parse_label_undoes_format_label(scheme: LabelScheme, kind: str) -> None:
    for boundary in Boundary:
        if boundary is Boundary.OUTSIDE:
            assert format_label(boundary, kind, scheme) == "O"
        elif not scheme.is_closed and boundary in (Boundary.END, Boundary.SINGLE):
            with pytest.raises(ValueError, match=f"{scheme} has no letter for {boundary.name}"):
                format_label(boundary, kind, scheme)
        else:
            assert parse_label(format_label(boundary, kind, scheme), scheme) == (boundary, kind)


@pytest.mark.parametrize("scheme", SPAN_SCHEMES)
@pytest.mark.parametrize("label", ["X-PER", "O-PER", "B-", "b-PER", "", "_", "PER-B", "Bx"])
def test_parse_label_refuses_what_no_scheme_reads(scheme: LabelScheme, label: str) -> None:
    with pytest.raises(ValueError, match=f"is not of the scheme {scheme}"):
        parse_label(label, scheme)


@pytest.mark.parametrize(("scheme", "letters"), [("iob1", "ESMLU"), ("bio2", "ESMLU"), ("bilou", "ESM"), ("bmes", "LU"), ("iobes", "LU")])  # fmt: skip
def test_letters_of_other_schemes_are_unknown(scheme: str, letters: str) -> None:
    for letter in letters:
        with pytest.raises(ValueError, match=f"{letter}-PER"):
            parse_label(f"{letter}-PER", LabelScheme(scheme))


def test_plain_labels_have_no_boundaries() -> None:
    plain = LabelScheme.PLAIN
    check_sequence(["NOUN", "B-X", "E-Y", ""], plain)
    assert is_legal_start("E-X", plain)
    assert is_legal_end("B-X", plain)
    assert is_legal_transition("B-X", "B-X", plain)
    assert extract_spans(["S-X"], plain) == []
    assert convert_labels(["NOUN", "O"], plain, plain) == ["NOUN", "O"]
    for call in (
        lambda: parse_label("O", plain),
        lambda: format_label(Boundary.OUTSIDE, "", plain),
        lambda: encode_spans([], 1, plain),
        lambda: convert_labels(["O"], plain, LabelScheme.BMES),
        lambda: convert_labels(["O"], LabelScheme.BMES, plain),
    ):
        with pytest.raises(ValueError, match="plain"):
            call()


@pytest.mark.parametrize(("first", "second"), list(itertools.product(SPAN_SCHEMES, repeat=2)))
@given(drawn=spans_and_length())
def test_conversion_there_and_back_is_the_identity(
    first: LabelScheme, second: LabelScheme, drawn: tuple[list[LabelledSpan], int]
) -> None:
    spans, length = drawn
    labels = encode_spans(spans, length, first)
    assert extract_spans(labels, first) == spans
    converted = convert_labels(labels, first, second)
    assert converted == encode_spans(spans, length, second)
    assert convert_labels(converted, second, first) == labels


def test_conversion_through_every_scheme_returns_to_the_start() -> None:
    labels = ["I-A", "B-A", "I-A", "I-B", "O", "I-A", "O"]
    converted = labels
    for source, target in itertools.pairwise([*SPAN_SCHEMES, SPAN_SCHEMES[0]]):
        converted = convert_labels(converted, source, target)
        if target is LabelScheme.BMES:
            assert converted == ["S-A", "B-A", "E-A", "S-B", "O", "S-A", "O"]
    assert SPAN_SCHEMES[0] is LabelScheme.IOB1
    assert converted == labels


@pytest.mark.parametrize("scheme", CLOSED_SCHEMES)
@given(labels=st.lists(st.sampled_from(DAMAGED_LABELS), max_size=12))
def test_spans_of_damaged_closed_sequences_match_every_stretch_tried(scheme: LabelScheme, labels: list[str]) -> None:
    found = extract_spans(labels, scheme)
    assert found == sorted(found)
    assert set(found) == complete_spans(labels, scheme.value)
    assert set(extract_spans(labels, scheme, match_types=False)) == complete_spans(
        labels, scheme.value, match_types=False
    )


@pytest.mark.parametrize("scheme", OPEN_SCHEMES)
@given(labels=st.lists(st.sampled_from(["O", "B-X", "I-X", "B-Y", "I-Y", "I", "S-X", "_", "B-"]), max_size=12))
def test_spans_of_damaged_open_sequences_match_every_stretch_tried(scheme: LabelScheme, labels: list[str]) -> None:
    assert set(extract_spans(labels, scheme)) == open_spans(labels, scheme.value)


@pytest.mark.parametrize("scheme", SPAN_SCHEMES)
def test_a_sequence_is_legal_if_and_only_if_encoding_its_spans_gives_it_back(scheme: LabelScheme) -> None:
    # In every scheme, the open ones too: a span has one spelling in a given neighbourhood. Only the letters a scheme
    # writes are tried, since M and I are two spellings of one label.
    alphabet = ["O"]
    for boundary in (Boundary.BEGIN, Boundary.INSIDE, Boundary.END, Boundary.SINGLE):
        if scheme.is_closed or boundary in (Boundary.BEGIN, Boundary.INSIDE):
            alphabet += [format_label(boundary, kind, scheme) for kind in ("X", "Y")]
    counts = {True: 0, False: 0}
    for length in range(5):
        for labels in itertools.product(alphabet, repeat=length):
            spelled = encode_spans(extract_spans(labels, scheme), length, scheme) == list(labels)
            legal = is_legal(list(labels), scheme)
            assert legal == spelled, labels
            by_parts = not labels or (
                is_legal_start(labels[0], scheme)
                and is_legal_end(labels[-1], scheme)
                and all(is_legal_transition(*pair, scheme) for pair in itertools.pairwise(labels))
            )
            assert by_parts == legal, labels
            counts[legal] += 1
    assert min(counts.values()) > 100


@pytest.mark.parametrize("scheme", [LabelScheme.BMES, LabelScheme.IOBES])
@given(labels=st.lists(st.sampled_from(["O", "B-X", "M-X", "I-X", "E-X", "S-X", "M-Y", "I-Y"]), max_size=8))
def test_middle_and_inside_are_one(scheme: LabelScheme, labels: list[str]) -> None:
    exchanged = [label.translate(str.maketrans("MI", "IM")) for label in labels]
    assert extract_spans(labels, scheme) == extract_spans(exchanged, scheme)
    assert is_legal(labels, scheme) == is_legal(exchanged, scheme)


def test_each_scheme_writes_its_own_letter_for_the_middle() -> None:
    labels = ["B-X", "M-X", "I-X", "E-X"]
    assert convert_labels(labels, LabelScheme.BMES, LabelScheme.IOBES) == ["B-X", "I-X", "I-X", "E-X"]
    assert convert_labels(labels, LabelScheme.IOBES, LabelScheme.BMES) == ["B-X", "M-X", "M-X", "E-X"]
    assert convert_labels(labels, LabelScheme.BMES, LabelScheme.BMES) == ["B-X", "M-X", "M-X", "E-X"]


@pytest.mark.parametrize(("scheme", "labels", "index", "message"), [
    ("bmes", "O S-X B-X O", 3, "'O' cannot follow 'B-X'"),
    ("bmes", "O B-X E-Y", 2, "'E-Y' cannot follow 'B-X'"),
    ("bmes", "S-X M-X E-X", 1, "'M-X' cannot follow 'S-X'"),
    ("bmes", "E-X O", 0, "cannot begin with 'E-X'"),
    ("bmes", "O B-X M-X", 2, "cannot end with 'M-X'"),
    ("iobes", "O O Q-X B-X", 2, "label 'Q-X' is not of the scheme iobes"),
    ("bilou", "U-X B-X L-X L-X", 3, "'L-X' cannot follow 'L-X'"),
    ("bio2", "B-X I-X I-Y", 2, "'I-Y' cannot follow 'I-X'"),
    ("bio2", "I-X", 0, "cannot begin with 'I-X'"),
    ("bio2", "O I-X", 1, "'I-X' cannot follow 'O'"),
    ("iob1", "I-X B-Y", 1, "'B-Y' cannot follow 'I-X'"),
    ("iob1", "B-X O", 0, "cannot begin with 'B-X'"),
    ("iob1", "O B-X", 1, "'B-X' cannot follow 'O'"),
])  # fmt: skip
def test_label_error_names_the_place_and_the_reason(scheme: str, labels: str, index: int, message: str) -> None:
    for call in (
        lambda: check_sequence(labels.split(), LabelScheme(scheme)),
        lambda: convert_labels(labels.split(), LabelScheme(scheme), LabelScheme.BMES),
    ):
        with pytest.raises(LabelError, match=re.escape(message)) as caught:
            call()
        assert caught.value.index == index


@pytest.mark.parametrize("spans", [
    [LabelledSpan(0, 2, "X"), LabelledSpan(1, 3, "X")], [LabelledSpan(2, 4, "X")], [LabelledSpan(1, 1, "X")], [LabelledSpan(-1, 1, "X")], [LabelledSpan(2, 1, "X")],
])  # fmt: skip
def test_encode_refuses_spans_that_overlap_or_leave_the_sentence(spans: list[LabelledSpan]) -> None:
    with pytest.raises(ValueError, match="must be within the sentence and not overlap"):
        encode_spans(spans, 3, LabelScheme.BMES)


def test_the_two_malformed_sequences_of_the_paper() -> None:
    assert extract_spans(["B-PER", "M-PER", "O"], LabelScheme.BMES) == []
    assert extract_spans(["B-NN", "E-VV", "S-NN"], LabelScheme.BMES) == [LabelledSpan(2, 3, "NN")]
    assert extract_spans(["B-NN", "E-VV", "S-NN"], LabelScheme.BMES, match_types=False) == [
        LabelledSpan(0, 2, "NN"),
        LabelledSpan(2, 3, "NN"),
    ]


@given(
    words=st.lists(
        st.tuples(st.text(st.characters(codec="utf-8"), min_size=1, max_size=5), st.sampled_from(["NN", "VV", "-LRB-", "_", "A-B"])),
        max_size=8,
    )
)  # fmt: skip
def test_words_to_characters_and_back_is_the_identity(words: list[tuple[str, str]]) -> None:
    forms, tags = [form for form, _ in words], [tag for _, tag in words]
    characters, labels = characters_of_words(forms, tags)
    assert characters == list("".join(forms))
    check_sequence(labels, LabelScheme.BMES)
    assert words_of_characters(characters, labels) == (forms, tags)
    assert characters_of_words(*words_of_characters(characters, labels)) == (characters, labels)
    middle_written_as_i = [label.replace("M-", "I-", 1) if label.startswith("M-") else label for label in labels]
    assert words_of_characters(characters, middle_written_as_i) == (forms, tags)


def test_characters_that_spell_no_words_are_refused() -> None:
    with pytest.raises(LabelError, match="found O") as caught:
        words_of_characters("abc", ["S-NN", "O", "S-NN"])
    assert caught.value.index == 1
    with pytest.raises(LabelError, match="cannot end") as caught:
        words_of_characters("ab", ["S-NN", "B-NN"])
    assert caught.value.index == 1
    with pytest.raises(ValueError, match="one label per character"):
        words_of_characters("abc", ["S-NN"])
    with pytest.raises(ValueError, match="the word ''"):
        characters_of_words([""], ["NN"])
    with pytest.raises(ValueError, match="the tag ''"):
        characters_of_words(["a"], [""])
    with pytest.raises(ValueError, match="zip"):
        characters_of_words(["a", "b"], ["NN"])
