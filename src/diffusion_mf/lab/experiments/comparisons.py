"""The paper's tables from our results: main results, ablations of objective, calls and readings, and sweeps.

In the ablations (paper: “Diffusion Objective and Inference Budget”) the decoder is fixed: argmax for POS, Mask-Viterbi for NER and
Chinese. Calls are varied on one checkpoint per seed.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from diffusion_mf.config.sections import SIZES
from diffusion_mf.lab.experiments.paper import (
    LANGUAGES,
    PaperValue,
    kind_of_encoder,
    paper_ablation,
    paper_relative_throughput,
    paper_score,
    paper_sweep,
)
from diffusion_mf.lab.experiments.selection import Group, Outcomes, Summary, best_group, paired_difference, summarise
from diffusion_mf.lab.experiments.tables import (
    PAPER_NOTE,
    Cell,
    Table,
    make_table,
    paper_note,
    score_cell,
    seed_notes,
    short_title,
    system_title,
    with_significance,
)
from diffusion_mf.systems import SYSTEMS

LANGUAGE_NOTE = "The average is shown if all four languages have results."
SPLITS = ("dev", "test")

# (corpus, metric) of every column of the paper's main table.
_COLUMNS = (
    *((language, "accuracy") for language in (*LANGUAGES, "average")),
    *(("conll2003", metric) for metric in ("precision", "recall", "f1")),
    *(("zh-gsdsimp", metric) for metric in ("seg_f1", "gold_xpos", "joint_f1")),
)
_PAPERS_CORPORA = tuple(dict.fromkeys(corpus for corpus, _ in _COLUMNS))


def primary_metric(corpus: str) -> str:
    """The metric for selection on one of the paper's corpora."""
    return {"conll2003": "f1", "zh-gsdsimp": "joint_f1"}.get(corpus, "accuracy")


def _by_encoder(outcomes: Outcomes) -> dict[str, Outcomes]:
    return {encoder: outcomes.only(encoder=encoder) for encoder in outcomes.values("encoder")}


def _by_corpus(outcomes: Outcomes) -> dict[str, Outcomes]:
    return {corpus: outcomes.only(corpus=corpus) for corpus in outcomes.values("corpus")}


def _system_rows(outcomes: Outcomes) -> list[tuple[tuple[str, ...], str]]:
    return [((system_title(system),), system) for system in outcomes.values("system")]


def main_tables(outcomes: Outcomes) -> list[Table]:
    """Test means with dev-selected settings and decoders, and the gains of Diffusion-MF over every other system."""
    tables: list[Table | None] = []
    for encoder, own in _by_encoder(outcomes).items():
        tables += [_main_table(own, encoder), _exact_match_table(own, encoder), _difference_table(own, encoder)]
    return [table for table in tables if table is not None]


def _shown_corpora(outcomes: Outcomes, encoder: str) -> list[str]:
    """The paper's corpora to show: all of them from scratch; for a pretrained encoder, those in the plan.

    Languages are grouped with their average, unless there is only one.
    """
    planned = {group.corpus for group in outcomes.all_groups}
    if not planned.intersection(_PAPERS_CORPORA):
        return []
    if kind_of_encoder(encoder) == "scratch":
        return list(_PAPERS_CORPORA)
    if len(planned.intersection(LANGUAGES)) > 1:
        planned |= {*LANGUAGES, "average"}
    return [corpus for corpus in _PAPERS_CORPORA if corpus in planned]


def _paper_cell(outcomes: Outcomes, corpus: str, system: str, encoder: str, metric: str) -> Cell:
    """The test score of the selected setting and the paper's; also for the average over languages."""
    paper = paper_score(corpus, system, encoder, metric)
    about = {"corpus": corpus, "system": system, "encoder": encoder}
    if corpus == "average":
        about |= {"split": "test", "metric": metric}
        return Cell(summary=_average(outcomes.only(system=system)), paper=paper, about=about)
    return score_cell(outcomes.selected(corpus=corpus, system=system), "test", metric, paper=paper, about=about)


