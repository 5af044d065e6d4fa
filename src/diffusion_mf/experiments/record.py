"""Rows for result files, and the README's table from them."""

from __future__ import annotations

import os
import re
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from diffusion_mf.errors import InputError
from diffusion_mf.experiments.aggregation import Summary
from diffusion_mf.experiments.paper import PaperValue, paper_score
from diffusion_mf.experiments.plan import DEFAULT
from diffusion_mf.experiments.selection import Group, Outcomes
from diffusion_mf.experiments.tables.grid import Cell, Row, Table, system_title
from diffusion_mf.experiments.tables.rendering import markdown
from diffusion_mf.files import StrPath, open_output
from diffusion_mf.results import read_rows, write_rows
from diffusion_mf.systems import SYSTEMS

ROW_KEY = ("experiment", "corpus", "system", "encoder", "decoder", "metric", "setting")
"""rows with the same values of these replace each other"""

# Tables of which the settings selected on dev are the only ones.
_SELECTED = ("main", "denoiser", "ner", "seg-pos", "calls", "base")

README_CORPORA = ("en-ewt", "fr-gsd", "conll2003", "zh-gsdsimp")
_BEGIN = "<!-- results: begin (written by dmf experiment readme) -->"
_END = "<!-- results: end -->"


def record_rows(outcomes: Outcomes, *, experiment: str) -> list[dict[str, Any]]:
    """A row per group and decoder, and per schedule that was asked for; see `docs/experiments.md` for the fields.

    For the main results, of the settings tried only the one selected on dev gives rows.
    """
    groups = outcomes.groups
    if experiment in _SELECTED:
        places = dict.fromkeys((group.corpus, group.system, group.encoder) for group in groups)
        groups = [group for place in places if (group := outcomes.selected(*place)) is not None]
    prefix = {"calls": "calls=", "base": "base="}.get(experiment)
    rows = []
    for group in groups:
        schedules: Sequence[str | None] = [None]
        if prefix is not None:
            schedules = sorted(
                {n for result in group.results.values() for n in result.get("schedules", {}) if n.startswith(prefix)}
            )
        for schedule in schedules:
            rows += [_row(group, decoder, schedule, experiment) for decoder in group.decoders]
    return rows


def _row(group: Group, decoder: str, schedule: str | None, experiment: str) -> dict[str, Any]:
    dev = group.summary("dev", decoder, schedule=schedule)
    test = group.summary("test", decoder, schedule=schedule)
    results = list(group.results.values())
    # Of the main results one setting is left, and replaces what was selected before.
    is_named = group.variant != DEFAULT and experiment not in _SELECTED
    return {
        "experiment": experiment,
        "corpus": group.corpus,
        "system": group.system,
        "encoder": group.encoder,
        "decoder": decoder,
        "metric": group.metric,
        "setting": schedule or (group.variant if is_named else None),
        "variant": group.variant,
        "seeds": sorted(group.results),
        "dev_mean": None if dev is None else dev.mean,
        "dev_sd": None if dev is None else dev.deviation,
        "test_mean": None if test is None else test.mean,
        "test_sd": None if test is None else test.deviation,
        "selected": decoder == group.selected_decoder(),
        "dev_scores": {str(seed): score for seed, score in group.scores("dev", decoder, schedule=schedule).items()},
        "test_scores": {str(seed): score for seed, score in group.scores("test", decoder, schedule=schedule).items()},
        "metrics": _other_metrics(group, decoder, schedule),
        "diverged_seeds": list(group.diverged),
        "config": _one_of(result["configuration"] for result in results),
        "parameters": _one_of(result["parameters"] for result in results),
        "seconds": statistics.fmean(result["seconds"] for result in results),
        "command": _one_of(result["command"] for result in results),
        "commit": _one_of(result["commit"] for result in results),
        "hardware": _one_of(result["hardware"] for result in results),
        "versions": results[-1]["versions"],
        "date": max(result["date"] for result in results),
    }


