"""``dmf experiment``: many runs, and the paper's tables beside ours."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from diffusion_mf.cli.output import note, print_json, print_table
from diffusion_mf.errors import InputError

if TYPE_CHECKING:
    from diffusion_mf.experiments.folders import ExperimentFolder

app = typer.Typer(help="Many runs, and the paper's tables beside ours.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Many runs, and the paper's tables beside ours."""


@app.command()
def run(
    plan_path: Annotated[str, typer.Argument(metavar="PLAN", help="Plan file (TOML).")],
    output: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder for all runs.", show_default="runs/NAME")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Runs at a time.", show_default="as the plan says, else 1")
    ] = None,
    time_limit: Annotated[
        float | None, typer.Option(metavar="SECONDS", min=0, help="Stop all runs after so long, with checkpoints.")
    ] = None,
    grace: Annotated[float, typer.Option(metavar="SECONDS", min=0, help="Time for those checkpoints.")] = 90.0,
    devices: Annotated[
        str, typer.Option("--devices", help="Devices to spread runs over, as in cuda:0,cuda:1.")
    ] = "auto",
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A setting for all runs; may be repeated."),
    ] = None,
    corpora: Annotated[
        str | None, typer.Option(metavar="FILE", help="Where the corpora lie, instead of the plan's own.")
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUES", help="Just these runs, as in seed=1,2 or encoder=scratch; may be repeated."),
    ] = None,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Try runs again that failed as often as they may.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the runs and how they stand, and stop.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the runs' states and scores as JSON.")] = False,
) -> None:
    """Run a plan: what is finished is kept, what was interrupted continues, what another runner has is left to it.

    Exit status 0 if every run (of those that --only names) is complete afterwards, 1 otherwise.
    """
    from diffusion_mf.experiments.display import described_counts, shown_runs
    from diffusion_mf.experiments.folders import ExperimentFolder, RunState
    from diffusion_mf.experiments.plan import chosen_runs, load_plan
    from diffusion_mf.experiments.plan_file import check_files
    from diffusion_mf.experiments.runner import PlanStanding, RunnerOptions, run_plan

    plan = load_plan(plan_path, overrides=overrides or (), corpora_file=corpora)
    folder = ExperimentFolder(output or Path("runs") / plan.name)
    evaluation = plan.evaluation.model_dump(mode="json")
    runs = chosen_runs(plan, only or ())
    if plan.left_out:
        note(f"left out, as their training files are not there: {', '.join(plan.left_out)}")
    variants: dict[str, list[str]] = {}
    for each in runs:
        variants.setdefault(each.name, []).append(each.variant)
    has_variants = len({each.variant for each in runs}) > 1
    states = {
        each.name: folder.run(each.name).state(retries=plan.settings.retries, evaluation=evaluation) for each in runs
    }
    if dry_run:
        standing = PlanStanding(states)
    else:
        for each in runs:
            if states[each.name] is not RunState.COMPLETE:
                check_files(each.config)
        options = RunnerOptions(
            workers=workers or plan.settings.workers,
            devices=_devices(devices),
            time_limit=time_limit,
            grace=grace,
            retry_failed=retry_failed,
            only=frozenset(variants),
            command=shlex.join(["dmf", *sys.argv[1:]]),
        )
        with shown_runs() as display:
            standing = run_plan(plan, folder, options, display)
    results = {name: folder.run(name).result() or {} for name in standing.states}
    if as_json:
        print_json(
            [
                {
                    "name": name,
                    "variants": variants[name],
                    "state": state.value,
                    **{key: results[name].get(key) for key in ("dev", "test", "seconds")},
                }
                for name, state in standing.states.items()
            ]
        )
    else:
        rows = []
        for name, state in standing.states.items():
            score = (results[name].get("dev") or {}).get(results[name].get("metric"))
            shown = [", ".join(variants[name])] if has_variants else []
            rows.append((name, *shown, state.value, None if score is None else f"{score:.2f}"))
        print_table(["run", *(["variant"] if has_variants else []), "state", "dev"], rows)
    _note_failures(folder, [name for name, s in standing.states.items() if s is RunState.FAILED], "failed")
    _note_failures(folder, [name for name, s in standing.states.items() if s is RunState.DIVERGED], "diverged")
    note(described_counts(standing))
    if not dry_run and not standing.is_complete:
        raise typer.Exit(1)


def _note_failures(folder: ExperimentFolder, names: Sequence[str], state: str) -> None:
    """Why runs failed; those with the same reason together."""
    reasons: dict[tuple[str, ...], list[str]] = {}
    for name in names:
        place = folder.run(name)
        lines = next((each["lines"] for each in reversed(place.attempts()) if each.get("lines")), place.last_lines())
        reasons.setdefault(tuple(dict.fromkeys(lines)), []).append(name)
    for lines, alike in reasons.items():
        more = f" and {len(alike) - 1} more for the same reason" if len(alike) > 1 else ""
        note(f"{alike[0]}{more} {state}; the end of {folder.run(alike[0]).output}:")
        for line in lines:
            note(f"  {line}")