def _average(outcomes: Outcomes) -> Summary | None:
    """The unweighted mean of a system's means in the four languages; None unless there are four."""
    groups = [group for language in LANGUAGES if (group := outcomes.selected(corpus=language)) is not None]
    found = [summary for group in groups if (summary := group.summary("test", group.selected_decoder())) is not None]
    if len(found) < len(LANGUAGES):
        return None
    seeds = set.intersection(*(set(summary.seeds) for summary in found))
    return Summary(statistics.fmean(summary.mean for summary in found), None, tuple(sorted(seeds)))


def _main_table(outcomes: Outcomes, encoder: str) -> Table:
    """The paper's columns, and dev and test of other corpora by their primary metric."""
    corpora = _shown_corpora(outcomes, encoder)
    groups = outcomes.groups
    num_places = len({(group.corpus, group.system) for group in groups})
    chosen = ["settings"] * (len(groups) > num_places) + ["decoder"] * any(len(group.decoders) > 1 for group in groups)
    title = f"Test results, encoder {encoder}"
    if chosen:
        title += f": {' and '.join(chosen)} selected by the mean dev score over seeds"

    def column_title(corpus: str, metric: str) -> str:
        is_language = corpus in (*LANGUAGES, "average")
        return short_title(corpus) if is_language else f"{short_title(corpus)} {short_title(metric)}"

    def cell(system: str, place: tuple[str, str]) -> Cell | None:
        corpus, what = place
        if what not in SPLITS:
            return _paper_cell(outcomes, corpus, system, encoder, what)
        about = {"corpus": corpus, "system": system, "encoder": encoder}
        return score_cell(outcomes.selected(corpus=corpus, system=system), what, about=about)

    others = [corpus for corpus in outcomes.values("corpus") if corpus not in _PAPERS_CORPORA]
    return make_table(
        title,
        headings=("Model",),
        rows=_system_rows(outcomes),
        columns=[
            *((column_title(*place), place) for place in _COLUMNS if place[0] in corpora),
            *((f"{corpus} {split}", (corpus, split)) for corpus in others for split in SPLITS),
        ],
        cell=cell,
        notes=[
            paper_note(encoder, corpora),
            *([LANGUAGE_NOTE] if "average" in corpora else []),
            *seed_notes(outcomes.all_groups),
        ],
    ).with_best()


def _exact_match_table(outcomes: Outcomes, encoder: str) -> Table | None:
    """Table of sentences without any error; None if no run has counted them."""

    def cell(system: str, place: tuple[str, str]) -> Cell:
        corpus, split = place
        about = {"corpus": corpus, "system": system, "encoder": encoder}
        return score_cell(outcomes.selected(corpus=corpus, system=system), split, "exact_match", about=about)

    table = make_table(
        f"Sentences without any error (exact match), encoder {encoder}",
        headings=("Model",),
        rows=_system_rows(outcomes),
        columns=[
            (f"{short_title(corpus)} {split}", (corpus, split))
            for corpus in outcomes.values("corpus")
            for split in SPLITS
        ],
        cell=cell,
        notes=["Settings and decoder are those selected by the primary metric. The paper does not report exact match."],
    )
    return table.with_best() if table.has_results else None


def _difference_table(outcomes: Outcomes, encoder: str) -> Table | None:
    """Table of the gains of Diffusion-MF over every other system on test, paired over seeds; None if there are none."""
    against = "diffusion-mf"
    groups = {corpus: outcomes.selected(corpus=corpus, system=against) for corpus in outcomes.values("corpus")}
    references = {corpus: group for corpus, group in groups.items() if group is not None}
    others = [system for system in outcomes.values("system") if system != against]
    if not references or not others:
        return None

    def test_scores(group: Group | None) -> dict[int, float]:
        return {} if group is None else group.scores("test", group.selected_decoder())

    def cell(system: str, corpus: str) -> Cell | None:
        reference, other = references[corpus], outcomes.selected(corpus=corpus, system=system)
        difference = paired_difference(test_scores(reference), test_scores(other))
        about = {"corpus": corpus, "system": against, "minus": system, "encoder": encoder}
        about |= {"split": "test", "metric": reference.metric}
        return None if difference is None else Cell(summary=difference, about=about)

    return with_significance(
        make_table(
            f"{system_title(against)} minus every other system on test, encoder {encoder}",
            headings=(system_title(against),),
            rows=[((f"− {system_title(system)}",), system) for system in others],
            columns=[
                (f"{short_title(corpus)} {short_title(group.metric)}", corpus) for corpus, group in references.items()
            ],
            cell=cell,
        )
    )