def _other_metrics(group: Group, decoder: str, schedule: str | None) -> dict[str, dict[str, Any]]:
    """Mean and deviation of every metric on both splits."""
    names = list(next(iter(group.results.values()))["decoders"][decoder])
    found: dict[str, dict[str, Any]] = {}
    for name in names:
        entry: dict[str, Any] = {}
        for split in ("dev", "test"):
            summary = group.summary(split, decoder, name, schedule=schedule)
            if summary is not None:
                entry |= {f"{split}_mean": summary.mean, f"{split}_sd": summary.deviation}
        found[name] = entry
    return found


def _one_of(values: Any) -> Any:
    """What all runs have in common, or all that they have, joined."""
    unique = list(dict.fromkeys(values))
    return unique[0] if len(unique) == 1 else "; ".join(str(value) for value in unique)


def save_rows(path: StrPath, outcomes: Outcomes, *, experiment: str) -> int:
    """Merge the rows of ``outcomes`` into a result file; returns how many there were."""
    rows = record_rows(outcomes, experiment=experiment)
    write_rows(path, rows, replace_by=ROW_KEY)
    return len(rows)


def readme_table(rows: Sequence[Mapping[str, Any]], *, source: StrPath, encoder: str = "scratch") -> str:
    """The README's table: test scores of selected rows of the file ``source``, the paper's beside them."""
    chosen = {
        (row["system"], row["corpus"]): row
        for row in rows
        if row.get("selected") and row.get("encoder") == encoder and row.get("experiment", "main") == "main"
    }
    if not chosen:
        return "No runs on real corpora are recorded yet."
    table_rows = []
    for system in SYSTEMS:
        cells: list[Cell | None] = []
        for corpus in README_CORPORA:
            row = chosen.get((system, corpus))
            metric = {"conll2003": "f1", "zh-gsdsimp": "joint_f1"}.get(corpus, "accuracy")
            paper = paper_score(corpus, system, encoder, metric)
            summary = None
            if row is not None and row.get("test_mean") is not None:
                summary = Summary(row["test_mean"], row.get("test_sd"), tuple(row["seeds"]))
            cells.append(Cell(summary=summary, paper=None if paper is None else PaperValue(paper.mean)))
        table_rows.append(Row(heading=(system_title(system),), cells=cells))
    columns = ["EN-EWT POS accuracy", "FR-GSD POS accuracy", "CoNLL-2003 NER F1", "ZH-GSDSimp joint F1"]
    table = Table(title="", headings=("test",), columns=columns, rows=table_rows)
    counts = sorted({len(row["seeds"]) for row in chosen.values()})
    is_single = counts == [1]
    hardware = _one_of(str(row["hardware"]).split(";")[0] for row in chosen.values())
    seeds = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    shown = "One run each, too few to compare systems" if is_single else f"Mean ± sample deviation over {seeds} seeds"
    note = (
        f"{shown}; encoder {encoder}, settings and decoder chosen on dev; small: the paper. "
        f"Measured on {hardware}; every row with its configuration in `{os.fspath(source)}`."
    )
    return f"{markdown([table if is_single else table.with_best()])}\n{note}"


def update_readme(path: StrPath, rows_path: StrPath) -> None:
    """Write the table of ``rows_path`` between the two marks of a Markdown file."""
    if not Path(rows_path).exists():
        raise InputError("no such result file", path=rows_path, remedy="write it with dmf experiment table --record")
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        raise InputError("cannot be read", path=path, remedy="name a Markdown file") from None
    if text.count(_BEGIN) != 1 or text.count(_END) != 1 or text.index(_BEGIN) > text.index(_END):
        raise InputError("the two marks are not there", path=path, remedy=f"add the lines {_BEGIN} and {_END}")
    block = f"{_BEGIN}\n\n{readme_table(read_rows(rows_path), source=rows_path).strip()}\n\n{_END}"
    pattern = re.escape(_BEGIN) + ".*?" + re.escape(_END)
    changed = re.sub(pattern, lambda _: block, text, flags=re.DOTALL)
    with open_output(path) as stream:
        stream.write(changed.encode())
