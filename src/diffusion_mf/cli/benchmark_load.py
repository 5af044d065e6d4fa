"""``dmf benchmark scaling``, ``sharing`` and ``agreement``: speed under load, and whether the fast path is accurate."""

from pathlib import Path
from typing import Annotated, Any

import typer

from diffusion_mf.cli.benchmark_options import (
    AsJson,
    Device,
    Folder,
    Output,
    Overrides,
    collect,
    measured_task,
    numbers_of,
    overrides_of,
    rounded,
)
from diffusion_mf.errors import InputError
from diffusion_mf.evaluation.terminal import half_up, note, print_json, print_table

ONE_TASK = "pos"
TIMES, LENGTHS, COUNTS = "1,4,16", "16,32,64,128,256,512,1024,2000", "1,2,4,8,12"


def scaling(
    *,
    task: Annotated[str, typer.Option(help="One of pos, ner and seg-pos.")] = ONE_TASK,
    times: Annotated[str, typer.Option(metavar="N,…", help="Numbers of copies of the data to measure.")] = TIMES,
    lengths: Annotated[
        str, typer.Option(metavar="N,…", help="Lengths of the generated sentences, in units.")
    ] = LENGTHS,
    units: Annotated[int, typer.Option(min=1, help="Approximate total number of units per length.")] = 200_000,
    repeats: Annotated[int, typer.Option(min=1, help="Timed runs after warm-up; the median is reported.")] = 5,
    device: Device = "auto",
    configs: Folder = "configs",
    overrides: Overrides = None,
    output: Output = None,
    json: AsJson = False,
) -> None:
    """Check that the cost of Diffusion-MF grows linearly with the amount of data and the length of sentences."""
    from diffusion_mf.prediction.devices import choose_device

    place = choose_device(device)
    counts, sizes = numbers_of("--times", times), numbers_of("--lengths", lengths)
    from diffusion_mf.lab.benchmarks.load import measure_scaling
    from diffusion_mf.lab.benchmarks.throughput import THROUGHPUT_ROW_KEY

    chosen = measured_task("--task", task)
    measured = measure_scaling(
        chosen,
        device=place,
        folder=configs,
        overrides=overrides_of(chosen.value, overrides),
        times=counts,
        lengths=sizes,
        units=units,
        repeats=repeats,
    )
    total = 2 * len(counts) + len(sizes)
    rows = collect(measured, total=total, output=output, replace_by=THROUGHPUT_ROW_KEY, unit="settings")
    if json:
        print_json(rows)
        return
    print_table(
        ["setting", "phase", "sentences", "sent./s", "% of the first", "ms/sentence", "µs/unit"],
        [
            [
                row["setting"],
                row["phase"],
                row["sentences"],
                rounded(row, "sentences_per_second", 0),
                rounded(row, "relative", 1, factor=100),
                rounded(row, "milliseconds_per_sentence", 3),
                rounded(row, "microseconds_per_unit", 2),
            ]
            for row in rows
        ],
        title=f"{rows[0]['system']} on {rows[0]['corpus']}, {rows[0]['hardware']}: medians",
    )


def sharing(
    *,
    task: Annotated[str, typer.Option(help="One of pos, ner and seg-pos.")] = ONE_TASK,
    system: Annotated[str, typer.Option(help="System to train.")] = "diffusion-mf",
    counts: Annotated[str, typer.Option(metavar="N,…", help="Numbers of concurrent processes.")] = COUNTS,
    seconds: Annotated[float, typer.Option(min=0, help="Training time after warm-up.")] = 20.0,
    device: Device = "auto",
    configs: Folder = "configs",
    overrides: Overrides = None,
    output: Output = None,
    json: AsJson = False,
) -> None:
    """How many training runs share a device before their aggregate throughput stops growing."""
    from diffusion_mf.prediction.devices import choose_device

    place = choose_device(device)
    numbers = numbers_of("--counts", counts)
    from diffusion_mf.config import load_config
    from diffusion_mf.lab.benchmarks.load import best_count, measure_sharing
    from diffusion_mf.lab.benchmarks.throughput import BENCHMARK_CORPORA, THROUGHPUT_ROW_KEY

    chosen = measured_task("--task", task)
    # Same size and compilation settings as in experiments, not those of the efficiency table.
    config = load_config(f"{configs}/{chosen.value}/{system}.toml", overrides_of(chosen.value, overrides))
    measured = measure_sharing(
        config, corpus=BENCHMARK_CORPORA[chosen].name, device=place.type, counts=numbers, seconds=seconds
    )
    rows = collect(measured, total=len(numbers), output=output, replace_by=THROUGHPUT_ROW_KEY, unit="settings")
    if json:
        print_json(rows)
        return
    print_table(
        ["runs at a time", "sent./s together", "× one", "slowest", "fastest", "GB each"],
        [
            [
                row["setting"],
                rounded(row, "sentences_per_second", 0),
                rounded(row, "relative", 2),
                half_up(min(row["sentences_per_second_each"]), 0),
                half_up(max(row["sentences_per_second_each"]), 0),
                rounded(row, "peak_memory_gb", 1),
            ]
            for row in rows
        ],
        title=f"{rows[0]['system']} on {rows[0]['corpus']}, {rows[0]['hardware']}: "
        f"more than {best_count(rows)} at a time only slow each other down",
    )


def agreement(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A model folder.")],
    file: Annotated[str, typer.Argument(metavar="FILE", help="A file with gold labels, usually dev.")],
    *,
    precision: Annotated[
        str,
        typer.Option(
            metavar="auto|float32|bfloat16",
            help="Precision of the fast path: auto (bfloat16 on a GPU), float32 or bfloat16.",
        ),
    ] = "auto",
    device: Device = "auto",
    output: Output = None,
    json: AsJson = False,
) -> None:
    """Compare a model's scores on the fast path and on the plain reference path, and count the labels that differ."""
    from diffusion_mf.prediction.devices import choose_device

    place = choose_device(device)
    if precision not in ("auto", "float32", "bfloat16"):
        raise InputError(f"--precision: unknown precision {precision!r}", remedy="choose auto, float32 or bfloat16")
    from diffusion_mf.data.formats import read_task
    from diffusion_mf.lab.benchmarks.load import AGREEMENT_ROW_KEY, measure_agreement
    from diffusion_mf.tagger import load_model

    stored = load_model(model)
    corpus = read_task(file, stored.config.task, column=stored.config.data.column)
    if corpus.repaired is not None:
        note(corpus.repaired)
    measured = measure_agreement(
        stored,
        corpus.sentences,
        device=place,
        precision=precision,  # type: ignore[arg-type]
    )
    facts: dict[str, Any] = {"corpus": Path(file).name.split(".")[0], "model": model}
    named = ([{**facts, **row} for row in part] for part in measured)
    rows = collect(named, total=2, output=output, replace_by=AGREEMENT_ROW_KEY, unit="paths")
    if json:
        print_json(rows)
        return
    print_table(
        ["path", rows[0]["metric"], "difference", "% labelled differently", "marginals, mean"],
        [
            [
                row["implementation"],
                rounded(row, "score", 2),
                rounded(row, "score_difference", 3),
                rounded(row, "share_labelled_differently", 3, factor=100),
                rounded(row, "mean_marginal_difference", 5),
            ]
            for row in rows
        ],
        title=f"{rows[0]['system']} on {rows[0]['corpus']}, {rows[0]['hardware']}: differences from the plain path",
    )


COMMANDS = (scaling, sharing, agreement)
