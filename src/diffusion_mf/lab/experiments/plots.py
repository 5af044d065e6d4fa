"""Plots of finished runs: learning curves, sweeps, calibration, and the errors of each system."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diffusion_mf.config.sections import SIZES
from diffusion_mf.data.files import make_folder, open_output
from diffusion_mf.errors import InputError
from diffusion_mf.lab.experiments.comparisons import groups_by_setting
from diffusion_mf.lab.experiments.folders import ExperimentFolder
from diffusion_mf.lab.experiments.paper import paper_score
from diffusion_mf.lab.experiments.plan import DEFAULT
from diffusion_mf.lab.experiments.selection import Group, Outcomes, summarise
from diffusion_mf.lab.experiments.tables import short_title, system_title
from diffusion_mf.systems import SYSTEMS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


# Okabe and Ito's palette, which colour-blind readers can distinguish too. One colour per system, the same in all plots.
_COLOURS = dict(
    zip(SYSTEMS, ("#999999", "#56B4E9", "#0072B2", "#F0E442", "#D55E00", "#CC79A7", "#009E73"), strict=False)
)

FEWEST_LABELS = 20
FEWEST_SENTENCES = 5
"""groups with fewer are too small to be drawn"""
PAPER_SETTINGS = "paper.json"
"""the result file of plans with the paper's settings, beside whose scores the paper's are drawn"""
LEAST_RANGE = 0.5
"""minimum range of a score axis, in points"""

Draw = Callable[["Axes", Outcomes, str], bool]
"""draws a corpus; False if there is nothing to draw"""


def write_plots(
    outcomes: Outcomes, folder: ExperimentFolder, output: Path, record: Mapping[str, Any], *, suffix: str = "png"
) -> list[Path]:
    """Make every plot for which there are data, one panel per corpus; returns the files."""
    logs = read_logs(folder, record)
    plots: dict[str, Draw] = {
        "learning-curves": lambda axes, found, corpus: draw_learning_curves(axes, logs, found, corpus),
        "calls": _by_schedule("calls=", "denoiser calls"),
        "base": _by_schedule("base=", "base of the reverse schedule"),
        "depth": _by_variant("denoiser.layers", "denoiser layers"),
        "size": _by_variant("size", "size", labels=[str(size) for size in SIZES]),
        "iterations": _by_variant("structure.num_iterations", "Mean-Field iterations"),
        "calibration": _calibration,
        "errors-by-length": _errors("lengths", "units in the sentence"),
        "errors-by-rarity": _errors("rarity", "occurrences of the form in training"),
        "errors-by-ambiguity": _errors("ambiguity", "distance to the nearest other ambiguous form"),
        "invalid-spans": _invalid_spans,
        "variants": functools.partial(draw_variants, has_paper=Path(record.get("record") or "").name == PAPER_SETTINGS),
        "exact-match": draw_exact_match,
    }
    encoders = outcomes.values("encoder")
    parts = {encoder: outcomes.only(encoder=encoder) for encoder in encoders}
    written = []
    for name, draw in plots.items():
        panels = {
            short_title(corpus) + (f", {encoder}" if len(encoders) > 1 else ""): functools.partial(
                _draw_if_finished, draw, parts[encoder], corpus
            )
            for corpus in outcomes.values("corpus")
            for encoder in encoders
        }
        path = output / f"{name}.{suffix}"
        if write_panels(path, panels):
            written.append(path)
    return written


def _draw_if_finished(draw: Draw, outcomes: Outcomes, corpus: str, axes: Axes) -> bool:
    return bool(outcomes.only(corpus=corpus).groups) and draw(axes, outcomes, corpus)


def write_panels(path: Path, panels: Mapping[str, Callable[[Axes], bool]]) -> bool:
    """Draw panels side by side, by title, with one legend; whether there was anything to draw."""
    figure = new_figure()
    for title, draw in panels.items():
        axes = figure.add_subplot()
        if not draw(axes):
            axes.remove()
            continue
        axes.set_title(title)
        axes.spines[["top", "right"]].set_visible(False)
    drawn = figure.axes
    if not drawn:
        return False
    grid = figure.add_gridspec(1, len(drawn))
    for place, axes in enumerate(drawn):
        axes.set_subplotspec(grid[place])
    figure.set_size_inches(4.6 * len(drawn), 3.8)
    entries = {label: handle for axes in drawn for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    titles = [system_title(system) for system in SYSTEMS]
    # Systems of plugins that are not imported, and peers, come last.
    ordered = sorted(entries, key=lambda title: titles.index(title) if title in titles else len(titles))
    # Three names are as wide as a panel.
    columns = min(len(ordered), 3 * len(drawn))
    figure.legend(
        [entries[label] for label in ordered], ordered, loc="outside lower center", ncols=columns, frameon=False
    )
    save_figure(figure, path)
    return True


def new_figure() -> Figure:
    """An empty figure; `InputError` without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise InputError("plots need matplotlib", remedy="pip install 'diffusion-mf[experiments]'") from None
    return Figure(layout="constrained")


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure, without the version of the software: the same data give the same file."""
    make_folder(path.parent)
    with open_output(path) as stream:
        metadata = {"Software": None} if path.suffix == ".png" else None
        figure.savefig(stream, format=path.suffix[1:] or "png", dpi=150, metadata=metadata)


def _label_scores(axes: Axes, outcomes: Outcomes, corpus: str) -> None:
    """Label the axis with the metric, and its ticks with full numbers rather than offsets, which are hard to read."""
    metric = outcomes.only(corpus=corpus).groups[0].metric
    axes.set_ylabel(f"dev {'accuracy' if metric == 'accuracy' else short_title(metric)}")
    axes.ticklabel_format(axis="y", useOffset=False)


def _widen(axes: Axes) -> None:
    """Show at least `LEAST_RANGE` points, so that negligible differences do not look large."""
    bottom, top = axes.get_ylim()
    missing = LEAST_RANGE - (top - bottom)
    if missing > 0:
        axes.set_ylim(bottom - missing / 2, top + missing / 2)


def system_colour(system: str) -> str:
    """The system's colour in all plots."""
    return _COLOURS.get(system, "#000000")


