"""``dmf benchmark``: efficiency tables, and how many labels an annotator has to fix."""

import os
import re
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import typer

from diffusion_mf.cli.experiment import sizes
from diffusion_mf.errors import InputError
from diffusion_mf.evaluation.terminal import Column, half_up, note, print_json, print_rows, progress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from diffusion_mf.data.conllu import ConlluColumn
    from diffusion_mf.data.corpus import Corpus, Task
    from diffusion_mf.data.sentence import Sentence
    from diffusion_mf.lab.benchmarks.timing import ProblemShape

app = typer.Typer(help="Efficiency tables.", no_args_is_help=True)

Known = TypeVar("Known")
Row = dict[str, Any]

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
Device = Annotated[str, typer.Option(metavar="auto|cpu|cuda", help="Device to measure on.")]
Repeats = Annotated[int, typer.Option(min=1, help="Timed runs after warm-up; the median is reported.")]
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


def _collect(
    measured: "Iterable[list[Row]]",
    *,
    total: int | None,
    output: str | None,
    replace_by: "Sequence[str]",
    unit: str = "models",
    packages: "Sequence[str]" = (),
    measured_files: "Sequence[str]" = (),
) -> list[Row]:
    """Measure with a progress bar, saving each row to the result file at once so that a killed run keeps its rows."""
    from diffusion_mf.lab.results import provenance, read_rows, write_rows

    if output is not None:
        read_rows(output)  # Reject a file that is not a result file before minutes of measuring, not after.
    source = provenance(shlex.join(["dmf", *sys.argv[1:]]), packages=packages, measured=measured_files)
    rows: list[Row] = []
    with progress("measuring", total=total, unit=unit) as advance:
        for number, part in enumerate(measured, start=1):
            # Rows of what was measured elsewhere say so themselves.
            found = [{**source, **row} for row in part]
            rows += found
            if output is not None:
                write_rows(output, found, replace_by=replace_by)
            # Rows that compare all that was measured come after the last of it.
            advance(int(total is None or number <= total))
    return rows


def _report(
    rows: "Sequence[Row]",
    columns: "Mapping[str, Column]",
    *,
    title: str,
    as_json: bool,
    shown: "Callable[[Row], Row]" = dict,
) -> None:
    """Print rows as JSON, or what is ``shown`` of them as a table; fields in the ``title`` are those of the first row."""
    if as_json:
        print_json(rows)
    else:
        print_rows(map(shown, rows), columns, title=title.format_map(rows[0]))


def _known_one(option: str, name: str, known: "Mapping[str, Known]", *, kind: str) -> Known:
    """The value of ``known`` that ``name``, given to ``option``, refers to."""
    if name not in known:
        raise InputError(f"{option}: unknown {kind} {name!r}", remedy=f"choose from {', '.join(known)}")
    return known[name]


def measured_task(option: str, name: str) -> "Task":
    """The task called ``name``, if it has a corpus to measure on."""
    from diffusion_mf.lab.benchmarks.throughput import BENCHMARK_CORPORA

    return _known_one(option, name, {task.value: task for task in BENCHMARK_CORPORA}, kind="task")


def _names_in(text: str) -> list[str]:
    return list(dict.fromkeys(name.strip() for name in text.split(",")))


