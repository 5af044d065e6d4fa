"""Results of learning curves over sizes: rows, comparisons with python-crfsuite, a table and a plot."""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy
import pandas

from diffusion_mf.evaluation.mistakes import bootstrap, f1_of_counts
from diffusion_mf.lab.experiments.folders import ExperimentFolder
from diffusion_mf.lab.experiments.plots import system_colour, write_panels
from diffusion_mf.lab.experiments.sizes import ALL, COUNTS_FILE, CRFSUITE
from diffusion_mf.lab.experiments.tables import system_title
from diffusion_mf.systems import SYSTEMS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Row = dict[str, Any]
Counts = numpy.ndarray[Any, Any]
"""correct, predicted and gold objects of every sentence, of shape (sentences, 3)"""

ROW_KEY = ("experiment", "corpus", "size", "system", "seed", "device", "hardware")
PROVENANCE = ("command", "commit", "hardware", "versions", "date")
RESAMPLES = 10_000
SIGNIFICANT = 0.05
LEAST_SIZE = 500
"""the number of training sentences from which significance is tested"""


def read_size_rows(folder: ExperimentFolder, names: Iterable[str]) -> tuple[list[Row], dict[str, Counts]]:
    """Rows of the finished runs among ``names``, small samples first, and the counts of their test sentences by name.

    The folder may have other runs on the same samples, with other settings.
    """
    rows, counts = [], {}
    for name in names:
        place = folder.run(name)
        result = place.result()
        file = place.root / COUNTS_FILE
        if result is None or not file.exists():
            continue
        with numpy.load(file) as stored:
            counts[place.name] = stored["test"].astype(numpy.int64)
        metric = result["metric"]
        rows.append(
            {
                "experiment": "sizes",
                **{key: result[key] for key in ("corpus", "task", "size", "sentences", "system", "seed", "device")},
                "metric": metric,
                "dev": result["dev"][metric],
                "test": result["test"][metric],
                "exact_match": result["test"]["exact_match"],
                **{
                    key: result.get(key)
                    for key in (
                        *("decoder", "best_epoch", "parameters", "seconds", "processor_seconds", "selected_seconds"),
                        *("settings", "name", *PROVENANCE),
                    )
                },
            }
        )
    order = [*SYSTEMS, CRFSUITE]
    rows.sort(
        key=lambda row: (
            row["corpus"],
            math.inf if row["size"] == ALL else row["size"],
            order.index(row["system"]) if row["system"] in order else len(order),
            row["device"],
            row["seed"],
        )
    )
    return rows, counts


def compare(ours: Sequence[Counts], theirs: Sequence[Counts], *, resamples: int = RESAMPLES) -> dict[str, float]:
    """The difference of mean scores over seeds, ours minus theirs, and its bootstrap over the test sentences.

    All seeds of both are resampled together, so that the comparison is paired. ``p_below`` is the share of resamples in which
    ours is not below theirs: the one-sided p-value of “ours is below theirs”. ``low`` and ``high`` are the ends of the 95 % interval.
    """
    number = len(ours[0])
    if any(len(each) != number for each in (*ours, *theirs)):
        raise ValueError("the systems were scored on different test sentences")

    def difference(weights: Counts) -> Counts:
        means = [
            numpy.mean([100 * f1_of_counts(weights @ each) for each in system], axis=0) for system in (ours, theirs)
        ]
        return means[0] - means[1]

    found = bootstrap(difference, number, num_resamples=resamples)
    low, high = numpy.percentile(found, [2.5, 97.5])
    return {
        "difference": round(float(difference(numpy.ones((1, number)))[0]), 3),
        "low": round(float(low), 3),
        "high": round(float(high), 3),
        "p_below": round(float(numpy.mean(found >= 0)), 4),
    }


