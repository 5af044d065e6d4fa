"""``dmf demo``: what the package is for, on a corpus of invented language, in a few minutes."""

import pathlib
from typing import Annotated

import typer

from diffusion_mf.errors import InputError


def demo(
    output: Annotated[
        pathlib.Path, typer.Option(metavar="DIR", help="Folder for corpus, models and picture; created if missing.")
    ] = pathlib.Path("runs/demo"),
    seed: Annotated[int, typer.Option(help="Seed of the corpus and the models.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print only the comparison, as JSON.")] = False,
) -> None:
    """Train Unigram, LCRF and Diffusion-MF, compare them, and watch a sentence's labels emerge from noise."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise InputError("the picture needs matplotlib", remedy="pip install 'diffusion-mf[demo]'") from None
    from diffusion_mf.lab.demo.run import run_demo

    run_demo(output, seed=seed, as_json=as_json)
