"""Ablations of objective, calls and readings, and the sweeps of size, depth, iterations and base.

In the ablations (paper: “Diffusion Objective and Inference Budget”) the decoder is fixed: argmax for POS, Mask-Viterbi for NER and
Chinese. Calls are varied on one checkpoint per seed.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
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
    Table,
    make_table,
    score_cell,
    seed_notes,
    short_title,
    system_title,
    with_significance,
)

_SETTING_TITLES = {
    "full": "Full hybrid",
    "no-denoising": "− L_den",
    "no-posterior": "− L_post",
    "own-trajectory": "+ own trajectory",
}


class _Setting(NamedTuple):
    group: Group | None
    schedule: str | None

    def decoder(self) -> str | None:
        if self.group is None:
            return None
        wanted = ablation_decoder(self.group.task)
        # Diffusion-LCRF and DiffusionSL have their own decoders.
        return wanted if wanted in self.group.decoders else self.group.selected_decoder()

    def scores(self, split: str) -> dict[int, float]:
        decoder = self.decoder()
        if self.group is None or decoder is None:
            return {}
        return self.group.scores(split, decoder, schedule=self.schedule)


Grid = dict[str, dict[str, _Setting]]
"""settings by name, by corpus"""


def objective_tables(outcomes: Outcomes) -> list[Table]:
    """Table of the variants full, no-denoising, no-posterior and any others in the plan, and of full minus each."""
    return _named_variants(outcomes, "objective", reference="full", sign=1)


def variants_tables(outcomes: Outcomes) -> list[Table]:
    """Table of the plan's variants, for each system those it has, and of each minus the plan's first."""
    return _named_variants(outcomes, "variants", reference=outcomes.all_groups[0].variant, sign=-1)


def _named_variants(outcomes: Outcomes, kind: str, *, reference: str, sign: int) -> list[Table]:
    tables: list[Table] = []
    if len({group.variant for group in outcomes.all_groups}) < 2:
        return tables
    for system, encoder in itertools.product(outcomes.values("system"), outcomes.values("encoder")):
        found = dict.fromkeys(group.variant for group in outcomes.find(system=system, encoder=encoder))
        names = sorted(found, key=lambda name: name != reference)
        grid: Grid = {}
        for corpus in outcomes.values("corpus"):
            groups = {group.variant: group for group in outcomes.find(corpus=corpus, system=system, encoder=encoder)}
            grid[corpus] = {name: _Setting(groups.get(name), None) for name in names}
        planned = outcomes.planned(system=system, encoder=encoder)
        tables += _tables(kind, grid, planned, system=system, encoder=encoder, reference=reference, sign=sign)
    return tables


def calls_tables(outcomes: Outcomes) -> list[Table]:
    """Table of the evaluations with several numbers of calls, and of each minus ten calls."""
    tables = []
    for system, encoder in itertools.product(outcomes.values("system"), outcomes.values("encoder")):
        groups = {corpus: outcomes.selected(corpus, system, encoder) for corpus in outcomes.values("corpus")}
        found = {name for group in groups.values() if group is not None for name in group.schedules("calls=")}
        if found:
            names = sorted((name.removeprefix("calls=") for name in found), key=int)
            grid = {
                corpus: {name: _Setting(group, f"calls={name}") for name in names} for corpus, group in groups.items()
            }
            planned = outcomes.planned(system=system, encoder=encoder)
            tables += _tables("calls", grid, planned, system=system, encoder=encoder, reference="10", sign=-1)
    return tables


def readings_tables(outcomes: Outcomes) -> list[Table]:
    """Readings of the reverse posterior × schedules on dev, one checkpoint per seed: scores and quality of probabilities."""
    places = itertools.product(outcomes.values("corpus"), outcomes.values("encoder"), outcomes.values("system"))
    tables = [_readings_table(outcomes, *place) for place in places]
    return [table for table in tables if table is not None]


def _readings_table(outcomes: Outcomes, corpus: str, encoder: str, system: str) -> Table | None:
    group = outcomes.selected(corpus, system, encoder)
    names = [] if group is None else group.schedules("posterior=")
    if group is None or not names:
        return None
    decoder = _Setting(group, None).decoder()
    rows = []
    for name in names:
        reading, _, schedule = name.removeprefix("posterior=").partition(" ")
        rows.append(((reading, schedule or "own schedule"), name))

    def cell(name: str, metric: str) -> Cell:
        about = {"corpus": corpus, "system": system, "encoder": encoder, "setting": name}
        digits = 4 if metric == "negative_log_likelihood" else 2
        return score_cell(group, "dev", metric, decoder=decoder, schedule=name, digits=digits, about=about)

    return make_table(
        f"Readings of the reverse posterior, dev, {short_title(corpus)}, {system_title(system)}",
        headings=("Reading", "Schedule"),
        rows=rows,
        columns=[
            (short_title(group.metric), group.metric),
            ("Exact", "exact_match"),
            ("NLL per unit", "negative_log_likelihood"),
            ("Calibration error", "calibration_error"),
        ],
        cell=cell,
        block=lambda name: name.partition(" ")[0],
        notes=[
            f"Encoder {encoder}, decoder {decoder}; NLL and calibration error are those of reported scores.",
            *seed_notes(outcomes.planned(corpus=corpus, system=system, encoder=encoder)),
        ],
    )


def _tables(
    kind: str,
    grid: Grid,
    planned: Sequence[Group],
    *,
    system: str,
    encoder: str,
    reference: str,
    sign: int,
) -> list[Table]:
    """Scores on test and dev, exact match if counted, and paired differences to the reference (times ``sign``)."""
    is_papers = system == "diffusion-mf" and encoder == "scratch" and kind != "variants"
    names = list(next(iter(grid.values())))
    rows = [((_SETTING_TITLES.get(name, name),), name) for name in names]
    columns = [(f"{short_title(corpus)} {split}", (corpus, split)) for split in ("test", "dev") for corpus in grid]

    def paper(name: str, corpus: str, split: str, *, difference: bool = False) -> PaperValue | None:
        has_paper = is_papers and split == "test"
        return paper_ablation(kind, name, corpus, difference=difference) if has_paper else None

    def score(name: str, place: tuple[str, str], metric: str | None = None) -> Cell:
        corpus, split = place
        setting = grid[corpus][name]
        about = {"corpus": corpus, "system": system, "encoder": encoder, "setting": name}
        return score_cell(
            setting.group,
            split,
            metric,
            decoder=setting.decoder(),
            schedule=setting.schedule,
            paper=paper(name, corpus, split) if metric is None else None,
            about=about,
        )

    def difference(name: str, place: tuple[str, str]) -> Cell | None:
        corpus, split = place
        setting, base = grid[corpus][name], grid[corpus].get(reference)
        pair = [{} if base is None else base.scores(split), setting.scores(split)]
        found, published = paired_difference(*pair[::sign]), paper(name, corpus, split, difference=True)
        if found is None and published is None:
            return None
        about = {"corpus": corpus, "system": system, "encoder": encoder, "setting": name, "split": split}
        about |= {"metric": "" if setting.group is None else setting.group.metric, "reference": reference}
        return Cell(summary=found, paper=published, about=about)

    settings = [setting for by_name in grid.values() for setting in by_name.values() if setting.group is not None]
    fixed = "Decoder: argmax for POS, Mask-Viterbi for NER and Chinese."
    if not {setting.decoder() for setting in settings} <= {"argmax", "mask-viterbi"}:
        fixed = "Decoder: selected on dev, since the system has no Mask-Viterbi."
    noted = [group for group in planned if not group.results or any(group is each.group for each in settings)]
    what, direction = {
        "objective": ("Training objective", "full minus ablated"),
        "variants": ("Variants", f"minus {reference}"),
        "calls": ("Denoiser calls", f"minus {reference} calls, same checkpoint"),
    }[kind]
    title, headings = f"{what}, {system_title(system)}, encoder {encoder}", ("Setting",)
    notes = [*([PAPER_NOTE] if kind != "variants" else []), fixed, *seed_notes(noted)]
    scores = make_table(title, headings=headings, rows=rows, columns=columns, cell=score, notes=notes)
    exact_matches = make_table(
        f"{title}: sentences without any error (exact match)",
        headings=headings,
        rows=rows,
        columns=columns,
        cell=lambda name, place: score(name, place, "exact_match"),
    )
    differences = make_table(
        f"{title}: paired differences, {direction}",
        headings=headings,
        rows=[row for row in rows if row[1] != reference],
        columns=columns,
        cell=difference,
    )
    tables = [scores.with_best()]
    if exact_matches.has_results:
        tables.append(exact_matches.with_best())
    if differences.cells():
        tables.append(with_significance(differences))
    return tables


PaperLookup = Callable[[str, str, str], PaperValue | None]
"""system, setting, encoder → the paper's value"""


