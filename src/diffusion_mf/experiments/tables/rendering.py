"""Tables as Markdown, LaTeX, CSV and JSON."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence

from diffusion_mf.experiments.tables.grid import Cell, Table
from diffusion_mf.rounding import half_up

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