def significance_rows(rows: Sequence[Row], counts: Mapping[str, Counts], *, resamples: int = RESAMPLES) -> list[Row]:
    """For every corpus, size (from `LEAST_SIZE` training sentences on), system and device: the comparison with python-crfsuite."""
    found = []
    for corpus, size in dict.fromkeys((row["corpus"], row["size"]) for row in rows):
        here = [row for row in rows if (row["corpus"], row["size"]) == (corpus, size)]
        theirs = [row for row in here if row["system"] == CRFSUITE]
        if not theirs or here[0]["sentences"] < LEAST_SIZE:
            continue
        for system, device in dict.fromkeys((row["system"], row["device"]) for row in here if row not in theirs):
            ours = [row for row in here if (row["system"], row["device"]) == (system, device)]
            paired = theirs
            if size != ALL:
                # Only seeds that both have, since these were trained on the same samples.
                seeds = {row["seed"] for row in ours} & {row["seed"] for row in theirs}
                ours, paired = ([row for row in each if row["seed"] in seeds] for each in (ours, theirs))
                if not seeds:
                    continue
            compared = compare(
                [counts[row["name"]] for row in ours], [counts[row["name"]] for row in paired], resamples=resamples
            )
            found.append(
                {
                    "experiment": "significance",
                    **{
                        key: ours[0][key]
                        for key in ("corpus", "task", "size", "sentences", "system", "device", "metric")
                    },
                    "seeds": [row["seed"] for row in ours],
                    "test": round(statistics.fmean(row["test"] for row in ours), 3),
                    "crfsuite_test": round(statistics.fmean(row["test"] for row in paired), 3),
                    **compared,
                    "is_below": compared["p_below"] < SIGNIFICANT,
                    "resamples": resamples,
                    **{key: ours[-1][key] for key in PROVENANCE},
                }
            )
    return found


def summary_rows(rows: Sequence[Row]) -> list[Row]:
    """Means over seeds for every corpus, size, system and device."""
    groups = pandas.DataFrame(rows).groupby(["corpus", "size", "system", "device"], sort=False)
    means = groups.agg(
        sentences=("sentences", "first"),
        metric=("metric", "first"),
        **{key: (key, "mean") for key in ("dev", "test", "exact_match", "seconds")},
        test_sd=("test", "std"),
        seeds=("seed", list),
    ).reset_index()
    # A single run has no deviation.
    return means.astype(object).where(means.notna(), None).to_dict("records")


def write_size_plot(rows: Iterable[Row], path: Path) -> None:
    """Test scores against training sentences, one panel per corpus with several sizes."""
    means = summary_rows(list(rows))
    by_corpus: dict[str, list[Row]] = {}
    for row in means:
        by_corpus.setdefault(row["corpus"], []).append(row)
    several = {corpus: here for corpus, here in by_corpus.items() if len({row["size"] for row in here}) > 1}
    write_panels(path, {corpus: functools.partial(_draw, here) for corpus, here in (several or by_corpus).items()})


def _draw(rows: Sequence[Row], axes: Axes) -> bool:
    for system, device in dict.fromkeys((row["system"], row["device"]) for row in rows):
        line = [row for row in rows if (row["system"], row["device"]) == (system, device)]
        is_peer = system == CRFSUITE
        axes.errorbar(
            [row["sentences"] for row in line],
            [row["test"] for row in line],
            yerr=[row["test_sd"] or 0 for row in line],
            color="#000000" if is_peer else system_colour(system),
            linestyle=":" if is_peer else "--" if device == "cpu" else "-",
            marker="o",
            markersize=3,
            linewidth=1.4,
            capsize=2,
            label=CRFSUITE if is_peer else system_title(system) + (", one core" if device == "cpu" else ""),
        )
    axes.set_xscale("log")
    sizes = sorted({row["sentences"] for row in rows})
    axes.set_xticks(sizes, [f"{size:,}" for size in sizes], rotation=45)
    axes.minorticks_off()
    axes.set_xlabel("training sentences")
    axes.set_ylabel(f"test {rows[0]['metric'].replace('_', ' ')}")
    return True
