"""``dmf experiment``: many runs, and the paper's tables with our results."""

import shlex
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from diffusion_mf.errors import InputError
from diffusion_mf.evaluation.terminal import Column, Display, half_up, note, print_json, print_rows, print_table

if TYPE_CHECKING:
    from diffusion_mf.lab.experiments.folders import ExperimentFolder
    from diffusion_mf.lab.experiments.scheduler import RunTable
    from diffusion_mf.lab.experiments.search import Search
    from diffusion_mf.lab.experiments.selection import Outcomes


app = typer.Typer(help="Many runs, and the paper's tables with our results.", no_args_is_help=True)

Workers = Annotated[int | None, typer.Option(min=1, help="Runs at a time.", show_default="as the plan says, else 1")]
TimeLimit = Annotated[
    float | None,
    typer.Option(metavar="SECONDS", min=0, help="Stop all runs after this many seconds, with checkpoints."),
]
Grace = Annotated[float, typer.Option(metavar="SECONDS", min=0, help="Time allowed for writing those checkpoints.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a setting in all runs; may be repeated."),
]
Corpora = Annotated[
    str | None, typer.Option(metavar="FILE", help="File that lists the corpora, instead of the one named in the plan.")
]
Only = Annotated[
    list[str] | None,
    typer.Option(metavar="KEY=VALUES", help="Run only these, as in seed=1,2 or corpus=en-ewt; may be repeated."),
]
RetryFailed = Annotated[bool, typer.Option("--retry-failed", help="Retry runs that have used up their attempts.")]
RunsFolder = Annotated[Path | None, typer.Option(metavar="DIR", help="Folder for all runs.", show_default="runs/NAME")]
Finished = Annotated[Path, typer.Argument(metavar="DIR", help="The folder of dmf experiment run.")]
PlanName = Annotated[str | None, typer.Option(help="Plan to use, if several were run in the folder.")]


@app.command()
def run(
    plan_path: Annotated[str, typer.Argument(metavar="PLAN", help="Plan file (TOML).")],
    output: RunsFolder = None,
    workers: Workers = None,
    time_limit: TimeLimit = None,
    grace: Grace = 90.0,
    devices: Annotated[
        str, typer.Option("--devices", help="Devices to spread runs over, as in cuda:0,cuda:1.")
    ] = "auto",
    overrides: Overrides = None,
    configs: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Configurations to use instead of the plan's, as in ../{task}/{system}.toml."
        ),
    ] = None,
    corpora: Corpora = None,
    only: Only = None,
    retry_failed: RetryFailed = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the runs, their states and missing corpora, and stop.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the runs' states and scores as JSON.")] = False,
) -> None:
    """Run a plan: finished runs are kept, interrupted runs continue, and runs that another process is working on are skipped.

    The exit status is 0 if every run selected by --only is complete afterwards, 1 if not, 130 or 143 if Ctrl-C or SIGTERM stopped
    it, and 2 if a corpus is missing or runs were made with other data than the plan names (also with --dry-run).
    """
    from diffusion_mf.lab.experiments.folders import ExperimentFolder, RunState
    from diffusion_mf.lab.experiments.plan import check_files, chosen_runs, load_plan
    from diffusion_mf.lab.experiments.same_data import check_data
    from diffusion_mf.lab.experiments.scheduler import RunTable, SchedulerOptions, run_plan

    plan = load_plan(plan_path, overrides=overrides or (), corpora_file=corpora, configs=configs)
    folder = ExperimentFolder(output or Path("runs") / plan.name)
    evaluation = plan.evaluation.model_dump(mode="json")
    runs = chosen_runs(plan.runs, only or ())
    if plan.left_out:
        note(f"skipped because their training files are missing: {', '.join(plan.left_out)}")
    variants: dict[str, list[str]] = {}
    for each in runs:
        variants.setdefault(each.name, []).append(each.variant)
    has_variants = len({each.variant for each in runs}) > 1
    states = {each.name: folder.run(each.name).state(evaluation) for each in runs}
    missing: dict[str, InputError] = {}
    for each in runs:
        if states[each.name] is not RunState.COMPLETE:
            try:
                check_files(each.config.data.train, each.config.data.dev, each.config.data.test)
            except InputError as error:
                if not dry_run:
                    raise
                missing.setdefault(each.corpus, error)
    check_data(folder, plan.files(only=variants), plan.digests, tell=note if dry_run else None)
    if dry_run:
        found = RunTable(states)
    else:
        options = SchedulerOptions(
            workers=workers or plan.settings.workers,
            devices=chosen_devices(devices),
            time_limit=time_limit,
            grace=grace,
            retry_failed=retry_failed,
        )
        command = shlex.join(["dmf", *sys.argv[1:]])
        with Display() as display:
            found = run_plan(plan, folder, options, display, only=variants, command=command)
    results = {name: folder.run(name).result() or {} for name in found.states}
    if as_json:
        print_json(
            [
                {
                    "name": name,
                    "variants": variants[name],
                    "state": state.value,
                    **{key: results[name].get(key) for key in ("dev", "test", "seconds")},
                }
                for name, state in found.states.items()
            ]
        )
    else:
        rows = []
        for name, state in found.states.items():
            score = (results[name].get("dev") or {}).get(results[name].get("metric"))
            shown = [", ".join(variants[name])] if has_variants else []
            rows.append((name, *shown, state.value, None if score is None else f"{score:.2f}"))
        print_table(["run", *(["variant"] if has_variants else []), "state", "dev"], rows)
    note_failures(folder, found)
    note(found.counts())
    for corpus, reason in missing.items():
        note(f"the corpus {corpus} is missing: {reason}")
    if missing:
        raise typer.Exit(2)
    if not dry_run and not found.is_complete:
        raise _incomplete(found)


