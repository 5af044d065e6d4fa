"""The main results, the comparison of denoisers, and the full tables of NER and Chinese."""

from __future__ import annotations

import statistics

from diffusion_mf.lab.experiments.paper import LANGUAGES, kind_of_encoder, paper_score
from diffusion_mf.lab.experiments.selection import Group, Outcomes, Summary, paired_difference
from diffusion_mf.lab.experiments.tables.grid import (
    Cell,
    Row,
    Table,
    paper_note,
    score_cell,
    seed_notes,
    short_title,
    significance_notes,
    system_title,
)
from diffusion_mf.systems import SYSTEMS

LANGUAGE_NOTE = "The average is printed where all four languages have results."

# (corpus, metric) of every column.
_COLUMNS = (
    *((language, "accuracy") for language in (*LANGUAGES, "average")),
    *(("conll2003", metric) for metric in ("precision", "recall", "f1")),
    *(("zh-gsdsimp", metric) for metric in ("seg_f1", "gold_xpos", "joint_f1")),
)


def primary_metric(corpus: str) -> str:
    """The metric that selects on one of the paper's corpora."""
    return {"conll2003": "f1", "zh-gsdsimp": "joint_f1"}.get(corpus, "accuracy")


def main_tables(outcomes: Outcomes) -> list[Table]:
    """Test means with dev-selected settings and decoders, and what Diffusion-MF gains over each other system."""
    tables = []
    for encoder in outcomes.values("encoder"):
        known = {corpus for corpus, _ in _COLUMNS}
        corpora = [corpus for corpus in outcomes.values("corpus") if outcomes.find(corpus=corpus, encoder=encoder)]
        extra = [corpus for corpus in corpora if corpus not in known]
        planned = outcomes.planned(encoder=encoder)
        has_main = len(extra) < len(corpora)
        if has_main:
            notes = seed_notes(group for group in planned if group.corpus in known or not extra)
            tables.append(_main_table(outcomes, encoder, notes))
        if extra:
            notes = seed_notes(group for group in planned if group.corpus not in known or not has_main)
            tables.append(_other_corpora_table(outcomes, encoder, extra, notes))
        exact_match = _exact_match_table(outcomes, encoder, corpora)
        if exact_match is not None:
            tables.append(exact_match)
        differences = difference_table(outcomes, encoder)
        if differences is not None:
            tables.append(differences)
    return tables


def _systems(outcomes: Outcomes, encoder: str) -> list[str]:
    """Those with results, in the order of their table."""
    found = {group.system for group in outcomes.find(encoder=encoder)}
    return [system for system in outcomes.values("system") if system in found]


def _corpora(outcomes: Outcomes, encoder: str) -> list[str]:
    """The corpora to show: all of the paper's from scratch, for a pretrained encoder those it is planned for.

    Languages stand together, with their average, unless there is only one of them.
    """
    corpora = dict.fromkeys(corpus for corpus, _ in _COLUMNS)
    if kind_of_encoder(encoder) == "scratch":
        return list(corpora)
    shown = {group.corpus for group in outcomes.planned(encoder=encoder)}
    if len(shown.intersection(LANGUAGES)) > 1:
        shown |= {*LANGUAGES, "average"}
    return [corpus for corpus in corpora if corpus in shown]


def _main_table(outcomes: Outcomes, encoder: str, seeds: list[str]) -> Table:
    rows = []
    corpora = _corpora(outcomes, encoder)
    places = [(corpus, metric) for corpus, metric in _COLUMNS if corpus in corpora]
    systems = _systems(outcomes, encoder)
    for system in systems:
        about = {"system": system, "encoder": encoder}
        cells: list[Cell | None] = []
        for corpus, metric in places:
            group = None if corpus == "average" else outcomes.selected(corpus, system, encoder)
            decoder = "" if group is None else group.selected_decoder()
            paper = paper_score(corpus, system, encoder, metric)
            if corpus == "average":
                cells.append(
                    Cell(
                        summary=_average(outcomes, system, encoder),
                        paper=paper,
                        about={**about, "corpus": corpus, "split": "test", "metric": metric},
                    )
                )
            else:
                cells.append(score_cell(group, "test", decoder, metric, paper=paper, about={**about, "corpus": corpus}))
        rows.append(Row(heading=(system_title(system),), cells=cells))
    columns = [
        short_title(corpus) if corpus in (*LANGUAGES, "average") else f"{short_title(corpus)} {short_title(metric)}"
        for corpus, metric in places
    ]
    languages = [LANGUAGE_NOTE] if "average" in corpora else []
    notes = [paper_note((encoder, corpora)), *languages, *seeds]
    groups = outcomes.find(encoder=encoder)
    num_places = len({(group.corpus, group.system) for group in groups})
    chosen = ["settings"] * (len(groups) > num_places) + ["decoder"] * any(len(group.decoders) > 1 for group in groups)
    title = f"Test results, encoder {encoder}"
    if chosen:
        title += f": {' and '.join(chosen)} selected, where there are several, by the mean dev score over seeds"
    return Table(title=title, headings=("Model",), columns=columns, rows=rows, notes=notes).with_best()


