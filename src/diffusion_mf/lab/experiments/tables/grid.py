"""Tables as titled grids of cells, and how they are written in Markdown, LaTeX, CSV and JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import pandas

from diffusion_mf.evaluation.metrics import half_up
from diffusion_mf.lab.experiments.paper import PaperValue, kind_of_encoder, paper_encoder
from diffusion_mf.lab.experiments.selection import FEWEST_SEEDS_FOR_TEST, Group, PairedDifference, Summary
from diffusion_mf.systems import SYSTEMS

RowKey = TypeVar("RowKey")
ColumnKey = TypeVar("ColumnKey")

_SMALL = "Small figures are the paper's"
PAPER_NOTE = f"{_SMALL}."

COLUMN_TITLES = {
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
"""short names for column headings and decoders"""


def paper_note(*places: tuple[str, Iterable[str]]) -> str:
    """`PAPER_NOTE`, naming the paper's encoders if ours are different; ``places`` are pairs of encoder and corpus."""
    theirs = dict.fromkeys(
        name
        for encoder, corpora in places
        if kind_of_encoder(encoder) != "scratch"
        for corpus in corpora
        if (name := paper_encoder(corpus)) is not None and name != encoder
    )
    return f"{_SMALL}, for encoders of its own: {', '.join(theirs)}." if theirs else PAPER_NOTE


def short_title(name: str) -> str:
    """The name in the paper's tables, if it has one."""
    return COLUMN_TITLES.get(name, name)


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

    @property
    def mean(self) -> float | None:
        """Ours."""
        return None if self.summary is None else self.summary.mean

    def record(self) -> dict[str, Any]:
        """Everything about the cell, for CSV and JSON."""
        ours, paper = self.summary, self.paper
        record = {
            **self.about,
            "seeds": [] if ours is None else list(ours.seeds),
            "mean": self.mean,
            "deviation": None if ours is None else ours.deviation,
            "paper_mean": None if paper is None else paper.mean,
            "paper_deviation": None if paper is None else paper.deviation,
        }
        if isinstance(ours, PairedDifference):
            record |= {"p_value": ours.p_value, "standard_error": ours.standard_error}
        return record


@dataclass(frozen=True, kw_only=True)
class Row:
    """A row: its heading, one entry per heading column, and its cells."""

    heading: tuple[str, ...]
    cells: Sequence[Cell | None]
    starts_block: bool = False


@dataclass(frozen=True, kw_only=True)
class Table:
    """A titled grid; ``notes`` are printed below it."""

    title: str
    headings: tuple[str, ...]
    columns: Sequence[str]
    rows: Sequence[Row]
    notes: Sequence[str] = ()

    def cells(self) -> list[Cell]:
        """All cells that are not empty."""
        return [cell for row in self.rows for cell in row.cells if cell is not None]

    @property
    def has_results(self) -> bool:
        """Whether any cell has a value of ours."""
        return any(cell.mean is not None for cell in self.cells())

    def shown_notes(self) -> list[str]:
        """The notes, without the one on the paper's values if there are none."""
        has_paper = any(cell.paper is not None for cell in self.cells())
        return [note for note in self.notes if has_paper or not note.startswith(_SMALL)]

    def with_best(self, *, by_row: bool = False) -> Table:
        """Mark the largest mean of every column, or row, as best; single runs are not compared."""
        means = pandas.DataFrame(
            [
                [
                    cell.mean if cell is not None and cell.summary is not None and len(cell.summary.seeds) > 1 else None
                    for cell in row.cells
                ]
                for row in self.rows
            ],
            dtype=float,
        )
        means = means.T if by_row else means
        is_best = means.eq(means.max()) & (means.count() > 1)
        is_best = is_best.T if by_row else is_best
        rows = [
            replace(
                row,
                cells=[
                    replace(cell, is_best=True) if cell is not None and best else cell
                    for cell, best in zip(row.cells, marks, strict=True)
                ],
            )
            for row, marks in zip(self.rows, is_best.to_numpy(), strict=True)
        ]
        return replace(self, rows=rows)


