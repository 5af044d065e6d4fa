"""Plots of finished runs: learning curves, sweeps, calibration, and where each system errs."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diffusion_mf.errors import InputError
from diffusion_mf.experiments.aggregation import summarise
from diffusion_mf.experiments.folders import ExperimentFolder
from diffusion_mf.experiments.selection import Group, Outcomes
from diffusion_mf.experiments.tables.grid import short_title, system_title
from diffusion_mf.experiments.tables.sweeps import setting_of
from diffusion_mf.presets import SIZES
from diffusion_mf.systems import SYSTEMS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's palette: told apart by colour-blind readers, too. One colour per system, the same in all plots.
_COLOURS = dict(
    zip(SYSTEMS, ("#999999", "#56B4E9", "#0072B2", "#F0E442", "#D55E00", "#CC79A7", "#009E73"), strict=False)
)

Draw = Callable[["Axes", Outcomes, str], bool]
"""draws a corpus; False where there is nothing to draw"""


def write_plots(
    outcomes: Outcomes, folder: ExperimentFolder, output: Path, record: Mapping[str, Any], *, suffix: str = "png"
) -> list[Path]:
    """Every plot there are data for, one panel per corpus; returns the files."""
    matplotlib = _matplotlib()
    matplotlib.use("Agg")
    from matplotlib import pyplot

    logs = _logs(folder, record)
    plots: dict[str, Draw] = {
        "learning-curves": lambda axes, found, corpus: _learning_curves(axes, logs, corpus, _selected(found, corpus)),
        "calls": _by_schedule("calls=", "denoiser calls", int),
        "base": _by_schedule("base=", "base of the reverse schedule", float),
        "depth": _by_variant("layers", "denoiser layers", int),
        "size": _by_variant("size", "size", [str(size) for size in SIZES].index, labels=[str(size) for size in SIZES]),
        "iterations": _by_variant("num_iterations", "Mean-Field iterations", int),
        "calibration": _calibration,
        "errors-by-length": _errors("lengths", "units in the sentence"),
        "errors-by-rarity": _errors("rarity", "occurrences of the form in training"),
        "errors-by-ambiguity": _errors("ambiguity", "distance to the nearest other ambiguous form"),
        "invalid-spans": _invalid_spans,
    }
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot be made ({error.strerror})", path=output, remedy="name another folder") from None
    written = []
    for name, draw in plots.items():
        figure = _figure(pyplot, outcomes, draw)
        if figure is not None:
            path = output / f"{name}.{suffix}"
            figure.savefig(path, dpi=150, metadata={"Software": None} if suffix == "png" else None)
            pyplot.close(figure)
            written.append(path)
    return written


def _matplotlib() -> Any:
    try:
        import matplotlib
    except ImportError:
        raise InputError("plots need matplotlib", remedy="pip install 'diffusion-mf[experiments]'") from None
    return matplotlib


def _figure(pyplot: Any, outcomes: Outcomes, draw: Draw) -> Figure | None:
    corpora = outcomes.values("corpus")
    figure, panels = pyplot.subplots(1, len(corpora), figsize=(4.6 * len(corpora), 3.6), squeeze=False)
    drawn = []
    for axes, corpus in zip(panels[0], corpora, strict=True):
        if draw(axes, outcomes, corpus):
            axes.set_title(short_title(corpus))
            axes.spines[["top", "right"]].set_visible(False)
            drawn.append(axes)
        else:
            axes.remove()
    if not drawn:
        pyplot.close(figure)
        return None
    entries = {label: handle for axes in drawn for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    figure.legend(
        entries.values(), entries.keys(), loc="outside lower center", ncols=min(7, len(entries)), frameon=False
    )
    figure.set_layout_engine("constrained")
    return figure


def _colour(system: str) -> str:
    return _COLOURS.get(system, "#000000")


def _logs(folder: ExperimentFolder, record: Mapping[str, Any]) -> list[tuple[Mapping[str, Any], list[dict[str, Any]]]]:
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


def _learning_curves(
    axes: Axes,
    logs: Sequence[tuple[Mapping[str, Any], list[dict[str, Any]]]],
    corpus: str,
    selected: Mapping[str, Group],
) -> bool:
    """The mean dev score after every epoch that all seeds reached, and thin lines for the seeds; selected settings only."""
    by_system: dict[str, list[dict[int, float]]] = {}
    for run, entries in logs:
        group = selected.get(run["system"])
        is_selected = group is None or (run["encoder"], run["variant"]) == (group.encoder, group.variant)
        if run["corpus"] == corpus and is_selected:
            by_system.setdefault(run["system"], []).append({entry["epoch"]: entry["score"] for entry in entries})
    for system, curves in by_system.items():
        for curve in curves:
            axes.plot(list(curve), list(curve.values()), color=_colour(system), alpha=0.25, linewidth=0.7)
        epochs = sorted(set.intersection(*(set(curve) for curve in curves)))
        means = [sum(curve[epoch] for curve in curves) / len(curves) for epoch in epochs]
        axes.plot(epochs, means, color=_colour(system), label=system_title(system))
    axes.set_xlabel("epoch")
    axes.set_ylabel("dev score")
    return any(curve for curves in by_system.values() for curve in curves)


def _selected(outcomes: Outcomes, corpus: str) -> dict[str, Group]:
    """The selected group of every system, of the first encoder that has one."""
    found = {}
    for system in outcomes.values("system"):
        for encoder in outcomes.values("encoder"):
            group = outcomes.selected(corpus, system, encoder)
            if group is not None and system not in found:
                found[system] = group
    return found


def _line(axes: Axes, system: str, points: Sequence[tuple[float, dict[int, float]]]) -> bool:
    """Means with sample deviations over seeds."""
    summaries = [(place, summary) for place, scores in points if (summary := summarise(scores)) is not None]
    if not summaries:
        return False
    axes.errorbar(
        [place for place, _ in summaries],
        [summary.mean for _, summary in summaries],
        yerr=[summary.deviation or 0.0 for _, summary in summaries],
        color=_colour(system),
        marker="o",
        markersize=4,
        capsize=2,
        label=system_title(system),
    )
    return True


def _by_schedule(prefix: str, title: str, number: Callable[[str], float]) -> Draw:
    def draw(axes: Axes, outcomes: Outcomes, corpus: str) -> bool:
        is_drawn = False
        for system, group in _selected(outcomes, corpus).items():
            names = {
                name
                for result in group.results.values()
                for name in result.get("schedules", {})
                if name.startswith(prefix)
            }
            decoder = group.selected_decoder()
            points = sorted((number(name.removeprefix(prefix)), name) for name in names)
            is_drawn |= _line(
                axes, system, [(place, group.scores("dev", decoder, schedule=name)) for place, name in points]
            )
        axes.set_xlabel(title)
        axes.set_ylabel("dev score")
        return is_drawn

    return draw


def _by_variant(key: str, title: str, number: Callable[[str], float], *, labels: Sequence[str] | None = None) -> Draw:
    def draw(axes: Axes, outcomes: Outcomes, corpus: str) -> bool:
        is_drawn = False
        for system in outcomes.values("system"):
            points = [
                (number(setting), group.scores("dev", group.selected_decoder()))
                for group in outcomes.find(corpus=corpus, system=system)
                if (setting := setting_of(group.variant, key)) is not None
            ]
            is_drawn |= _line(axes, system, sorted(points, key=lambda point: point[0]))
        if labels is not None:
            axes.set_xticks(range(len(labels)), labels)
        axes.set_xlabel(title)
        axes.set_ylabel("dev score")
        return is_drawn

    return draw


def _analyses(group: Group) -> list[dict[str, Any]]:
    return [result["analysis"] for result in group.results.values() if result.get("analysis")]


def _calibration(axes: Axes, outcomes: Outcomes, corpus: str) -> bool:
    """The share of right labels against the score, over all seeds; the diagonal would be perfect."""
    is_drawn = False
    for system, group in _selected(outcomes, corpus).items():
        bins: dict[int, list[dict[str, float]]] = {}
        for analysis in _analyses(group):
            for each in analysis["calibration"]["bins"]:
                bins.setdefault(min(9, int(10 * each["score"])), []).append(each)
        points = []
        for members in (bins[index] for index in sorted(bins)):
            size = sum(each["size"] for each in members)
            points.append(
                tuple(sum(each["size"] * each[key] for each in members) / size for key in ("score", "accuracy"))
            )
        if points:
            is_drawn = True
            axes.plot(
                *zip(*points, strict=True), marker="o", markersize=4, color=_colour(system), label=system_title(system)
            )
    axes.plot([0, 1], [0, 1], color="black", linewidth=0.7, linestyle=":")
    axes.set_xlabel("score of the chosen label")
    axes.set_ylabel("share of right labels, dev")
    return is_drawn


def _errors(key: str, title: str) -> Draw:
    def draw(axes: Axes, outcomes: Outcomes, corpus: str) -> bool:
        systems = {system: group for system, group in _selected(outcomes, corpus).items() if _analyses(group)}
        names: dict[str, None] = {}
        for group in systems.values():
            for analysis in _analyses(group):
                names |= dict.fromkeys(row["name"] for row in analysis[key])
        order = list(names)
        width = 0.8 / max(1, len(systems))
        for place, (system, group) in enumerate(systems.items()):
            heights = []
            for name in order:
                rows = [row for analysis in _analyses(group) for row in analysis[key] if row["name"] == name]
                heights.append(sum(100 - row["accuracy"] for row in rows) / len(rows) if rows else 0.0)
            places = [index + (place - (len(systems) - 1) / 2) * width for index in range(len(order))]
            axes.bar(places, heights, width, color=_colour(system), label=system_title(system))
        axes.set_xticks(range(len(order)), order)
        axes.set_xlabel(title)
        axes.set_ylabel("wrong labels, dev, %")
        return bool(order)

    return draw


def _invalid_spans(axes: Axes, outcomes: Outcomes, corpus: str) -> bool:
    """Sentences whose labels, as the selected decoder of the run gives them, are no legal sequence."""
    found = {system: _analyses(group) for system, group in _selected(outcomes, corpus).items()}
    found = {system: analyses for system, analyses in found.items() if analyses}
    for place, (system, analyses) in enumerate(found.items()):
        rate = sum(analysis["invalid_sentences"] for analysis in analyses) / len(analyses)
        axes.bar(place, rate, color=_colour(system), label=system_title(system))
    axes.set_xticks([])
    axes.set_ylabel("sentences with invalid labels, dev, %")
    return any(analysis["invalid_sentences"] for analyses in found.values() for analysis in analyses)