def denoiser_tables(outcomes: Outcomes) -> list[Table]:
    """The three categorical denoisers by their primary metric on test."""
    systems = ("diffusion-uni", "diffusion-lcrf", "diffusion-mf")
    found = Outcomes(group for group in outcomes.all_groups if group.system in systems)
    return [
        make_table(
            f"Denoisers: primary metric on test after dev selection, encoder {encoder}",
            headings=("Model",),
            rows=[((system_title(system),), system) for system in systems],
            columns=[(short_title(corpus), corpus) for corpus in corpora],
            cell=lambda system, corpus, own=own, encoder=encoder: _paper_cell(  # type: ignore[misc]
                own, corpus, system, encoder, primary_metric(corpus)
            ),
            notes=[paper_note(encoder, corpora), LANGUAGE_NOTE, *seed_notes(own.all_groups)],
        ).with_best()
        for encoder, own in _by_encoder(found).items()
        if (corpora := _shown_corpora(own, encoder))
    ]


_FULL_METRICS = {
    "ner": ("accuracy", "precision", "recall", "f1", "exact_match"),
    "seg-pos": ("seg_f1", "gold_xpos", "aligned_xpos", "joint_f1", "exact_match"),
}


def _full_tables(outcomes: Outcomes, *, task: str) -> list[Table]:
    """All metrics of a task with every decoder, for each corpus, encoder and split."""
    return [
        _full_table(own, corpus, encoder, split, _FULL_METRICS[task])
        for corpus, of_corpus in _by_corpus(outcomes).items()
        if of_corpus.groups[0].task.value == task
        for encoder, own in _by_encoder(of_corpus).items()
        for split in SPLITS
    ]


def _full_table(outcomes: Outcomes, corpus: str, encoder: str, split: str, metrics: tuple[str, ...]) -> Table:
    systems = dict.fromkeys((*SYSTEMS, *outcomes.values("system")))
    groups = {system: outcomes.selected(system=system) for system in systems}
    selected = {system: None if group is None else group.selected_decoder() for system, group in groups.items()}
    rows = []
    for system, group in groups.items():
        usual = SYSTEMS[system].decoders(is_constrained=True) if system in SYSTEMS else ()
        for decoder in usual if group is None else (*group.decoders, *group.compared):
            mark = "†" if decoder == selected[system] else ""
            rows.append(((system_title(system), short_title(decoder) + mark), (system, decoder)))

    def cell(row: tuple[str, str], metric: str) -> Cell:
        system, decoder = row
        about = {"corpus": corpus, "system": system, "encoder": encoder, "selected": decoder == selected[system]}
        paper = paper_score(corpus, system, encoder, metric, split=split, decoder=decoder)
        return score_cell(groups[system], split, metric, decoder=decoder, paper=paper, about=about)

    return make_table(
        f"{corpus}, {split}, encoder {encoder}, every decoder",
        headings=("Model", "Dec."),
        rows=rows,
        columns=[(short_title(metric), metric) for metric in metrics],
        cell=cell,
        notes=[
            paper_note(encoder, [corpus]),
            "† marks the decoder selected by the mean dev score over seeds, or the only one.",
            *seed_notes(outcomes.all_groups),
        ],
    ).with_best()


_SETTING_TITLES = {
    "full": "Full hybrid",
    "no-denoising": "− L_den",
    "no-posterior": "− L_post",
    "own-trajectory": "+ own trajectory",
}


class _Setting(NamedTuple):
    """A column of an ablation."""

    group: Group | None
    schedule: str | None = None

    def decoder(self) -> str | None:
        return None if self.group is None else self.group.ablation_decoder()

    def scores(self, split: str) -> dict[int, float]:
        decoder = self.decoder()
        if self.group is None or decoder is None:
            return {}
        return self.group.scores(split, decoder, schedule=self.schedule)