def _numbers_in(option: str, text: str) -> list[int]:
    """Parse a list of numbers such as 1,4,16, the value of ``option``."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise InputError(
            f"{option}: {text!r} is not a list of numbers", remedy="write numbers of at least 1, as in 1,4,16"
        )
    return [int(part) for part in parts]


def _read(path: str, task: "Task", *, column: "ConlluColumn | None" = None) -> "Corpus":
    """The labelled sentences of a file; what was repaired is reported."""
    from diffusion_mf.data.formats import read_task

    corpus = read_task(path, task, column=column)
    if corpus.repaired is not None:
        note(corpus.repaired)
    return corpus


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
    output: Output = None,
    json: AsJson = False,
) -> None:
    """Time and memory of chain inference compared with pytorch-crf and torch-struct, and of Mean-Field with a denoiser."""
    wanted = None if shapes is None else _parse_shapes(shapes)
    from diffusion_mf.lab.benchmarks import ops as benchmark
    from diffusion_mf.prediction.devices import choose_device

    place = choose_device(device)
    known = {name: name for name in benchmark.OPERATIONS}
    chosen = [
        _known_one("--only", name, known, kind="operation") for name in (known if only is None else _names_in(only))
    ]
    benchmark.import_peers()
    wanted = wanted or benchmark.default_shapes(place)
    rows = _collect(
        benchmark.measure_ops(wanted, device=place, note=note, only=chosen),
        total=None,
        output=output,
        replace_by=benchmark.OPS_ROW_KEY,
        unit="operations",
        packages=list(benchmark.PEERS),
        measured_files=["ops", "structures", "lab/benchmarks"],
    )
    _report(
        rows,
        {
            "operation": "op",
            "B × N × K": "shape",
            "transitions": "transitions",
            "direction": "direction",
            "library": "library",
            "mode": "mode",
            "ms": ("milliseconds", 3),
            "peak MB": ("peak_memory_mb", 1),
            "× peer": ("speedup_over_fastest_peer", 1),
            "% denoiser": ("share_of_denoiser", 1, 100),
        },
        title="Operations on {hardware}: medians; × peer: how many times faster than the fastest peer",
        as_json=json,
        shown=lambda row: {**row, "shape": " × ".join(map(str, row["shape"]))},
    )


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


def _throughput(measured: "Iterable[list[Row]]", *, total: int, output: str | None, as_json: bool) -> None:
    """Measure, save and print the rows of ``throughput``, ``mean-field`` and ``schedule``."""
    from diffusion_mf.lab.benchmarks.throughput import THROUGHPUT_ROW_KEY

    _report(
        _collect(measured, total=total, output=output, replace_by=THROUGHPUT_ROW_KEY),
        {
            **{field: field for field in ("corpus", "system", "setting", "phase", "implementation")},
            "sent./s": ("sentences_per_second", 0),
            "paper": ("paper_sentences_per_second", 1),
            "× paper": ("ratio_to_paper", 1),
            "% of one": ("relative", 1, 100),
            "calls": "num_calls",
            "dev": ("dev_score", 2),
            "exact": ("dev_exact_match", 1),
            "% peak": ("utilisation", 1, 100),
            "GB": ("peak_memory_gb", 1),
        },
        title="Throughput on {hardware}: medians",
        as_json=as_json,
    )


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
    models: Annotated[
        list[str] | None,
        typer.Option(
            "--model",
            metavar="DIR",
            help="Measure the inference of this trained model instead, with the paper's ten calls and with its own number; "
            "may be repeated.",
        ),
    ] = None,
    repeats: Repeats = 5,
    device: Device = "auto",
    overrides: Overrides = None,
    output: Output = None,
    json: AsJson = False,
) -> None:
    """The paper's efficiency table: sentences per second in training and inference, ours and the paper's."""
    from diffusion_mf.lab.benchmarks.throughput import (
        DIFFUSION_SYSTEMS,
        FAST,
        PLAIN,
        measure_throughput,
        measure_trained,
    )
    from diffusion_mf.prediction.devices import choose_device

    place = choose_device(device)
    if models:
        trained = (measure_trained(model, device=place, repeats=repeats) for model in models)
        _throughput(trained, total=len(models), output=output, as_json=json)
        return
    chosen_tasks = [measured_task("--tasks", name) for name in _names_in(tasks)]
    chosen_systems = _names_in(systems)
    for name in chosen_systems:
        if name not in DIFFUSION_SYSTEMS:
            raise InputError(
                f"--systems: {name!r} is not measured here", remedy=f"choose from {', '.join(DIFFUSION_SYSTEMS)}"
            )
    implementations = [FAST, PLAIN] if compare else [FAST]
    measured = measure_throughput(
        chosen_tasks,
        chosen_systems,
        implementations,
        device=place,
        overrides={task: overrides_of(task.value, overrides) for task in chosen_tasks},
        repeats=repeats,
    )
    total = len(chosen_tasks) * len(chosen_systems) * len(implementations)
    _throughput(measured, total=total, output=output, as_json=json)


@app.command("mean-field")
def mean_field(
    *,
    iterations: Annotated[
        str, typer.Option(metavar="N,…", help="Mean-Field iterations per call; throughput is relative to the first.")
    ] = "1,2,3,4,7,10,15",
    device: Device = "auto",
    overrides: Overrides = None,
    output: Output = None,
    json: AsJson = False,
) -> None:
    """Throughput by number of Mean-Field iterations, relative to the first number, ours and the paper's."""
    from diffusion_mf.lab.benchmarks.throughput import measure_iterations
    from diffusion_mf.prediction.devices import choose_device

    place, numbers = choose_device(device), _numbers_in("--iterations", iterations)
    measured = measure_iterations(numbers, device=place, overrides=overrides_of("pos", overrides))
    _throughput(measured, total=2 * len(numbers), output=output, as_json=json)


