"""Options and output shared by the commands of ``dmf benchmark``."""

import shlex
import sys
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from diffusion_mf.errors import InputError
from diffusion_mf.evaluation.terminal import half_up, print_table, progress

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from diffusion_mf.data.corpus import Task

Known = TypeVar("Known")

Folder = Annotated[str, typer.Option("--configs", metavar="DIR", help="The folder of the paper's configurations.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="[TASK:]KEY=VALUE",
        help="Override a setting of the configurations, for one task or all; may be repeated.",
    ),
]
Output = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="Result file to write the rows to, such as results/efficiency.json."),
]
Device = Annotated[str, typer.Option(metavar="auto|cpu|cuda", help="Where to measure.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the rows as JSON.")]


def overrides_of(task: str, overrides: list[str] | None) -> list[str]:
    """The overrides that apply to ``task``: its own, without the ``TASK:`` prefix, and those for every task."""
    found = []
    for override in overrides or ():
        prefix, separator, rest = override.partition(":")
        is_for_a_task = bool(separator) and "=" not in prefix
        if not is_for_a_task:
            found.append(override)
        elif prefix == task:
            found.append(rest)
    return found


def collect(
    measured: "Iterable[list[dict[str, Any]]]",
    *,
    total: int,
    output: str | None,
    replace_by: "Sequence[str]",
    unit: str = "models",
    packages: "Sequence[str]" = (),
    measured_files: "Sequence[str]" = (),
) -> list[dict[str, Any]]:
    """Measure with a progress bar, saving each row to the result file at once so that a killed run keeps its rows."""
    from diffusion_mf.lab.results import provenance, read_rows, write_rows

    if output is not None:
        read_rows(output)  # Reject a file that is not a result file before minutes of measuring, not after.
    source = provenance(shlex.join(["dmf", *sys.argv[1:]]), packages=packages, measured=measured_files)
    rows: list[dict[str, Any]] = []
    with progress("measuring", total=total, unit=unit) as advance:
        for part in measured:
            found = [{**row, **source} for row in part]
            rows += found
            if output is not None:
                write_rows(output, found, replace_by=replace_by)
            advance(1)
    return rows


def known_one(option: str, name: str, known: "Mapping[str, Known]", *, kind: str) -> Known:
    """The value of ``known`` that ``name``, given to ``option``, refers to."""
    if name not in known:
        raise InputError(f"{option}: unknown {kind} {name!r}", remedy=f"choose from {', '.join(known)}")
    return known[name]


def measured_task(option: str, name: str) -> "Task":
    """The task called ``name``, if it has a corpus to measure on."""
    from diffusion_mf.lab.benchmarks.throughput import BENCHMARK_CORPORA

    return known_one(option, name, {task.value: task for task in BENCHMARK_CORPORA}, kind="task")


def numbers_of(option: str, text: str) -> list[int]:
    """Parse a list of numbers such as 1,4,16, the value of ``option``."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise InputError(
            f"{option}: {text!r} is not a list of numbers", remedy="write numbers of at least 1, as in 1,4,16"
        )
    return [int(part) for part in parts]


COLUMNS = (
    *("corpus", "system", "setting", "phase", "implementation", "sent./s"),
    *("paper", "× paper", "% of one", "calls", "dev", "exact", "% peak", "GB"),
)


def rounded(row: dict[str, Any], field: str, digits: int, *, factor: float = 1) -> str | None:
    """A number of the row formatted for a table; None if the row does not have it."""
    value = row.get(field)
    return None if value is None else half_up(factor * value, digits)


def print_throughput(rows: list[dict[str, Any]]) -> None:
    """Print the rows of ``throughput``, ``mean-field`` and ``schedule`` as a table."""
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
                rounded(row, "dev_score", 2),
                rounded(row, "dev_exact_match", 1),
                rounded(row, "utilisation", 1, factor=100),
                rounded(row, "peak_memory_gb", 1),
            ]
            for row in rows
        ],
        title=f"Throughput on {rows[0]['hardware']}: medians",
    )
