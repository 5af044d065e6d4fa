"""Tables as titled grids of cells, and how they are written in Markdown, LaTeX, CSV and JSON."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from diffusion_mf.evaluation.metrics import half_up
from diffusion_mf.lab.experiments.paper import PaperValue, kind_of_encoder, paper_encoder
from diffusion_mf.lab.experiments.selection import FEWEST_SEEDS_FOR_TEST, Group, PairedDifference, Summary
from diffusion_mf.systems import SYSTEMS

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
"""short names for the heads of columns and decoders"""


def paper_note(*places: tuple[str, Iterable[str]]) -> str:
    """`PAPER_NOTE`, with the paper's own encoders where ours are others; ``places`` are encoders and corpora."""
    theirs = dict.fromkeys(
        name
        for encoder, corpora in places
        if kind_of_encoder(encoder) != "scratch"
        for corpus in corpora
        if (name := paper_encoder(corpus)) is not None and name != encoder
    )
    return f"{_SMALL}, for encoders of its own: {', '.join(theirs)}." if theirs else PAPER_NOTE


def short_title(name: str) -> str:
    """As in the paper's tables, where it has a name for it."""
    return COLUMN_TITLES.get(name, name)


def system_title(name: str) -> str:
    """The system's name in tables."""
    return SYSTEMS[name].title if name in SYSTEMS else name


@dataclass(frozen=True, kw_only=True)
class Cell:
    """Our value and the paper's; either may be missing."""

    summary: Summary | None = None
    paper: PaperValue | None = None
    difference: PairedDifference | None = None
    """instead of a summary, in tables of differences"""
    is_best: bool = False
    digits: int = 2
    planned: int | None = None
    """seeds of the plan, where not all have finished"""
    about: dict[str, Any] = field(default_factory=dict)
    """what it is the value of: corpus, system, metric …"""

    @property
    def mean(self) -> float | None:
        """Ours."""
        found = self.difference or self.summary
        return None if found is None else found.mean

    @property
    def deviation(self) -> float | None:
        """Ours."""
        found = self.difference or self.summary
        return None if found is None else found.deviation

    @property
    def num_seeds(self) -> int:
        """Of ours."""
        found = self.difference or self.summary
        return 0 if found is None else len(found.seeds)

    def record(self) -> dict[str, Any]:
        """Everything about the cell, for CSV and JSON."""
        found = self.difference or self.summary
        record = {
            **self.about,
            "seeds": [] if found is None else list(found.seeds),
            "mean": self.mean,
            "deviation": self.deviation,
            "paper_mean": None if self.paper is None else self.paper.mean,
            "paper_deviation": None if self.paper is None else self.paper.deviation,
        }
        if self.difference is not None:
            record |= {"p_value": self.difference.p_value, "standard_error": self.difference.standard_error}
        return record


@dataclass(frozen=True, kw_only=True)
class Row:
    """A row: its heading, one entry per heading column, and its cells."""

    heading: tuple[str, ...]
    cells: Sequence[Cell | None]
    starts_block: bool = False


@dataclass(frozen=True, kw_only=True)
class Table:
    """A titled grid; ``notes`` stand below it."""

    title: str
    headings: tuple[str, ...]
    columns: Sequence[str]
    rows: Sequence[Row]
    notes: Sequence[str] = ()

    def cells(self) -> list[Cell]:
        """All that there are."""
        return [cell for row in self.rows for cell in row.cells if cell is not None]

    def shown_notes(self) -> list[str]:
        """The notes, without that on the paper's figures where there are none."""
        has_paper = any(cell.paper is not None for cell in self.cells())
        return [note for note in self.notes if has_paper or not note.startswith(_SMALL)]

    def with_best(self, groups: Iterable[Sequence[int]] | None = None) -> Table:
        """The largest mean of every column marked as best; ``groups`` of rows are judged apart, single runs not at all."""
        rows = [list(row.cells) for row in self.rows]
        for members in groups or [range(len(rows))]:
            for column in range(len(self.columns)):
                means = {
                    index: cell.mean
                    for index in members
                    if (cell := rows[index][column]) is not None and cell.mean is not None and cell.num_seeds > 1
                }
                if len(means) < 2:
                    continue
                best = max(means.values())
                for index, mean in means.items():
                    cell = rows[index][column]
                    if mean == best and cell is not None:
                        rows[index][column] = replace(cell, is_best=True)
        return replace(self, rows=[replace(row, cells=cells) for row, cells in zip(self.rows, rows, strict=True)])


def score_cell(
    group: Group | None,
    split: str,
    decoder: str,
    metric: str,
    *,
    paper: PaperValue | None,
    schedule: str | None = None,
    about: dict[str, Any],
) -> Cell:
    """The cell of a group's metric."""
    summary = None if group is None else group.summary(split, decoder, metric, schedule=schedule)
    is_short = group is not None and summary is not None and len(summary.seeds) < len(group.planned)
    return Cell(
        summary=summary,
        paper=paper,
        planned=len(group.planned) if is_short and group is not None else None,
        about={
            **about,
            **({} if group is None else {"variant": group.variant}),
            "split": split,
            "metric": metric,
            "decoder": decoder,
        },
    )


