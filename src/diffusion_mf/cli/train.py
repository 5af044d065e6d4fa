"""``dmf train``: one run, from a configuration to a model folder."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from diffusion_mf.errors import InputError
from diffusion_mf.evaluation.terminal import Display, half_up, note, print_json, print_table

if TYPE_CHECKING:
    from diffusion_mf.config import Config


def train(
    config_path: Annotated[
        str | None,
        typer.Argument(
            metavar="[CONFIG]",
            help="A configuration file (TOML), or a name such as ner/diffusion-mf; not needed with --resume.",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder for the model, checkpoints and log of this run.")
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Set something else than the file does; may be repeated."),
    ] = None,
    start: Annotated[
        str | None,
        typer.Option("--from", metavar="MODEL", help="Begin with the weights of this model folder (data.start)."),
    ] = None,
    on_long: Annotated[
        Literal["window", "error", "truncate"] | None,
        typer.Option(
            help="The same as --set encoder.on_long=…, for pretrained encoders.", show_default="as configured"
        ),
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="The same as --set data.strict=true: refuse what would be repaired.")
    ] = False,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Continue the run begun in the folder, with its own settings; --set training.epochs=N prolongs it.",
        ),
    ] = False,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N; auto is a GPU where there is one.")] = "auto",
    checkpoint_every: Annotated[float, typer.Option(metavar="SECONDS", min=0, help="Time between checkpoints.")] = 300,
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Also write logs for TensorBoard into the folder.")
    ] = False,
    count: Annotated[
        bool, typer.Option("--count", help="Print the number of parameters and stop; needs no folder.")
    ] = False,
    record: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also add a row with the run's scores to this result file.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON; percentages from 0 to 100.")] = False,
) -> None:
    """Train a system on a task and keep the model that is best on dev; under torchrun, with several processes."""
    # Before PyTorch is imported: threads that spin while they wait starve each other on busy cores.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    overrides = [*(overrides or ()), *([] if on_long is None else [f"encoder.on_long={on_long}"])]
    overrides += ["data.strict=true"] if strict else []
    overrides += [] if start is None else [f"data.start={json.dumps(start, ensure_ascii=False)}"]
    config, overrides = _configuration(config_path, overrides, output if resume else None)
    if count:
        _print_count(config, as_json=as_json)
        return
    if output is None:
        raise InputError("there is no folder to write the model to", remedy="name one with --output")
    if record is not None:
        if config_path is None:
            raise InputError("a row of results names its configuration", remedy="give CONFIG beside --record")
        from diffusion_mf.lab.results import read_rows

        read_rows(record)  # what is no result file is found before hours of training, not after
    from diffusion_mf.training.loop import train as run

    with Display() as display:
        folder = run(
            config,
            output=output,
            resume=resume,
            device=device,
            checkpoint_every=checkpoint_every,
            use_tensorboard=tensorboard,
            display=display,
            overrides=overrides,
        )
    # Of the processes that torchrun starts, one speaks for all.
    if os.environ.get("RANK", "0") == "0":
        if record is not None and config_path is not None:
            _record(record, config, folder, config_path=config_path, overrides=overrides, device=device)
        _print_results(config, folder, as_json=as_json)


def _configuration(path: str | None, overrides: list[str], begun_in: Path | None) -> tuple[Config, list[str]]:
    """The configuration of a run and all overrides in it: a run that was begun keeps its own, those given now win."""
    from diffusion_mf.config import load_config, with_overrides

    begun = None
    if begun_in is not None:
        from diffusion_mf.training.resumption import begun_run

        begun = begun_run(begun_in)
    if begun is None:
        if path is None:
            raise InputError("no configuration is named", remedy="name a file, or one such as ner/diffusion-mf")
        return load_config(path, overrides), overrides
    everything = [*begun.overrides, *overrides]
    return (with_overrides(begun.config, overrides) if path is None else load_config(path, everything)), everything


def _print_count(config: Config, *, as_json: bool) -> None:
    from diffusion_mf.model import count_parameters
    from diffusion_mf.training.corpora import read_training_data

    data = read_training_data(config)
    for message in data.notes:
        note(message)
    num_parameters = count_parameters(config, data.vocabulary, data.scheme)
    if as_json:
        print_json({"parameters": num_parameters})
    else:
        print(f"{num_parameters:,} parameters")


def _print_results(config: Config, folder: Path, *, as_json: bool) -> None:
    from diffusion_mf.model.storage import METRICS, read_metrics

    metrics = read_metrics(folder)
    if config.data.dev is not None and "dev" not in metrics:
        note(f"{folder / METRICS} was not kept, so that the dev scores are not known; dmf evaluate computes them")
    if as_json:
        print_json({"model": str(folder), **metrics})
        return
    splits = [split for split in ("dev", "test") if split in metrics]
    if splits:
        rows = [(name, *(half_up(metrics[split][name], 2) for split in splits)) for name in metrics[splits[0]]]
        print_table([config.system, *splits], rows)
    note(f"the model is in {folder}")


def _record(path: Path, config: Config, folder: Path, *, config_path: str, overrides: list[str], device: str) -> None:
    """One row per configuration, overrides, seed and machine; a repeated run replaces its row."""
    from diffusion_mf.lab.results import provenance, write_rows
    from diffusion_mf.model.storage import read_metrics

    options = "".join(f" --set {shlex.quote(override)}" for override in overrides)
    options += "" if device == "auto" else f" --device {device}"
    options += "".join(f" --plugin {shlex.quote(plugin)}" for plugin in config.plugins)
    log = (folder.parent / "log.jsonl").read_text(encoding="utf-8").splitlines()
    row = {
        "task": config.task,
        "train": Path(config.data.train or "").name,
        "system": config.system,
        "encoder": config.encoder.title,
        "seed": config.seed,
        "config": config_path,
        "overrides": overrides,
        **read_metrics(folder),
        # Of training and evaluation, over all sessions of a resumed run.
        "seconds": json.loads(log[-1])["seconds"],
        "device": device,
        **provenance(f"dmf train {config_path}{options} --record {path}"),
    }
    key = ("task", "train", "system", "encoder", "seed", "config", "overrides", "device", "hardware")
    write_rows(path, [row], replace_by=key)
