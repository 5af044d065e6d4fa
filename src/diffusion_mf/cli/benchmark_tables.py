"""The table of throughput, as ``dmf benchmark`` prints it."""

from __future__ import annotations

from typing import Any

from diffusion_mf.cli.output import half_up, print_table

COLUMNS = (
    *("corpus", "system", "setting", "phase", "implementation", "sent./s"),
    *("paper", "× paper", "% of one", "calls", "% peak", "GB"),
)


def rounded(row: dict[str, Any], field: str, digits: int, *, factor: float = 1) -> str | None:
    """A number of the row for a table; None where it has none."""
    value = row.get(field)
    return None if value is None else half_up(factor * value, digits)


def print_throughput(rows: list[dict[str, Any]]) -> None:
    """Rows of ``throughput``, ``mean-field`` and ``schedule``."""
    print_table(
        COLUMNS,
        [
            [
                row["corpus"],
                row["system"],
                row["setting"],
                row["phase"],
                row["implementation"],
                rounded(row, "sentences_per_second", 0),
                rounded(row, "paper_sentences_per_second", 1),
                rounded(row, "ratio_to_paper", 1),
                rounded(row, "relative", 1, factor=100),
                row.get("num_calls"),
                rounded(row, "utilisation", 1, factor=100),
                rounded(row, "peak_memory_gb", 1),
            ]
            for row in rows
        ],
        title=f"Throughput on {rows[0]['hardware']}: medians",
    )
