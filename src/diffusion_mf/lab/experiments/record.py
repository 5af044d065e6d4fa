"""Result rows of experiments, and the README's tables made from them."""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from diffusion_mf.data.files import StrPath, open_output
from diffusion_mf.errors import InputError
from diffusion_mf.lab.experiments.comparisons import primary_metric
from diffusion_mf.lab.experiments.paper import PaperValue, kind_of_encoder, paper_encoder, paper_score
from diffusion_mf.lab.experiments.plan import DEFAULT
from diffusion_mf.lab.experiments.selection import Group, Outcomes, Summary, summarise
from diffusion_mf.lab.experiments.tables import Cell, Table, markdown, system_title
from diffusion_mf.lab.results import read_rows, write_rows
from diffusion_mf.systems import SYSTEMS

EXPERIMENT_ROW_KEY = ("experiment", "corpus", "system", "encoder", "decoder", "metric", "setting")
"""rows with the same values of these replace each other"""

# These kinds have one file per recipe; sweeps share one file.
_OF_ONE_RECIPE = ("main", "denoiser", "ner", "seg-pos", "calls", "objective", "variants")

# Tables that show only the settings selected on dev.
_SELECTED = ("main", "denoiser", "ner", "seg-pos", "calls", "base", "readings")


def record_rows(outcomes: Outcomes, *, experiment: str) -> list[dict[str, Any]]:
    """A row per group and decoder, and per schedule in the plan; see `docs/experiments.md` for the fields.

    The main results have rows only for the setting selected on dev.
    """
    groups = outcomes.groups
    if experiment in _SELECTED:
        places = dict.fromkeys((group.corpus, group.system, group.encoder) for group in groups)
        chosen = (
            outcomes.selected(corpus=corpus, system=system, encoder=encoder) for corpus, system, encoder in places
        )
        groups = [group for group in chosen if group is not None]
    prefix = {"calls": "calls=", "base": "base=", "readings": "posterior="}.get(experiment)
    rows = []
    for group in groups:
        schedules: Sequence[str | None] = [None]
        if prefix is not None and (experiment != "base" or group.is_diffusion):
            schedules = sorted(group.schedules(prefix))
        for schedule in schedules:
            others = () if schedule else group.compared
            rows += [_row(group, decoder, schedule, experiment) for decoder in (*group.decoders, *others)]
    return rows


def _row(group: Group, decoder: str, schedule: str | None, experiment: str) -> dict[str, Any]:
    of_seed = {
        seed: result
        for seed, result in group.results.items()
        if schedule is None or schedule in result.get("schedules", {})
    }
    results = list(of_seed.values())
    splits: dict[str, Any] = {}
    for split in ("dev", "test"):
        scores = group.scores(split, decoder, schedule=schedule)
        summary = summarise(scores)
        splits |= {
            f"{split}_mean": None if summary is None else summary.mean,
            f"{split}_sd": None if summary is None else summary.deviation,
            f"{split}_scores": {str(seed): score for seed, score in scores.items()},
        }

    def by_seed(values: Mapping[int, Any]) -> dict[str, Any]:
        """What is known of a model's own schedule alone."""
        return {} if schedule else {str(seed): value for seed, value in values.items()}

    calls = {seed: result.get("chosen_calls") for seed, result in group.results.items()}
    analyses = group.analyses(decoder)
    # The main results keep one setting, which replaces the one selected before.
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
        "seeds": sorted(of_seed),
        "selected": decoder == group.selected_decoder(),
        **splits,
        "invalid_sentences": by_seed(group.invalid_rates(decoder)),
        "calibration_error": by_seed({seed: 100 * each["calibration"]["error"] for seed, each in analyses.items()}),
        "wrong_by_rarity": {} if schedule else _wrong_by_rarity(analyses.values()),
        "metrics": _other_metrics(group, decoder, schedule),
        "chosen_calls": by_seed({seed: number for seed, number in calls.items() if number is not None}),
        "diverged_seeds": list(group.diverged),
        "configs": _one_of(os.path.dirname(result["configuration"].split()[0]) for result in results),
        "config": _one_of(result["configuration"] for result in results),
        "parameters": _one_of(result["parameters"] for result in results),
        "seconds": statistics.fmean(result["seconds"] for result in results),
        "sentences_per_second": _mean(result.get("sentences_per_second") for result in results),
        "command": _one_of(result["command"] for result in results),
        "commit": _one_of(result["commit"] for result in results),
        "hardware": _one_of(result["hardware"] for result in results),
        "versions": results[-1]["versions"],
        "date": max(result["date"] for result in results),
    }


def _other_metrics(group: Group, decoder: str, schedule: str | None) -> dict[str, dict[str, Any]]:
    """Mean and deviation of every metric on both splits."""
    names = dict.fromkeys(
        name
        for result in group.results.values()
        for scores in (
            result["decoders"],
            result.get("compared", {}).get("dev", {}),
            result.get("schedules", {}).get(schedule, {}).get("dev", {}),
        )
        for name in scores.get(decoder, {})
    )
    found: dict[str, dict[str, Any]] = {}
    for name in names:
        entry: dict[str, Any] = {}
        for split in ("dev", "test"):
            summary = group.summary(split, decoder, name, schedule=schedule)
            if summary is not None:
                entry |= {f"{split}_mean": summary.mean, f"{split}_sd": summary.deviation}
        found[name] = entry
    return found


def _mean(values: Iterable[float | None]) -> float | None:
    found = [value for value in values if value is not None]
    return statistics.fmean(found) if found else None


