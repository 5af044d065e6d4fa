"""The standing of a plan: a live table on a terminal, a line a minute elsewhere."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from diffusion_mf.experiments.folders import RunPlace
from diffusion_mf.experiments.runner import PlanStanding, RunDisplay

if TYPE_CHECKING:
    from rich.table import Table

SECONDS_BETWEEN_LINES = 60.0
SECONDS_BETWEEN_TABLES = 1.0

_ORDER = ("complete", "running", "elsewhere", "pending", "interrupted", "failed", "diverged")


def described_counts(standing: PlanStanding) -> str:
    """How many runs are in which state.

    >>> from diffusion_mf.experiments.folders import RunState
    >>> described_counts(PlanStanding({"a": RunState.COMPLETE, "b": RunState.PENDING}))
    '1 of 2 runs complete, 1 pending'
    """
    counts = standing.counts()
    rest = [f"{counts[name]} {name}" for name in _ORDER[1:] if counts[name]]
    return ", ".join([f"{counts['complete']} of {len(standing.states)} runs complete", *rest])


def run_progress(place: RunPlace) -> tuple[str, str, str]:
    """Epoch, loss and best dev score of a run, from its log."""
    entries = place.last_entries()
    epochs = place.description().get("config", {}).get("training", {}).get("epochs", "?")
    epoch = max((entry.get("epoch", 0) for entry in entries), default=None)
    losses = [entry["loss"] for entry in entries if entry.get("event") == "step" and "loss" in entry]
    scores = [entry["score"] for entry in entries if entry.get("event") == "evaluation" and "score" in entry]
    return (
        "starting" if epoch is None else f"{epoch}/{epochs}",
        f"{losses[-1]:.3f}" if losses else "",
        f"{max(scores):.2f}" if scores else "",
    )


class LineRunDisplay:
    """A line a minute, and one for every run that ends."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last = clock()

    def update(self, standing: PlanStanding) -> None:
        """A line, if the last one is a minute old."""
        now = self._clock()
        if now - self._last < SECONDS_BETWEEN_LINES:
            return
        self._last = now
        parts = []
        for process in standing.running:
            epoch, _, score = run_progress(process.place)
            parts.append(f"{process.place.name} epoch {epoch}" + (f" dev {score}" if score else ""))
        self.note("; ".join([described_counts(standing), *parts]))

    def note(self, message: str) -> None:
        """A line on stderr."""
        print(f"dmf: {message}", file=sys.stderr, flush=True)


class TableRunDisplay:
    """A table of the runs under way that is drawn anew every second."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        from rich.console import Console
        from rich.live import Live

        self._clock = clock
        self._last = -SECONDS_BETWEEN_TABLES
        self._live = Live(console=Console(stderr=True), auto_refresh=False, transient=True)
        self._live.start()

    def update(self, standing: PlanStanding) -> None:
        """Draw the table, if it is a second old."""
        now = self._clock()
        if now - self._last < SECONDS_BETWEEN_TABLES:
            return
        self._last = now
        self._live.update(standing_table(standing), refresh=True)

    def note(self, message: str) -> None:
        """A line above the table."""
        self._live.console.print(f"dmf: {message}", markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        """Take the table away."""
        self._live.stop()


def standing_table(standing: PlanStanding) -> Table:
    """Runs under way, and below them the counts of all."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    minutes, seconds = divmod(int(standing.seconds), 60)
    table = Table(
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        caption=f"{described_counts(standing)}; {minutes}:{seconds:02}",
        caption_justify="left",
    )
    for column in ("run", "epoch", "loss", "dev", "seconds"):
        is_name = column == "run"
        # On narrow terminals the names give way, which end in hashes, and not the figures.
        table.add_column(column, justify="left" if is_name else "right", no_wrap=not is_name, overflow="ellipsis")
    for process in standing.running:
        row = (process.place.name, *run_progress(process.place), f"{process.seconds:.0f}")
        table.add_row(*(Text(cell) for cell in row))
    return table


@contextlib.contextmanager
def shown_runs() -> Iterator[RunDisplay]:
    """A live table where stderr is a terminal, lines elsewhere."""
    if not sys.stderr.isatty():
        yield LineRunDisplay()
        return
    display = TableRunDisplay()
    try:
        yield display
    finally:
        display.close()
