"""Draws a denoising trajectory as a picture."""

from __future__ import annotations

import functools
import io
import warnings
from collections.abc import Sequence
from typing import IO, Any, NamedTuple

import numpy as np
from matplotlib import font_manager, rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from diffusion_mf.data.files import StrPath, open_output
from diffusion_mf.evaluation.terminal import note
from diffusion_mf.lab.demo.lines import QUIET_CHANGE
from diffusion_mf.lab.synthetic import DependentGroup
from diffusion_mf.tagger import TaggedSentence
from diffusion_mf.tagger.rendering import INK, OUTSIDE_COLOUR, label_colours, readable_on


class Decision(NamedTuple):
    """The call after which a unit keeps its label; ``call`` counts from 1."""

    call: int
    label: str


def decisions(result: TaggedSentence, labels: Sequence[str]) -> list[Decision]:
    """For every unit, the first call after which its final label has more than half of the belief until the end."""
    if result.trajectory is None:
        raise ValueError("the sentence was tagged without its trajectory")
    found = []
    for position, label in enumerate(result.labels):
        call = len(result.trajectory)
        if label not in labels:
            # A code of DiffusionSL that is no label: there were no beliefs about it.
            found.append(Decision(call, label))
            continue
        column = labels.index(label)
        for number in range(len(result.trajectory), 0, -1):
            if result.trajectory[number - 1].beliefs[position, column] <= 0.5:
                break
            call = number
        found.append(Decision(call, label))
    return found


_FAINT = "#8A8F98"
_PAPER = "#FCFBF8"
_STREAM_WIDTH = 0.86
_POINTS_PER_CALL = 12
_QUIET_HEIGHT = 0.09
"""height of a call that changes no belief by more than `QUIET_CHANGE`; other calls have height 1"""
_NAME_HEIGHT = 0.3
"""height of the name of a call"""
_RIVAL_BELIEF = 0.25
"""competing labels with at least this belief are named"""
_GROUP_COLOURS = {"adjacent": "#8A8F98", "distant": "#C2410C"}


def draw_trajectory(
    path: StrPath,
    result: TaggedSentence,
    labels: Sequence[str],
    *,
    groups: Sequence[DependentGroup] = (),
    first_step: int | None = 1000,
    title: str = "",
) -> None:
    """Write a PNG of ``result.trajectory``; ``groups`` are bound together above the sentence.

    ``first_step`` is the noise step before the first call, None for a direct system, whose only call has no noise.
    """
    with open_output(path) as stream:
        _save(stream, "png", result, labels, groups=groups, first_step=first_step, title=title)


def trajectory_svg(result: TaggedSentence, labels: Sequence[str], *, first_step: int | None = 1000) -> str:
    """The same picture as SVG, for a page: letters are drawn, so that it needs no fonts."""
    stream = io.BytesIO()
    _save(stream, "svg", result, labels, groups=(), first_step=first_step, title="")
    text = stream.getvalue().decode("utf-8")
    # Without the head of a file of its own.
    return text[text.index("<svg") :]


def _save(
    stream: IO[bytes],
    file_format: str,
    result: TaggedSentence,
    labels: Sequence[str],
    *,
    groups: Sequence[DependentGroup],
    first_step: int | None,
    title: str,
) -> None:
    if not result.trajectory:
        raise ValueError("a picture needs a sentence with units and its trajectory")
    fonts = _fonts("".join((title, *result.units, *labels)))
    with rc_context({"font.family": fonts, "svg.hashsalt": "trajectory"}), warnings.catch_warnings():
        # `_fonts` has already reported it, once for all of them.
        warnings.filterwarnings("ignore", message=r"Glyph .* missing from")
        figure = _draw_picture(result, labels, groups=groups, first_step=first_step, title=title)
        # No software or date in the file: the same trajectory gives the same bytes.
        metadata = {"Software": None} if file_format == "png" else {"Creator": None, "Date": None}
        figure.savefig(stream, format=file_format, metadata=metadata)


