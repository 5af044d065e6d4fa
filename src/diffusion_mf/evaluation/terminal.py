"""Output of commands: tables and JSON on stdout, notes and progress on stderr."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from diffusion_mf.evaluation.metrics import half_up as half_up

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table

SECONDS_BETWEEN_LINES = 60.0


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]], *, title: str | None = None) -> None:
    """Print a table on stdout: integers with thousands separators, numbers right-aligned, None as a dash.

    Floats are printed as they are: format them first (`half_up`), since a table does not set a precision.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for index, column in enumerate(columns):
        is_numeric = any(_is_number(row[index]) for row in rows)
        table.add_column(Text(column), justify="right" if is_numeric else "left", no_wrap=True)
    for row in rows:
        table.add_row(*(Text(_cell(value)) for value in row))
    console = Console(file=sys.stdout, highlight=False)
    if not console.is_terminal:
        # A pipe or file has no width: nothing may be cut or wrapped there.
        console = Console(file=sys.stdout, highlight=False, width=10_000)
    if title is not None:
        # Above the table, not as its title, which would be cut to the table's width.
        console.print(Text(title, style="italic"), crop=False, no_wrap=True, overflow="ignore")
    console.print(table, crop=False, no_wrap=True)


Column = str | tuple[str, int] | tuple[str, int, float]
"""a field of rows; for numbers, the digits shown and what they are multiplied with"""


def print_rows(rows: Iterable[Mapping[str, Any]], columns: Mapping[str, Column], *, title: str | None = None) -> None:
    """Print a table of ``rows``, with the fields of ``columns`` below their titles."""

    def shown(row: Mapping[str, Any], field: str, digits: int | None = None, factor: float = 1) -> object:
        value = row.get(field)
        return value if value is None or digits is None else half_up(factor * value, digits)

    fields = [(column,) if isinstance(column, str) else column for column in columns.values()]
    print_table(list(columns), [[shown(row, *field) for field in fields] for row in rows], title=title)


def _is_number(value: object) -> bool:
    if isinstance(value, str):
        return value.replace(".", "", 1).replace("-", "", 1).isdecimal()
    return isinstance(value, int | float)


def _cell(value: object) -> str:
    if value is None:
        return "–"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return str(value)


def print_json(value: object) -> None:
    """Print ``value`` as JSON on stdout, with text unescaped."""
    print(json.dumps(value, ensure_ascii=False, indent=2, allow_nan=False))


def note(message: str) -> None:
    """Print a message for the user on stderr."""
    print(f"dmf: {message}", file=sys.stderr, flush=True)


class Display:
    """Shows progress and notes on stderr: drawn in place on a terminal, elsewhere one line a minute.

    Progress is any object with a line of text (``str``) and a rich representation (``__rich__``).
    """

    def __init__(self) -> None:
        self._last_line = time.monotonic()
        self._is_terminal = sys.stderr.isatty()
        self._live: Live | None = None

    def update(self, progress: object, *, at_once: bool = False) -> None:
        """Show the progress; without a terminal only once a minute, or ``at_once``."""
        if self._is_terminal:
            if self._live is None:
                self._live = _live()
            self._live.update(progress)  # type: ignore[arg-type]
            return
        now = time.monotonic()
        if at_once or now - self._last_line >= SECONDS_BETWEEN_LINES:
            self._last_line = now
            note(str(progress))

    def note(self, message: str) -> None:
        """Show a message immediately, above what is drawn."""
        if self._live is None:
            note(message)
        else:
            self._live.console.print(f"dmf: {message}", markup=False, highlight=False, soft_wrap=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Remove what is drawn."""
        if self._live is not None:
            self._live.stop()


def _live() -> Live:
    from rich.console import Console
    from rich.live import Live

    # Results go to stdout even while something is drawn.
    live = Live(console=Console(stderr=True), redirect_stdout=False, transient=True)
    live.start()
    return live


def bar(before: str, done: float, total: float | None, after: str) -> Table:
    """A progress bar between two texts; without a ``total``, one that only pulses."""
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    line = Table.grid(padding=(0, 1))
    line.add_column(no_wrap=True)
    line.add_column(width=40)
    line.add_column(no_wrap=True, overflow="ellipsis")
    line.add_row(Text(before), ProgressBar(total=total, completed=done, pulse=total is None), Text(after))
    return line


def described_seconds(seconds: float) -> str:
    """Hours, minutes and seconds.

    >>> described_seconds(75), described_seconds(3 * 3600 + 61.7)
    ('1:15', '3:01:01')
    """
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


@dataclass
class _Count:
    """A count of completed items."""

    description: str
    total: int | None
    unit: str
    started: float
    done: int = 0

    def __str__(self) -> str:
        of_total = "" if self.total is None else f" of {self.total:,}"
        seconds = time.monotonic() - self.started
        return f"{self.description}: {self.done:,}{of_total} {self.unit} after {seconds:.0f} s"

    def __rich__(self) -> Table:
        of_total = "" if self.total is None else f"/{self.total:,}"
        seconds = described_seconds(time.monotonic() - self.started)
        return bar(self.description, self.done, self.total, f"{self.done:,}{of_total} {self.unit} {seconds}")


@contextlib.contextmanager
def progress(description: str, *, total: int | None = None, unit: str = "sentences") -> Iterator[Callable[[int], None]]:
    """Yield a function to call with the number of ``unit`` just completed."""
    count = _Count(description, total, unit, started=time.monotonic())
    with Display() as display:
        display.update(count)

        def advance(number: int) -> None:
            count.done += number
            display.update(count)

        yield advance