def _other_corpora_table(outcomes: Outcomes, encoder: str, corpora: list[str], notes: list[str]) -> Table:
    rows = []
    for system in _systems(outcomes, encoder):
        cells: list[Cell | None] = []
        for corpus in corpora:
            group = outcomes.selected(corpus, system, encoder)
            if group is None:
                cells += [None, None]
                continue
            about = {"corpus": corpus, "system": system, "encoder": encoder}
            cells += [
                score_cell(group, split, group.selected_decoder(), group.metric, paper=None, about=about)
                for split in ("dev", "test")
            ]
        rows.append(Row(heading=(system_title(system),), cells=cells))
    columns = [f"{corpus} {split}" for corpus in corpora for split in ("dev", "test")]
    title = f"Corpora that are not the paper's, encoder {encoder}: primary metric"
    return Table(title=title, headings=("Model",), columns=columns, rows=rows, notes=notes).with_best()


def _exact_match_table(outcomes: Outcomes, encoder: str, corpora: list[str]) -> Table | None:
    """Sentences without any error; None where no run has counted them."""
    rows = []
    for system in _systems(outcomes, encoder):
        cells: list[Cell | None] = []
        for corpus in corpora:
            group = outcomes.selected(corpus, system, encoder)
            decoder = "" if group is None else group.selected_decoder()
            about = {"corpus": corpus, "system": system, "encoder": encoder}
            cells += [
                score_cell(group, split, decoder, "exact_match", paper=None, about=about) for split in ("dev", "test")
            ]
        rows.append(Row(heading=(system_title(system),), cells=cells))
    table = Table(
        title=f"Sentences without any error (exact match), encoder {encoder}",
        headings=("Model",),
        columns=[f"{short_title(corpus)} {split}" for corpus in corpora for split in ("dev", "test")],
        rows=rows,
        notes=["Settings and decoder are those selected by the primary metric. The paper does not report exact match."],
    )
    return table.with_best() if any(cell.mean is not None for cell in table.cells()) else None


def _average(outcomes: Outcomes, system: str, encoder: str) -> Summary | None:
    """The unweighted mean of the four languages' means; None unless there are four."""
    groups = [outcomes.selected(language, system, encoder) for language in LANGUAGES]
    found = [
        summary
        for group in groups
        if group is not None and (summary := group.summary("test", group.selected_decoder())) is not None
    ]
    if len(found) < len(LANGUAGES):
        return None
    seeds = set.intersection(*(set(summary.seeds) for summary in found))
    return Summary(statistics.fmean(summary.mean for summary in found), None, tuple(sorted(seeds)))


def difference_table(outcomes: Outcomes, encoder: str, *, against: str = "diffusion-mf") -> Table | None:
    """What ``against`` gains over every other system on test, paired over seeds; None where there is nothing to compare."""
    corpora = [corpus for corpus in outcomes.values("corpus") if outcomes.selected(corpus, against, encoder)]
    others = [system for system in _systems(outcomes, encoder) if system != against]
    if not corpora or not others:
        return None
    metrics = {corpus: outcomes.find(corpus=corpus)[0].metric for corpus in corpora}
    rows = []
    for system in others:
        cells: list[Cell | None] = []
        for corpus in corpora:
            first, second = outcomes.selected(corpus, against, encoder), outcomes.selected(corpus, system, encoder)
            difference = None
            if first is not None and second is not None:
                difference = paired_difference(_selected_test(first), _selected_test(second))
            about = {"corpus": corpus, "system": against, "minus": system, "encoder": encoder}
            about |= {"split": "test", "metric": metrics[corpus]}
            cells.append(None if difference is None else Cell(difference=difference, about=about))
        rows.append(Row(heading=(f"− {system_title(system)}",), cells=cells))
    columns = [f"{short_title(corpus)} {short_title(metric)}" for corpus, metric in metrics.items()]
    table = Table(
        title=f"{system_title(against)} minus every other system on test, encoder {encoder}",
        headings=(system_title(against),),
        columns=columns,
        rows=rows,
    )
    return Table(
        title=table.title, headings=table.headings, columns=columns, rows=rows, notes=significance_notes(table.cells())
    )


