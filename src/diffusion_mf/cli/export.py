"""``dmf export``: a trained model in another form: smaller, or without PyTorch."""

import os
from pathlib import Path
from typing import Annotated, Literal

import typer

from diffusion_mf.cli.tag import Calls, LegalDecoderName, Model
from diffusion_mf.errors import InputError
from diffusion_mf.evaluation.terminal import note, print_json


def export(
    model: Model,
    folder: Annotated[Path, typer.Argument(metavar="NEW-FOLDER", help="Folder to write.")],
    target: Annotated[
        Literal["onnx", "float16", "int8"],
        typer.Option(
            "--to",
            help="onnx: graphs for diffusion_mf.onnx, which tags without PyTorch; float16 or int8: a model with weights of two bytes or one.",
        ),
    ] = "onnx",
    measure: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="With float16 or int8: the card says how fast this file is tagged on one core."
        ),
    ] = None,
    calls: Calls = None,
    decoder: LegalDecoderName = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Write a model in another form; the model itself is not changed."""
    from diffusion_mf.tagger import Tagger

    if target == "onnx" and measure is not None:
        raise InputError("--measure is for --to float16 and --to int8", remedy="leave it out")
    if target != "onnx" and (calls is not None or decoder is not None):
        raise InputError(
            f"--calls and --decoder are fixed by --to onnx only, not by --to {target}", remedy="leave them out"
        )
    tagger = Tagger.load(model, device="cpu")
    if target != "onnx" and folder.exists() and os.path.exists(model) and os.path.samefile(model, folder):
        raise InputError("the output folder is the model itself", path=folder, remedy="choose another folder")
    stored = tagger.model
    if target == "onnx":
        from diffusion_mf.onnx.export import export_model

        export_model(stored, folder, num_calls=calls, decoder=decoder)
    else:
        from diffusion_mf.model.storage import load_model, save_model

        config = stored.config.model_copy(
            update={"training": stored.config.training.model_copy(update={"storage": target})}
        )
        save_model(folder, stored._replace(config=config))
        if measure is not None:
            from diffusion_mf.data.formats import read_task
            from diffusion_mf.lab.benchmarks.cpu import speed_on_one_core

            corpus = read_task(measure, config.task, column=config.data.column)
            small = load_model(folder)
            save_model(folder, small._replace(metrics={**small.metrics, "speed": speed_on_one_core(folder, corpus)}))
    sizes = {path.name: path.stat().st_size for path in sorted(folder.iterdir()) if path.is_file()}
    if as_json:
        print_json({"folder": str(folder), "files": sizes})
    else:
        note(f"{folder} has {len(sizes)} files with {sum(sizes.values()) / 1e6:,.1f} MB")