def _incomplete(table: "RunTable") -> BaseException:
    """What ends a command that is not done: the signal that stopped it, or exit status 1."""
    return table.stopped_by or typer.Exit(1)


def note_failures(folder: "ExperimentFolder", table: "RunTable") -> None:
    """Why runs failed or diverged; those with the same reason together."""
    for state in ("failed", "diverged"):
        reasons: dict[tuple[str, ...], list[str]] = {}
        for name in [name for name, found in table.states.items() if found == state]:
            reasons.setdefault(tuple(dict.fromkeys(folder.run(name).failure_lines())), []).append(name)
        for lines, alike in reasons.items():
            more = f" and {len(alike) - 1} more for the same reason" if len(alike) > 1 else ""
            note(f"{alike[0]}{more} {state}; the end of {folder.run(alike[0]).output}:")
            for line in lines:
                note(f"  {line}")


def chosen_devices(text: str) -> list[str]:
    """The devices that ``--devices`` names."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise InputError("--devices is empty", remedy="write cuda:0,cuda:1, or auto")
    if set(names) == {"cpu"}:
        return names
    import torch

    from diffusion_mf.prediction.devices import choose_device

    gpus = [f"cuda:{index}" for index in range(torch.cuda.device_count())]
    if names == ["auto"]:
        return gpus or ["cpu"]
    for name in names:
        try:
            choose_device(name)
        except InputError as error:
            raise InputError(
                f"--devices {name}: {error.problem}", remedy=f"choose among {', '.join(['cpu', *gpus])}"
            ) from None
    return names


def _outcomes(folder: Path, plan: str | None) -> "tuple[dict[str, Any], Outcomes]":
    """The record of a plan that was run in ``folder``, and its outcomes; there must be some."""
    from diffusion_mf.lab.experiments.folders import ExperimentFolder
    from diffusion_mf.lab.experiments.selection import read_outcomes

    details, outcomes = read_outcomes(ExperimentFolder(folder), plan=plan)
    if not outcomes.groups:
        raise InputError("no run has finished yet", path=folder, remedy="run dmf experiment run first")
    return details, outcomes


@app.command()
def table(
    folder: Finished,
    kind: Annotated[
        str | None,
        typer.Option(
            help="main, denoiser, objective, variants, calls, ner, seg-pos, scaling, depth, iterations, base or readings.",
            show_default="as the plan says",
        ),
    ] = None,
    table_format: Annotated[str, typer.Option("--format", help="markdown, latex, csv or json.")] = "markdown",
    output: Annotated[str, typer.Option(metavar="FILE", help="Output file; - is standard output.")] = "-",
    plan: PlanName = None,
    as_json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
) -> None:
    """Print the paper's tables from finished runs: mean ± sample deviation over seeds, with the paper's values for comparison."""
    from diffusion_mf.data.files import open_output
    from diffusion_mf.lab.experiments.comparisons import TABLES
    from diffusion_mf.lab.experiments.tables import TABLE_FORMATS

    chosen_format = "json" if as_json else table_format
    _check_choice("--format", chosen_format, TABLE_FORMATS)
    details, outcomes = _outcomes(folder, plan)
    chosen = kind or details["table"]
    _check_choice("--kind", chosen, TABLES)
    tables = TABLES[chosen].make(outcomes)
    if not tables:
        raise InputError(
            f"the plan {details['name']} has no finished runs for the table {chosen!r}",
            path=folder,
            remedy=f"that table needs {TABLES[chosen].needs}",
        )
    with open_output(output) as stream:
        stream.write(TABLE_FORMATS[chosen_format](tables).encode())


@app.command()
def record(
    folder: Finished,
    plan: PlanName = None,
    output: Annotated[
        str | None, typer.Option(metavar="FILE", help="Result file.", show_default="as the plan says")
    ] = None,
) -> None:
    """Write the rows of finished runs to a result file, replacing earlier rows."""
    from diffusion_mf.lab.experiments.record import save_rows

    details, outcomes = _outcomes(folder, plan)
    path = output or details.get("record")
    if path is None:
        raise InputError(
            f"the plan {details['name']} names no result file", path=folder, remedy="give one with --output FILE"
        )
    # The main runs are also scored with each number of calls, so they fill that table too.
    kinds = [
        details["table"],
        *(["calls"] if details["table"] == "main" and details["evaluation"].get("calls") else []),
    ]
    for kind in kinds:
        note(f"{save_rows(path, outcomes, experiment=kind)} rows of {kind} written to {path}")


@app.command()
def readme(
    path: Annotated[str, typer.Argument(metavar="[FILE]", help="Markdown file with the table markers.")] = "README.md",
) -> None:
    """Rewrite the results tables of the README, or of another document, from the files in results/."""
    from diffusion_mf.lab.experiments.record import update_readme

    note(f"{path} has the tables {' and '.join(update_readme(path))}")


def _check_choice(option: str, value: str, choices: Iterable[str]) -> None:
    known = list(choices)
    if value not in known:
        raise InputError(f"{option}: unknown {value!r}", remedy=f"choose one of {', '.join(known)}")


@app.command()
def plot(
    folder: Finished,
    output: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Output folder for the plots.", show_default="DIR/plots")
    ] = None,
    plan: PlanName = None,
    file_format: Annotated[str, typer.Option("--format", help="png, pdf or svg.")] = "png",
) -> None:
    """Plot learning curves, scores by calls, base, depth, size and iterations, calibration, and each system's errors."""
    from diffusion_mf.lab.experiments.folders import ExperimentFolder
    from diffusion_mf.lab.experiments.plots import write_plots

    _check_choice("--format", file_format, ("png", "pdf", "svg"))
    details, outcomes = _outcomes(folder, plan)
    for path in write_plots(
        outcomes, ExperimentFolder(folder), output or folder / "plots", details, suffix=file_format
    ):
        print(path)


