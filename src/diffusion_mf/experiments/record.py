"""Rows for result files."""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from diffusion_mf.experiments.plan import DEFAULT
from diffusion_mf.experiments.selection import Group, Outcomes
from diffusion_mf.files import StrPath
from diffusion_mf.results import write_rows

ROW_KEY = ("experiment", "corpus", "system", "encoder", "decoder", "metric", "setting")
"""rows with the same values of these replace each other"""

# They have a file for each recipe; sweeps have one for all.
_OF_ONE_RECIPE = ("main", "denoiser", "ner", "seg-pos", "calls", "objective")

# Tables of which the settings selected on dev are the only ones.
_SELECTED = ("main", "denoiser", "ner", "seg-pos", "calls", "base", "readings")


def record_rows(outcomes: Outcomes, *, experiment: str) -> list[dict[str, Any]]:
    """A row per group and decoder, and per schedule that was asked for; see `docs/experiments.md` for the fields.

    For the main results, of the settings tried only the one selected on dev gives rows.
    """
    groups = outcomes.groups
    if experiment in _SELECTED:
        places = dict.fromkeys((group.corpus, group.system, group.encoder) for group in groups)
        groups = [group for place in places if (group := outcomes.selected(*place)) is not None]
    prefix = {"calls": "calls=", "base": "base=", "readings": "posterior="}.get(experiment)
    rows = []
    for group in groups:
        schedules: Sequence[str | None] = [None]
        if prefix is not None and (experiment != "base" or group.is_diffusion):
            schedules = sorted(
                {n for result in group.results.values() for n in result.get("schedules", {}) if n.startswith(prefix)}
            )
        for schedule in schedules:
            others = () if schedule else group.compared
            rows += [_row(group, decoder, schedule, experiment) for decoder in (*group.decoders, *others)]
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
        "invalid_sentences": {}
        if schedule
        else {str(seed): rate for seed, rate in group.invalid_rates(decoder).items()},
        "calibration_error": {} if schedule else _calibration_errors(group, decoder),
        "wrong_by_rarity": {} if schedule else _wrong_by_rarity(group, decoder),
        "metrics": _other_metrics(group, decoder, schedule),
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
    """What all runs have in common, or all that they have, joined."""
    unique = list(dict.fromkeys(values))
    return unique[0] if len(unique) == 1 else "; ".join(str(value) for value in unique)


def save_rows(path: StrPath, outcomes: Outcomes, *, experiment: str) -> int:
    """Merge the rows of ``outcomes`` into a result file; returns how many there were."""
    rows = record_rows(outcomes, experiment=experiment)
    # Sweeps of our recipe and of the paper's settings share a file.
    write_rows(path, rows, replace_by=ROW_KEY if experiment in _OF_ONE_RECIPE else (*ROW_KEY, "configs"))
    return len(rows)


def _calibration_errors(group: Group, decoder: str) -> dict[str, float]:
    """Expected calibration error of the scores on dev, in per cent, by seed."""
    return {str(seed): 100 * analysis["calibration"]["error"] for seed, analysis in group.analyses(decoder).items()}


def _wrong_by_rarity(group: Group, decoder: str) -> dict[str, float]:
    """Wrong labels on dev in per cent, by how often a form was seen in training; the mean over seeds."""
    found: dict[str, list[float]] = {}
    for analysis in group.analyses(decoder).values():
        for row in analysis["rarity"]:
            found.setdefault(row["name"], []).append(100 - row["accuracy"])
    return {name: statistics.fmean(values) for name, values in found.items()}
