"""Ablations of objective, calls and readings, and the sweeps of size, depth, iterations and base.

Ablations of the objective and of the number of calls (paper: “Diffusion Objective and Inference Budget”).

The decoder is fixed: argmax for POS, Mask-Viterbi for NER and Chinese. Calls are varied on one checkpoint per seed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from diffusion_mf.config.sections import SIZES
from diffusion_mf.lab.experiments.paper import (
    PaperValue,
    ablation_decoder,
    kind_of_encoder,
    paper_ablation,
    paper_relative_throughput,
    paper_sweep,
)
from diffusion_mf.lab.experiments.selection import Group, Outcomes, Summary, best_group, paired_difference, summarise
from diffusion_mf.lab.experiments.tables.grid import (
    PAPER_NOTE,
    Cell,
    Row,
    Table,
    score_cell,
    seed_notes,
    short_title,
    significance_notes,
    system_title,
)

_SETTING_TITLES = {
    "full": "Full hybrid",
    "no-denoising": "− L_den",
    "no-posterior": "− L_post",
    "own-trajectory": "+ own trajectory",
}


class _Setting(NamedTuple):
    name: str
    group: Group | None
    schedule: str | None

    def decoder(self) -> str:
        if self.group is None:
            return ""
        wanted = ablation_decoder(self.group.task)
        # Diffusion-LCRF and DiffusionSL have decoders of their own.
        return wanted if wanted in self.group.decoders else self.group.selected_decoder()

    def scores(self, split: str) -> dict[int, float]:
        if self.group is None:
            return {}
        return self.group.scores(split, self.decoder(), schedule=self.schedule)


def objective_tables(outcomes: Outcomes) -> list[Table]:
    """Variants of the plan named full, no-denoising, no-posterior (others are shown, too), and full minus each."""
    tables: list[Table] = []
    if len({group.variant for group in outcomes.all_groups}) < 2:
        return tables
    for system in outcomes.values("system"):
        for encoder in outcomes.values("encoder"):
            names = outcomes.values("variant")
            names.sort(key=lambda name: name != "full")

            def setting(corpus: str, name: str, system: str = system, encoder: str = encoder) -> _Setting:
                found = outcomes.find(corpus=corpus, system=system, encoder=encoder, variant=name)
                return _Setting(name, found[0] if found else None, None)

            grid = {corpus: [setting(corpus, name) for name in names] for corpus in outcomes.values("corpus")}
            planned = outcomes.planned(system=system, encoder=encoder)
            tables += _tables("objective", grid, planned, system=system, encoder=encoder, reference="full", sign=1)
    return tables


def calls_tables(outcomes: Outcomes) -> list[Table]:
    """The plan's evaluations with several numbers of calls, and each minus ten."""
    tables = []
    for system in outcomes.values("system"):
        for encoder in outcomes.values("encoder"):
            groups = {corpus: outcomes.selected(corpus, system, encoder) for corpus in outcomes.values("corpus")}
            names = _calls([group for group in groups.values() if group is not None])
            if names:
                grid = {
                    corpus: [_Setting(name, group, f"calls={name}") for name in names]
                    for corpus, group in groups.items()
                }
                planned = outcomes.planned(system=system, encoder=encoder)
                tables += _tables("calls", grid, planned, system=system, encoder=encoder, reference="10", sign=-1)
    return tables


def readings_tables(outcomes: Outcomes) -> list[Table]:
    """Readings of the reverse posterior × schedules on dev, one checkpoint per seed: scores, and how good probabilities are."""
    tables = []
    for corpus in outcomes.values("corpus"):
        for encoder in outcomes.values("encoder"):
            for system in outcomes.values("system"):
                group = outcomes.selected(corpus, system, encoder)
                if group is None:
                    continue
                found = (name for result in group.results.values() for name in result.get("schedules", {}))
                names = [name for name in dict.fromkeys(found) if name.startswith("posterior=")]
                decoder = _Setting("", group, None).decoder()
                rows = []
                for place, name in enumerate(names):
                    reading, _, schedule = name.removeprefix("posterior=").partition(" ")
                    about = {"corpus": corpus, "system": system, "encoder": encoder, "setting": name}
                    cells = [
                        replace(
                            score_cell(group, "dev", decoder, metric, schedule=name, paper=None, about=about),
                            digits=4 if metric == "negative_log_likelihood" else 2,
                        )
                        for metric in (group.metric, "exact_match", "negative_log_likelihood", "calibration_error")
                    ]
                    is_first = place > 0 and not names[place - 1].startswith(f"posterior={reading}")
                    rows.append(Row(heading=(reading, schedule or "own schedule"), cells=cells, starts_block=is_first))
                if rows:
                    columns = [short_title(group.metric), "Exact", "NLL per unit", "Calibration error"]
                    title = f"Readings of the reverse posterior, dev, {short_title(corpus)}, {system_title(system)}"
                    notes = [
                        f"Encoder {encoder}, decoder {decoder}; NLL and calibration error are those of reported scores."
                    ]
                    notes += seed_notes(outcomes.planned(corpus=corpus, system=system, encoder=encoder))
                    headings = ("Reading", "Schedule")
                    tables.append(Table(title=title, headings=headings, columns=columns, rows=rows, notes=notes))
    return tables