def make_table(
    title: str,
    *,
    headings: tuple[str, ...],
    rows: Iterable[tuple[tuple[str, ...], RowKey]],
    columns: Iterable[tuple[str, ColumnKey]],
    cell: Callable[[RowKey, ColumnKey], Cell | None],
    notes: Sequence[str] = (),
    block: Callable[[RowKey], object] = lambda key: None,
) -> Table:
    """A table from the headings of rows and columns, each with a key, and the cell of two keys.

    A block of rows starts where ``block`` of the row's key changes.
    """
    titled = list(columns)
    made: list[Row] = []
    last: object = None
    for heading, key in rows:
        cells = [cell(key, column) for _, column in titled]
        made.append(Row(heading=heading, cells=cells, starts_block=block(key) != last))
        last = block(key)
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
    """The table with notes on how its differences were tested, or why they could not be."""
    found = [cell.summary for cell in table.cells() if isinstance(cell.summary, PairedDifference)]
    if not found:
        return table
    notes = [
        "Differences are paired over seeds: mean ± sample deviation, p of a two-sided paired t-test.",
        "An asterisk marks p < .05 in that test; many differences are tested, and p is not corrected for that.",
    ]
    if any(len(difference.seeds) < FEWEST_SEEDS_FOR_TEST for difference in found):
        notes.append(f"With fewer than {FEWEST_SEEDS_FOR_TEST} seeds there is no test, so no p and no asterisk.")
    return replace(table, notes=notes)


MISSING = "–"
MOST_NARROW_COLUMNS = 4
"""wider tables span both columns of the page and are scaled to its width"""


def render(tables: Sequence[Table], format_name: str) -> str:
    """The tables in a format of `TABLE_FORMATS`."""
    return TABLE_FORMATS[format_name](tables)


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
    for row in table.rows:
        cells = [*row.heading, *(_markdown_cell(cell) for cell in row.cells)]
        lines.append("| " + " | ".join(text.replace("|", "\\|") for text in cells) + " |")
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
    """Tables with booktabs, wide ones with graphicx; the paper's values are small, in brackets."""
    return "% \\usepackage{booktabs,graphicx}\n" + "\n".join(_latex_table(table) for table in tables)


def _latex_table(table: Table) -> str:
    is_wide = len(table.columns) > MOST_NARROW_COLUMNS
    environment = "table*" if is_wide else "table"
    lines = [
        f"\\begin{{{environment}}}",
        "\\centering",
        "\\small",
        *(["\\resizebox{\\textwidth}{!}{%"] if is_wide else []),
        f"\\begin{{tabular}}{{{'l' * len(table.headings)}{'r' * len(table.columns)}}}",
        "\\toprule",
        " & ".join(_latex_text(text) for text in [*table.headings, *table.columns]) + " \\\\",
        "\\midrule",
    ]
    for index, row in enumerate(table.rows):
        if row.starts_block and index:
            lines.append("\\midrule")
        cells = [*(_latex_text(text) for text in row.heading), *(_latex_cell(cell) for cell in row.cells)]
        lines.append(" & ".join(cells) + " \\\\")
    caption = " ".join([f"{table.title}.", *table.shown_notes()])
    lines += ["\\bottomrule", "\\end{tabular}" + ("}" if is_wide else "")]
    lines += [f"\\caption{{{_latex_text(caption)}}}", f"\\end{{{environment}}}"]
    return "\n".join(lines) + "\n"


_LATEX = str.maketrans(
    {
        **{character: f"\\{character}" for character in "&%_#${}"},
        **{"\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}"},
        **{"<": "$<$", ">": "$>$", "−": "$-$", "±": "$\\pm$", "†": "$\\dagger$", "–": "--"},
        # After the end of a row, LaTeX would take a bracket for its argument.
        "[": "{[}",
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
