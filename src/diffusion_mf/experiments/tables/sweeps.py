"""Sweeps on English EWT: model size, denoiser depth, Mean-Field iterations, base of the reverse schedule."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from diffusion_mf.experiments.aggregation import Summary, summarise
from diffusion_mf.experiments.paper import PaperValue, kind_of_encoder, paper_relative_throughput, paper_sweep
from diffusion_mf.experiments.selection import Group, Outcomes, best_group
from diffusion_mf.experiments.tables.grid import (
    PAPER_NOTE,
    Cell,
    Row,
    Table,
    score_cell,
    seed_notes,
    short_title,
    system_title,
)
from diffusion_mf.presets import SIZES

PaperLookup = Callable[[str, str, str], PaperValue | None]
"""system, setting, encoder → the paper's value"""


def setting_of(variant: str, key: str) -> str | None:
    """The value of ``key`` in a variant that a plan's grid made, which names it in full only where it has to.

    >>> setting_of("width=8 layers=4", "denoiser.layers"), setting_of("full", "denoiser.layers")
    ('4', None)
    >>> setting_of("encoder.layers=2 denoiser.layers=4", "denoiser.layers")
    '4'
    """
    found = dict(part.split("=", 1) for part in variant.split() if "=" in part)
    return found.get(key, found.get(key.rpartition(".")[2]))


def scaling_tables(outcomes: Outcomes) -> list[Table]:
    """Dev scores by size; the plan's grid varies ``size``."""
    return _variant_tables(
        outcomes,
        "size",
        lambda system, setting, encoder: paper_sweep("scaling", system, setting, encoder=encoder),
        title="Model size",
        order=[str(size) for size in SIZES].index,
    )


def depth_tables(outcomes: Outcomes) -> list[Table]:
    """Dev scores by depth; the plan's grid varies ``denoiser.layers``."""
    return _variant_tables(
        outcomes,
        "denoiser.layers",
        lambda system, setting, encoder: paper_sweep("depth", system, setting) if encoder == "scratch" else None,
        title="Denoiser layers",
        order=int,
    )


def iterations_tables(outcomes: Outcomes) -> list[Table]:
    """Dev scores by Mean-Field iterations, and training speed relative to one; the grid varies ``num_iterations``."""
    key = "structure.num_iterations"
    tables = _variant_tables(outcomes, key, lambda *_: None, title="Mean-Field iterations", order=int)
    for corpus in outcomes.values("corpus"):
        settings = _settings(outcomes.find(corpus=corpus), key, int)
        if not settings:
            continue
        rows = []
        for system in outcomes.values("system"):
            for encoder in outcomes.values("encoder"):
                groups = groups_by_setting(outcomes.find(corpus=corpus, system=system, encoder=encoder), key)
                base = groups.get("1")
                cells: list[Cell | None] = []
                for setting in settings:
                    summary = _relative_speed(groups.get(setting), base)
                    paper = paper_relative_throughput(system, setting) if corpus == "en-ewt" else None
                    about = {"corpus": corpus, "system": system, "encoder": encoder, "setting": setting}
                    cells.append(Cell(summary=summary, paper=paper, digits=1, about={**about, "metric": "speed"}))
                rows.append(Row(heading=(system_title(system), encoder), cells=cells))
        note = "From the runs' own logs: rough where runs shared a GPU; dmf benchmark mean-field measures it alone."
        tables.append(
            Table(
                title=f"Training speed by Mean-Field iterations, {short_title(corpus)}, % of one iteration's",
                headings=("Model", "Encoder"),
                columns=settings,
                rows=rows,
                notes=[PAPER_NOTE, note],
            )
        )
    return tables


