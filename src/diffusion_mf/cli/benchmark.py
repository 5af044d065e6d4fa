"""``dmf benchmark``: efficiency tables."""

import os
import re
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from diffusion_mf.cli import benchmark_correction, benchmark_load, benchmark_sizes
from diffusion_mf.cli.benchmark_options import (
    AsJson,
    Device,
    Folder,
    Output,
    Overrides,
    collect,
    known_one,
    measured_task,
    numbers_of,
    overrides_of,
    print_throughput,
)
from diffusion_mf.errors import InputError
from diffusion_mf.evaluation.terminal import half_up, note, print_json, print_table, progress

if TYPE_CHECKING:
    from collections.abc import Iterable

    from diffusion_mf.lab.benchmarks.timing import ProblemShape

app = typer.Typer(help="Efficiency tables.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Efficiency tables."""


for _command in (*benchmark_load.COMMANDS, benchmark_sizes.sizes, benchmark_correction.correction):
    app.command()(_command)


@app.command()
def ops(
    *,
    device: Device = "auto",
    shapes: Annotated[
        str | None,
        typer.Option(
            metavar="BxNxK,…",
            help="Sentences × units × labels (default: 256x64x17,128x64x104 on a GPU, 32x32x17 on a CPU).",
        ),
    ] = None,
    only: Annotated[
        str | None, typer.Option(metavar="OP,…", help="Operations to measure, named as in the rows (default: all).")
    ] = None,
    output: Annotated[
        str | None, typer.Option(metavar="FILE", help="Result file to write the rows to, such as results/ops.json.")
    ] = None,
    json: AsJson = False,
) -> None:
    """Time and memory of chain inference compared with pytorch-crf and torch-struct, and of Mean-Field with a denoiser."""
    wanted = None if shapes is None else _parse_shapes(shapes)
    from diffusion_mf.prediction.devices import choose_device

    place = choose_device(device)
    from diffusion_mf.lab.benchmarks.ops import (
        CONTESTS,
        OPS_ROW_KEY,
        PEERS,
        default_shapes,
        import_peers,
        measure_ops,
        num_contests,
    )

    chosen = list(CONTESTS) if only is None else list(dict.fromkeys(name.strip() for name in only.split(",")))
    for name in chosen:
        known_one("--only", name, CONTESTS, kind="operation")
    import_peers()
    wanted = default_shapes(place) if wanted is None else wanted
    rows = collect(
        measure_ops(wanted, device=place, note=note, only=chosen),
        total=num_contests(wanted, device=place, only=chosen),
        output=output,
        replace_by=OPS_ROW_KEY,
        unit="operations",
        packages=list(PEERS),
        measured_files=["ops", "structures", "benchmarks"],
    )
    if json:
        print_json(rows)
    else:
        _print_table(rows)


@app.command()
def throughput(
    *,
    tasks: Annotated[str, typer.Option(metavar="TASK,…", help="Tasks to measure.")] = "pos,ner,seg-pos",
    systems: Annotated[
        str, typer.Option(metavar="SYSTEM,…", help="The diffusion systems to measure.")
    ] = "diffusion-uni,diffusion-mf,diffusion-lcrf",
    compare: Annotated[
        bool, typer.Option("--compare", help="Also measure a plain float32 implementation of the same models.")
    ] = False,
    only_plain: Annotated[bool, typer.Option("--only-plain", help="Measure only the plain implementation.")] = False,
    models: Annotated[
        list[str] | None,
        typer.Option(
            "--model",
            metavar="DIR",
            help="Measure the inference of this trained model instead, with the paper's ten calls and with its own number; "
            "may be repeated.",
        ),
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Timed runs after warm-up; the median is reported.")] = 5,
    device: Device = "auto",
    configs: Folder = "configs",
    overrides: Overrides = None,
    output: Output = None,
    json: AsJson = False,
) -> None:
    """The paper's efficiency table: sentences per second in training and inference, ours and the paper's."""
    from diffusion_mf.prediction.devices import choose_device

    place = choose_device(device)
    from diffusion_mf.lab.benchmarks.throughput import FAST, PLAIN, measure_throughput, measure_trained

    if models:
        trained = (measure_trained(model, device=place, folder_of_configs=configs, repeats=repeats) for model in models)
        _show(trained, total=len(models), output=output, as_json=json)
        return
    chosen_tasks = [measured_task("--tasks", name.strip()) for name in tasks.split(",")]
    chosen_systems = _chosen_systems(systems)
    implementations = [] if only_plain else [FAST]
    implementations += [PLAIN] if compare or only_plain else []
    measured = measure_throughput(
        chosen_tasks,
        chosen_systems,
        implementations,
        device=place,
        folder=configs,
        overrides={task: overrides_of(task.value, overrides) for task in chosen_tasks},
        repeats=repeats,
    )
    total = len(chosen_tasks) * len(chosen_systems) * len(implementations)
    _show(measured, total=total, output=output, as_json=json)


@app.command("mean-field")
def mean_field(
    *,
    iterations: Annotated[
        str, typer.Option(metavar="N,…", help="Mean-Field iterations per call; throughput is relative to the first.")
    ] = "1,2,3,4,7,10,15",
    device: Device = "auto",
    configs: Folder = "configs",
    overrides: Overrides = None,
    output: Output = None,
    json: AsJson = False,
) -> None:
    """Throughput by number of Mean-Field iterations, relative to the first number, ours and the paper's."""
    from diffusion_mf.prediction.devices import choose_device

    place = choose_device(device)
    from diffusion_mf.lab.benchmarks.throughput import measure_iterations

    numbers = numbers_of("--iterations", iterations)
    measured = measure_iterations(numbers, device=place, folder=configs, overrides=overrides_of("pos", overrides))
    _show(measured, total=2 * len(numbers), output=output, as_json=json)


@app.command()
def schedule(
    *,
    device: Device = "auto",
    configs: Folder = "configs",
    overrides: Overrides = None,
    output: Output = None,
    json: AsJson = False,
) -> None:
    """Inference throughput by base of the reverse schedule, ours and the paper's."""
    from diffusion_mf.prediction.devices import choose_device

    place = choose_device(device)
    from diffusion_mf.lab.benchmarks.throughput import BASES, DIFFUSION_SYSTEMS, measure_schedules

    measured = measure_schedules(device=place, folder=configs, overrides=overrides_of("pos", overrides))
    _show(measured, total=len(DIFFUSION_SYSTEMS) * len(BASES), output=output, as_json=json)


@app.command()
def cpu(
    *,
    train: Annotated[
        str, typer.Option(metavar="FILE", help="Training file for the peers; our models were trained on it too.")
    ],
    dev: Annotated[str, typer.Option(metavar="FILE", help="Development file for selecting among trained peers.")],
    test: Annotated[str, typer.Option(metavar="FILE", help="File to tag.")],
    task: Annotated[Literal["pos", "ner"], typer.Option(help="pos or ner.")] = "pos",
    models: Annotated[
        list[str] | None,
        typer.Option(
            "--model",
            metavar="NAME=MODEL[@CALLS]",
            help="One of our models, a folder or one of the package, and its number of denoiser calls; may be repeated.",
        ),
    ] = None,
    peers: Annotated[
        str,
        typer.Option(metavar="DIR", help="Folder of trained peers; peers that are missing are trained and saved here."),
    ] = "runs/cpu-peers",
    only: Annotated[
        str | None,
        typer.Option(
            metavar="PEER,…", help="Peers to measure: python-crfsuite, udpipe-1, spacy, or none (our models only)."
        ),
    ] = None,
    udpipe_iterations: Annotated[int, typer.Option(min=1, help="Training iterations of UDPipe.")] = 20,
    spacy_epochs: Annotated[int, typer.Option(min=1, help="The most training epochs of spaCy.")] = 30,
    passes: Annotated[int, typer.Option(min=1, help="Timed passes over the test file; the median is reported.")] = 5,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads PyTorch may use (default: one per core).")] = None,
    output: Annotated[
        str | None, typer.Option(metavar="FILE", help="Result file to write the rows to, such as results/cpu.json.")
    ] = None,
    json: AsJson = False,
) -> None:
    """Tags or entities on a CPU: scores and words per second of our models, python-crfsuite, UDPipe 1 and spaCy."""
    # Before PyTorch is imported, as in dmf train.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    given = [_parse_model(model) for model in models or ()]
    import torch

    from diffusion_mf.data.corpus import Task
    from diffusion_mf.data.formats import read_task
    from diffusion_mf.lab.benchmarks.cpu import (
        CPU_ROW_KEY,
        all_peers,
        measure_cpu,
        model_contestant,
        peer_contestants,
    )
    from diffusion_mf.lab.results import num_cores, provenance, read_rows, write_rows

    if output is not None:
        read_rows(output)
    chosen = all_peers(Task(task), udpipe_iterations=udpipe_iterations, spacy_epochs=spacy_epochs)
    if only is not None:
        names = [name.strip() for name in only.split(",") if name.strip() not in ("", "none")]
        known = {peer.name: peer for peer in chosen}
        chosen = [known_one("--only", name, known, kind="peer") for name in names]
    train_corpus, dev_corpus, test_corpus = (read_task(path, Task(task)) for path in (train, dev, test))
    for read in (train_corpus, dev_corpus, test_corpus):
        if read.repaired is not None:
            note(read.repaired)
    torch.set_num_threads(threads or num_cores())
    contestants = [model_contestant(name, folder, calls=calls) for name, folder, calls in given]
    contestants += peer_contestants(chosen, train_corpus, dev_corpus, peers, note=note)
    if not contestants:
        raise InputError("there is nothing to measure", remedy="name a model with --model NAME=DIR")
    source = provenance(shlex.join(["dmf", *sys.argv[1:]]), packages=[peer.distribution for peer in chosen])
    with progress("measuring", total=len(contestants) * (passes + 1), unit="passes") as advance:
        measured = measure_cpu(contestants, test_corpus, task=Task(task), passes=passes, advance=advance)
    # A file called test.txt has its name from its folder.
    name = Path(test).name.split(".")[0]
    corpus = Path(test).absolute().parent.name if name in ("test", "dev") else name
    rows = [{"corpus": corpus, **row, **source} for row in measured]
    if output is not None:
        write_rows(output, rows, replace_by=CPU_ROW_KEY)
    if json:
        print_json(rows)
    else:
        _print_cpu(rows)


def _parse_model(text: str) -> tuple[str, str, int | None]:
    """Parse NAME=DIR[@CALLS] into name, folder and number of calls."""
    match = re.fullmatch(r"([^=]+)=(.+?)(?:@(\d+))?", text)
    if match is None:
        raise InputError(f"--model: {text!r} does not name a model", remedy="write NAME=DIR or NAME=DIR@CALLS")
    name, folder, calls = match.groups()
    return name, folder, None if calls is None else int(calls)


def _print_cpu(rows: list[dict[str, Any]]) -> None:
    metric = "f1" if "f1" in rows[0] else "accuracy"
    print_table(
        [
            "system",
            metric,
            "exact match",
            "words/s",
            "slowest",
            "fastest",
            "threads",
            "at least as good and as fast",
        ],
        [
            [
                row["system"],
                half_up(row[metric], 2),
                half_up(row["exact_match"], 1),
                row["words_per_second"],
                row["slowest_pass"],
                row["fastest_pass"],
                row["threads"],
                "" if row["is_ours"] else row["matched_by"],
            ]
            for row in rows
        ],
        title=f"{rows[0]['corpus']} on {rows[0]['hardware']}: medians of {rows[0]['passes']} passes",
    )


def _chosen_systems(text: str) -> list[str]:
    from diffusion_mf.lab.benchmarks.throughput import DIFFUSION_SYSTEMS

    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in DIFFUSION_SYSTEMS:
            raise InputError(
                f"--systems: {name!r} is not measured here", remedy=f"choose from {', '.join(DIFFUSION_SYSTEMS)}"
            )
    return names


def _show(measured: "Iterable[list[dict[str, Any]]]", *, total: int, output: str | None, as_json: bool) -> None:
    """Measure every task, save the rows and print them."""
    from diffusion_mf.lab.benchmarks.throughput import THROUGHPUT_ROW_KEY

    rows = collect(measured, total=total, output=output, replace_by=THROUGHPUT_ROW_KEY)
    if as_json:
        print_json(rows)
    else:
        print_throughput(rows)


def _parse_shapes(text: str) -> "list[ProblemShape]":
    from diffusion_mf.lab.benchmarks.timing import ProblemShape

    found = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)[x×](\d+)[x×](\d+)", part.strip())
        sizes = [int(size) for size in match.groups()] if match else []
        # torch-struct, one of the peers, cannot handle chains of one unit.
        if not match or min(sizes) < 1 or sizes[1] < 2:
            raise InputError(
                f"--shapes: {part.strip()!r} is not a shape",
                remedy="write sentences × units (2 or more) × labels, as in 32x32x17,256x64x17",
            )
        found.append(ProblemShape(*sizes))
    return found


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
