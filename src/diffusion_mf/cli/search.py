"""``dmf search``: the staged hyperparameter search."""

from __future__ import annotations

import contextlib
import shlex
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from diffusion_mf.cli.output import half_up, note, print_json, print_table
from diffusion_mf.errors import InputError

if TYPE_CHECKING:
    from diffusion_mf.experiments.search import Search


def search(
    plan_path: Annotated[str, typer.Argument(metavar="PLAN", help="Search file (TOML).")],
    output: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder for all trials.", show_default="runs/search-NAME")
    ] = None,
    storage: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Database; postgresql://… for several machines.",
            show_default="SQLite in the folder",
        ),
    ] = None,
    workers: Annotated[int, typer.Option(min=1, help="Trials at a time.")] = 1,
    time_limit: Annotated[
        float | None, typer.Option(metavar="SECONDS", min=0, help="Stop all trials after so long, with checkpoints.")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A setting for all trials; may be repeated."),
    ] = None,
    corpora: Annotated[
        str | None, typer.Option(metavar="FILE", help="Where the corpora lie, instead of the plan's own.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the outcome as JSON.")] = False,
) -> None:
    """Search settings stage by stage, with as many trials for every system; dev decides, test data are not read.

    What is finished is kept, what was interrupted continues. Exit status 0 if the search is complete, 1 otherwise.
    """
    from diffusion_mf.experiments.folders import ExperimentFolder
    from diffusion_mf.experiments.plan_file import check_files
    from diffusion_mf.experiments.processes import num_cores
    from diffusion_mf.experiments.search import Search, SearchOptions, run_search, selected_text
    from diffusion_mf.experiments.search_plan import load_search
    from diffusion_mf.experiments.search_storage import default_storage, import_optuna, open_storage, without_password
    from diffusion_mf.files import open_output

    import_optuna()
    if device not in ("auto", "cpu"):
        from diffusion_mf.training.distributed import choose_device

        choose_device(device)  # better now than in every trial
    plan = load_search(plan_path, overrides=overrides or (), corpora_file=corpora)
    for subject in plan.subjects:
        check_files(plan.config(subject, {}, plan.file.seeds[0])[0])
    folder = output or Path("runs") / f"search-{plan.name}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot be made ({error.strerror})", path=folder, remedy="name another folder") from None
    # The command goes into results, where a password has no place.
    shown = [
        argument if storage is None else argument.replace(storage, without_password(storage)) for argument in sys.argv
    ]
    options = SearchOptions(
        device=device, threads=max(1, num_cores() // workers), command=shlex.join(["dmf", *shown[1:]])
    )
    found = Search(plan, open_storage(storage or default_storage(folder)), ExperimentFolder(folder), options, note=note)
    with _stop_requested() as has_stopped:
        is_finished = run_search(found, workers=workers, time_limit=time_limit, has_stopped=has_stopped)
    with open_output(folder / "selected.toml") as stream:
        stream.write(selected_text(found).encode())
    rows = _summary(found)
    if as_json:
        print_json(rows)
    else:
        print_table(
            ["corpus", "system", "encoder", "stage", "trials", "of", "pruned", "failed", "best dev", "settings"],
            [
                [
                    *(
                        row[key]
                        for key in ("corpus", "system", "encoder", "stage", "trials", "planned", "pruned", "failed")
                    ),
                    None if row["best"] is None else half_up(row["best"], 2),
                    " ".join(f"{key}={value}" for key, value in row["settings"].items()),
                ]
                for row in rows
            ],
        )
    if not is_finished:
        note(f"the search is not finished: the same command continues it; best so far in {folder / 'selected.toml'}")
        raise typer.Exit(1)
    note(f"the chosen settings are in {folder / 'selected.toml'}")


def _summary(search: Search) -> list[dict[str, Any]]:
    rows = []
    for subject in search.plan.subjects:
        for number, stage in enumerate(subject.stages):
            trials = search.counted(subject, number)
            values = [trial.value for trial in trials if trial.state.name == "COMPLETE"]
            rows.append(
                {
                    "corpus": subject.corpus,
                    "system": subject.system,
                    "encoder": subject.encoder,
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


@contextlib.contextmanager
def _stop_requested() -> Iterator[Callable[[], bool]]:
    """Whether SIGINT or SIGTERM came; a second one ends the program at once."""
    came: list[int] = []
    previous = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def request(number: int, frame: object) -> None:
        came.append(number)
        for each, handler in previous.items():
            signal.signal(each, handler)

    for number in previous:
        signal.signal(number, request)
    try:
        yield lambda: bool(came)
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