def _devices(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise InputError("--devices names no device", remedy="write cuda:0,cuda:1, or auto")
    if set(names) == {"cpu"}:
        return names
    import torch

    from diffusion_mf.training.distributed import choose_device

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


@app.command()
def table(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of dmf experiment run.")],
    kind: Annotated[
        str | None,
        typer.Option(
            help="main, denoiser, objective, calls, ner, seg-pos, scaling, depth, iterations, base or readings.",
            show_default="as the plan says",
        ),
    ] = None,
    table_format: Annotated[str, typer.Option("--format", help="markdown, latex, csv or json.")] = "markdown",
    output: Annotated[str, typer.Option(metavar="FILE", help="Where to write; - is standard output.")] = "-",
    plan: Annotated[str | None, typer.Option(help="Which plan, where several were run in the folder.")] = None,
    record: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Result file to put the rows into, such as results/scratch.json."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
) -> None:
    """The paper's tables from finished runs: mean ± sample deviation over seeds, the paper's values beside ours."""
    from diffusion_mf.experiments.folders import ExperimentFolder
    from diffusion_mf.experiments.record import save_rows
    from diffusion_mf.experiments.selection import read_outcomes
    from diffusion_mf.experiments.tables import FORMATS, NEEDED, TABLES, render
    from diffusion_mf.files import open_output

    chosen_format = "json" if as_json else table_format
    _check_choice("--format", chosen_format, FORMATS)
    details, outcomes = read_outcomes(ExperimentFolder(folder), plan=plan)
    chosen = kind or details["table"]
    _check_choice("--kind", chosen, TABLES)
    if not outcomes.groups:
        raise InputError("no run has finished yet", path=folder, remedy="run dmf experiment run first")
    tables = TABLES[chosen](outcomes)  # type: ignore[index]
    if not tables:
        raise InputError(
            f"the plan {details['name']} has no finished runs for the table {chosen!r}",
            path=folder,
            remedy=f"that table needs {NEEDED[chosen]}",
        )
    text = render(tables, chosen_format)
    with open_output(output) as stream:
        stream.write(text.encode())
    if record is not None:
        count = save_rows(record, outcomes, experiment=chosen)
        note(f"{count} rows written to {record}")


@app.command("record")
def record_rows(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of dmf experiment run.")],
    plan: Annotated[str | None, typer.Option(help="Which plan, where several were run in the folder.")] = None,
) -> None:
    """Put the rows of finished runs into the result file that their plan names, in place of earlier ones."""
    from diffusion_mf.experiments.folders import ExperimentFolder
    from diffusion_mf.experiments.record import save_rows
    from diffusion_mf.experiments.selection import read_outcomes

    details, outcomes = read_outcomes(ExperimentFolder(folder), plan=plan)
    path = details.get("record")
    if path is None:
        raise InputError(
            f"the plan {details['name']} names no result file",
            path=folder,
            remedy="add record = FILE to the plan and run it again, or use dmf experiment table --record FILE",
        )
    if not outcomes.groups:
        raise InputError("no run has finished yet", path=folder, remedy="run dmf experiment run first")
    # The calls of main results are scored with them.
    kinds = [
        details["table"],
        *(["calls"] if details["table"] == "main" and details["evaluation"].get("calls") else []),
    ]
    for kind in kinds:
        note(f"{save_rows(path, outcomes, experiment=kind)} rows of {kind} written to {path}")


@app.command()
def readme(
    path: Annotated[str, typer.Argument(metavar="[FILE]", help="Markdown file with the marks.")] = "README.md",
    results: Annotated[str, typer.Option(metavar="FILE", help="Rows with a scratch encoder.")] = "results/scratch.json",
    pretrained: Annotated[
        str, typer.Option(metavar="FILE", help="Rows with pretrained encoders, where there are some.")
    ] = "results/pretrained.json",
    recall: Annotated[
        str, typer.Option(metavar="FILE", help="Rows of systems that recall documents, where there are some.")
    ] = "results/recall.json",
) -> None:
    """Write the results tables of the README anew from result files."""
    from diffusion_mf.experiments.readme import update_readme

    sources = {"results": results, "pretrained": pretrained}
    written = update_readme(path, sources, recall=recall)
    files = [sources[name] for name in written] + ([recall] if Path(recall).exists() else [])
    note(f"{path} has the results of {' and '.join(files)}")


def _check_choice(option: str, value: str, choices: Iterable[str]) -> None:
    known = list(choices)
    if value not in known:
        raise InputError(f"{option}: unknown {value!r}", remedy=f"choose one of {', '.join(known)}")


@app.command()
def plot(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of dmf experiment run.")],
    output: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where to write the plots.", show_default="DIR/plots")
    ] = None,
    plan: Annotated[str | None, typer.Option(help="Which plan, where several were run in the folder.")] = None,
    file_format: Annotated[str, typer.Option("--format", help="png, pdf or svg.")] = "png",
) -> None:
    """Learning curves, score against calls, base, depth, size and iterations, calibration, and where each system errs."""
    from diffusion_mf.experiments.folders import ExperimentFolder
    from diffusion_mf.experiments.plots import write_plots
    from diffusion_mf.experiments.selection import read_outcomes

    _check_choice("--format", file_format, ("png", "pdf", "svg"))
    place = ExperimentFolder(folder)
    details, outcomes = read_outcomes(place, plan=plan)
    if not outcomes.groups:
        raise InputError("no run has finished yet", path=folder, remedy="run dmf experiment run first")
    for path in write_plots(outcomes, place, output or folder / "plots", details, suffix=file_format):
        print(path)