@app.command()
def schedule(
    *,
    device: Device = "auto",
    overrides: Overrides = None,
    output: Output = None,
    json: AsJson = False,
) -> None:
    """Inference throughput by base of the reverse schedule, ours and the paper's."""
    from diffusion_mf.lab.benchmarks.throughput import BASES, DIFFUSION_SYSTEMS, measure_schedules
    from diffusion_mf.prediction.devices import choose_device

    measured = measure_schedules(device=choose_device(device), overrides=overrides_of("pos", overrides))
    _throughput(measured, total=len(DIFFUSION_SYSTEMS) * len(BASES), output=output, as_json=json)


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
    passes: Annotated[int, typer.Option(min=1, help="Timed passes over the test file; the median is reported.")] = 5,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads PyTorch may use (default: one per core).")] = None,
    output: Output = None,
    json: AsJson = False,
) -> None:
    """Tags or entities on a CPU: scores and words per second of our models, python-crfsuite, UDPipe 1 and spaCy."""
    # Before PyTorch is imported, as in dmf train.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    given = [_parse_model(model) for model in models or ()]
    import torch

    from diffusion_mf.data.corpus import Task
    from diffusion_mf.lab.benchmarks import cpu as benchmark
    from diffusion_mf.lab.results import num_cores, read_rows

    if output is not None:
        read_rows(output)  # before peers are trained
    chosen = benchmark.all_peers(Task(task))
    if only is not None:
        known = {peer.name: peer for peer in chosen}
        names = [name for name in _names_in(only) if name not in ("", "none")]
        chosen = [_known_one("--only", name, known, kind="peer") for name in names]
    train_corpus, dev_corpus, test_corpus = (_read(path, Task(task)) for path in (train, dev, test))
    torch.set_num_threads(threads or num_cores())
    contestants = [benchmark.model_contestant(name, folder, calls=calls) for name, folder, calls in given]
    contestants += benchmark.peer_contestants(chosen, train_corpus, dev_corpus, peers, note=note)
    if not contestants:
        raise InputError("there is nothing to measure", remedy="give a model with --model NAME=DIR")
    # A file called test.txt is named after its folder.
    name = Path(test).name.split(".")[0]
    corpus = Path(test).absolute().parent.name if name in ("test", "dev") else name
    measured = benchmark.measure_cpu(contestants, test_corpus, task=Task(task), passes=passes)
    rows = _collect(
        ([{"corpus": corpus, **row} for row in part] for part in measured),
        total=len(contestants) * (passes + 1),
        output=output,
        replace_by=benchmark.CPU_ROW_KEY,
        unit="passes",
        packages=[peer.distribution for peer in chosen],
    )
    metric = "f1" if "f1" in rows[0] else "accuracy"
    _report(
        rows,
        {
            "system": "system",
            metric: (metric, 2),
            "exact match": ("exact_match", 1),
            "words/s": "words_per_second",
            "slowest": "slowest_pass",
            "fastest": "fastest_pass",
            "threads": "threads",
            "at least as good and as fast": "matched_by",
        },
        title="{corpus} on {hardware}: medians of {passes} passes",
        as_json=json,
        shown=lambda row: {**row, "matched_by": "" if row["is_ours"] else row["matched_by"]},
    )


def _parse_model(text: str) -> tuple[str, str, int | None]:
    """Parse NAME=DIR[@CALLS] into name, folder and number of calls."""
    match = re.fullmatch(r"([^=]+)=(.+?)(?:@(\d+))?", text)
    if match is None:
        raise InputError(f"--model: {text!r} is not NAME=DIR", remedy="write NAME=DIR or NAME=DIR@CALLS")
    name, folder, calls = match.groups()
    return name, folder, None if calls is None else int(calls)