def seed_notes(groups: Iterable[Group]) -> list[str]:
    """What has to be said about runs that have no result: of which, and why."""
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


def significance_notes(cells: Iterable[Cell]) -> list[str]:
    """How differences were tested, and where they could not be."""
    found = [cell.difference for cell in cells if cell.difference is not None]
    if not found:
        return []
    notes = ["Differences are paired over seeds: mean ± sample deviation, p of a two-sided paired t-test."]
    notes.append(
        "An asterisk marks p < .05 in that test; many differences are tested, and p is not corrected for that."
    )
    if any(len(difference.seeds) < FEWEST_SEEDS_FOR_TEST for difference in found):
        notes.append(
            f"With fewer than {FEWEST_SEEDS_FOR_TEST} seeds there are too few for a test: no p and no asterisk there."
        )
    return notes


MISSING = "–"
MOST_NARROW_COLUMNS = 4
"""wider tables go over both columns of the page, scaled to its width"""


def render(tables: Sequence[Table], format_name: str) -> str:
    """The tables in a format of `FORMATS`."""
    return FORMATS[format_name](tables)


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


def _markdown_cell(cell: Cell | None) -> str:
    if cell is None or (cell.mean is None and cell.paper is None):
        return MISSING
    parts = []
    if cell.mean is not None:
        text = number(cell.mean, cell.digits)
        if cell.deviation is not None:
            text += f" ± {deviation(cell.deviation, cell.digits)}"
        text = f"**{text}**" if cell.is_best else text
        parts.append(text + ("\\*" if _has_asterisk(cell) else ""))
    else:
        parts.append(MISSING)
    if cell.difference is not None and cell.difference.p_value is not None:
        parts.append(f"({_p(cell.difference.p_value)})")
    if cell.planned is not None and cell.summary is not None:
        parts.append(f"[{len(cell.summary.seeds)} of {cell.planned} seeds]")
    if cell.paper is not None:
        text = number(cell.paper.mean, cell.digits)
        if cell.paper.deviation is not None:
            text += f" ± {deviation(cell.paper.deviation, cell.digits)}"
        parts.append(f"<sub>{text}</sub>")
    return " ".join(parts)


def _has_asterisk(cell: Cell) -> bool:
    return cell.difference is not None and cell.difference.is_significant


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


def _latex_value(mean: float, sd: float | None, digits: int, *, is_best: bool) -> str:
    text = number(mean, digits) + ("" if sd is None else f"{{\\pm}}{deviation(sd, digits)}")
    return f"$\\mathbf{{{text}}}$" if is_best else f"${text}$"


def _latex_cell(cell: Cell | None) -> str:
    if cell is None or (cell.mean is None and cell.paper is None):
        return "--"
    parts = ["--"]
    if cell.mean is not None:
        parts = [_latex_value(cell.mean, cell.deviation, cell.digits, is_best=cell.is_best)]
        if _has_asterisk(cell):
            parts[0] += "$^{*}$"
    if cell.difference is not None and cell.difference.p_value is not None:
        parts.append(f"(${_p(cell.difference.p_value)}$)")
    if cell.paper is not None:
        value = _latex_value(cell.paper.mean, cell.paper.deviation, cell.digits, is_best=False)
        parts.append(f"{{\\scriptsize({value})}}")
    return " ".join(parts)


def latex(tables: Sequence[Table]) -> str:
    """Tables with booktabs, wide ones with graphicx; the paper's values stand small, in brackets."""
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
        # After the end of a row it would be that end's argument.
        "[": "{[}",
    }
)


def _latex_text(text: str) -> str:
    """Text whose characters mean nothing to LaTeX.

    >>> print(_latex_text("a_1 {50%} − L_den"))
    a\\_1 \\{50\\%\\} $-$ L\\_den
    """
    return text.translate(_LATEX)


def comma_separated(tables: Sequence[Table]) -> str:
    """One line per cell, with everything there is to say about it, numbers unrounded."""
    records = [{"table": table.title, **cell.record()} for table in tables for cell in table.cells()]
    fields = list(dict.fromkeys(key for record in records for key in record))
    stream = io.StringIO()
    writer = csv.DictWriter(stream, fields, lineterminator="\n")
    writer.writeheader()
    for record in records:
        record["seeds"] = " ".join(map(str, record["seeds"]))
        writer.writerow(record)
    return stream.getvalue()


def json_text(tables: Sequence[Table]) -> str:
    """A list of tables, each with its notes and one object per cell."""
    values = [
        {"title": table.title, "notes": table.shown_notes(), "cells": [cell.record() for cell in table.cells()]}
        for table in tables
    ]
    return json.dumps(values, ensure_ascii=False, indent=2, allow_nan=False) + "\n"


FORMATS: Mapping[str, Callable[[Sequence[Table]], str]] = {
    "markdown": markdown,
    "latex": latex,
    "csv": comma_separated,
    "json": json_text,
}