def base_tables(outcomes: Outcomes) -> list[Table]:
    """Dev scores by the base of the reverse schedule, on one checkpoint per seed; direct systems have none."""
    tables = []
    for corpus in outcomes.values("corpus"):
        names = sorted(
            {
                name.removeprefix("base=")
                for group in outcomes.find(corpus=corpus)
                for result in group.results.values()
                for name in result.get("schedules", {})
                if name.startswith("base=")
            },
            key=float,
        )
        if not names:
            continue
        rows = []
        for system in outcomes.values("system"):
            for encoder in outcomes.values("encoder"):
                group = outcomes.selected(corpus, system, encoder)
                if group is None:
                    continue
                # The paper's models have a pretrained encoder: beside others their scores would mislead.
                has_paper = corpus == "en-ewt" and kind_of_encoder(encoder) == "pretrained"
                cells: list[Cell | None] = []
                for name in ["-", *names]:
                    if (name == "-") == group.is_diffusion:
                        cells.append(None)
                        continue
                    cells.append(
                        score_cell(
                            group,
                            "dev",
                            group.selected_decoder(),
                            group.metric,
                            schedule=None if name == "-" else f"base={name}",
                            paper=paper_sweep("base", system, name) if has_paper else None,
                            about={"corpus": corpus, "system": system, "encoder": encoder, "setting": name},
                        )
                    )
                rows.append(Row(heading=(system_title(system), encoder), cells=cells))
        note = "Denoisers have one layer and one Mean-Field iteration, as in the paper, whose encoder is roberta-large."
        tables.append(
            Table(
                title=f"Base of the reverse schedule, dev, {short_title(corpus)}",
                headings=("Model", "Encoder"),
                columns=["direct", *(f"b = {name}" for name in names)],
                rows=rows,
                notes=[PAPER_NOTE, note, *seed_notes(outcomes.planned(corpus=corpus))],
            )
        )
    return tables


def groups_by_setting(groups: Sequence[Group], key: str) -> dict[str, Group]:
    """Of the groups that share a setting and differ in others, the one selected by dev."""
    found: dict[str, list[Group]] = {}
    for group in groups:
        setting = setting_of(group.variant, key)
        if setting is not None:
            found.setdefault(setting, []).append(group)
    return {setting: best for setting, members in found.items() if (best := best_group(members)) is not None}


def _settings(groups: Sequence[Group], key: str, order: Callable[[str], int]) -> list[str]:
    return sorted(groups_by_setting(groups, key), key=order)


def _variant_tables(
    outcomes: Outcomes, key: str, paper: PaperLookup, *, title: str, order: Callable[[str], int]
) -> list[Table]:
    tables = []
    for corpus in outcomes.values("corpus"):
        settings = _settings(outcomes.find(corpus=corpus), key, order)
        if not settings:
            continue
        notes = [PAPER_NOTE, *seed_notes(outcomes.planned(corpus=corpus))]
        for is_exact in (False, True):
            rows = []
            for encoder in outcomes.values("encoder"):
                for place, system in enumerate(outcomes.values("system")):
                    groups = groups_by_setting(outcomes.find(corpus=corpus, system=system, encoder=encoder), key)
                    cells: list[Cell | None] = []
                    for setting in settings:
                        group = groups.get(setting)
                        value = paper(system, setting, encoder) if corpus == "en-ewt" and not is_exact else None
                        about = {"corpus": corpus, "system": system, "encoder": encoder, "setting": setting}
                        decoder = "" if group is None else group.selected_decoder()
                        metric = "exact_match" if is_exact else "" if group is None else group.metric
                        cells.append(score_cell(group, "dev", decoder, metric, paper=value, about=about))
                    rows.append(Row(heading=(system_title(system), encoder), cells=cells, starts_block=place == 0))
            what = ": sentences without any error (exact match)" if is_exact else ""
            table = Table(
                title=f"{title}, dev, {short_title(corpus)}{what}",
                headings=("Model", "Encoder"),
                columns=settings,
                rows=rows,
                notes=notes,
            )
            if not is_exact or any(cell.mean is not None for cell in table.cells()):
                tables.append(table.with_best())
    return tables


def _relative_speed(group: Group | None, base: Group | None) -> Summary | None:
    """Sentences per second relative to ``base``'s, in percent, seed by seed."""
    if group is None or base is None:
        return None
    ratios = {}
    for seed, result in group.results.items():
        speed = result.get("sentences_per_second")
        reference = base.results.get(seed, {}).get("sentences_per_second")
        if speed and reference:
            ratios[seed] = 100 * speed / reference
    return summarise(ratios)
