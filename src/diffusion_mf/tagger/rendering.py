"""Results for people to read: coloured on a terminal, as a page of HTML, or as a list of spans."""

from __future__ import annotations

import colorsys
import enum
import html
import io
import shutil
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from diffusion_mf.data.corpus import Task
from diffusion_mf.data.label_schemes import split_label
from diffusion_mf.data.raw_text import Offsets, joined_offsets
from diffusion_mf.evaluation.metrics import half_up
from diffusion_mf.tagger.results import TaggedSentence

if TYPE_CHECKING:
    from rich.text import Text


class Readable(enum.StrEnum):
    """The ways of writing results that are not read again; the value is the name used on the command line."""

    TERMINAL = "terminal"
    HTML = "html"
    SPANS = "spans"


# Neighbours in this list differ in hue, so that neighbouring labels in sorted order rarely look alike.
_COLOURS = (
    "#4E79A7", "#F28E2B", "#59A14F", "#E15759", "#B07AA1", "#EDC948", "#76B7B2", "#FF9DA7", "#9C755F",
    "#3B4262", "#D37295", "#8CD17D", "#6B6ECF", "#D4A017", "#A0CBE8", "#B6992D", "#499894", "#BAB0AC",
)  # fmt: skip
OUTSIDE_COLOUR = "#DADCDF"
INK = "#22252B"
# How far a boundary's shade is from its type's colour, towards white (positive) or black (negative).
_SHADES = {"S": -0.22, "U": -0.22, "B": 0.0, "E": 0.22, "L": 0.22, "M": 0.42, "I": 0.42}


def label_colours(labels: Sequence[str]) -> dict[str, str]:
    """Hexadecimal colours by label: the labels of one type are shades of one colour, and O is light grey."""
    parts = {label: split_label(label) for label in labels}
    if not any(kind for _, kind in parts.values()) or not all(
        kind or label == "O" for label, (_, kind) in parts.items()
    ):
        return dict(zip(labels, _palette(len(labels)), strict=True))
    of_kind = kind_colours(labels)
    return {
        label: _shaded(of_kind[kind], _SHADES.get(boundary, 0.0)) if kind else OUTSIDE_COLOUR
        for label, (boundary, kind) in parts.items()
    }


def kind_colours(labels: Sequence[str]) -> dict[str, str]:
    """Hexadecimal colours by type, for labels with boundaries."""
    kinds = list(dict.fromkeys(kind for _, kind in map(split_label, labels) if kind))
    return dict(zip(kinds, _palette(len(kinds)), strict=True))


def readable_on(colour: str) -> str:
    """The colour of text on ``colour``: white or ink, whichever has the higher contrast (WCAG 2.2)."""
    behind = 0.05 + _luminance(colour)
    return "#FFFFFF" if 1.05 / behind > behind / (0.05 + _luminance(INK)) else INK


def _luminance(colour: str) -> float:
    """The relative luminance of an sRGB colour, from 0 (black) to 1 (white)."""
    linear = (value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in _rgb(colour))
    return sum(weight * value for weight, value in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def _palette(num_colours: int) -> list[str]:
    """Different colours: those of the list, then further ones around the colour wheel."""
    colours = list(_COLOURS[:num_colours])
    for index in range(num_colours - len(colours)):
        # Multiples of the golden angle never coincide.
        colours.append(_hex(colorsys.hls_to_rgb((index * 0.381966) % 1, 0.45 + 0.2 * (index % 3) / 2, 0.5)))
    return colours


def _shaded(colour: str, amount: float) -> str:
    target = 1.0 if amount > 0 else 0.0
    red, green, blue = (value + abs(amount) * (target - value) for value in _rgb(colour))
    return _hex((red, green, blue))


def _rgb(colour: str) -> tuple[float, float, float]:
    red, green, blue = (int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5))
    return red, green, blue


def _hex(colour: tuple[float, float, float]) -> str:
    return "#" + "".join(f"{round(value * 255):02X}" for value in colour)


class Piece(NamedTuple):
    """A labelled part of a sentence, or a unit outside of all of them."""

    text: str
    label: str | None
    confidence: float
    start: int
    """in the text, counting characters; ``end`` is exclusive"""
    end: int
    gap: str
    """the text between it and the piece before it"""


def pieces(result: TaggedSentence, task: Task, text: str | None = None) -> list[Piece]:
    """The tagged words of a sentence or, for entities, its spans and the units between them, in order.

    Places are those of ``result.offsets`` in ``text``; without a text they are counted in the units joined by the separator.
    """
    if text is None or result.offsets is None:
        text = result.separator.join(result.units)
        offsets: Sequence[Offsets] = joined_offsets(result.units, result.separator)
    else:
        offsets = result.offsets
    spans = {} if task is Task.POS else {span.start: span for span in result.spans}
    found: list[Piece] = []
    position = 0
    while position < len(result.units):
        span = spans.get(position)
        end = position + 1 if span is None else span.end
        label: str | None
        if span is not None:
            label, confidence = span.label, span.confidence
        else:
            label, confidence = result.labels[position], result.scores[position]
            if task is Task.NER:
                label = None
            elif task is Task.SEG_POS:
                label = split_label(label)[1] or label
        begin, stop = offsets[position][0], offsets[end - 1][1]
        gap = text[found[-1].end : begin] if found else ""
        found.append(Piece(text[begin:stop], label, confidence, begin, stop, gap))
        position = end
    return found


