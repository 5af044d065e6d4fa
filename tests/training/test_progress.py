"""What a run shows, and how fast it says it is."""

from __future__ import annotations

import io

from rich.console import Console

from diffusion_mf.training.progress import Progress, SpeedMeter

PROGRESS = Progress(
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
    assert PROGRESS.details() in (DETAILS, DETAILS.replace("0.1235", "0.1234"))
    assert Progress(epoch=1, num_epochs=2, step=0, num_steps=9).details() == ""


def test_as_a_line() -> None:
    assert str(PROGRESS).startswith("epoch 2 of 50, step 1,200 of 30,000: loss 0.12")
    assert str(PROGRESS).endswith("1:02:05 left")


def test_as_a_bar() -> None:
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(PROGRESS)
    shown = console.export_text()
    for part in ("epoch 2/50", "1,200/30,000 steps", "dev f1 81.25 (mask-viterbi)"):
        assert part in shown


def test_speed_and_time_left() -> None:
    time = _Clock()
    meter = SpeedMeter(clock=time)
    assert meter.seconds_left(10) is None
    for _ in range(4):
        meter.count(50)
    time.now += 2
    assert meter.has_new_steps
    assert meter.sentences_per_second() == 100
    assert not meter.has_new_steps
    assert meter.seconds_left(10) == 5
    meter.count(30)
    time.now += 3
    assert meter.sentences_per_second() == 10, "since the last reading"
    assert meter.seconds_left(10) == 10
    assert meter.seconds == 5
