"""A report as plain values, for JSON and result files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from diffusion_mf.evaluation.breakdowns import BreakdownRow
from diffusion_mf.evaluation.counts import Counts
from diffusion_mf.evaluation.report import PRIMARY_METRICS, Report


def summary_values(report: Report) -> dict[str, object]:
    """The figures of a report in one flat object; the task's metrics stand under their own names."""
    return {
        "task": str(report.task),
        "scheme": str(report.scheme),
        "predicted_scheme": str(report.predicted_scheme),
        "sentences": report.sentences,
        "units": report.units,
        **report.metrics,
        "primary_metric": PRIMARY_METRICS[report.task],
        "invalid_rate": report.invalid_rate,
        "malformed_fragments": report.malformed_fragments,
    }


def detail_values(report: Report) -> dict[str, object]:
    """The tables of a report: labels, types, the whole confusion table, lengths."""
    return {
        "labels": _counts_values(report.tokens.labels),
        "types": _counts_values(report.types),
        "confusion": [
            {"gold": gold, "predicted": predicted, "count": count}
            for (gold, predicted), count in sorted(report.tokens.confusion.items())
        ],
        "lengths": breakdown_values(report.lengths, size_name="sentences"),
    }


def breakdown_values(rows: Sequence[BreakdownRow], *, size_name: str) -> list[dict[str, object]]:
    """One object per part of the file."""
    return [{"name": row.name, size_name: row.size, **row.metrics} for row in rows]


def _counts_values(table: Mapping[str, Counts]) -> list[dict[str, object]]:
    return [
        {
            "label": label,
            "precision": counts.precision,
            "recall": counts.recall,
            "f1": counts.f1,
            "support": counts.gold,
            "predicted": counts.predicted,
            "correct": counts.correct,
        }
        for label, counts in table.items()
    ]