def spans_text(found: Sequence[Piece], *, sentence: int, start: int = 0) -> str:
    """A line for every labelled piece: number of the sentence, first character, end, label, confidence, text.

    ``start`` is the place of the text in its file.
    """
    lines = []
    for piece in found:
        if piece.label is not None:
            place = f"{sentence}\t{start + piece.start}\t{start + piece.end}"
            lines.append(f"{place}\t{piece.label}\t{piece.confidence:.4f}\t{_one_line(piece.text)}\n")
    return "".join(lines)


def _one_line(text: str) -> str:
    return " ".join(text.split())


PAGE_START = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>Labels</title>
<style>
body { font: 18px/2.6 system-ui, sans-serif; color: #22252B; background: #FCFBF8; margin: 2rem; max-width: 60rem; }
p { margin: 0 0 0.6rem; white-space: pre-wrap; }
mark { border-radius: 0.3rem; padding: 0.1rem 0.35rem; margin: 0 1px; }
small { font-weight: 600; font-size: 0.65em; margin-left: 0.35em; }
</style>
</head>
<body>
"""
PAGE_END = "</body>\n</html>\n"


def html_text(found: Sequence[Piece], colours: dict[str, str]) -> str:
    """A paragraph in which labels are coloured, the paler the less certain; the confidence is shown under the pointer."""
    parts = []
    for piece in found:
        parts.append(html.escape(piece.gap))
        if piece.label is None:
            parts.append(html.escape(piece.text))
            continue
        colour = _shaded(colours.get(piece.label, OUTSIDE_COLOUR), 0.6 * (1 - piece.confidence))
        parts.append(
            f'<mark style="background: {colour}; color: {readable_on(colour)}" title="{_percent(piece.confidence)}">'
            f"{html.escape(piece.text)}<small>{html.escape(piece.label)}</small></mark>"
        )
    return f"<p>{''.join(parts)}</p>\n"


def terminal_text(found: Sequence[Piece], colours: dict[str, str], *, task: Task, width: int | None = None) -> str:
    """Entities and their labels on a colour within the sentence, or tags and their confidence below the words."""
    from rich.console import Console
    from rich.text import Text

    stream = io.StringIO()
    width = width or shutil.get_terminal_size().columns
    console = Console(file=stream, force_terminal=True, highlight=False, width=width)
    if task is Task.NER:
        line = Text()
        for chunk, has_gap in _chunks(found, colours):
            if line and has_gap and line.cell_len + 1 + chunk.cell_len > width:
                console.print(line)
                line = Text()
            elif has_gap:
                line.append(" ")
            line.append_text(chunk)
        console.print(line)
    else:
        for row in _rows(found, width):
            words, tags, percents = _cells(row)
            lines = Text(), Text(), Text()
            for piece, word, tag, percent in zip(row, words, tags, percents, strict=True):
                label = piece.label or ""
                lines[0].append(word, "bold")
                lines[1].append(label, _style(label, colours)).append(tag[len(label) :])
                lines[2].append(percent, "dim")
            for line in lines:
                line.rstrip()
                console.print(line, no_wrap=True, crop=False)
    return stream.getvalue() + "\n"


def _style(label: str, colours: dict[str, str]) -> str:
    """A label on its colour: on dark terminals and bright ones, text in that colour would not always be readable."""
    colour = colours.get(label, OUTSIDE_COLOUR)
    return f"bold {readable_on(colour)} on {colour}"


def _chunks(found: Sequence[Piece], colours: dict[str, str]) -> Iterator[tuple[Text, bool]]:
    """Entities with their confidence and the units between them, and whether space stands before each.

    Lines are broken there, so that an entity and its label stay together.
    """
    from rich.text import Text

    for piece in found:
        if piece.label is None:
            yield Text(_one_line(piece.text)), bool(piece.gap)
        else:
            chunk = Text(f"{_one_line(piece.text)} {piece.label}", _style(piece.label, colours))
            yield chunk.append(f" {_percent(piece.confidence)}", "not bold dim default on default"), bool(piece.gap)


def _cells(row: Sequence[Piece]) -> tuple[list[str], list[str], list[str]]:
    """The words, tags and percentages of a row, padded to columns."""
    from rich.cells import cell_len

    words, tags = [_one_line(piece.text) for piece in row], [piece.label or "" for piece in row]
    percents = [_percent(piece.confidence) for piece in row]
    widths = [2 + max(map(cell_len, column)) for column in zip(words, tags, percents, strict=True)]

    def padded(cells: Sequence[str]) -> list[str]:
        return [cell + " " * (width - cell_len(cell)) for cell, width in zip(cells, widths, strict=True)]

    return padded(words), padded(tags), padded(percents)


def _rows(found: Sequence[Piece], width: int) -> Iterator[list[Piece]]:
    """The pieces of each line of a terminal."""
    from rich.cells import cell_len

    row: list[Piece] = []
    used = 0
    for piece in found:
        needed = cell_len(_cells([piece])[0][0])
        if row and used + needed > width:
            yield row
            row, used = [], 0
        row.append(piece)
        used += needed
    if row:
        yield row


def _percent(confidence: float) -> str:
    return f"{half_up(100 * confidence, 0)} %"