def _selected_test(group: Group) -> dict[int, float]:
    return group.scores("test", group.selected_decoder())


def denoiser_tables(outcomes: Outcomes) -> list[Table]:
    """The three categorical denoisers by their primary metric on test."""
    systems = ("diffusion-uni", "diffusion-lcrf", "diffusion-mf")
    if not any(group.system in systems for group in outcomes.groups):
        return []
    rows = []
    for encoder in outcomes.values("encoder"):
        for corpus in _corpora(outcomes, encoder):
            metric = primary_metric(corpus)
            cells: list[Cell | None] = []
            for system in systems:
                paper = paper_score(corpus, system, encoder, metric)
                about = {"corpus": corpus, "system": system, "encoder": encoder}
                if corpus == "average":
                    summary = _average(outcomes, system, encoder)
                    cells.append(Cell(summary=summary, paper=paper, about={**about, "split": "test"}))
                    continue
                group = outcomes.selected(corpus, system, encoder)
                decoder = "" if group is None else group.selected_decoder()
                cells.append(score_cell(group, "test", decoder, metric, paper=paper, about=about))
            rows.append(Row(heading=(f"{short_title(corpus)} {encoder}",), cells=cells))
    table = Table(
        title="Denoisers: primary metric on test after dev selection",
        headings=("Setting",),
        columns=[system_title(system) for system in systems],
        rows=[_best_of_row(row) for row in rows],
        notes=[
            paper_note(*((encoder, _corpora(outcomes, encoder)) for encoder in outcomes.values("encoder"))),
            LANGUAGE_NOTE,
            *seed_notes(g for g in outcomes.all_groups if g.system in systems),
        ],
    )
    return [table]


def _best_of_row(row: Row) -> Row:
    turned = Table(
        title="", headings=("",), columns=["x"], rows=[Row(heading=("",), cells=[cell]) for cell in row.cells]
    ).with_best()
    return Row(heading=row.heading, cells=[each.cells[0] for each in turned.rows])


def ner_tables(outcomes: Outcomes) -> list[Table]:
    """CoNLL-2003, and other NER: accuracy, precision, recall, F1 and exact match."""
    return _tables(outcomes, "ner", ("accuracy", "precision", "recall", "f1", "exact_match"))


def segmentation_tables(outcomes: Outcomes) -> list[Table]:
    """Chinese GSDSimp: segmentation F1, gold-word XPOS, aligned XPOS, joint F1 and exact match."""
    return _tables(outcomes, "seg-pos", ("seg_f1", "gold_xpos", "aligned_xpos", "joint_f1", "exact_match"))


def _tables(outcomes: Outcomes, task: str, metrics: tuple[str, ...]) -> list[Table]:
    corpora = [c for c in outcomes.values("corpus") if outcomes.find(corpus=c)[0].task.value == task]
    return [
        _table(outcomes, corpus, encoder, split, metrics)
        for corpus in corpora
        for encoder in outcomes.values("encoder")
        if outcomes.planned(corpus=corpus, encoder=encoder)
        for split in ("dev", "test")
    ]


def _table(outcomes: Outcomes, corpus: str, encoder: str, split: str, metrics: tuple[str, ...]) -> Table:
    rows = []
    for system in dict.fromkeys((*SYSTEMS, *outcomes.values("system"))):
        group = outcomes.selected(corpus, system, encoder)
        selected = None if group is None else group.selected_decoder()
        if group is not None:
            decoders = (*group.decoders, *group.compared)
        else:
            decoders = SYSTEMS[system].decoders(is_constrained=True) if system in SYSTEMS else ()
        for index, decoder in enumerate(decoders):
            about = {"corpus": corpus, "system": system, "encoder": encoder, "selected": decoder == selected}
            cells = [
                score_cell(
                    group,
                    split,
                    decoder,
                    metric,
                    paper=paper_score(corpus, system, encoder, metric, split=split, decoder=decoder),
                    about=about,
                )
                for metric in metrics
            ]
            heading = (system_title(system), short_title(decoder) + ("†" if decoder == selected else ""))
            rows.append(Row(heading=heading, cells=cells, starts_block=index == 0))
    return Table(
        title=f"{corpus}, {split}, encoder {encoder}, every decoder",
        headings=("Model", "Dec."),
        columns=[short_title(metric) for metric in metrics],
        rows=rows,
        notes=[
            paper_note((encoder, [corpus])),
            "† marks the decoder selected by the mean dev score over seeds, or the only one.",
            *seed_notes(outcomes.planned(corpus=corpus, encoder=encoder)),
        ],
    ).with_best()