def read_logs(
    folder: ExperimentFolder, record: Mapping[str, Any]
) -> list[tuple[Mapping[str, Any], list[dict[str, Any]]]]:
    """The dev evaluations of every run, finished or not."""
    found = []
    for run in record["runs"]:
        try:
            lines = folder.run(run["name"]).log.read_text(encoding="utf-8").splitlines()
        except OSError:
            continue
        entries = [json.loads(line) for line in lines if '"evaluation"' in line and line.endswith("}")]
        found.append((run, entries))
    return found


def draw_learning_curves(
    axes: Axes,
    logs: Sequence[tuple[Mapping[str, Any], list[dict[str, Any]]]],
    outcomes: Outcomes,
    corpus: str,
) -> bool:
    """The mean dev score of selected settings after every epoch that all finished seeds reached, with a thin line per seed.

    The y axis leaves out the low scores of the first epochs, which would compress the rest.
    """
    is_drawn = False
    starts = []
    # For a system without finished runs, show all runs.
    planned = {group.system: group for group in reversed(outcomes.only(corpus=corpus).all_groups)}
    for system, group in (planned | _selected(outcomes, corpus)).items():
        wanted = {"corpus": corpus, "system": system, "encoder": group.encoder, "variant": group.variant}
        curves = {
            int(run["seed"]): {entry["epoch"]: entry["score"] for entry in entries}
            for run, entries in logs
            if entries and all(run[key] == value for key, value in wanted.items())
        }
        for curve in curves.values():
            axes.plot(list(curve), list(curve.values()), color=system_colour(system), alpha=0.35, linewidth=0.7)
        finished = [curve for seed, curve in curves.items() if seed in group.results]
        if not finished and curves:
            axes.plot([], [], color=system_colour(system), label=system_title(system))
        if not finished:
            continue
        epochs = sorted(set.intersection(*(set(curve) for curve in finished)))
        means = [sum(curve[epoch] for curve in finished) / len(finished) for epoch in epochs]
        marker = "o" if len(epochs) == 1 else None
        axes.plot(epochs, means, color=system_colour(system), label=system_title(system), marker=marker)
        starts += means[len(means) // 4 :]
        is_drawn = True
    if starts:
        margin = 0.05 * (max(starts) - min(starts)) or LEAST_RANGE / 2
        axes.set_ylim(min(starts) - margin, max(starts) + margin)
    axes.locator_params(axis="x", integer=True)
    axes.set_xlabel("epoch")
    if is_drawn:
        _label_scores(axes, outcomes, corpus)
    return is_drawn


def _selected(outcomes: Outcomes, corpus: str) -> dict[str, Group]:
    """The selected group of every system; ``outcomes`` are those of one encoder."""
    found = {system: outcomes.selected(corpus=corpus, system=system) for system in outcomes.values("system")}
    return {system: group for system, group in found.items() if group is not None}


Points = Iterable[tuple[float, dict[int, float]]]
"""positions on the x axis, each with its scores by seed"""


def _sweep(title: str, points_of: Callable[[Outcomes, str, str], Points], *, labels: Sequence[str] = ()) -> Draw:
    """A function that draws a line of means and sample deviations per system, from the points that ``points_of`` gives."""

    def draw(axes: Axes, outcomes: Outcomes, corpus: str) -> bool:
        ticks: set[float] = set()
        for system in outcomes.values("system"):
            points = sorted(points_of(outcomes, corpus, system), key=lambda point: point[0])
            summaries = {place: summary for place, scores in points if (summary := summarise(scores)) is not None}
            if summaries:
                axes.errorbar(
                    list(summaries),
                    [summary.mean for summary in summaries.values()],
                    yerr=[summary.deviation or 0.0 for summary in summaries.values()],
                    color=system_colour(system),
                    marker="o",
                    markersize=4,
                    capsize=2,
                    label=system_title(system),
                )
            ticks |= set(summaries)
        places = range(len(labels)) if labels else sorted(ticks)
        axes.set_xticks(places, labels or [f"{tick:g}" for tick in places])
        axes.set_xlabel(title)
        _label_scores(axes, outcomes, corpus)
        _widen(axes)
        return bool(ticks)

    return draw


def _by_schedule(prefix: str, title: str) -> Draw:
    def points(outcomes: Outcomes, corpus: str, system: str) -> Points:
        group = _selected(outcomes, corpus).get(system)
        if group is None:
            return
        decoder = group.ablation_decoder() if prefix == "calls=" else group.selected_decoder()
        for name in group.schedules(prefix):
            yield float(name.removeprefix(prefix)), group.scores("dev", decoder, schedule=name)

    return _sweep(title, points)


def _by_variant(key: str, title: str, *, labels: Sequence[str] = ()) -> Draw:
    def points(outcomes: Outcomes, corpus: str, system: str) -> Points:
        for setting, group in groups_by_setting(outcomes.only(corpus=corpus, system=system), key).items():
            place = labels.index(setting) if labels else float(setting)
            yield place, group.scores("dev", group.selected_decoder())

    return _sweep(title, points, labels=labels)


def _analyses(group: Group) -> list[dict[str, Any]]:
    return [result["analysis"] for result in group.results.values() if result.get("analysis")]


def _calibration(axes: Axes, outcomes: Outcomes, corpus: str) -> bool:
    """The share of correct labels by score, over all seeds; the diagonal is perfect calibration."""
    is_drawn = False
    for system, group in _selected(outcomes, corpus).items():
        points = calibration_points(_analyses(group))
        if points:
            is_drawn = True
            axes.plot(
                *zip(*points, strict=True),
                marker="o",
                markersize=4,
                color=system_colour(system),
                label=system_title(system),
            )
    axes.plot([0, 1], [0, 1], color="black", linewidth=0.7, linestyle=":")
    axes.set_xlabel("score of the predicted label")
    axes.set_ylabel("share of correct labels, dev")
    return is_drawn


def calibration_points(analyses: Sequence[Mapping[str, Any]]) -> list[tuple[float, float]]:
    """Mean score and share of correct labels in every bin with enough labels, over all seeds."""
    import pandas

    rows = [each for analysis in analyses for each in analysis["calibration"]["bins"]]
    bins = pandas.DataFrame(rows, columns=["size", "score", "accuracy"])
    place = (10 * bins["score"]).astype(int).clip(upper=9)
    sizes = bins["size"].groupby(place).sum()
    means = bins[["score", "accuracy"]].mul(bins["size"], axis=0).groupby(place).sum().div(sizes, axis=0)
    return list(means[sizes >= FEWEST_LABELS].itertuples(index=False, name=None))


def error_rates(analyses: Sequence[Mapping[str, Any]], key: str) -> dict[str, float]:
    """The mean percentage of wrong labels over seeds, in every group that is large enough."""
    import pandas

    found = [row for analysis in analyses for row in analysis[key]]
    rows = pandas.DataFrame(found, columns=["name", "size", "accuracy"])
    # Groups by length count sentences.
    rows = rows[rows["size"] >= (FEWEST_SENTENCES if key == "lengths" else FEWEST_LABELS)]
    return (100 - rows["accuracy"]).groupby(rows["name"], sort=False).mean().to_dict()


def _errors(key: str, title: str) -> Draw:
    def draw(axes: Axes, outcomes: Outcomes, corpus: str) -> bool:
        systems = {
            system: error_rates(_analyses(group), key)
            for system, group in _selected(outcomes, corpus).items()
            if _analyses(group)
        }
        order = list(dict.fromkeys(name for rates in systems.values() for name in rates))
        width = 0.8 / max(1, len(systems))
        for place, (system, rates) in enumerate(systems.items()):
            heights = [rates.get(name, 0.0) for name in order]
            places = [index + (place - (len(systems) - 1) / 2) * width for index in range(len(order))]
            axes.bar(places, heights, width, color=system_colour(system), label=system_title(system))
        axes.set_xticks(range(len(order)), order)
        axes.set_xlabel(title)
        axes.set_ylabel("wrong labels, dev, %")
        return bool(order)

    return draw


def _invalid_spans(axes: Axes, outcomes: Outcomes, corpus: str) -> bool:
    """Sentences whose argmax labels are not a legal sequence; systems without the argmax decoder are left out.

    With each run's own decoder, the bars would only show how many runs selected argmax.
    """
    found = {}
    for system, group in _selected(outcomes, corpus).items():
        decoder = "argmax" if "argmax" in group.decoders else group.decoders[0]
        rates = group.invalid_rates(decoder).values()
        if rates:
            found[system] = sum(rates) / len(rates)
    for place, (system, rate) in enumerate(found.items()):
        axes.bar(place, rate, color=system_colour(system), label=system_title(system))
    axes.set_xticks([])
    axes.set_ylabel("invalid sentences, argmax, dev, %")
    return any(found.values())


def draw_variants(axes: Axes, outcomes: Outcomes, corpus: str, *, has_paper: bool) -> bool:
    """The test score of every system with every named variant, from top to bottom; variants of a grid have plots of their own."""
    found = outcomes.only(corpus=corpus)
    groups = [
        group
        for system in found.values("system")
        for group in found.only(system=system).groups
        if group.variant != DEFAULT and "=" not in group.variant
    ]
    if len({group.variant for group in groups}) < 2:
        return False
    for place, group in enumerate(groups):
        summary = group.summary("test", group.selected_decoder())
        if summary is not None:
            axes.errorbar(
                summary.mean,
                place,
                xerr=summary.deviation or 0.0,
                color=system_colour(group.system),
                marker="o",
                markersize=5,
                capsize=2,
                label=system_title(group.system),
            )
        published = paper_score(corpus, group.system, group.encoder, group.metric) if has_paper else None
        if published is not None:
            axes.plot(published.mean, place, "D", label="paper", markersize=4, color="black", fillstyle="none")
    names = [f"{system_title(group.system)}, {group.variant}" for group in groups]
    axes.set_yticks(range(len(groups)), names, fontsize=7)
    axes.invert_yaxis()
    axes.grid(axis="y", linewidth=0.3)
    axes.set_xlabel("test score")
    return True


def draw_exact_match(axes: Axes, outcomes: Outcomes, corpus: str) -> bool:
    """Dev sentences without any error by the number of calls, with every decoder; of several readings, with the product."""
    ticks: set[float] = set()
    for system, group in _selected(outcomes, corpus).items():
        names = group.schedules("calls=") or group.schedules("posterior=product calls=")
        for decoder, style in zip(group.decoders, ("-", "--"), strict=False):
            summaries = {
                float(name.rpartition("=")[2]): summary.mean
                for name in names
                if (summary := group.summary("dev", decoder, "exact_match", schedule=name)) is not None
            }
            if summaries:
                title = f"{system_title(system)}, {decoder}"
                calls, means = zip(*sorted(summaries.items()), strict=True)
                axes.plot(calls, means, style, color=system_colour(system), marker="o", label=title)
            ticks |= set(summaries)
    axes.set_xscale("log")
    axes.set_xticks(sorted(ticks), [f"{tick:g}" for tick in sorted(ticks)])
    axes.minorticks_off()
    axes.set_xlabel("denoiser calls")
    axes.set_ylabel("sentences without any error, dev, %")
    _widen(axes)
    return bool(ticks)
