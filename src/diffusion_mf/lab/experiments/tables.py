"""Tables as titled grids of cells, and how they are written in Markdown, LaTeX, CSV and JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import pandas

from diffusion_mf.evaluation.metrics import half_up
from diffusion_mf.lab.experiments.paper import PaperValue, kind_of_encoder, paper_encoder
from diffusion_mf.lab.experiments.selection import FEWEST_SEEDS_FOR_TEST, Group, Summary
from diffusion_mf.systems import SYSTEMS

RowKey = TypeVar("RowKey")
ColumnKey = TypeVar("ColumnKey")

_SMALL = "Small figures are the paper's"
PAPER_NOTE = f"{_SMALL}."
MISSING = "–"

SHORT_TITLES = {
    "en-ewt": "EN",
    "de-gsd": "DE",
    "fr-gsd": "FR",
    "nl-lassysmall": "NL",
    "average": "Avg.",
    "conll2003": "NER",
    "zh-gsdsimp": "Chinese",
    "accuracy": "Acc.",
    "precision": "P",
    "recall": "R",
    "f1": "F1",
    "seg_f1": "Seg. F1",
    "gold_xpos": "Gold XPOS",
    "aligned_xpos": "Aligned XPOS",
    "joint_f1": "Joint F1",
    "exact_match": "Exact",
    "argmax": "Arg.",
    "native": "Native",
    "mask-viterbi": "M-Vit.",
    "viterbi": "Vit.",
}


def paper_note(encoder: str, corpora: Iterable[str]) -> str:
    """`PAPER_NOTE`, naming the paper's encoders for ``corpora`` if ours is a different one."""
    if kind_of_encoder(encoder) == "scratch":
        return PAPER_NOTE
    theirs = dict.fromkeys(name for corpus in corpora if (name := paper_encoder(corpus)) not in (None, encoder))
    return f"{_SMALL}, for encoders of its own: {', '.join(map(str, theirs))}." if theirs else PAPER_NOTE


def short_title(name: str) -> str:
    """The name of a corpus, metric or decoder in the paper's tables, if it has one."""
    return SHORT_TITLES.get(name, name)


def system_title(name: str) -> str:
    """The system's name in tables."""
    return SYSTEMS[name].title if name in SYSTEMS else name


@dataclass(frozen=True, kw_only=True)
class Cell:
    """Our value, which may be a paired difference, and the paper's; either may be missing."""

    summary: Summary | None = None
    paper: PaperValue | None = None
    is_best: bool = False
    digits: int = 2
    planned: int | None = None
    """number of seeds in the plan, if not all have finished"""
    about: dict[str, Any] = field(default_factory=dict)
    """what the value belongs to: corpus, system, metric …"""

    def record(self) -> dict[str, Any]:
        """Everything about the cell, for CSV and JSON."""
        ours, paper = self.summary, self.paper
        record = {
            **self.about,
            "seeds": [] if ours is None else list(ours.seeds),
            "mean": None if ours is None else ours.mean,
            "deviation": None if ours is None else ours.deviation,
            "paper_mean": None if paper is None else paper.mean,
            "paper_deviation": None if paper is None else paper.deviation,
        }
        if ours is not None and ours.is_difference:
            record |= {"p_value": ours.p_value, "standard_error": ours.standard_error}
        return record


@dataclass(frozen=True, kw_only=True)
class Table:
    """A titled grid: a row has one entry per heading and one cell per column; ``notes`` are printed below."""

    title: str
    headings: tuple[str, ...]
    columns: Sequence[str]
    rows: Sequence[tuple[tuple[str, ...], Sequence[Cell | None]]]
    notes: Sequence[str] = ()

    def cells(self) -> list[Cell]:
        """All cells that are not empty."""
        return [cell for _, cells in self.rows for cell in cells if cell is not None]

    @property
    def has_results(self) -> bool:
        """Whether any cell has a value of ours."""
        return any(cell.summary is not None for cell in self.cells())

    def shown_notes(self) -> list[str]:
        """The notes, without the one on the paper's values if there are none."""
        has_paper = any(cell.paper is not None for cell in self.cells())
        return [note for note in self.notes if has_paper or not note.startswith(_SMALL)]

    def with_best(self) -> Table:
        """Mark the largest means of every column as best, all that look the same in print; single runs are not compared."""

        def is_compared(cell: Cell | None) -> bool:
            return cell is not None and cell.summary is not None and len(cell.summary.seeds) > 1

        columns = []
        for column in zip(*(cells for _, cells in self.rows), strict=True):
            means = [number(cell.summary.mean, cell.digits) if is_compared(cell) else None for cell in column]
            compared = [mean for mean in means if mean is not None]
            best = max(compared, key=float) if len(compared) > 1 else None
            columns.append(
                [
                    replace(cell, is_best=True) if mean is not None and mean == best else cell
                    for cell, mean in zip(column, means, strict=True)
                ]
            )
        rows = zip((heading for heading, _ in self.rows), zip(*columns, strict=True), strict=True)
        return replace(self, rows=list(rows))

    def texts(self, shown: Callable[[Cell | None], str]) -> list[list[str]]:
        """The rows as text, headings included."""
        return [[*heading, *map(shown, cells)] for heading, cells in self.rows]