def _calls(groups: Sequence[Group]) -> list[str]:
    found = {
        name.removeprefix("calls=")
        for group in groups
        for result in group.results.values()
        for name in result.get("schedules", {})
        if name.startswith("calls=")
    }
    return sorted(found, key=int)


def _tables(
    kind: str,
    grid: dict[str, list[_Setting]],
    planned: Sequence[Group],
    *,
    system: str,
    encoder: str,
    reference: str,
    sign: int,
) -> list[Table]:
    """Scores on test and dev, and paired differences with the reference (times ``sign``)."""
    corpora = list(grid)
    names = [setting.name for setting in next(iter(grid.values()))]
    is_papers = system == "diffusion-mf" and encoder == "scratch"
    columns = [f"{short_title(corpus)} {split}" for split in ("test", "dev") for corpus in corpora]
    rows, difference_rows = [], []
    for place, name in enumerate(names):
        cells: list[Cell | None] = []
        differences: list[Cell | None] = []
        for split in ("test", "dev"):
            for corpus in corpora:
                setting = grid[corpus][place]
                about = {"corpus": corpus, "system": system, "encoder": encoder, "setting": name}
                metric = "" if setting.group is None else setting.group.metric
                has_paper = is_papers and split == "test"
                cells.append(
                    score_cell(
                        setting.group,
                        split,
                        setting.decoder(),
                        metric,
                        schedule=setting.schedule,
                        paper=paper_ablation(kind, name, corpus) if has_paper else None,
                        about=about,
                    )
                )
                base = next((each for each in grid[corpus] if each.name == reference), None)
                found = None
                if base is not None and name != reference:
                    pair = (base.scores(split), setting.scores(split))
                    found = paired_difference(*pair[::sign])
                paper = paper_ablation(kind, name, corpus, difference=True) if has_paper else None
                is_empty = found is None and paper is None
                difference_about = {**about, "split": split, "metric": metric, "reference": reference}
                differences.append(None if is_empty else Cell(difference=found, paper=paper, about=difference_about))
        rows.append(Row(heading=(_SETTING_TITLES.get(name, name),), cells=cells))
        if name != reference:
            difference_rows.append(Row(heading=(_SETTING_TITLES.get(name, name),), cells=differences))
    shown = [setting.group for settings in grid.values() for setting in settings if setting.group is not None]
    decoders = {setting.decoder() for settings in grid.values() for setting in settings if setting.group is not None}
    what = "Training objective" if kind == "objective" else "Denoiser calls"
    direction = "full minus ablated" if sign == 1 else f"minus {reference} calls, same checkpoint"
    title = f"{what}, {system_title(system)}, encoder {encoder}"
    fixed = "Decoder: argmax for POS, Mask-Viterbi for NER and Chinese."
    if not decoders <= {"argmax", "mask-viterbi"}:
        fixed = "Decoder: the system has no Mask-Viterbi; the one selected on dev."
    noted = [group for group in planned if not group.results or any(group is each for each in shown)]
    tables = [
        Table(
            title=title,
            headings=("Setting",),
            columns=columns,
            rows=rows,
            notes=[PAPER_NOTE, fixed, *seed_notes(noted)],
        ).with_best()
    ]
    exact_match = _exact_match_table(grid, title, about={"system": system, "encoder": encoder})
    if exact_match is not None:
        tables.append(exact_match)
    if any(cell is not None for row in difference_rows for cell in row.cells):
        made = Table(
            title=f"{title}: paired differences, {direction}",
            headings=("Setting",),
            columns=columns,
            rows=difference_rows,
        )
        notes = significance_notes(made.cells())
        tables.append(
            Table(title=made.title, headings=made.headings, columns=columns, rows=difference_rows, notes=notes)
        )
    return tables


def _exact_match_table(grid: dict[str, list[_Setting]], title: str, *, about: dict[str, str]) -> Table | None:
    """Sentences without any error, in the settings of ``grid``; None where no run has counted them."""
    rows = []
    for settings in zip(*grid.values(), strict=True):
        cells = [
            score_cell(
                setting.group,
                split,
                setting.decoder(),
                "exact_match",
                schedule=setting.schedule,
                paper=None,
                about={**about, "corpus": corpus, "setting": setting.name},
            )
            for split in ("test", "dev")
            for corpus, setting in zip(grid, settings, strict=True)
        ]
        name = settings[0].name
        rows.append(Row(heading=(_SETTING_TITLES.get(name, name),), cells=cells))
    table = Table(
        title=f"{title}: sentences without any error (exact match)",
        headings=("Setting",),
        columns=[f"{short_title(corpus)} {split}" for split in ("test", "dev") for corpus in grid],
        rows=rows,
    )
    return table.with_best() if any(cell.mean is not None for cell in table.cells()) else None


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
