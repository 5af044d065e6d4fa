"""What commands print: tables and JSON on stdout, notes and progress on stderr."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence

from diffusion_mf.evaluation.metrics import half_up as half_up

SECONDS_BETWEEN_LINES = 60.0


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]], *, title: str | None = None) -> None:
    """Print a table on stdout: integers with thousands separators, numbers right-aligned, None as a dash.

    Floats are printed as they are: format them first (`half_up`), a table knows no precision.
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
        # A pipe or file has no width: nothing may be cut or folded there.
        console = Console(file=sys.stdout, highlight=False, width=10_000)
    if title is not None:
        # Above the table, not as its title: that would be cut to the table's width.
        console.print(Text(title, style="italic"), crop=False, no_wrap=True, overflow="ignore")
    console.print(table, crop=False, no_wrap=True)


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
    """Print ``value`` as JSON on stdout, text unescaped."""
    print(json.dumps(value, ensure_ascii=False, indent=2, allow_nan=False))


def note(message: str) -> None:
    """Tell the user something on stderr."""
    print(f"dmf: {message}", file=sys.stderr)


@contextlib.contextmanager
def progress(description: str, *, total: int | None = None, unit: str = "sentences") -> Iterator[Callable[[int], None]]:
    """Yield a function to call with the number of ``unit`` just done: a bar on a terminal, one line a minute elsewhere."""
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        text = "{task.completed:,.0f}" + ("" if total is None else "/{task.total:,.0f}") + f" {unit}"
        bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn(text),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        with bar:
            task = bar.add_task(description, total=total)
            yield lambda count: bar.advance(task, count)
        return
    start = last = time.monotonic()
    done = 0

    def advance(count: int) -> None:
        nonlocal done, last
        done += count
        now = time.monotonic()
        if now - last >= SECONDS_BETWEEN_LINES:
            last = now
            of_total = "" if total is None else f" of {total:,}"
            note(f"{description}: {done:,}{of_total} {unit} after {now - start:.0f} s")

    yield advance