def search(
    plan_path: Annotated[str, typer.Argument(metavar="PLAN", help="Search file (TOML).")],
    output: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder for all trials.", show_default="runs/search-NAME")
    ] = None,
    storage: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Database of trials; postgresql://… to share it between machines.",
            show_default="SQLite in the folder",
        ),
    ] = None,
    workers: Annotated[int, typer.Option(min=1, help="Trials at a time.")] = 1,
    time_limit: TimeLimit = None,
    grace: Grace = 90.0,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    overrides: Overrides = None,
    corpora: Corpora = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the outcome as JSON.")] = False,
) -> None:
    """Search settings stage by stage, with the same number of trials for every system; test data are never read.

    Finished trials are kept and interrupted ones continue. The exit status is 0 if the search is complete, 130 or 143 if Ctrl-C or
    SIGTERM stopped it, and 1 otherwise.
    """
    from diffusion_mf.data.files import make_folder, open_output
    from diffusion_mf.lab.experiments.folders import ExperimentFolder
    from diffusion_mf.lab.experiments.plan import check_files
    from diffusion_mf.lab.experiments.scheduler import SchedulerOptions
    from diffusion_mf.lab.experiments.search import (
        Search,
        default_storage,
        open_storage,
        selected_text,
        without_password,
    )
    from diffusion_mf.lab.experiments.search_plan import load_search

    if device not in ("auto", "cpu"):
        from diffusion_mf.prediction.devices import choose_device

        choose_device(device)  # Fail now rather than in every trial.
    plan = load_search(plan_path, overrides=overrides or (), corpora_file=corpora)
    for subject in plan.subjects:
        data = plan.config(subject, {}, plan.file.seeds[0])[0].data
        check_files(data.train, data.dev)
    folder = output or Path("runs") / f"search-{plan.name}"
    make_folder(folder)
    # The command is stored with the results, which must not contain a password.
    arguments = [
        argument if storage is None else argument.replace(storage, without_password(storage)) for argument in sys.argv
    ]
    options = SchedulerOptions(workers=workers, devices=[device], time_limit=time_limit, grace=grace)
    experiment, opened = ExperimentFolder(folder), open_storage(storage or default_storage(folder))
    with Display() as display:
        found = Search(plan, opened, experiment, note=display.note, command=shlex.join(["dmf", *arguments[1:]]))
        table = found.run(options, display)
    is_finished = all(found.is_finished(subject) for subject in plan.subjects)
    with open_output(folder / "selected.toml") as stream:
        stream.write(selected_text(found).encode())
    rows = _summary(found)
    if as_json:
        print_json(rows)
    else:
        shown = [
            {**row, "settings": " ".join(f"{key}={value}" for key, value in row["settings"].items())} for row in rows
        ]
        print_rows(
            shown,
            {
                **{field: field for field in ("corpus", "system", "encoder", "stage", "trials")},
                "of": "planned",
                "pruned": "pruned",
                "failed": "failed",
                "best dev": ("best", 2),
                "settings": "settings",
            },
        )
    note_failures(experiment, table)
    if not is_finished:
        note(f"the search is not finished: the same command continues it; best so far in {folder / 'selected.toml'}")
        raise _incomplete(table)
    note(f"the chosen settings are in {folder / 'selected.toml'}")