def _draw_picture(
    result: TaggedSentence,
    labels: Sequence[str],
    *,
    groups: Sequence[DependentGroup],
    first_step: int | None,
    title: str,
) -> Figure:
    trajectory = result.trajectory or ()
    num_units = len(result.units)
    uniform = np.full((1, num_units, len(labels)), 1 / len(labels))
    beliefs = np.concatenate([uniform, np.stack([step.beliefs for step in trajectory])])
    heights = _heights(beliefs)
    title_height = 0.3 if title else 0.0
    above = (1.45 if groups else 0.9) + title_height
    size = (max(7.2, 1.6 + 0.82 * num_units), 1.25 + above + 0.62 * heights[-1])
    figure = Figure(figsize=size, dpi=160, facecolor=_PAPER)
    FigureCanvasAgg(figure)
    axes = _axes(figure, above)
    colours = label_colours(labels)
    for position in range(num_units):
        _draw_stream(axes, position, beliefs[:, position], heights, labels, colours)
    _draw_calls(axes, [first_step, *(step.t for step in trajectory)], heights)
    for position, decision in enumerate(decisions(result, labels)):
        colour = colours.get(decision.label, OUTSIDE_COLOUR)
        _draw_decision(axes, position, heights[decision.call], colour)
        _draw_ends(axes, position, heights[-1], result, colour)
    axes.set_xlim(-0.6, num_units - 0.4)
    axes.set_ylim(heights[-1], 0)
    for index, group in enumerate(sorted(groups, key=lambda group: group.positions[-1] - group.positions[0])):
        _draw_group(axes, group, index)
    left = axes.get_position().x0
    inch = 1 / figure.get_figheight()
    legend = "The width of a colour is the belief in a label."
    if first_step is not None:
        legend += " A ring marks the call that settles a word."
    figure.text(left, 1 - 0.32 * inch, title, fontsize=15, fontweight="bold", color=INK, va="center")
    figure.text(left, 1 - (0.32 + title_height) * inch, legend, fontsize=10, color=_FAINT, va="center")
    return figure


def _fonts(text: str) -> list[str]:
    """Matplotlib's own font, and installed ones for characters it lacks; characters without a font are reported."""
    own = "DejaVu Sans"
    families = [own]
    missing = {character for character in text if ord(character) not in _characters(font_manager.findfont(own))}
    # The font of last resort has a box for every character.
    others = [entry for entry in font_manager.fontManager.ttflist if "Last Resort" not in entry.name]
    while missing:
        found: dict[str, set[str]] = {}
        for entry in others:
            found.setdefault(entry.name, set()).update(missing & set(map(chr, _characters(entry.fname))))
        best = max(sorted(found), key=lambda name: len(found[name]))
        if not found[best]:
            note(
                f"no installed font has {'these characters' if len(missing) > 1 else 'the character'}: "
                f"{' '.join(sorted(missing)[:10])}; install one that does, such as Noto Sans CJK for Chinese, Japanese and Korean"
            )
            break
        families.append(best)
        missing -= found[best]
    return families


@functools.cache
def _characters(path: str) -> frozenset[int]:
    try:
        return frozenset(font_manager.get_font(path).get_charmap())
    except (OSError, RuntimeError):
        return frozenset()  # ignore a damaged font


def _axes(figure: Figure, above: float) -> Axes:
    """Axes with room for the title and groups ``above``, for labels below and for steps on the left, in inches."""
    width, height = figure.get_size_inches()
    left, right, below = 1.05, 0.2, 0.75
    return figure.add_axes(
        (left / width, below / height, (width - left - right) / width, (height - below - above) / height)
    )


def _heights(beliefs: np.ndarray) -> np.ndarray:
    """The vertical position of every call, with the start at 0."""
    changes = np.abs(np.diff(beliefs, axis=0)).max(axis=(1, 2))
    return np.concatenate([[0.0], np.cumsum(np.where(changes > QUIET_CHANGE, 1.0, _QUIET_HEIGHT))])


def _smooth(values: np.ndarray) -> np.ndarray:
    """(calls + 1, K) beliefs with intermediate points, eased so that streams have no corners."""
    steps = np.linspace(0, 1, _POINTS_PER_CALL, endpoint=False)
    eased = (1 - np.cos(np.pi * steps)) / 2
    between = values[:-1, None] + eased[None, :, None] * np.diff(values, axis=0)[:, None]
    return np.concatenate([between.reshape(-1, values.shape[1]), values[-1:]])