def _variant_tables(outcomes: Outcomes, *, kind: str) -> list[Table]:
    """The plan's variants, and paired differences: of ``objective``, full minus each; of ``variants``, each minus the first."""
    if len({group.variant for group in outcomes.all_groups}) < 2:
        return []
    reference, sign = ("full", 1) if kind == "objective" else (outcomes.all_groups[0].variant, -1)
    tables = []
    for system, encoder in itertools.product(outcomes.values("system"), outcomes.values("encoder")):
        own = outcomes.only(system=system, encoder=encoder)
        names = sorted(own.values("variant"), key=lambda name: name != reference)
        grid = {
            corpus: {name: _Setting(own.selected(corpus=corpus, variant=name)) for name in names}
            for corpus in outcomes.values("corpus")
        }
        tables += _ablation_tables(kind, grid, own, system=system, encoder=encoder, reference=reference, sign=sign)
    return tables


def calls_tables(outcomes: Outcomes) -> list[Table]:
    """Table of the evaluations with several numbers of calls, and of each minus ten calls."""
    tables = []
    for system, encoder in itertools.product(outcomes.values("system"), outcomes.values("encoder")):
        own = outcomes.only(system=system, encoder=encoder)
        groups = {corpus: own.selected(corpus=corpus) for corpus in outcomes.values("corpus")}
        found = {name for group in groups.values() if group is not None for name in group.schedules("calls=")}
        if found:
            names = sorted((name.removeprefix("calls=") for name in found), key=int)
            grid = {
                corpus: {name: _Setting(group, f"calls={name}") for name in names} for corpus, group in groups.items()
            }
            tables += _ablation_tables("calls", grid, own, system=system, encoder=encoder, reference="10", sign=-1)
    return tables


def _ablation_tables(
    kind: str,
    grid: Mapping[str, Mapping[str, _Setting]],
    outcomes: Outcomes,
    *,
    system: str,
    encoder: str,
    reference: str,
    sign: int,
) -> list[Table]:
    """Scores on test and dev, exact match if counted, and paired differences to the reference (times ``sign``).

    ``grid`` has the settings by corpus and name.
    """
    is_papers = system == "diffusion-mf" and encoder == "scratch" and kind != "variants"
    names = list(next(iter(grid.values())))
    rows = [((_SETTING_TITLES.get(name, name),), name) for name in names]
    columns = [(f"{short_title(corpus)} {split}", (corpus, split)) for split in ("test", "dev") for corpus in grid]

    def paper(name: str, corpus: str, split: str, *, difference: bool = False) -> PaperValue | None:
        has_paper = is_papers and split == "test"
        return paper_ablation(kind, name, corpus, difference=difference) if has_paper else None

    def about(name: str, corpus: str) -> dict[str, Any]:
        return {"corpus": corpus, "system": system, "encoder": encoder, "setting": name}

    def score(name: str, place: tuple[str, str], metric: str | None = None) -> Cell:
        corpus, split = place
        setting = grid[corpus][name]
        return score_cell(
            setting.group,
            split,
            metric,
            decoder=setting.decoder(),
            schedule=setting.schedule,
            paper=paper(name, corpus, split) if metric is None else None,
            about=about(name, corpus),
        )

    def difference(name: str, place: tuple[str, str]) -> Cell | None:
        corpus, split = place
        setting, base = grid[corpus][name], grid[corpus].get(reference, _Setting(None))
        pair = [base.scores(split), setting.scores(split)]
        found, published = paired_difference(*pair[::sign]), paper(name, corpus, split, difference=True)
        if found is None and published is None:
            return None
        metric = "" if setting.group is None else setting.group.metric
        described = {**about(name, corpus), "split": split, "metric": metric, "reference": reference}
        return Cell(summary=found, paper=published, about=described)

    settings = [setting for by_name in grid.values() for setting in by_name.values() if setting.group is not None]
    fixed = "Decoder: argmax for POS, Mask-Viterbi for NER and Chinese."
    if not {setting.decoder() for setting in settings} <= {"argmax", "mask-viterbi"}:
        fixed = "Decoder: selected on dev, since the system has no Mask-Viterbi."
    noted = [
        group for group in outcomes.all_groups if not group.results or any(group is each.group for each in settings)
    ]
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