def _one_of(values: Any) -> Any:
    """The value that all runs have in common, or their different values joined."""
    unique = list(dict.fromkeys(values))
    return unique[0] if len(unique) == 1 else "; ".join(str(value) for value in unique)


def save_rows(path: StrPath, outcomes: Outcomes, *, experiment: str) -> int:
    """Merge the rows of ``outcomes`` into a result file; returns how many there were."""
    rows = record_rows(outcomes, experiment=experiment)
    # Sweeps of our recipe and of the paper's settings share a file.
    write_rows(
        path, rows, replace_by=EXPERIMENT_ROW_KEY if experiment in _OF_ONE_RECIPE else (*EXPERIMENT_ROW_KEY, "configs")
    )
    return len(rows)


def _wrong_by_rarity(analyses: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Wrong labels on dev in per cent, by how often a form was seen in training; the mean over seeds."""
    found: dict[str, list[float]] = {}
    for analysis in analyses:
        for row in analysis["rarity"]:
            found.setdefault(row["name"], []).append(100 - row["accuracy"])
    return {name: statistics.fmean(values) for name, values in found.items()}


README_CORPORA = {
    "en-ewt": "EN-EWT POS accuracy",
    "fr-gsd": "FR-GSD POS accuracy",
    "conll2003": "CoNLL-2003 NER F1",
    "zh-gsdsimp": "ZH-GSDSimp joint F1",
}
"""with their titles, in the order of columns"""


class ResultColumn(NamedTuple):
    """What a column shows."""

    corpus: str
    encoder: str


def results_table(rows: Sequence[Mapping[str, Any]], *, kind: str, source: StrPath) -> str:
    """Test scores with encoders of a kind, scratch or pretrained, the paper's beside them, and a sentence on where they come from."""
    main = [row for row in rows if row["experiment"] == "main"]
    chosen = {
        (row["system"], ResultColumn(row["corpus"], row["encoder"])): row
        for row in main
        if row.get("selected") and kind_of_encoder(row["encoder"]) == kind
    }
    if not chosen:
        return "No runs on real corpora are recorded yet."
    if kind == "scratch":
        columns = {ResultColumn(corpus, "scratch"): title for corpus, title in README_CORPORA.items()}
        about, paper = "with encoders trained from scratch", "the paper's scores"
    else:
        found = dict.fromkeys(place for _, place in chosen)
        columns = {
            place: f"{title}, {place.encoder}"
            for corpus, title in README_CORPORA.items()
            for place in found
            if place.corpus == corpus
        }
        theirs = ", ".join(dict.fromkeys(str(paper_encoder(place.corpus)) for place in columns))
        about = "with the pretrained encoders named above"
        paper = f"the paper's scores with its own encoders ({theirs})"
    table_rows: list[tuple[tuple[str, ...], list[Cell | None]]] = []
    for system in SYSTEMS:
        cells: list[Cell | None] = []
        for place in columns:
            published = paper_score(place.corpus, system, place.encoder, primary_metric(place.corpus))
            paper_value = None if published is None else PaperValue(published.mean)
            cells.append(Cell(summary=_summary(chosen.get((system, place))), paper=paper_value))
        table_rows.append(((system_title(system),), cells))
    table = Table(title="", headings=("test",), columns=list(columns.values()), rows=table_rows)
    counts = sorted({len(row["seeds"]) for row in chosen.values()})
    hardware = ", ".join(dict.fromkeys(str(row["hardware"]).split(";")[0] for row in chosen.values()))
    seeds = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    is_single = counts == [1]
    shown = "One run each, too few to compare systems" if is_single else f"Mean ± sample deviation over {seeds} seeds"
    has_choice = len({(row["system"], row["corpus"], row["encoder"]) for row in main}) < len(main)
    selected = ". Where a system has several decoders, dev selects one" if has_choice else ""
    note = (
        f"{shown}, {about}{selected}. In small type: {paper}. "
        f"Measured on {hardware}; `{os.fspath(source)}` has every row with its configuration."
    )
    return f"{markdown([table.with_best()])}\n{note}"


def _summary(row: Mapping[str, Any] | None) -> Summary | None:
    if row is None or row.get("test_mean") is None:
        return None
    return Summary(row["test_mean"], row.get("test_sd"), tuple(row["seeds"]))


_KIND_OF_TABLE = {"results": "scratch", "pretrained": "pretrained"}
"""the kind of encoders, and of the result file, of every table by the name in its markers"""


def marks(name: str) -> tuple[str, str]:
    """The marker lines before and after a table."""
    return f"<!-- {name}: begin (written by dmf experiment readme) -->", f"<!-- {name}: end -->"


def update_readme(path: StrPath, folder: StrPath = "results") -> list[str]:
    """Write the tables of the result files in ``folder`` into a Markdown file; returns the names of those written.

    A table is left out if the file has no markers for it; one must be there.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        raise InputError("cannot be read", path=path, remedy="give a Markdown file") from None
    written = []
    for name, kind in _KIND_OF_TABLE.items():
        begin, end = marks(name)
        if begin not in text:
            continue
        if text.count(begin) != 1 or text.count(end) != 1 or text.index(begin) > text.index(end):
            raise InputError(f"the markers of {name} are incomplete", path=path, remedy=f"write {begin} and {end}")
        file = Path(folder, f"{kind}.json")
        table = results_table(read_rows(file), kind=kind, source=file).strip()
        text = f"{text[: text.index(begin)]}{begin}\n\n{table}\n\n{text[text.index(end) :]}"
        written.append(name)
    if not written:
        begin, end = marks("results")
        raise InputError("the markers of tables are missing", path=path, remedy=f"add the lines {begin} and {end}")
    with open_output(path) as stream:
        stream.write(text.encode())
    return written
