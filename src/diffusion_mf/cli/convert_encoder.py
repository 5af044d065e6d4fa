"""``dmf convert-encoder``: a pretrained encoder's PyTorch weights as safetensors."""

from pathlib import Path
from typing import Annotated

import typer

from diffusion_mf.evaluation.terminal import note, print_json


def convert_encoder(
    source: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Folder of the model, with .bin, .pt or .pth files.")
    ],
    target: Annotated[Path, typer.Argument(metavar="NEW-FOLDER", help="Folder to write.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Convert an encoder to safetensors, for use as encoder.model; reading the old weights runs no code from them."""
    from diffusion_mf.networks.pretrained.conversion import convert_encoder as convert

    num_tensors = convert(source, target)
    if as_json:
        print_json({"folder": str(target), "tensors": num_tensors})
    else:
        note(f"{num_tensors:,} tensors are in {target}")
