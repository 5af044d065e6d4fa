"""``dmf benchmark correction``: how many labels an annotator has to fix when the rest follows."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from diffusion_mf.cli.benchmark_options import AsJson, Device, collect, known_one, rounded
from diffusion_mf.errors import InputError
from diffusion_mf.evaluation.terminal import half_up, note, print_json, print_table


def correction(
    models: Annotated[
        list[str],
        typer.Argument(metavar="MODEL…", help="Model folders; those that differ by their seed only are one system."),
    ],
    *,
    data: Annotated[str, typer.Option("--data", metavar="FILE", help="A file with gold labels, usually dev.")],
    corpus: Annotated[
        str | None, typer.Option(metavar="NAME", help="The corpus's name in the rows (default: the file's folder).")
    ] = None,
    orders: Annotated[
        str, typer.Option(metavar="ORDER,…", help="Orders in which labels are looked at: reading, uncertain.")
    ] = "reading,uncertain",
    given: Annotated[
        str, typer.Option(metavar="PERCENT,…", help="Shares of the labels that are given at random; none: no curve.")
    ] = "1,5,10,25,50",
    sentences: Annotated[
        int | None, typer.Option(min=1, help="Only the first sentences of the file, so many.", show_default="all")
    ] = None,
    calls: Annotated[
        int | None, typer.Option(min=1, help="Denoising steps of diffusion systems.", show_default="as configured")
    ] = None,
    plot: Annotated[
        str | None, typer.Option(metavar="FILE", help="Draw all rows of --output, or those measured, to this file.")
    ] = None,
    device: Device = "auto",
    output: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Result file to write the rows to, such as results/correction.json."),
    ] = None,
    json: AsJson = False,
) -> None:
    """How many labels a simulated annotator fixes until everything is right, if the rest is labelled anew after each fix."""
    from diffusion_mf.prediction.devices import choose_device

    place = choose_device(device)
    from diffusion_mf.data.corpus import check_labels
    from diffusion_mf.data.formats import read_task
    from diffusion_mf.lab.benchmarks.correction import (
        CORRECTION_ROW_KEY,
        Measured,
        Order,
        correction_rows,
        measure_model,
        write_correction_plot,
    )
    from diffusion_mf.lab.results import read_rows
    from diffusion_mf.model.storage import load_model

    known = {order.value: order for order in Order}
    chosen = [known_one("--orders", name.strip(), known, kind="order") for name in orders.split(",")]
    shares = _shares(given)
    stored = [load_model(model) for model in models]
    tasks = {model.config.task for model in stored}
    if len(tasks) > 1:
        raise InputError("the models have different tasks", remedy="measure those of one task at a time")
    first = stored[0].config
    read = read_task(data, first.task, column=first.data.column)
    check_labels(read)
    if read.repaired is not None:
        note(read.repaired)
    facts = {"corpus": corpus or Path(data).resolve().parent.name, "file": Path(data).name, "calls": calls}

    def measured() -> Iterator[list[dict[str, Any]]]:
        found: list[Measured] = []
        for model in stored:
            found.append(
                measure_model(
                    model, read.sentences[:sentences], device=place, orders=chosen, shares=shares, calls=calls
                )
            )
            # The comparisons need all models, so that rows come at the end.
            yield [{**facts, **row} for row in correction_rows(found)] if len(found) == len(stored) else []

    rows = collect(measured(), total=len(stored), output=output, replace_by=CORRECTION_ROW_KEY)
    if plot is not None:
        write_correction_plot(rows if output is None else read_rows(output), Path(plot))
        note(f"the plot is {plot}")
    if json:
        print_json(rows)
    else:
        _print(rows)


def _shares(text: str) -> list[float]:
    if text.strip() == "none":
        return []
    try:
        shares = [float(part) for part in text.split(",")]
    except ValueError:
        shares = []
    if not shares or not all(0 < share < 100 for share in shares):
        raise InputError(f"--given: {text!r} is not a list of shares", remedy="write per cent, as in 1,5,10, or none")
    return shares


def _title(row: dict[str, Any]) -> str:
    from diffusion_mf.lab.benchmarks.correction import ModelGroup

    return ModelGroup(row["system"], row["recall"], row["clamp_share"]).title


def _print(rows: list[dict[str, Any]]) -> None:
    fixing = [row for row in rows if row["order"] is not None]
    if fixing:
        print_table(
            ["system", "seeds", "order", "errors", "fixes", "% saved", "minus LCRF", "95 %", "p"],
            [
                [
                    _title(row),
                    len(row["seeds"]),
                    row["order"],
                    rounded(row, "errors", 2),
                    rounded(row, "fixes", 2),
                    rounded(row, "saved", 1),
                    *_compared(row.get("minus_lcrf")),
                ]
                for row in fixing
            ],
            title=f"{fixing[0]['corpus']}: errors at the start and fixes per {fixing[0]['per']}",
        )
    curve = [row for row in rows if row["given"] is not None]
    if curve:
        print_table(
            ["system", "% given", "accuracy of the others", "without"],
            [
                [
                    _title(row),
                    f"{row['given']:g}",
                    rounded(row, "accuracy_of_others", 2),
                    rounded(row, "accuracy_without", 2),
                ]
                for row in curve
            ],
            title="Accuracy on the units whose label is not given",
        )


def _compared(values: dict[str, float] | None) -> list[str | None]:
    if values is None:
        return [None, None, None]
    interval = f"{half_up(values['low'], 2)} to {half_up(values['high'], 2)}"
    return [half_up(values["difference"], 2), interval, half_up(values["p_fewer"], 4)]