def readings_tables(outcomes: Outcomes) -> list[Table]:
    """Readings of the reverse posterior × schedules on dev, one checkpoint per seed: scores and quality of probabilities."""
    tables = []
    for corpus, encoder, system in itertools.product(
        *(outcomes.values(key) for key in ("corpus", "encoder", "system"))
    ):
        group = outcomes.selected(corpus=corpus, system=system, encoder=encoder)
        if group is not None and group.schedules("posterior="):
            tables.append(_readings_table(group))
    return tables


def _readings_table(group: Group) -> Table:
    decoder = group.ablation_decoder()

    def cell(name: str, metric: str) -> Cell:
        about = {"corpus": group.corpus, "system": group.system, "encoder": group.encoder, "setting": name}
        digits = 4 if metric == "negative_log_likelihood" else 2
        return score_cell(group, "dev", metric, decoder=decoder, schedule=name, digits=digits, about=about)

    rows = []
    for name in group.schedules("posterior="):
        reading, _, schedule = name.removeprefix("posterior=").partition(" ")
        rows.append(((reading, schedule or "own schedule"), name))
    return make_table(
        f"Readings of the reverse posterior, dev, {short_title(group.corpus)}, {system_title(group.system)}",
        headings=("Reading", "Schedule"),
        rows=rows,
        columns=[
            (short_title(group.metric), group.metric),
            ("Exact", "exact_match"),
            ("NLL per unit", "negative_log_likelihood"),
            ("Calibration error", "calibration_error"),
        ],
        cell=cell,
        notes=[
            f"Encoder {group.encoder}, decoder {decoder}; NLL and calibration error are those of reported scores.",
            *seed_notes([group]),
        ],
    )


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


def groups_by_setting(outcomes: Outcomes, key: str) -> dict[str, Group]:
    """Of the groups that have a setting in common and differ in others, the one selected by dev."""
    found: dict[str, list[Group]] = {}
    for group in outcomes.groups:
        setting = setting_of(group.variant, key)
        if setting is not None:
            found.setdefault(setting, []).append(group)
    return {setting: best for setting, members in found.items() if (best := best_group(members)) is not None}


def scaling_tables(outcomes: Outcomes) -> list[Table]:
    """Dev scores by size; the plan's grid varies ``size``."""
    return _sweep_tables(
        outcomes,
        "size",
        lambda system, setting, encoder: paper_sweep("scaling", system, setting, encoder=encoder),
        title="Model size",
        order=[str(size) for size in SIZES].index,
    )


def depth_tables(outcomes: Outcomes) -> list[Table]:
    """Dev scores by depth; the plan's grid varies ``denoiser.layers``."""
    return _sweep_tables(
        outcomes,
        "denoiser.layers",
        lambda system, setting, encoder: paper_sweep("depth", system, setting) if encoder == "scratch" else None,
        title="Denoiser layers",
    )


def iterations_tables(outcomes: Outcomes) -> list[Table]:
    """Dev scores by Mean-Field iterations, and training speed relative to one; the grid varies ``num_iterations``."""
    key = "structure.num_iterations"
    tables = _sweep_tables(outcomes, key, lambda *_: None, title="Mean-Field iterations")
    for corpus, own in _by_corpus(outcomes).items():
        if settings := sorted(groups_by_setting(own, key), key=int):
            tables.append(_speed_table(own, corpus, key, settings))
    return tables


def _speed_table(outcomes: Outcomes, corpus: str, key: str, settings: Sequence[str]) -> Table:
    def cell(place: tuple[str, str], setting: str) -> Cell:
        system, encoder = place
        groups = groups_by_setting(outcomes.only(system=system, encoder=encoder), key)
        paper = paper_relative_throughput(system, setting) if corpus == "en-ewt" else None
        about = {"corpus": corpus, "system": system, "encoder": encoder, "setting": setting, "metric": "speed"}
        return Cell(summary=_relative_speed(groups.get(setting), groups.get("1")), paper=paper, digits=1, about=about)

    note = "From the logs of the runs, so imprecise if runs shared a GPU; dmf benchmark mean-field measures it in isolation."
    return make_table(
        f"Training speed by Mean-Field iterations, {short_title(corpus)}, % of one iteration's",
        headings=("Model", "Encoder"),
        rows=_place_rows(outcomes),
        columns=[(setting, setting) for setting in settings],
        cell=cell,
        notes=[PAPER_NOTE, note],
    )


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