@app.command()
def correction(
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL…",
            help="Models, or files of --keep; models that differ by their seed only are one system.",
        ),
    ],
    *,
    data: Annotated[str, typer.Option("--data", metavar="FILE", help="A file with gold labels, usually dev.")],
    corpus: Annotated[
        str | None, typer.Option(metavar="NAME", help="The corpus's name in the rows (default: the file's folder).")
    ] = None,
    calls: Annotated[
        int | None, typer.Option(min=1, help="Denoising steps of diffusion systems.", show_default="as configured")
    ] = None,
    workers: Annotated[int, typer.Option(min=1, help="Models measured at a time, on the same device.")] = 1,
    keep: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Write what is measured of each model here, for later comparisons."),
    ] = None,
    plot: Annotated[
        str | None, typer.Option(metavar="FILE", help="Draw all rows of --output, or those measured, to this file.")
    ] = None,
    device: Device = "auto",
    output: Output = None,
    json: AsJson = False,
) -> None:
    """How many labels a simulated annotator fixes until everything is right, if the rest is labelled again after each fix."""
    from diffusion_mf.data.corpus import check_labels
    from diffusion_mf.data.files import make_folder
    from diffusion_mf.lab.benchmarks import correction as benchmark
    from diffusion_mf.lab.results import commit, hardware, read_rows, versions
    from diffusion_mf.model.storage import read_config
    from diffusion_mf.prediction.devices import choose_device
    from diffusion_mf.tagger.shipped import model_folder

    place = choose_device(device)
    facts = {"corpus": corpus or Path(data).resolve().parent.name, "file": Path(data).name, "calls": calls}
    found = []
    for path in (Path(model) for model in models if model.endswith(".json")):
        found.append(benchmark.read_measured(path))
        if (source := {key: found[-1].facts.get(key) for key in facts}) != facts:
            schedule = "its own calls" if source["calls"] is None else f"--calls {source['calls']}"
            raise InputError(
                f"it was measured on {source['file']} of {source['corpus']}, with {schedule}",
                path=path,
                remedy="compare models on the same file, with the same --calls",
            )
    folders = [model_folder(model) for model in models if not model.endswith(".json")]
    configs = [read_config(folder) for folder in folders]
    if len({config.task for config in configs}) > 1:
        raise InputError("the models have different tasks", remedy="measure those of one task at a time")
    sentences: "Sequence[Sentence]" = ()
    if configs:
        read = _read(data, configs[0].task, column=configs[0].data.column)
        check_labels(read)
        sentences = read.sentences
    if keep is not None:
        make_folder(keep)
    here = {"commit": commit(), "hardware": hardware(), "versions": versions()}

    def measured() -> "Iterator[list[Row]]":
        for each in benchmark.measure_models(folders, sentences, device=place, calls=calls, workers=workers):
            found.append(each._replace(facts={**facts, **each.facts, **here}))
            if keep is not None:
                benchmark.write_measured(Path(keep, benchmark.kept_name(found[-1])), found[-1])
            yield []
        # The comparisons need all models.
        yield benchmark.correction_rows(found)

    rows = _collect(measured(), total=len(folders), output=output, replace_by=benchmark.CORRECTION_ROW_KEY)
    if plot is not None:
        benchmark.write_correction_plot(rows if output is None else read_rows(output), Path(plot))
        note(f"the plot is {plot}")
    if json:
        print_json(rows)
    else:
        _print_correction(rows)


def _print_correction(rows: "Sequence[Row]") -> None:
    from diffusion_mf.lab.benchmarks.correction import ModelGroup, Way

    titles = [ModelGroup.of_row(row).title for row in rows]
    fixing = [
        {**row, **_compared(row), "title": title, "seeds": len(row["seeds"]), "way": way.title}
        for row, title in zip(rows, titles, strict=True)
        if (way := Way.of_row(row)) is not None
    ]
    columns: dict[str, Column] = {
        "system": "title",
        "seeds": "seeds",
        "order": "way",
        "errors": ("errors", 2),
        "fixes": ("fixes", 2),
        "% saved": ("saved", 1),
        "minus LCRF": ("difference", 2),
        "95 %": "interval",
        "p": ("p_fewer", 4),
    }
    print_rows(fixing, columns, title=f"{fixing[0]['corpus']}: errors at the start and fixes per {fixing[0]['per']}")
    curve = [
        {**row, "title": title, "given": f"{row['given']:g}"}
        for row, title in zip(rows, titles, strict=True)
        if row["given"] is not None
    ]
    columns = {
        "system": "title",
        "% given": "given",
        "accuracy of the others": ("accuracy_of_others", 2),
        "without": ("accuracy_without", 2),
    }
    print_rows(curve, columns, title="Accuracy on the units whose label is not given")


def _compared(row: Row) -> Row:
    compared = row.get("minus_lcrf")
    if compared is None:
        return {}
    return {**compared, "interval": f"{half_up(compared['low'], 2)} to {half_up(compared['high'], 2)}"}


app.command()(sizes)
