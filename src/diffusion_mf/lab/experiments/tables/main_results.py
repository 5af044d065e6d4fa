"""The main results, the comparison of denoisers, and the full tables of NER and Chinese."""

from __future__ import annotations

import statistics

from diffusion_mf.lab.experiments.paper import LANGUAGES, kind_of_encoder, paper_score
from diffusion_mf.lab.experiments.selection import Group, Outcomes, Summary, paired_difference
from diffusion_mf.lab.experiments.tables.grid import (
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

# (corpus, metric) of every column.
_COLUMNS = (
    *((language, "accuracy") for language in (*LANGUAGES, "average")),
    *(("conll2003", metric) for metric in ("precision", "recall", "f1")),
    *(("zh-gsdsimp", metric) for metric in ("seg_f1", "gold_xpos", "joint_f1")),
)


def primary_metric(corpus: str) -> str:
    """The metric for selection on one of the paper's corpora."""
    return {"conll2003": "f1", "zh-gsdsimp": "joint_f1"}.get(corpus, "accuracy")


def main_tables(outcomes: Outcomes) -> list[Table]:
    """Test means with dev-selected settings and decoders, and the gains of Diffusion-MF over every other system."""
    tables: list[Table | None] = []
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
        tables += [_exact_match_table(outcomes, encoder, corpora), difference_table(outcomes, encoder)]
    return [table for table in tables if table is not None]


def _systems(outcomes: Outcomes, encoder: str) -> list[str]:
    """The systems with results, in the order of the system table."""
    found = {group.system for group in outcomes.find(encoder=encoder)}
    return [system for system in outcomes.values("system") if system in found]


def _system_rows(outcomes: Outcomes, encoder: str) -> list[tuple[tuple[str, ...], str]]:
    return [((system_title(system),), system) for system in _systems(outcomes, encoder)]


def _corpora(outcomes: Outcomes, encoder: str) -> list[str]:
    """The corpora to show: all of the paper's from scratch; for a pretrained encoder, those in the plan.

    Languages are grouped with their average, unless there is only one.
    """
    corpora = dict.fromkeys(corpus for corpus, _ in _COLUMNS)
    if kind_of_encoder(encoder) == "scratch":
        return list(corpora)
    shown = {group.corpus for group in outcomes.planned(encoder=encoder)}
    if len(shown.intersection(LANGUAGES)) > 1:
        shown |= {*LANGUAGES, "average"}
    return [corpus for corpus in corpora if corpus in shown]


def _paper_cell(outcomes: Outcomes, corpus: str, system: str, encoder: str, metric: str) -> Cell:
    """The test score of the selected setting and the paper's; also for the average over languages."""
    paper = paper_score(corpus, system, encoder, metric)
    place = {"corpus": corpus, "system": system, "encoder": encoder}
    if corpus == "average":
        about = {**place, "split": "test", "metric": metric}
        return Cell(summary=_average(outcomes, system, encoder), paper=paper, about=about)
    return score_cell(outcomes.selected(corpus, system, encoder), "test", metric, paper=paper, about=place)


def _main_table(outcomes: Outcomes, encoder: str, seeds: list[str]) -> Table:
    corpora = _corpora(outcomes, encoder)
    languages = [LANGUAGE_NOTE] if "average" in corpora else []
    groups = outcomes.find(encoder=encoder)
    num_places = len({(group.corpus, group.system) for group in groups})
    chosen = ["settings"] * (len(groups) > num_places) + ["decoder"] * any(len(group.decoders) > 1 for group in groups)
    title = f"Test results, encoder {encoder}"
    if chosen:
        title += f": {' and '.join(chosen)} selected by the mean dev score over seeds"

    def column_title(corpus: str, metric: str) -> str:
        is_language = corpus in (*LANGUAGES, "average")
        return short_title(corpus) if is_language else f"{short_title(corpus)} {short_title(metric)}"

    return make_table(
        title,
        headings=("Model",),
        rows=_system_rows(outcomes, encoder),
        columns=[(column_title(*place), place) for place in _COLUMNS if place[0] in corpora],
        cell=lambda system, place: _paper_cell(outcomes, place[0], system, encoder, place[1]),
        notes=[paper_note((encoder, corpora)), *languages, *seeds],
    ).with_best()


def _other_corpora_table(outcomes: Outcomes, encoder: str, corpora: list[str], notes: list[str]) -> Table:
    def cell(system: str, place: tuple[str, str]) -> Cell | None:
        corpus, split = place
        about = {"corpus": corpus, "system": system, "encoder": encoder}
        group = outcomes.selected(corpus, system, encoder)
        return None if group is None else score_cell(group, split, about=about)

    return make_table(
        f"Corpora that are not the paper's, encoder {encoder}: primary metric",
        headings=("Model",),
        rows=_system_rows(outcomes, encoder),
        columns=[(f"{corpus} {split}", (corpus, split)) for corpus in corpora for split in SPLITS],
        cell=cell,
        notes=notes,
    ).with_best()


def _exact_match_table(outcomes: Outcomes, encoder: str, corpora: list[str]) -> Table | None:
    """Table of sentences without any error; None if no run has counted them."""

    def cell(system: str, place: tuple[str, str]) -> Cell:
        corpus, split = place
        about = {"corpus": corpus, "system": system, "encoder": encoder}
        return score_cell(outcomes.selected(corpus, system, encoder), split, "exact_match", about=about)

    table = make_table(
        f"Sentences without any error (exact match), encoder {encoder}",
        headings=("Model",),
        rows=_system_rows(outcomes, encoder),
        columns=[(f"{short_title(corpus)} {split}", (corpus, split)) for corpus in corpora for split in SPLITS],
        cell=cell,
        notes=["Settings and decoder are those selected by the primary metric. The paper does not report exact match."],
    )
    return table.with_best() if table.has_results else None


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
    """Table of the gains of ``against`` over every other system on test, paired over seeds; None if there are none."""
    groups = {corpus: outcomes.selected(corpus, against, encoder) for corpus in outcomes.values("corpus")}
    references = {corpus: group for corpus, group in groups.items() if group is not None}
    others = [system for system in _systems(outcomes, encoder) if system != against]
    if not references or not others:
        return None

    def test_scores(group: Group | None) -> dict[int, float]:
        return {} if group is None else group.scores("test", group.selected_decoder())

    def cell(system: str, corpus: str) -> Cell | None:
        reference, other = references[corpus], outcomes.selected(corpus, system, encoder)
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
    if not any(group.system in systems for group in outcomes.groups):
        return []
    encoders = outcomes.values("encoder")
    places = [(corpus, encoder) for encoder in encoders for corpus in _corpora(outcomes, encoder)]
    table = make_table(
        "Denoisers: primary metric on test after dev selection",
        headings=("Setting",),
        rows=[((f"{short_title(corpus)} {encoder}",), (corpus, encoder)) for corpus, encoder in places],
        columns=[(system_title(system), system) for system in systems],
        cell=lambda place, system: _paper_cell(outcomes, place[0], system, place[1], primary_metric(place[0])),
        notes=[
            paper_note(*((encoder, _corpora(outcomes, encoder)) for encoder in encoders)),
            LANGUAGE_NOTE,
            *seed_notes(group for group in outcomes.all_groups if group.system in systems),
        ],
    )
    return [table.with_best(by_row=True)]


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
        for split in SPLITS
    ]


def _table(outcomes: Outcomes, corpus: str, encoder: str, split: str, metrics: tuple[str, ...]) -> Table:
    systems = dict.fromkeys((*SYSTEMS, *outcomes.values("system")))
    groups = {system: outcomes.selected(corpus, system, encoder) for system in systems}
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
        block=lambda row: row[0],
        notes=[
            paper_note((encoder, [corpus])),
            "† marks the decoder selected by the mean dev score over seeds, or the only one.",
            *seed_notes(outcomes.planned(corpus=corpus, encoder=encoder)),
        ],
    ).with_best()
