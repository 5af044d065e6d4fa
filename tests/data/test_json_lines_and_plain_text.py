"""JSON Lines and pre-tokenised text: round trips and bad lines."""

from __future__ import annotations

import io
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given

from diffusion_mf.data.formats import read_json_lines, read_plain_text, write_json_lines, write_plain_text
from diffusion_mf.data.sentence import Sentence
from diffusion_mf.errors import InputError

ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=5)
UNIT = st.text(st.characters(exclude_characters=" \t\n\r\0", exclude_categories=["Cs"]), min_size=1, max_size=5)


@st.composite
def any_sentences(draw: st.DrawFn) -> Sentence:
    units = draw(st.lists(ANY_TEXT, min_size=1, max_size=4))
    labels = draw(st.none() | st.lists(ANY_TEXT, min_size=len(units), max_size=len(units)))
    return Sentence(tuple(units), None if labels is None else tuple(labels))


@given(sentences=st.lists(any_sentences(), min_size=1, max_size=4))
def test_json_lines_hold_any_text(sentences: list[Sentence], tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("json") / "a.jsonl"
    stream = io.BytesIO()
    write_json_lines(sentences, stream)
    path.write_bytes(stream.getvalue())
    assert [sentence[:2] for sentence in read_json_lines(path)] == [sentence[:2] for sentence in sentences]
    assert [sentence.line for sentence in read_json_lines(path)] == list(range(1, len(sentences) + 1))


def test_other_keys_and_blank_lines_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"id": 7, "units": ["a"], "labels": null}\n\n{"units": ["b"], "labels": ["X"]}\r\n')
    assert list(read_json_lines(path)) == [Sentence(("a",), None, 1), Sentence(("b",), ("X",), 3)]


def test_the_objects_may_be_one_list(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('\n[{"units": ["a"], "document": "x"},\n\n{"units": ["b"], "labels": ["X"]}]\n')
    assert list(read_json_lines(path)) == [Sentence(("a",), None, 2, 1), Sentence(("b",), ("X",), 4)]
    path.write_text('[{"units": ["a"]},\n{"units": []}]')
    with pytest.raises(InputError, match="line 2: an empty sentence"):
        list(read_json_lines(path))


@pytest.mark.parametrize(
    ("bad", "problem"),
    [
        ('{"units": ["a"', "not JSON"),
        ('["a"]', 'not an object with the key "units"'),
        ('{"words": ["a"]}', 'not an object with the key "units"'),
        ('{"units": "ab"}', '"units" is not a list'),
        ('{"units": ["a", 1]}', '"units" is not a list'),
        ('{"units": ["a", ""]}', "non-empty"),
        ('{"units": ["a"], "labels": [null]}', '"labels" is not a list'),
        ('{"units": []}', "empty sentence"),
        ('{"units": ["a", "b"], "labels": ["X"]}', "2 units but 1 labels"),
        ('{"units": ["\\ud800"]}', "surrogate"),
        ("[" * 100_000, "nested too deeply"),
        ('{"units": ["a"], "document": ' + "1" * 5000 + "}", "a number is too long"),
    ],
)
def test_bad_json_lines_are_named(bad: str, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"units": ["fine"]}\n' + bad + "\n")
    with pytest.raises(InputError, match=problem) as caught:
        list(read_json_lines(path))
    assert (caught.value.path, caught.value.line) == (str(path), 2)


@given(sentences=st.lists(st.lists(UNIT, min_size=1, max_size=4).map(tuple), min_size=1, max_size=4))
def test_plain_text_round_trips(sentences: list[tuple[str, ...]], tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("text") / "a.tok"
    stream = io.BytesIO()
    write_plain_text([Sentence(units, ("X",) * len(units)) for units in sentences], stream)
    path.write_bytes(stream.getvalue())
    assert [sentence.units for sentence in read_plain_text(path)] == sentences


def test_runs_of_blanks_part_once(tmp_path: Path) -> None:
    path = tmp_path / "a.tok"
    path.write_text("  a \t b\u00a0c  \n")
    assert list(read_plain_text(path)) == [Sentence(("a", "b\u00a0c"), None, 1)]


def test_blank_lines_are_no_sentences_and_unwritable_units_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.tok"
    path.write_text("\na b\n \t\nc\n\n")
    assert list(read_plain_text(path)) == [Sentence(("a", "b"), None, 2), Sentence(("c",), None, 4)]
    with pytest.raises(InputError, match="does not fit"):
        write_plain_text([Sentence(("New York",))], io.BytesIO())
