"""What commands print: rounding, tables that are never cut, progress lines."""

from __future__ import annotations

import json
from decimal import Decimal

import hypothesis.strategies as st
import pytest
from hypothesis import given

from diffusion_mf.evaluation import terminal as output
from diffusion_mf.evaluation.terminal import Display, described_seconds, half_up, print_json, print_table, progress


@pytest.mark.parametrize(
    ("value", "digits", "expected"),
    [
        (0.35, 1, "0.4"),
        (2.675, 2, "2.68"),
        (16.25, 1, "16.3"),
        (16.249, 1, "16.2"),
        (-0.35, 1, "-0.4"),
        (3, 0, "3"),
        (3, 2, "3.00"),
    ],
)
def test_ties_go_up(value: float, digits: int, expected: str) -> None:
    assert half_up(value, digits) == expected


@given(value=st.floats(0, 1e6), digits=st.integers(0, 4))
def test_rounding_is_never_off_by_more_than_half_a_unit(value: float, digits: int) -> None:
    assert abs(Decimal(half_up(value, digits)) - Decimal(repr(value))) <= Decimal(1).scaleb(-digits) / 2


def test_tables_are_whole_and_aligned(capsys: pytest.CaptureFixture[str]) -> None:
    long = "[b]" + "x" * 200
    print_table(["name", "count", "score"], [[long, 1234567, "9.50"], ["y", 1, None]], title="T [1]")
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == "T [1]"
    (row,) = [line for line in lines if long in line]
    (short,) = [line for line in lines if line.split()[:1] == ["y"]]
    assert row.split() == [long, "1,234,567", "9.50"]
    assert short.split() == ["y", "1", "–"]
    assert short.index("1") == row.index("7")


def test_json_keeps_text_and_refuses_what_is_not_json(capsys: pytest.CaptureFixture[str]) -> None:
    print_json([{"é": 1.5}])
    text = capsys.readouterr().out
    assert "é" in text
    assert json.loads(text) == [{"é": 1.5}]
    with pytest.raises(ValueError, match="Out of range"):
        print_json(float("nan"))


def test_one_line_a_minute_where_there_is_no_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = [0.0]
    monkeypatch.setattr(output.time, "monotonic", lambda: clock[0])
    with progress("reading", total=5000) as advance:
        for _ in range(5):
            clock[0] += 31
            advance(1000)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == (
        "dmf: reading: 2,000 of 5,000 sentences after 62 s\ndmf: reading: 4,000 of 5,000 sentences after 124 s\n"
    )


def test_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    import sys

    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    with progress("reading", total=3) as advance:
        advance(3)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "3/3 sentences" in captured.err


@pytest.mark.parametrize(("seconds", "text"), [(0, "0:00"), (59.9, "0:59"), (60, "1:00"), (36061, "10:01:01")])
def test_described_seconds(seconds: float, text: str) -> None:
    assert described_seconds(seconds) == text


def test_a_line_a_minute_and_one_for_what_is_to_be_shown_at_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [0.0]
    monkeypatch.setattr(output.time, "monotonic", lambda: now[0])
    with Display() as display:
        for seconds in (1, 59, 61, 62, 119, 121):
            now[0] = seconds
            display.update(f"after {seconds} s", at_once=seconds == 62)
        now[0] = 125
        display.note("look here")
    assert capsys.readouterr().err.splitlines() == ["dmf: after 61 s", "dmf: after 62 s", "dmf: look here"]


def test_notes_above_the_bar_and_results_beside_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import sys

    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    with Display() as display:
        display.update("how far it is")
        display.note("with [brackets] kept")
        print("a result")
    captured = capsys.readouterr()
    assert captured.out == "a result\n"
    assert "how far it is" in captured.err
    assert "dmf: with [brackets] kept" in captured.err