def make_table(
    title: str,
    *,
    headings: tuple[str, ...],
    rows: Iterable[tuple[tuple[str, ...], RowKey]],
    columns: Iterable[tuple[str, ColumnKey]],
    cell: Callable[[RowKey, ColumnKey], Cell | None],
    notes: Sequence[str] = (),
) -> Table:
    """A table from the headings of rows and columns, each with a key, and the cell of two keys."""
    titled = list(columns)
    made = [(heading, [cell(key, column) for _, column in titled]) for heading, key in rows]
    return Table(title=title, headings=headings, columns=[name for name, _ in titled], rows=made, notes=notes)


def score_cell(
    group: Group | None,
    split: str,
    metric: str | None = None,
    *,
    decoder: str | None = None,
    schedule: str | None = None,
    paper: PaperValue | None = None,
    digits: int = 2,
    about: Mapping[str, Any],
) -> Cell:
    """The cell of a group's metric (default: the one that selects) with a decoder (default: the selected one)."""
    described = {**about, "split": split, "metric": metric or "", "decoder": decoder or ""}
    if group is None:
        return Cell(paper=paper, digits=digits, about=described)
    metric, decoder = metric or group.metric, decoder or group.selected_decoder()
    summary = group.summary(split, decoder, metric, schedule=schedule)
    is_short = summary is not None and len(summary.seeds) < len(group.planned)
    return Cell(
        summary=summary,
        paper=paper,
        digits=digits,
        planned=len(group.planned) if is_short else None,
        about={**described, "variant": group.variant, "metric": metric, "decoder": decoder},
    )


def seed_notes(groups: Iterable[Group]) -> list[str]:
    """A note about runs without a result: which ones, and why."""
    found: dict[str, list[str]] = {"Not finished": [], "Failed": [], "Diverged": []}
    for group in groups:
        without = [seed for seed in group.planned if seed not in group.results]
        missing = [seed for seed in without if seed not in (*group.diverged, *group.failed)]
        place = f"{group.corpus} {system_title(group.system)}"
        place += "" if group.encoder == "scratch" else f" {group.encoder}"
        place += "" if group.variant == "default" else f" {group.variant}"
        for reason, seeds in zip(found, (missing, group.failed, group.diverged), strict=True):
            if seeds:
                found[reason].append(f"{place} seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}")
    return [f"{reason}: {'; '.join(places)}." for reason, places in found.items() if places]


def with_significance(table: Table) -> Table:
    """A table of differences with notes on how they were tested, or why they could not be."""
    notes = [
        "Differences are paired over seeds: mean ± sample deviation, p of a two-sided paired t-test.",
        "An asterisk marks p < .05 in that test; many differences are tested, and p is not corrected for that.",
    ]
    found = [cell.summary for cell in table.cells() if cell.summary is not None]
    if any(len(difference.seeds) < FEWEST_SEEDS_FOR_TEST for difference in found):
        notes.append(f"With fewer than {FEWEST_SEEDS_FOR_TEST} seeds there is no test, so no p and no asterisk.")
    return replace(table, notes=notes if found else ())


def number(value: float, digits: int = 2) -> str:
    """A mean as the paper prints it.

    >>> number(1.005), number(-0.001)
    ('1.01', '0.00')
    """
    text = half_up(value, digits)
    return text if float(text) else text.removeprefix("-")


def deviation(value: float, digits: int = 2) -> str:
    """A deviation without its leading zero.

    >>> deviation(0.105), deviation(1.2)
    ('.11', '1.20')
    """
    text = half_up(value, digits)
    return text[1:] if text.startswith("0.") else text


def _p(value: float) -> str:
    return "p < .001" if value < 0.001 else f"p = {deviation(value, 3)}"


