"""``dmf data synth``: write the synthetic corpus and say what can be scored on it."""

from __future__ import annotations

import enum
import pathlib
from typing import Annotated, Any

import typer

from diffusion_mf.errors import InputError


class FlavourChoice(enum.StrEnum):
    """What to generate."""

    POS = "pos"
    NER = "ner"
    SEG_POS = "seg-pos"
    ALL = "all"


def synth(
    folder: Annotated[pathlib.Path, typer.Argument(metavar="DIR", help="Folder to write to; made if it is not there.")],
    sentences: Annotated[int, typer.Option(help="Sentences of the training split.")] = 2000,
    dev_sentences: Annotated[
        int | None, typer.Option(help="Sentences of the development split; a quarter of --sentences by default.")
    ] = None,
    test_sentences: Annotated[
        int | None, typer.Option(help="Sentences of the test split; a quarter of --sentences by default.")
    ] = None,
    seed: Annotated[int, typer.Option(help="The same seed gives the same bytes.")] = 0,
    flavour: Annotated[FlavourChoice, typer.Option(help="Which corpus.")] = FlavourChoice.ALL,
    adjacent: Annotated[
        float, typer.Option(help="Share of sentences whose neighbouring labels depend on each other, 0 to 1.")
    ] = 0.5,
    distant: Annotated[
        float, typer.Option(help="Share of sentences whose labels far apart depend on each other, 0 to 1.")
    ] = 0.5,
    json_output: Annotated[bool, typer.Option("--json", help="Print the manifest as JSON.")] = False,
) -> None:
    """Write a corpus of invented language, with the best scores that are possible on it."""
    from diffusion_mf.cli.output import print_json
    from diffusion_mf.data.synthetic import FLAVOURS, write_corpus

    if sentences < 1:
        raise InputError(f"--sentences must be at least 1, found {sentences}", remedy="ask for 1 or more")
    quarter = max(1, sentences // 4)
    manifest = write_corpus(
        folder,
        flavours=list(FLAVOURS) if flavour is FlavourChoice.ALL else [flavour.value],
        sizes={
            "train": sentences,
            "dev": quarter if dev_sentences is None else dev_sentences,
            "test": quarter if test_sentences is None else test_sentences,
        },
        seed=seed,
        adjacent=adjacent,
        distant=distant,
    )
    if json_output:
        print_json(manifest)
    else:
        _print_tables(manifest)


_DECODER_TITLES = {
    "position_wise": "position-wise argmax",
    "chain": "first-order chain",
    "joint": "joint mode",
    "bound": "best possible",
}


def _print_tables(manifest: dict[str, Any]) -> None:
    from diffusion_mf.cli.output import half_up, print_table

    def rounded(value: float | None) -> str | None:
        return None if value is None else half_up(value, 1)

    for name, described in manifest["flavours"].items():
        print_table(
            ["file", "sentences", "units", *(f"{kind} groups" for kind in described["patterns"])],
            [
                [about["file"], about["sentences"], about["units"], *about["groups"].values()]
                for about in described["splits"].values()
            ],
        )
        test = described["splits"]["test"]
        metrics = list(test["expected"]["joint"])
        rows: list[list[str | None]] = []
        for title, scores in (("expected", test["expected"]), ("on these labels", test["realised"])):
            for decoder, values in scores.items():
                rows.append([title, _DECODER_TITLES[decoder], *(rounded(values[metric]) for metric in metrics)])
        print_table(
            ["test", "decoder", *(metric.replace("consistency_", "consistent, ") for metric in metrics)],
            rows,
            title=f"{name}: what decoders that know the true distribution score, %",
        )
