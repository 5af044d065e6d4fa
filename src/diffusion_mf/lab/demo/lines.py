"""Prints a denoising trajectory as lines of text, in the label colours of the picture; this needs no matplotlib."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from diffusion_mf.tagger import TaggedSentence
from diffusion_mf.tagger.rendering import label_colours

QUIET_CHANGE = 0.02
"""a call that changes no belief by more is quiet"""
_UNDECIDED, _SURE = 0.35, 0.75
_SECONDS_PER_LINE = 0.25
_MARGIN = 14
_LONGEST_UNIT = 8
LEGEND = f"· no label above {_UNDECIDED:.2f}, lower case up to {_SURE:.2f}, CAPITALS above"


def print_trajectory(
    console: Console,
    result: TaggedSentence,
    labels: Sequence[str],
    *,
    others: Mapping[str, Sequence[str]] | None = None,
) -> None:
    """Print the beliefs after every call, then the final labels of ``others`` (by name) for comparison.

    On a terminal, colours get stronger with belief, lines appear one after the other, and long sentences are split to fit the
    width.
    """
    units = [_short(unit) for unit in result.units]
    width = max(cell_len(text) for text in (*labels, *units)) + 1
    num_columns = len(result.units)
    if console.is_terminal:
        num_columns = max(1, (console.width - _MARGIN) // width)
    for start in range(0, len(result.units), num_columns):
        stretch = slice(start, start + num_columns)
        _print_line(console, "", [Text(unit, style="bold") for unit in units[stretch]], width)
        for name, cells in _call_lines(result, labels, stretch):
            _print_line(console, name, cells, width)
            if console.is_terminal:
                time.sleep(_SECONDS_PER_LINE)
        for name, other in (others or {}).items():
            _print_line(console, name, [Text(label) for label in other[stretch]], width)
        console.print()


def _short(unit: str) -> str:
    return unit if len(unit) <= _LONGEST_UNIT else unit[: _LONGEST_UNIT - 1] + "…"


def _call_lines(result: TaggedSentence, labels: Sequence[str], stretch: slice) -> Iterator[tuple[str, list[Text]]]:
    colours = label_colours(labels)
    trajectory = result.trajectory or ()
    yield "noise", [Text("·", style="dim") for _ in result.units[stretch]]
    quiet = 0
    for index, step in enumerate(trajectory):
        is_last = index == len(trajectory) - 1
        change = np.abs(step.beliefs - trajectory[index - 1].beliefs).max() if index else 1.0
        if change < QUIET_CHANGE and not is_last:
            quiet += 1
            continue
        if quiet:
            yield f"{quiet} quiet call{'s' * (quiet > 1)}", []
            quiet = 0
        yield f"t = {step.t}", [_cell(row, labels, colours) for row in step.beliefs[stretch]]


def _cell(beliefs: np.ndarray, labels: Sequence[str], colours: Mapping[str, str]) -> Text:
    best = int(beliefs.argmax())
    belief = float(beliefs[best])
    if belief < _UNDECIDED:
        return Text("·", style="dim")
    style = f"{'bold ' if belief > _SURE else ''}{colours[labels[best]]}"
    return Text(labels[best] if belief > _SURE else labels[best].lower(), style=style)


def _print_line(console: Console, name: str, cells: Sequence[Text], width: int) -> None:
    line = Text(name.ljust(_MARGIN), style="" if cells else "dim")
    for cell in cells:
        cell.pad_right(max(0, width - cell.cell_len))
        line.append_text(cell)
    line.rstrip()
    console.print(line, no_wrap=True, crop=False, overflow="ignore", highlight=False)