def _place_rows(outcomes: Outcomes) -> list[tuple[tuple[str, str], tuple[str, str]]]:
    """The rows of a table, one per encoder and system."""
    places = itertools.product(outcomes.values("encoder"), outcomes.values("system"))
    return [((system_title(system), encoder), (system, encoder)) for encoder, system in places]


def base_tables(outcomes: Outcomes) -> list[Table]:
    """Dev scores by the base of the reverse schedule, on one checkpoint per seed; direct systems have none."""
    tables = []
    for corpus, own in _by_corpus(outcomes).items():
        schedules = {name for group in own.groups for name in group.schedules("base=")}
        if schedules:
            names = sorted((name.removeprefix("base=") for name in schedules), key=float)
            tables.append(_base_table(own, corpus, names))
    return tables


def _base_table(outcomes: Outcomes, corpus: str, names: Sequence[str]) -> Table:
    rows = [row for row in _place_rows(outcomes) if outcomes.only(system=row[1][0], encoder=row[1][1]).groups]

    def cell(place: tuple[str, str], name: str) -> Cell | None:
        system, encoder = place
        group = outcomes.selected(system=system, encoder=encoder)
        is_direct = name == "-"
        if group is None or is_direct == group.is_diffusion:
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
        rows=rows,
        columns=[("direct", "-"), *((f"b = {name}", name) for name in names)],
        cell=cell,
        notes=[PAPER_NOTE, note, *seed_notes(outcomes.all_groups)],
    )


def _sweep_tables(
    outcomes: Outcomes, key: str, paper: PaperLookup, *, title: str, order: Callable[[str], int] = int
) -> list[Table]:
    tables = []
    for corpus, own in _by_corpus(outcomes).items():
        settings = sorted(groups_by_setting(own, key), key=order)
        corpus_title = f"{title}, dev, {short_title(corpus)}"
        if settings:
            tables.append(_sweep_table(own, corpus, key, settings, paper=paper, title=corpus_title))
            exact_title = f"{corpus_title}: sentences without any error (exact match)"
            exact_matches = _sweep_table(own, corpus, key, settings, metric="exact_match", title=exact_title)
            tables += [exact_matches] * exact_matches.has_results
    return tables


def _sweep_table(
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
        groups = groups_by_setting(outcomes.only(system=system, encoder=encoder), key)
        published = paper(system, setting, encoder) if corpus == "en-ewt" else None
        about = {"corpus": corpus, "system": system, "encoder": encoder, "setting": setting}
        return score_cell(groups.get(setting), "dev", metric, paper=published, about=about)

    return make_table(
        title,
        headings=("Model", "Encoder"),
        rows=_place_rows(outcomes),
        columns=[(setting, setting) for setting in settings],
        cell=cell,
        notes=[PAPER_NOTE, *seed_notes(outcomes.all_groups)],
    ).with_best()


class Comparison(NamedTuple):
    """A kind of table."""

    make: Callable[[Outcomes], list[Table]]
    needs: str
    """what a plan must contain for it"""


TABLES: Mapping[str, Comparison] = {
    "main": Comparison(main_tables, "a corpus"),
    "denoiser": Comparison(denoiser_tables, "a diffusion system"),
    "objective": Comparison(partial(_variant_tables, kind="objective"), "variants such as full and no-denoising"),
    "variants": Comparison(partial(_variant_tables, kind="variants"), "variants"),
    "calls": Comparison(calls_tables, "a diffusion system, and calls in the plan's evaluation"),
    "ner": Comparison(partial(_full_tables, task="ner"), "a corpus of the task ner"),
    "seg-pos": Comparison(partial(_full_tables, task="seg-pos"), "a corpus of the task seg-pos"),
    "scaling": Comparison(scaling_tables, "size in the plan's grid"),
    "depth": Comparison(depth_tables, "denoiser.layers in the plan's grid"),
    "iterations": Comparison(iterations_tables, "structure.num_iterations in the plan's grid"),
    "base": Comparison(base_tables, "a diffusion system, and bases in the plan's evaluation"),
    "readings": Comparison(
        readings_tables, "a system with categorical diffusion, and readings in the plan's evaluation"
    ),
}