def setting_of(variant: str, key: str) -> str | None:
    """The value of ``key`` in the name of a variant from a plan's grid, which shortens keys where they are unambiguous.

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
        if settings := sorted(groups_by_setting(outcomes.find(corpus=corpus), key), key=int):
            tables.append(_speed_table(outcomes, corpus, settings))
    return tables


def _speed_table(outcomes: Outcomes, corpus: str, settings: Sequence[str]) -> Table:
    def cell(place: tuple[str, str], setting: str) -> Cell:
        system, encoder = place
        found = outcomes.find(corpus=corpus, system=system, encoder=encoder)
        groups = groups_by_setting(found, "structure.num_iterations")
        summary = _relative_speed(groups.get(setting), groups.get("1"))
        paper = paper_relative_throughput(system, setting) if corpus == "en-ewt" else None
        about = {"corpus": corpus, "system": system, "encoder": encoder, "setting": setting, "metric": "speed"}
        return Cell(summary=summary, paper=paper, digits=1, about=about)

    note = "From the logs of the runs, so imprecise if runs shared a GPU; dmf benchmark mean-field measures it in isolation."
    return make_table(
        f"Training speed by Mean-Field iterations, {short_title(corpus)}, % of one iteration's",
        headings=("Model", "Encoder"),
        rows=_place_rows(itertools.product(outcomes.values("system"), outcomes.values("encoder"))),
        columns=[(setting, setting) for setting in settings],
        cell=cell,
        notes=[PAPER_NOTE, note],
    )


def _place_rows(places: Iterable[tuple[str, str]]) -> list[tuple[tuple[str, str], tuple[str, str]]]:
    """The rows of a table, one per system and encoder."""
    return [((system_title(system), encoder), (system, encoder)) for system, encoder in places]


def base_tables(outcomes: Outcomes) -> list[Table]:
    """Dev scores by the base of the reverse schedule, on one checkpoint per seed; direct systems have none."""
    tables = []
    for corpus in outcomes.values("corpus"):
        schedules = {name for group in outcomes.find(corpus=corpus) for name in group.schedules("base=")}
        if schedules:
            names = sorted((name.removeprefix("base=") for name in schedules), key=float)
            tables.append(_base_table(outcomes, corpus, names))
    return tables


def _base_table(outcomes: Outcomes, corpus: str, names: Sequence[str]) -> Table:
    groups = {
        place: group
        for place in itertools.product(outcomes.values("system"), outcomes.values("encoder"))
        if (group := outcomes.selected(corpus, *place)) is not None
    }

    def cell(place: tuple[str, str], name: str) -> Cell | None:
        (system, encoder), group = place, groups[place]
        is_direct = name == "-"
        if is_direct == group.is_diffusion:
            return None
        # The paper's models have a pretrained encoder, so comparing others with their scores would mislead.
        has_paper = corpus == "en-ewt" and kind_of_encoder(encoder) == "pretrained"
        paper = paper_sweep("base", system, name) if has_paper else None
        about = {"corpus": corpus, "system": system, "encoder": encoder, "setting": name}
        return score_cell(group, "dev", schedule=None if is_direct else f"base={name}", paper=paper, about=about)

    note = "Denoisers have one layer and one Mean-Field iteration, as in the paper, whose encoder is roberta-large."
    return make_table(
        f"Base of the reverse schedule, dev, {short_title(corpus)}",
        headings=("Model", "Encoder"),
        rows=_place_rows(groups),
        columns=[("direct", "-"), *((f"b = {name}", name) for name in names)],
        cell=cell,
        notes=[PAPER_NOTE, note, *seed_notes(outcomes.planned(corpus=corpus))],
    )


def groups_by_setting(groups: Sequence[Group], key: str) -> dict[str, Group]:
    """Of the groups that have a setting in common and differ in others, the one selected by dev."""
    found: dict[str, list[Group]] = {}
    for group in groups:
        setting = setting_of(group.variant, key)
        if setting is not None:
            found.setdefault(setting, []).append(group)
    return {setting: best for setting, members in found.items() if (best := best_group(members)) is not None}


def _variant_tables(
    outcomes: Outcomes, key: str, paper: PaperLookup, *, title: str, order: Callable[[str], int]
) -> list[Table]:
    tables = []
    for corpus in outcomes.values("corpus"):
        settings = sorted(groups_by_setting(outcomes.find(corpus=corpus), key), key=order)
        corpus_title = f"{title}, dev, {short_title(corpus)}"
        if settings:
            tables.append(_variant_table(outcomes, corpus, key, settings, paper=paper, title=corpus_title))
            exact_title = f"{corpus_title}: sentences without any error (exact match)"
            exact_matches = _variant_table(outcomes, corpus, key, settings, metric="exact_match", title=exact_title)
            tables += [exact_matches] * exact_matches.has_results
    return tables


def _variant_table(
    outcomes: Outcomes,
    corpus: str,
    key: str,
    settings: Sequence[str],
    *,
    title: str,
    metric: str | None = None,
    paper: PaperLookup = lambda *_: None,
) -> Table:
    def cell(place: tuple[str, str], setting: str) -> Cell:
        system, encoder = place
        groups = groups_by_setting(outcomes.find(corpus=corpus, system=system, encoder=encoder), key)
        published = paper(system, setting, encoder) if corpus == "en-ewt" else None
        about = {"corpus": corpus, "system": system, "encoder": encoder, "setting": setting}
        return score_cell(groups.get(setting), "dev", metric, paper=published, about=about)

    return make_table(
        title,
        headings=("Model", "Encoder"),
        rows=_place_rows(
            (system, encoder) for encoder in outcomes.values("encoder") for system in outcomes.values("system")
        ),
        columns=[(setting, setting) for setting in settings],
        cell=cell,
        block=lambda place: place[1],
        notes=[PAPER_NOTE, *seed_notes(outcomes.planned(corpus=corpus))],
    ).with_best()


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
