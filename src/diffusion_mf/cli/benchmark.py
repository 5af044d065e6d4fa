"""``dmf benchmark``: efficiency tables."""

from __future__ import annotations

import re
import shlex
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from diffusion_mf.cli.output import half_up, note, print_json, print_table, progress
from diffusion_mf.errors import InputError

if TYPE_CHECKING:
    import torch

    from diffusion_mf.benchmarks.problems import Shape

app = typer.Typer(help="Efficiency tables.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Efficiency tables."""


@app.command()
def ops(
    *,
    device: Annotated[str, typer.Option(metavar="auto|cpu|cuda", help="Where to measure.")] = "auto",
    shapes: Annotated[
        str | None,
        typer.Option(
            metavar="BxNxK,…",
            help="Sentences × units × labels (default: 256x64x17,128x64x104 on a GPU, 32x32x17 on a CPU).",
        ),
    ] = None,
    output: Annotated[
        str | None, typer.Option(metavar="FILE", help="Result file to put the rows into, such as results/ops.json.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the rows as JSON.")] = False,
) -> None:
    """Time and memory of chain inference beside pytorch-crf and torch-struct, and of Mean-Field beside a denoiser."""
    wanted = None if shapes is None else _parse_shapes(shapes)
    place = _choose_device(device)
    from diffusion_mf.benchmarks.ops import ROW_KEY, default_shapes, measure_ops, num_contests
    from diffusion_mf.benchmarks.peers import PEERS, import_peers
    from diffusion_mf.results import provenance, read_rows, write_rows

    import_peers()
    if output is not None:
        read_rows(output)  # what is no result file is found before minutes of measuring, not after
    wanted = default_shapes(place) if wanted is None else wanted
    source = provenance(
        shlex.join(["dmf", *sys.argv[1:]]),
        packages=list(PEERS),
        measured=["ops", "structures", "benchmarks"],
    )
    rows: list[dict[str, Any]] = []
    with progress("measuring", total=num_contests(wanted, device=place), unit="operations") as advance:
        for measured in measure_ops(wanted, device=place, note=note):
            found = [{**row, **source} for row in measured]
            rows += found
            if output is not None:
                write_rows(output, found, replace_by=ROW_KEY)  # at once: a killed run keeps what it measured
            advance(1)
    if json:
        print_json(rows)
    else:
        _print_table(rows)


def _parse_shapes(text: str) -> list[Shape]:
    from diffusion_mf.benchmarks.problems import Shape

    found = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)[x×](\d+)[x×](\d+)", part.strip())
        sizes = [int(size) for size in match.groups()] if match else []
        # torch-struct, one of the peers, has no chains of one unit.
        if not match or min(sizes) < 1 or sizes[1] < 2:
            raise InputError(
                f"--shapes: {part.strip()!r} is no shape",
                remedy="write sentences × units (2 or more) × labels, as in 32x32x17,256x64x17",
            )
        found.append(Shape(*sizes))
    return found


def _choose_device(name: str) -> torch.device:
    if name not in ("auto", "cpu", "cuda"):
        raise InputError(f"--device: unknown device {name!r}", remedy="choose auto, cpu or cuda")
    import torch

    has_gpu = torch.cuda.is_available()
    if name == "cuda" and not has_gpu:
        raise InputError("--device cuda: PyTorch finds no CUDA GPU here", remedy="use --device cpu")
    return torch.device("cuda" if has_gpu and name != "cpu" else "cpu")


def _print_table(rows: list[dict[str, Any]]) -> None:
    def rounded(value: float | None, digits: int, factor: float = 1) -> str | None:
        return None if value is None else half_up(factor * value, digits)

    print_table(
        [
            "operation",
            "B × N × K",
            "transitions",
            "direction",
            "library",
            "mode",
            "ms",
            "peak MB",
            "× peer",
            "% denoiser",
        ],
        [
            [
                row["op"],
                " × ".join(map(str, row["shape"])),
                row["transitions"],
                row["direction"],
                row["library"],
                row["mode"],
                rounded(row["milliseconds"], 3),
                rounded(row["peak_memory_mb"], 1),
                rounded(row["speedup_over_fastest_peer"], 1),
                rounded(row["share_of_denoiser"], 1, factor=100),
            ]
            for row in rows
        ],
        title=f"Operations on {rows[0]['hardware']}: medians; × peer: how many times faster than the fastest peer",
    )