def _summary(search: "Search") -> list[dict[str, Any]]:
    rows = []
    for subject in search.plan.subjects:
        for number, stage in enumerate(subject.stages):
            trials = search.counted(subject, number)
            values = [trial.value for trial in trials if trial.state.name == "COMPLETE"]
            rows.append(
                {
                    **subject.coordinates(),
                    "stage": stage.name,
                    "trials": len(trials),
                    "planned": stage.trials,
                    "pruned": sum(trial.state.name == "PRUNED" for trial in trials),
                    "failed": sum(trial.state.name == "FAIL" for trial in trials),
                    "best": max(values, default=None),
                    "settings": search.best_settings(subject, number),
                }
            )
    return rows


def sizes(
    plan_path: Annotated[str, typer.Argument(metavar="PLAN", help="Plan of sizes (TOML).")],
    *,
    output: RunsFolder = None,
    workers: Workers = None,
    time_limit: TimeLimit = None,
    grace: Grace = 30.0,
    overrides: Overrides = None,
    corpora: Corpora = None,
    only: Only = None,
    retry_failed: RetryFailed = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Run nothing: count the runs, and show the finished ones.")
    ] = False,
    record: Annotated[
        bool, typer.Option("--record", help="Write the rows of the plan's finished runs to its result file.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the rows as JSON.")] = False,
) -> None:
    """Scores by the number of training sentences, with the recipe, and which systems are significantly below python-crfsuite.

    Finished runs are kept and interrupted ones continue. The plot is DIR/sizes.png. The exit status is 0 if every run selected by
    --only is complete afterwards, 130 or 143 if Ctrl-C or SIGTERM stopped it, and 1 otherwise.
    """
    from diffusion_mf.config.files import flat, nested_overrides
    from diffusion_mf.lab.experiments.folders import ExperimentFolder
    from diffusion_mf.lab.experiments.plan import chosen_runs
    from diffusion_mf.lab.experiments.same_data import check_data
    from diffusion_mf.lab.experiments.scheduler import RunTable, SchedulerOptions, run_jobs
    from diffusion_mf.lab.experiments.size_curves import ROW_KEY, read_size_rows, significance_rows, write_size_plot
    from diffusion_mf.lab.experiments.sizes import load_sizes_plan
    from diffusion_mf.lab.results import write_rows

    plan = load_sizes_plan(plan_path, overrides=flat(nested_overrides(overrides or ())), corpora_file=corpora)
    if record and plan.file.record is None:
        raise InputError(
            "the plan names no result file",
            path=plan_path,
            remedy="add record = FILE to the plan, or leave out --record",
        )
    runs = chosen_runs(plan.runs, only or ())
    folder = ExperimentFolder(output or Path("runs") / plan.name)
    if plan.left_out:
        note(f"skipped because their training files are missing: {', '.join(plan.left_out)}")
    check_data(folder, plan.files(), plan.digests, tell=note if dry_run else None)
    jobs = plan.jobs(folder, runs=runs, command=shlex.join(["dmf", *sys.argv[1:]]))
    if dry_run:
        table = RunTable({job.name: folder.run(job.name).state() for job in jobs})
    else:
        # python-crfsuite alone needs no GPU.
        needs_gpu = any(run.device != "cpu" for run in runs)
        if needs_gpu:
            chosen_devices("cuda")  # an error if there is none
        options = SchedulerOptions(
            workers=workers or plan.file.workers,
            devices=chosen_devices("auto" if needs_gpu else "cpu"),
            time_limit=time_limit,
            grace=grace,
            retry_failed=retry_failed,
        )
        with Display() as display:
            table = run_jobs(jobs, folder, options, display)
    rows, counts = read_size_rows(folder, [run.name for run in plan.runs])
    compared = significance_rows(rows, counts)
    if rows:
        plot = folder.root / "sizes.png"
        write_size_plot(rows, plot)
        note(f"the plot of the finished runs is {plot}")
    if record and rows:
        write_rows(str(plan.file.record), [*rows, *compared], replace_by=ROW_KEY)
        note(f"{len(rows) + len(compared)} rows written to {plan.file.record}")
    if as_json:
        print_json([*rows, *compared])
    else:
        _print_sizes(rows, compared)
    note_failures(folder, table)
    note(table.counts())
    if not dry_run and not table.is_complete:
        raise _incomplete(table)