def _draw_stream(
    axes: Axes,
    position: int,
    beliefs: np.ndarray,
    heights: np.ndarray,
    labels: Sequence[str],
    colours: dict[str, str],
) -> None:
    # The final label is in the middle, and the strongest competing labels are closest to it.
    order: list[int] = []
    for rank, column in enumerate(np.lexsort((-beliefs.max(0), -beliefs[-1]))):
        order.insert(0 if rank % 2 else len(order), int(column))
    shares = _smooth(beliefs)[:, order]
    places = np.interp(np.linspace(0, len(heights) - 1, len(shares)), np.arange(len(heights)), heights)
    edges = np.cumsum(np.concatenate([np.zeros((len(shares), 1)), shares], axis=1), axis=1)
    edges = position + _STREAM_WIDTH * (edges / edges[:, -1:] - 0.5)
    for index, column in enumerate(order):
        colour = colours[labels[column]]
        left, right = edges[:, index], edges[:, index + 1]
        axes.fill_betweenx(places, left, right, facecolor=colour, linewidth=0.25, edgecolor=_PAPER)
        # Not at the very end, where the ring and the final label are.
        widest = int(shares[: -_POINTS_PER_CALL // 2, index].argmax())
        if beliefs[-1, column] < 0.5 and shares[widest, index] > _RIVAL_BELIEF:
            axes.text(
                (left[widest] + right[widest]) / 2, places[widest], labels[column], rotation=90, fontsize=6.5,
                fontweight="bold", ha="center", va="center", color=readable_on(colour), zorder=4,
            )  # fmt: skip


def _draw_calls(axes: Axes, steps: Sequence[int | None], heights: np.ndarray) -> None:
    is_direct = steps[0] is None
    axes.set_facecolor(_PAPER)
    for spine in axes.spines.values():
        spine.set_visible(False)
    for height in heights[1:-1]:
        axes.axhline(height, color=_PAPER, linewidth=0.8, alpha=0.5, zorder=3)
    is_quiet = np.diff(heights) < 1
    # Quiet calls are too close together for names; the last one is always named.
    named = [call for call in range(len(steps)) if call == 0 or call == len(steps) - 1 or not is_quiet[call - 1]]
    num_skipped = named[-1] - named[-2] - 1
    last = float(heights[-1])
    middle = (last + float(heights[named[-2]])) / 2
    named = [call for call in named if call == len(steps) - 1 or last - heights[call] > _NAME_HEIGHT]
    places, names = [float(heights[call]) for call in named], [f"t = {steps[call]}" for call in named]
    if num_skipped * _QUIET_HEIGHT > 0.5:
        places.append(middle)
        names.append(f"{num_skipped} quiet calls")
    if is_direct:
        names = ["before", "after"]
    axes.set_yticks(places, names, fontsize=9, color=_FAINT)
    axes.set_xticks([])
    axes.tick_params(length=0, pad=4)
    # Beside the row of units and that of labels, where no names of calls are.
    for height, words, align in (
        (heights[0], "uniform" if is_direct else "noise", "bottom"),
        (heights[-1], "labels", "top"),
    ):
        axes.annotate(
            words, (0, height), xytext=(-50, 0), textcoords="offset points", xycoords=("axes fraction", "data"),
            ha="right", va=align, rotation=90, fontsize=10, fontweight="bold", color=INK, annotation_clip=False,
        )  # fmt: skip


def _draw_decision(axes: Axes, position: int, height: float, colour: str) -> None:
    edge = _FAINT if colour == OUTSIDE_COLOUR else "white"
    axes.plot(
        position, height, "o", markersize=9, markerfacecolor=colour, markeredgecolor=edge, markeredgewidth=1.6,
        zorder=5, clip_on=False,
    )  # fmt: skip


def _draw_ends(axes: Axes, position: int, height: float, result: TaggedSentence, colour: str) -> None:
    """The unit above its stream, label and score below."""
    pill = {"boxstyle": "round,pad=0.32", "fc": colour, "ec": "none"}
    score = f"{100 * result.scores[position]:.0f} %"
    _write(axes, result.units[position], (position, 0), above=13, size=10.5, color=INK)
    _write(axes, result.labels[position], (position, height), above=-15, color=readable_on(colour), bold=True, box=pill)
    _write(axes, score, (position, height), above=-34, color=_FAINT)


def _write(
    axes: Axes,
    text: str,
    place: tuple[float, float],
    *,
    above: float,
    color: str,
    size: float = 8.5,
    bold: bool = False,
    box: dict[str, Any] | None = None,
    align: str = "center",
) -> None:
    """Draw text a number of points above a position, outside of the axes if necessary."""
    axes.annotate(
        text, place, xytext=(0, above), textcoords="offset points", ha=align, va="center", fontsize=size,
        fontweight="bold" if bold else "normal", color=color, bbox=box, annotation_clip=False,
    )  # fmt: skip


def _draw_group(axes: Axes, group: DependentGroup, index: int) -> None:
    """A bracket over the units of a group; lengths are in points above the streams."""
    colour = _GROUP_COLOURS.get(group.kind, _FAINT)
    low, high = 24, 33 + 20 * index
    arrow = {"arrowstyle": "-", "color": colour, "linewidth": 1.3, "shrinkA": 0, "shrinkB": 0}

    def line(start: tuple[float, float], end: tuple[float, float]) -> None:
        (x0, y0), (x1, y1) = (_in_points(axes, *point) for point in (start, end))
        axes.annotate(
            "", xy=(x0, y0), xytext=(x1, y1), xycoords="figure points", textcoords="figure points",
            arrowprops=arrow, annotation_clip=False,
        )  # fmt: skip

    for position in group.positions:
        line((position, low), (position, high))
    line((group.positions[0], high), (group.positions[-1], high))
    words = f"{group.kind} group: labels that depend on each other"
    _write(axes, words, (group.positions[0], 0), above=high + 8, color=colour, align="left")


def _in_points(axes: Axes, position: float, above: float) -> tuple[float, float]:
    """The position a number of points above a stream, in points of the figure."""
    x, y = axes.transData.transform((position, 0)) * 72 / axes.figure.dpi
    return float(x), float(y) + above
