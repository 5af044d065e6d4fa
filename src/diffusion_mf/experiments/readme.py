"""The README's tables, from result files."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from diffusion_mf.errors import InputError
from diffusion_mf.experiments.aggregation import Summary
from diffusion_mf.experiments.paper import PaperValue, kind_of_encoder, paper_encoder, paper_score
from diffusion_mf.experiments.tables.grid import Cell, Row, Table, system_title
from diffusion_mf.experiments.tables.main_results import primary_metric
from diffusion_mf.experiments.tables.rendering import markdown
from diffusion_mf.files import StrPath, open_output
from diffusion_mf.results import read_rows
from diffusion_mf.systems import SYSTEMS

CORPORA = {
    "en-ewt": "EN-EWT POS accuracy",
    "fr-gsd": "FR-GSD POS accuracy",
    "conll2003": "CoNLL-2003 NER F1",
    "zh-gsdsimp": "ZH-GSDSimp joint F1",
}
"""with their titles, in the order of columns"""


class Place(NamedTuple):
    """What a column is about."""

    corpus: str
    encoder: str


def results_table(rows: Sequence[Mapping[str, Any]], *, source: StrPath) -> str:
    """Test scores with a scratch encoder, the paper's beside them."""
    chosen = _selected(rows, "scratch")
    columns = {Place(corpus, "scratch"): title for corpus, title in CORPORA.items()}
    return _described(chosen, columns, source, about="encoder scratch", paper="the paper")


def pretrained_table(rows: Sequence[Mapping[str, Any]], *, source: StrPath) -> str:
    """Test scores with pretrained encoders, beside them the paper's with its own."""
    chosen = _selected(rows, "pretrained")
    found = dict.fromkeys(place for _, place in chosen)
    columns = {
        place: f"{title}, {place.encoder}"
        for corpus, title in CORPORA.items()
        for place in found
        if place.corpus == corpus
    }
    theirs = ", ".join(dict.fromkeys(str(paper_encoder(place.corpus)) for place in columns))
    return _described(chosen, columns, source, about="encoders as named", paper=f"the paper with its own ({theirs})")


TABLES = {"results": results_table, "pretrained": pretrained_table}
"""by the name in their marks"""


def _selected(rows: Sequence[Mapping[str, Any]], kind: str) -> dict[tuple[str, Place], Mapping[str, Any]]:
    return {
        (row["system"], Place(row["corpus"], row["encoder"])): row
        for row in rows
        if row.get("selected") and kind_of_encoder(row["encoder"]) == kind and row.get("experiment", "main") == "main"
    }


def _described(
    chosen: Mapping[tuple[str, Place], Mapping[str, Any]],
    columns: Mapping[Place, str],
    source: StrPath,
    *,
    about: str,
    paper: str,
) -> str:
    """The table, and a sentence on where it comes from."""
    if not chosen:
        return "No runs on real corpora are recorded yet."
    table_rows = []
    for system in SYSTEMS:
        cells: list[Cell | None] = []
        for place in columns:
            row = chosen.get((system, place))
            published = paper_score(place.corpus, system, place.encoder, primary_metric(place.corpus))
            summary = None
            if row is not None and row.get("test_mean") is not None:
                summary = Summary(row["test_mean"], row.get("test_sd"), tuple(row["seeds"]))
            cells.append(Cell(summary=summary, paper=None if published is None else PaperValue(published.mean)))
        table_rows.append(Row(heading=(system_title(system),), cells=cells))
    table = Table(title="", headings=("test",), columns=list(columns.values()), rows=table_rows)
    counts = sorted({len(row["seeds"]) for row in chosen.values()})
    hardware = ", ".join(dict.fromkeys(str(row["hardware"]).split(";")[0] for row in chosen.values()))
    seeds = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    is_single = counts == [1]
    shown = "One run each, too few to compare systems" if is_single else f"Mean ± sample deviation over {seeds} seeds"
    note = (
        f"{shown}; {about}, settings and decoder chosen on dev; small: {paper}. "
        f"Measured on {hardware}; every row with its configuration in `{os.fspath(source)}`."
    )
    return f"{markdown([table.with_best()])}\n{note}"


def marks(name: str) -> tuple[str, str]:
    """The lines between which a table stands."""
    return f"<!-- {name}: begin (written by dmf experiment readme) -->", f"<!-- {name}: end -->"


def update_readme(path: StrPath, sources: Mapping[str, StrPath]) -> list[str]:
    """Write the tables of ``sources`` (by the name in the marks) into a Markdown file; returns the names of those written.

    A table other than ``results`` is left out where the file has no marks for it, or its rows are not there yet.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        raise InputError("cannot be read", path=path, remedy="name a Markdown file") from None
    written = []
    for name, rows_path in sources.items():
        begin, end = marks(name)
        has_rows = Path(rows_path).exists()
        if name != "results" and not (has_rows and begin in text):
            continue
        if not has_rows:
            raise InputError(
                "no such result file", path=rows_path, remedy="write it with dmf experiment table --record"
            )
        if text.count(begin) != 1 or text.count(end) != 1 or text.index(begin) > text.index(end):
            raise InputError(f"the marks of {name} are not there", path=path, remedy=f"add the lines {begin} and {end}")
        table = TABLES[name](read_rows(rows_path), source=rows_path).strip()
        text = f"{text[: text.index(begin)]}{begin}\n\n{table}\n\n{text[text.index(end) :]}"
        written.append(name)
    with open_output(path) as stream:
        stream.write(text.encode())
    return written