def _with_deviation(value: Summary | PaperValue, sign: str, digits: int) -> str:
    text = number(value.mean, digits)
    return text if value.deviation is None else f"{text}{sign}{deviation(value.deviation, digits)}"


def _markdown_cell(cell: Cell | None) -> str:
    if cell is None:
        return MISSING
    parts = [MISSING]
    if cell.summary is not None:
        text = _with_deviation(cell.summary, " ± ", cell.digits)
        text = f"**{text}**" if cell.is_best else text
        parts = [text + ("\\*" if cell.summary.is_significant else "")]
        if cell.summary.p_value is not None:
            parts.append(f"({_p(cell.summary.p_value)})")
        if cell.planned is not None:
            parts.append(f"[{len(cell.summary.seeds)} of {cell.planned} seeds]")
    if cell.paper is not None:
        parts.append(f"<sub>{_with_deviation(cell.paper, ' ± ', cell.digits)}</sub>")
    return " ".join(parts)


def markdown(tables: Sequence[Table]) -> str:
    """Pipe tables; the paper's values are small, after ours."""
    return "\n".join(_markdown_table(table) for table in tables)


def _markdown_table(table: Table) -> str:
    lines = [f"**{table.title}**", ""] if table.title else []
    lines.append("| " + " | ".join([*table.headings, *table.columns]) + " |")
    lines.append("|" + "|".join(["---"] * len(table.headings) + ["---:"] * len(table.columns)) + "|")
    lines += ["| " + " | ".join(text.replace("|", "\\|") for text in row) + " |" for row in table.texts(_markdown_cell)]
    if notes := table.shown_notes():
        lines += ["", *notes]
    return "\n".join(lines) + "\n"


def _latex_cell(cell: Cell | None) -> str:
    if cell is None:
        return "--"
    parts = ["--"]
    if cell.summary is not None:
        text = _with_deviation(cell.summary, "{\\pm}", cell.digits)
        text = f"$\\mathbf{{{text}}}$" if cell.is_best else f"${text}$"
        parts = [text + ("$^{*}$" if cell.summary.is_significant else "")]
        if cell.summary.p_value is not None:
            parts.append(f"(${_p(cell.summary.p_value)}$)")
    if cell.paper is not None:
        text = _with_deviation(cell.paper, "{\\pm}", cell.digits)
        parts.append(f"{{\\scriptsize(${text}$)}}")
    return " ".join(parts)


def latex(tables: Sequence[Table]) -> str:
    """Tables with booktabs; the paper's values are small, in brackets."""
    return "% \\usepackage{booktabs}\n" + "\n".join(_latex_table(table) for table in tables)


def _latex_table(table: Table) -> str:
    frame = pandas.DataFrame(table.texts(_latex_cell), columns=[*table.headings, *table.columns])
    for heading in table.headings:
        frame[heading] = frame[heading].map(_latex_text)
    return frame.rename(columns=_latex_text).to_latex(
        index=False,
        escape=False,
        column_format="l" * len(table.headings) + "r" * len(table.columns),
        caption=_latex_text(" ".join([f"{table.title}.", *table.shown_notes()])),
    )


_LATEX = str.maketrans(
    {
        **{character: f"\\{character}" for character in "&%_#${}"},
        **{"\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}"},
        **{"<": "$<$", ">": "$>$", "−": "$-$", "±": "$\\pm$", "†": "$\\dagger$", "–": "--"},
    }
)


def _latex_text(text: str) -> str:
    """Escape the characters that are special in LaTeX.

    >>> print(_latex_text("a_1 {50%} − L_den"))
    a\\_1 \\{50\\%\\} $-$ L\\_den
    """
    return text.translate(_LATEX)


def comma_separated(tables: Sequence[Table]) -> str:
    """One line per cell with all its fields and unrounded numbers."""
    records = pandas.DataFrame([{"table": table.title, **cell.record()} for table in tables for cell in table.cells()])
    records["seeds"] = [" ".join(map(str, seeds)) for seeds in records["seeds"]]
    return records.to_csv(index=False, lineterminator="\n")


def json_text(tables: Sequence[Table]) -> str:
    """A list of tables, each with its notes and one object per cell."""
    values = [
        {"title": table.title, "notes": table.shown_notes(), "cells": [cell.record() for cell in table.cells()]}
        for table in tables
    ]
    return json.dumps(values, ensure_ascii=False, indent=2, allow_nan=False) + "\n"


TABLE_FORMATS: Mapping[str, Callable[[Sequence[Table]], str]] = {
    "markdown": markdown,
    "latex": latex,
    "csv": comma_separated,
    "json": json_text,
}
