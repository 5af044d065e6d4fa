"""Tables before they are written in some format: titled grids of cells."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from diffusion_mf.experiments.aggregation import FEWEST_SEEDS_FOR_TEST, PairedDifference, Summary
from diffusion_mf.experiments.paper import PaperValue, kind_of_encoder, paper_encoder
from diffusion_mf.experiments.selection import Group
from diffusion_mf.systems import SYSTEMS

_SMALL = "Small figures are the paper's"
PAPER_NOTE = f"{_SMALL}."

COLUMN_TITLES = {
    "en-ewt": "EN",
    "de-gsd": "DE",
    "fr-gsd": "FR",
    "nl-lassysmall": "NL",
    "average": "Avg.",
    "conll2003": "NER",
    "zh-gsdsimp": "Chinese",
    "accuracy": "Acc.",
    "precision": "P",
    "recall": "R",
    "f1": "F1",
    "seg_f1": "Seg. F1",
    "gold_xpos": "Gold XPOS",
    "aligned_xpos": "Aligned XPOS",
    "joint_f1": "Joint F1",
    "exact_match": "Exact",
    "argmax": "Arg.",
    "native": "Native",
    "mask-viterbi": "M-Vit.",
    "viterbi": "Vit.",
}
"""short names for the heads of columns and decoders"""


def paper_note(*places: tuple[str, Iterable[str]]) -> str:
    """`PAPER_NOTE`, with the paper's own encoders where ours are others; ``places`` are encoders and corpora."""
    theirs = dict.fromkeys(
        name
        for encoder, corpora in places
        if kind_of_encoder(encoder) != "scratch"
        for corpus in corpora
        if (name := paper_encoder(corpus)) is not None and name != encoder
    )
    return f"{_SMALL}, for encoders of its own: {', '.join(theirs)}." if theirs else PAPER_NOTE


def short_title(name: str) -> str:
    """As in the paper's tables, where it has a name for it."""
    return COLUMN_TITLES.get(name, name)


def system_title(name: str) -> str:
    """The system's name in tables."""
    return SYSTEMS[name].title if name in SYSTEMS else name


@dataclass(frozen=True, kw_only=True)
class Cell:
    """Our value and the paper's; either may be missing."""

    summary: Summary | None = None
    paper: PaperValue | None = None
    difference: PairedDifference | None = None
    """instead of a summary, in tables of differences"""
    is_best: bool = False
    digits: int = 2
    planned: int | None = None
    """seeds of the plan, where not all have finished"""
    about: dict[str, Any] = field(default_factory=dict)
    """what it is the value of: corpus, system, metric …"""

    @property
    def mean(self) -> float | None:
        """Ours."""
        found = self.difference or self.summary
        return None if found is None else found.mean

    @property
    def deviation(self) -> float | None:
        """Ours."""
        found = self.difference or self.summary
        return None if found is None else found.deviation

    @property
    def num_seeds(self) -> int:
        """Of ours."""
        found = self.difference or self.summary
        return 0 if found is None else len(found.seeds)

    def record(self) -> dict[str, Any]:
        """Everything about the cell, for CSV and JSON."""
        found = self.difference or self.summary
        record = {
            **self.about,
            "seeds": [] if found is None else list(found.seeds),
            "mean": self.mean,
            "deviation": self.deviation,
            "paper_mean": None if self.paper is None else self.paper.mean,
            "paper_deviation": None if self.paper is None else self.paper.deviation,
        }
        if self.difference is not None:
            record |= {"p_value": self.difference.p_value, "standard_error": self.difference.standard_error}
        return record


@dataclass(frozen=True, kw_only=True)
class Row:
    """A row: its heading, one entry per heading column, and its cells."""

    heading: tuple[str, ...]
    cells: Sequence[Cell | None]
    starts_block: bool = False


@dataclass(frozen=True, kw_only=True)
class Table:
    """A titled grid; ``notes`` stand below it."""

    title: str
    headings: tuple[str, ...]
    columns: Sequence[str]
    rows: Sequence[Row]
    notes: Sequence[str] = ()

    def cells(self) -> list[Cell]:
        """All that there are."""
        return [cell for row in self.rows for cell in row.cells if cell is not None]

    def shown_notes(self) -> list[str]:
        """The notes, without that on the paper's figures where there are none."""
        has_paper = any(cell.paper is not None for cell in self.cells())
        return [note for note in self.notes if has_paper or not note.startswith(_SMALL)]

    def with_best(self, groups: Iterable[Sequence[int]] | None = None) -> Table:
        """The largest mean of every column marked as best; ``groups`` of rows are judged apart, single runs not at all."""
        rows = [list(row.cells) for row in self.rows]
        for members in groups or [range(len(rows))]:
            for column in range(len(self.columns)):
                means = {
                    index: cell.mean
                    for index in members
                    if (cell := rows[index][column]) is not None and cell.mean is not None and cell.num_seeds > 1
                }
                if len(means) < 2:
                    continue
                best = max(means.values())
                for index, mean in means.items():
                    cell = rows[index][column]
                    if mean == best and cell is not None:
                        rows[index][column] = replace(cell, is_best=True)
        return replace(self, rows=[replace(row, cells=cells) for row, cells in zip(self.rows, rows, strict=True)])


def score_cell(
    group: Group | None,
    split: str,
    decoder: str,
    metric: str,
    *,
    paper: PaperValue | None,
    schedule: str | None = None,
    about: dict[str, Any],
) -> Cell:
    """The cell of a group's metric."""
    summary = None if group is None else group.summary(split, decoder, metric, schedule=schedule)
    is_short = group is not None and summary is not None and len(summary.seeds) < len(group.planned)
    return Cell(
        summary=summary,
        paper=paper,
        planned=len(group.planned) if is_short and group is not None else None,
        about={
            **about,
            **({} if group is None else {"variant": group.variant}),
            "split": split,
            "metric": metric,
            "decoder": decoder,
        },
    )


def seed_notes(groups: Iterable[Group]) -> list[str]:
    """What has to be said about runs that have no result: of which, and why."""
    found: dict[str, list[str]] = {"Not finished": [], "Failed": [], "Diverged": []}
    for group in groups:
        without = [seed for seed in group.planned if seed not in group.results]
        missing = [seed for seed in without if seed not in (*group.diverged, *group.failed)]
        place = f"{group.corpus} {system_title(group.system)}"
        place += "" if group.encoder == "scratch" else f" {group.encoder}"
        place += "" if group.variant == "default" else f" {group.variant}"
        for reason, seeds in zip(found, (missing, group.failed, group.diverged), strict=True):
            if seeds:
                found[reason].append(f"{place} seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}")
    return [f"{reason}: {'; '.join(places)}." for reason, places in found.items() if places]


def significance_notes(cells: Iterable[Cell]) -> list[str]:
    """How differences were tested, and where they could not be."""
    found = [cell.difference for cell in cells if cell.difference is not None]
    if not found:
        return []
    notes = ["Differences are paired over seeds: mean ± sample deviation, p of a two-sided paired t-test."]
    notes.append(
        "An asterisk marks p < .05 in that test; many differences are tested, and p is not corrected for that."
    )
    if any(len(difference.seeds) < FEWEST_SEEDS_FOR_TEST for difference in found):
        notes.append(
            f"With fewer than {FEWEST_SEEDS_FOR_TEST} seeds there are too few for a test: no p and no asterisk there."
        )
    return notes
