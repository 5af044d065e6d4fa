"""``dmf export``: a trained model as files that need no PyTorch."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from diffusion_mf.cli.tag import Calls, LegalDecoderName, Model
from diffusion_mf.evaluation.terminal import note, print_json


def export(
    model: Model,
    folder: Annotated[Path, typer.Argument(metavar="NEW-FOLDER", help="Folder to write.")],
    target: Annotated[Literal["onnx"], typer.Option("--to", help="Kind of files to write.")] = "onnx",
    calls: Calls = None,
    decoder: LegalDecoderName = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Write a model as ONNX graphs, for diffusion_mf.onnx, which tags without PyTorch; the model itself is not changed."""
    from diffusion_mf.onnx.export import export_model
    from diffusion_mf.tagger import Tagger

    export_model(Tagger.load(model, device="cpu").model, folder, num_calls=calls, decoder=decoder)
    sizes = {path.name: path.stat().st_size for path in sorted(folder.iterdir())}
    if as_json:
        print_json({"folder": str(folder), "files": sizes})
    else:
        note(f"{folder} has {len(sizes)} files with {sum(sizes.values()) / 1e6:,.1f} MB")
