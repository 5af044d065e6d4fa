"""What a run shows, and how fast it says it is."""

from __future__ import annotations

import io

import pytest

from diffusion_mf.training import progress
from diffusion_mf.training.progress import BarDisplay, LineDisplay, SpeedMeter, Standing, clock, shown_progress

STANDING = Standing(
    epoch=2,
    num_epochs=50,
    step=1200,
    num_steps=30000,
    loss=0.12345,
    dev_score="f1 81.25 (mask-viterbi)",
    sentences_per_second=1234.5,
    seconds_left=3725,
)
DETAILS = "loss 0.1235, dev f1 81.25 (mask-viterbi), 1,234 sentences/s, 1:02:05 left"


class _Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_details() -> None:
    assert STANDING.details() in (DETAILS, DETAILS.replace("0.1235", "0.1234"))
    assert Standing(epoch=1, num_epochs=2, step=0, num_steps=9).details() == ""


@pytest.mark.parametrize(("seconds", "text"), [(0, "0:00"), (59.9, "0:59"), (60, "1:00"), (36061, "10:01:01")])
def test_clock(seconds: float, text: str) -> None:
    assert clock(seconds) == text


def test_a_line_a_minute(capsys: pytest.CaptureFixture[str]) -> None:
    time = _Clock()
    display = LineDisplay(clock=time)
    for seconds in (1, 59, 61, 62, 119, 121, 200):
        time.now = 100.0 + seconds
        display.update(STANDING)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3, "after 61, 121 and 200 seconds"
    assert lines[0].startswith("dmf: epoch 2 of 50, step 1,200 of 30,000: loss 0.12")
    assert lines[0].endswith("1:02:05 left")


def test_notes_come_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    LineDisplay().note("look here")
    assert capsys.readouterr().err == "dmf: look here\n"


def test_no_bar_where_there_is_no_terminal() -> None:
    with shown_progress() as display:
        assert isinstance(display, LineDisplay)


def test_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr(progress.sys, "stderr", terminal)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("TERM", "xterm")
    with shown_progress() as display:
        assert isinstance(display, BarDisplay)
        display.update(STANDING)
        display.note("with [brackets] kept")
    shown = terminal.getvalue()
    assert "epoch 2/50" in shown
    assert "1,200/30,000 steps" in shown
    assert "dev f1 81.25 (mask-viterbi)" in shown
    assert "dmf: with [brackets] kept" in shown


def test_speed_and_time_left() -> None:
    time = _Clock()
    meter = SpeedMeter(clock=time)
    assert meter.seconds_left(10) is None
    for _ in range(4):
        meter.count(50)
    time.now += 2
    assert meter.sentences_per_second() == 100
    assert meter.seconds_left(10) == 5
    meter.count(30)
    time.now += 3
    assert meter.sentences_per_second() == 10, "since the last reading"
    assert meter.seconds_left(10) == 10
    assert meter.seconds == 5
