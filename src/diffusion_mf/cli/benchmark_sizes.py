"""``dmf benchmark sizes``: learning curves beside python-crfsuite."""

import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from diffusion_mf.evaluation.terminal import Display, half_up, note, print_json, print_table


def sizes(
    plan_path: Annotated[str, typer.Argument(metavar="PLAN", help="Plan of sizes (TOML).")],
    *,
    output: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder for all runs.", show_default="runs/NAME")
    ] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Runs at a time.", show_default="as the plan says")] = None,
    time_limit: Annotated[
        float | None, typer.Option(metavar="SECONDS", min=0, help="Stop all runs after so long, with checkpoints.")
    ] = None,
    grace: Annotated[float, typer.Option(metavar="SECONDS", min=0, help="Time for those checkpoints.")] = 30.0,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A setting that wins over the recipe's; may be repeated."),
    ] = None,
    corpora: Annotated[
        str | None, typer.Option(metavar="FILE", help="Where the corpora lie, instead of the plan's own.")
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUES", help="Just these runs, as in seed=1 or corpus=en-ewt; may be repeated."),
    ] = None,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Try runs again that failed as often as they may.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Run nothing: count the runs, and show those that are finished.")
    ] = False,
    record: Annotated[
        bool, typer.Option("--record", help="Put the rows of the plan's finished runs into its result file.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the rows as JSON.")] = False,
) -> None:
    """Scores by the number of training sentences, with the recipe, and who is significantly below python-crfsuite.

    What is finished is kept, what was interrupted continues. The plot is DIR/sizes.png. Exit status 0 if every run (of those that
    --only names) is complete afterwards, 1 otherwise.
    """
    from diffusion_mf.cli.experiment import note_failures
    from diffusion_mf.config.files import nested_overrides
    from diffusion_mf.errors import InputError
    from diffusion_mf.lab.experiments.folders import ExperimentFolder
    from diffusion_mf.lab.experiments.plan import chosen_runs, flat_settings
    from diffusion_mf.lab.experiments.processes import WorkerPool
    from diffusion_mf.lab.experiments.scheduler import RunTable, SchedulerOptions, run_jobs
    from diffusion_mf.lab.experiments.size_curves import ROW_KEY, read_size_rows, significance_rows, write_size_plot
    from diffusion_mf.lab.experiments.sizes import load_sizes_plan
    from diffusion_mf.lab.results import write_rows

    plan = load_sizes_plan(plan_path, overrides=flat_settings(nested_overrides(overrides or ())), corpora_file=corpora)
    if record and plan.file.record is None:
        raise InputError(
            "the plan names no result file",
            path=plan_path,
            remedy="add record = FILE to the plan, or leave out --record",
        )
    runs = chosen_runs(plan.runs, only or ())
    folder = ExperimentFolder(output or Path("runs") / plan.name)
    if plan.left_out:
        note(f"left out, as their training files are not there: {', '.join(plan.left_out)}")
    jobs = plan.jobs(folder, runs=runs, command=shlex.join(["dmf", *sys.argv[1:]]))
    if dry_run:
        table = RunTable({job.name: folder.run(job.name).state(retries=1) for job in jobs})
    else:
        # python-crfsuite alone needs no GPU.
        devices = ["cpu"] if all(run.device == "cpu" for run in runs) else _all_gpus()
        pool = WorkerPool()
        options = SchedulerOptions(
            workers=workers or plan.file.workers,
            devices=devices,
            time_limit=time_limit,
            grace=grace,
            retry_failed=retry_failed,
            start=pool.start,
        )
        try:
            with Display() as display:
                table = run_jobs(jobs, folder, options, display)
        finally:
            pool.close()
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
        _print(rows, compared)
    note_failures(folder, table)
    note(table.counts())
    if not dry_run and not table.is_complete:
        raise typer.Exit(1)


def _all_gpus() -> list[str]:
    """All of them; `InputError` where there is none."""
    from diffusion_mf.cli.experiment import chosen_devices

    chosen_devices("cuda")
    return chosen_devices("auto")


def _print(rows: list[dict[str, Any]], compared: list[dict[str, Any]]) -> None:
    from diffusion_mf.lab.experiments.size_curves import LEAST_SIZE, SIGNIFICANT, summary_rows

    if rows:
        print_table(
            ["corpus", "sentences", "system", "device", "seeds", "dev", "test", "±", "exact match", "seconds"],
            [
                [
                    row["corpus"],
                    row["sentences"],
                    row["system"],
                    row["device"],
                    len(row["seeds"]),
                    half_up(row["dev"], 2),
                    half_up(row["test"], 2),
                    None if row["test_sd"] is None else half_up(row["test_sd"], 2),
                    half_up(row["exact_match"], 1),
                    half_up(row["seconds"], 0),
                ]
                for row in summary_rows(rows)
            ],
            title="Learning curves: means over seeds",
        )
    if compared:
        print_table(
            ["corpus", "sentences", "system", "device", "test", "python-crfsuite", "difference", "95 %", "p", "below"],
            [
                [
                    row["corpus"],
                    row["sentences"],
                    row["system"],
                    row["device"],
                    half_up(row["test"], 2),
                    half_up(row["crfsuite_test"], 2),
                    half_up(row["difference"], 2),
                    f"{half_up(row['low'], 2)} to {half_up(row['high'], 2)}",
                    half_up(row["p_below"], 4),
                    "yes" if row["is_below"] else "no",
                ]
                for row in compared
            ],
            title=f"From {LEAST_SIZE} sentences on: below python-crfsuite on test? (bootstrap over sentences, p < {SIGNIFICANT:g})",
        )
