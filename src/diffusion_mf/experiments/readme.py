"""The README's tables, from result files."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
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


RECALL_VARIANT = "documents"
"""of the plan ours-recall.toml"""


class Place(NamedTuple):
    """What a column is about."""

    corpus: str
    encoder: str


def results_table(
    rows: Sequence[Mapping[str, Any]],
    *,
    source: StrPath,
    recall: Sequence[Mapping[str, Any]] = (),
    recall_source: StrPath = "",
) -> str:
    """Test scores with a scratch encoder, the paper's beside them; below them those of systems that recall documents."""
    chosen = _selected(rows, "scratch")
    columns = {Place(corpus, "scratch"): title for corpus, title in CORPORA.items()}
    recalling = {key: row for key, row in _selected(recall, "scratch").items() if row["variant"] == RECALL_VARIANT}
    return _described(
        chosen,
        columns,
        f"{os.fspath(source)}`, with recall in `{os.fspath(recall_source)}" if recalling else source,
        about="encoder scratch",
        paper="the paper",
        recalling=recalling,
        has_choice=_has_choice(rows),
    )


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
    paper = f"the paper with its own ({theirs})"
    return _described(
        chosen, columns, source, about="encoders as named", paper=paper, recalling={}, has_choice=_has_choice(rows)
    )


TABLES: dict[str, Callable[..., str]] = {"results": results_table, "pretrained": pretrained_table}
"""by the name in their marks"""


def _selected(rows: Sequence[Mapping[str, Any]], kind: str) -> dict[tuple[str, Place], Mapping[str, Any]]:
    return {
        (row["system"], Place(row["corpus"], row["encoder"])): row
        for row in rows
        if row.get("selected") and kind_of_encoder(row["encoder"]) == kind and row.get("experiment", "main") == "main"
    }


def _has_choice(rows: Sequence[Mapping[str, Any]]) -> bool:
    """Whether any system was scored with several decoders."""
    places = [(row["system"], row["corpus"], row["encoder"]) for row in rows if row.get("experiment", "main") == "main"]
    return len(set(places)) < len(places)


def _described(
    chosen: Mapping[tuple[str, Place], Mapping[str, Any]],
    columns: Mapping[Place, str],
    source: StrPath,
    *,
    about: str,
    paper: str,
    recalling: Mapping[tuple[str, Place], Mapping[str, Any]],
    has_choice: bool,
) -> str:
    """The table, and a sentence on where it comes from."""
    if not chosen:
        return "No runs on real corpora are recorded yet."
    table_rows = []
    for system in SYSTEMS:
        cells: list[Cell | None] = []
        for place in columns:
            published = paper_score(place.corpus, system, place.encoder, primary_metric(place.corpus))
            paper_value = None if published is None else PaperValue(published.mean)
            cells.append(Cell(summary=_summary(chosen.get((system, place))), paper=paper_value))
        table_rows.append(Row(heading=(system_title(system),), cells=cells))
    for system in dict.fromkeys(system for system, _ in recalling):
        summaries = [_summary(recalling.get((system, place))) for place in columns]
        own = [None if summary is None else Cell(summary=summary, paper=None) for summary in summaries]
        table_rows.append(Row(heading=(f"{system_title(system)}, recalling documents",), cells=own))
    table = Table(title="", headings=("test",), columns=list(columns.values()), rows=table_rows)
    counts = sorted({len(row["seeds"]) for row in (*chosen.values(), *recalling.values())})
    hardware = ", ".join(dict.fromkeys(str(row["hardware"]).split(";")[0] for row in chosen.values()))
    seeds = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    is_single = counts == [1]
    selected = ", decoder chosen on dev where a system has several" if has_choice else ""
    shown = "One run each, too few to compare systems" if is_single else f"Mean ± sample deviation over {seeds} seeds"
    note = (
        f"{shown}; {about}{selected}; small: {paper}. "
        f"Measured on {hardware}; every row with its configuration in `{os.fspath(source)}`."
    )
    return f"{markdown([table.with_best()])}\n{note}"


def _summary(row: Mapping[str, Any] | None) -> Summary | None:
    if row is None or row.get("test_mean") is None:
        return None
    return Summary(row["test_mean"], row.get("test_sd"), tuple(row["seeds"]))


def marks(name: str) -> tuple[str, str]:
    """The lines between which a table stands."""
    return f"<!-- {name}: begin (written by dmf experiment readme) -->", f"<!-- {name}: end -->"


def update_readme(path: StrPath, sources: Mapping[str, StrPath], *, recall: StrPath | None = None) -> list[str]:
    """Write the tables of ``sources`` (by the name in the marks) into a Markdown file; returns the names of those written.

    Rows of ``recall``, where there are some, stand below the results. A table other than ``results`` is left out where the
    file has no marks for it, or its rows are not there yet.
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
        make = TABLES[name]
        if name == "results" and recall is not None and Path(recall).exists():
            make = functools.partial(results_table, recall=read_rows(recall), recall_source=recall)
        table = make(read_rows(rows_path), source=rows_path).strip()
        text = f"{text[: text.index(begin)]}{begin}\n\n{table}\n\n{text[text.index(end) :]}"
        written.append(name)
    with open_output(path) as stream:
        stream.write(text.encode())
    return written