def _print_sizes(rows: list[dict[str, Any]], compared: list[dict[str, Any]]) -> None:
    from diffusion_mf.lab.experiments.size_curves import LEAST_SIZE, SIGNIFICANT, summary_rows

    place: dict[str, Column] = {field: field for field in ("corpus", "sentences", "system", "device")}
    if rows:
        print_rows(
            [{**row, "seeds": len(row["seeds"])} for row in summary_rows(rows)],
            {
                **place,
                "seeds": "seeds",
                "dev": ("dev", 2),
                "test": ("test", 2),
                "±": ("test_sd", 2),
                "exact match": ("exact_match", 1),
                "seconds": ("seconds", 0),
            },
            title="Learning curves: means over seeds",
        )
    if compared:
        intervals = (f"{half_up(row['low'], 2)} to {half_up(row['high'], 2)}" for row in compared)
        print_rows(
            [
                {**row, "interval": interval, "below": "yes" if row["is_below"] else "no"}
                for row, interval in zip(compared, intervals, strict=True)
            ],
            {
                **place,
                "test": ("test", 2),
                "python-crfsuite": ("crfsuite_test", 2),
                "difference": ("difference", 2),
                "95 %": "interval",
                "p": ("p_below", 4),
                "below": "below",
            },
            title=f"From {LEAST_SIZE} sentences on: below python-crfsuite on test? (bootstrap over sentences, p < {SIGNIFICANT:g})",
        )
