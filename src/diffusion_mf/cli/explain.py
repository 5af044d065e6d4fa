"""``dmf explain``: how the labels of a sentence come about, as a picture."""

import pathlib
import sys
from typing import Annotated

import typer

from diffusion_mf.cli.data import LanguageOption
from diffusion_mf.cli.tag import Calls, Device, LegalDecoderName, ModelOption, model_and_others
from diffusion_mf.errors import InputError
from diffusion_mf.evaluation.terminal import half_up, print_json

MOST_UNITS = 300
"""in a PNG: more would be wider than image viewers take"""


def explain(
    model_and_text: Annotated[
        list[str],
        typer.Argument(
            metavar="[MODEL] TEXT",
            help="Folder of a trained model, a model of the package (dmf models) or hf:OWNER/NAME on the hub; and a sentence, "
            "or several for a page.",
        ),
    ],
    model_option: ModelOption = None,
    output: Annotated[
        pathlib.Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Picture (.png) or page (.html) to write.",
            show_default="lines on the terminal",
        ),
    ] = None,
    calls: Calls = None,
    decoder: LegalDecoderName = None,
    language: LanguageOption = None,
    device: Device = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print labels, probabilities and beliefs as JSON.")] = False,
) -> None:
    """Show what a model believes of every word after each denoising step; a direct system has one step."""
    suffix = None if output is None else output.suffix.lower()
    if suffix not in (None, ".png", ".html"):
        raise InputError(
            f"a picture cannot be written as {suffix or 'a file without a suffix'}",
            path=output,
            remedy="choose a name that ends in .png or .html",
        )
    if output is not None:
        try:
            import matplotlib  # noqa: F401
        except ImportError:
            raise InputError("the picture needs matplotlib", remedy="pip install 'diffusion-mf[demo]'") from None
    from diffusion_mf.systems import SYSTEMS
    from diffusion_mf.tagger import Tagger

    model, texts = model_and_others(model_and_text, model_option)
    if len(texts) != 1:
        raise InputError(
            f"there are {len(texts)} texts" if texts else "there is no text",
            remedy="give one text in quotes, after a model or alone",
        )
    (text,) = texts
    tagger = Tagger.load(model, device=device)
    results = tagger.tag_text(text, language=language, calls=calls, decoder=decoder, trajectory=True, marginals=True)
    if not results:
        raise InputError("the text has no words", remedy="give a sentence")
    config = tagger.model.config
    title = f"{SYSTEMS[config.system].title} labels a sentence"
    first_step = config.diffusion.num_steps if config.system_entry.is_diffusion else None
    if suffix == ".png":
        from diffusion_mf.lab.demo.picture import draw_trajectory

        (result, *others) = results
        if others:
            raise InputError(
                f"the text has {len(results)} sentences, but a picture shows only one",
                path=output,
                remedy="give one sentence, or write .html",
            )
        if len(result.units) > MOST_UNITS:
            raise InputError(
                f"the sentence has {len(result.units)} units, but a picture shows at most {MOST_UNITS}",
                path=output,
                remedy="write .html",
            )
        draw_trajectory(output or "", result, tagger.labels, first_step=first_step, title=title)
    elif suffix == ".html":
        from diffusion_mf.lab.demo.page import write_page

        write_page(output or "", results, tagger.labels, first_step=first_step, title=title)
    if as_json:
        rows = [
            result.to_dict()
            | {"second_best": [{"label": label, "score": score} for label, score in result.second_best(tagger.labels)]}
            | {"trajectory": [{"t": t, "beliefs": beliefs.tolist()} for t, beliefs in result.trajectory or ()]}
            for result in results
        ]
        print_json({"system": config.system, "labels": list(tagger.labels), "sentences": rows})
    elif output is None:
        from rich.console import Console

        from diffusion_mf.lab.demo.lines import LEGEND, print_trajectory

        console = Console(file=sys.stdout, highlight=False)
        console.print(f"{title}; {LEGEND}\n", soft_wrap=True)
        for result in results:
            scores = [f"{half_up(100 * score, 0)} %" for score in result.scores]
            print_trajectory(console, result, tagger.labels, others={"labels": result.labels, "": scores})
