"""The complete NER and Chinese tables: every decoder, dev and test (paper: appendix “Complete Results”)."""

from __future__ import annotations

from diffusion_mf.experiments.paper import paper_score
from diffusion_mf.experiments.selection import Outcomes
from diffusion_mf.experiments.tables.grid import (
    Row,
    Table,
    paper_note,
    score_cell,
    seed_notes,
    short_title,
    system_title,
)
from diffusion_mf.systems import SYSTEMS


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
    for system, entry in SYSTEMS.items():
        group = outcomes.selected(corpus, system, encoder)
        selected = None if group is None else group.selected_decoder()
        for index, decoder in enumerate(
            entry.decoders(is_constrained=True) if group is None else (*group.decoders, *group.compared)
        ):
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
