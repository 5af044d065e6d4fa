"""The demonstration: trains and compares three systems on the synthetic corpus, and shows the denoising of a sentence."""

from __future__ import annotations

import dataclasses
import pathlib
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from rich.console import Console

from diffusion_mf.config import Config, load_config
from diffusion_mf.evaluation.terminal import Display, half_up, note, print_json, print_table
from diffusion_mf.lab.demo.lines import LEGEND, print_trajectory
from diffusion_mf.lab.demo.picture import draw_trajectory
from diffusion_mf.lab.synthetic import (
    FLAVOURS,
    SyntheticSentence,
    consistency,
    drawn_scores,
    generate,
    realised_scores,
    write_corpus,
)
from diffusion_mf.systems import SYSTEMS
from diffusion_mf.tagger import TaggedSentence, Tagger
from diffusion_mf.training.loop import train

METRICS = {
    "accuracy": "accuracy",
    "exact_match": "exact match",
    "consistency_adjacent": "consistent, adjacent",
    "consistency_distant": "consistent, distant",
}
"""the scores of a row and their titles"""

# The decoder of `lab.synthetic.optimal` that gives the best possible score of each system.
_LIMITS = {"unigram": "position_wise", "lcrf": "chain", "diffusion-mf": "joint"}


class ComparisonRow(NamedTuple):
    """A system's scores in per cent, and those of a decoder that knows the true distribution of labels."""

    system: str
    scores: Mapping[str, float | None]
    limits: Mapping[str, float | None]


def compare(
    sentences: Sequence[SyntheticSentence], results: Mapping[str, Iterable[TaggedSentence]], *, flavour: str
) -> list[ComparisonRow]:
    """A row for every system of ``results``."""
    limits: Mapping[str, Any] = realised_scores(sentences, flavour=FLAVOURS[flavour])
    return [
        ComparisonRow(
            system,
            drawn_scores(sentences, [result.labels for result in tagged], flavour=FLAVOURS[flavour]),
            {metric: limits[_LIMITS[system]][metric] for metric in METRICS},
        )
        for system, tagged in results.items()
    ]


FLAVOUR = "pos"
SHOWN_SYSTEM = "diffusion-mf"
DEMO_SYSTEMS = ("unigram", "lcrf", SHOWN_SYSTEM)
PICTURE = "trajectory.png"
_LONGEST_SHOWN = 16


@dataclasses.dataclass(frozen=True, kw_only=True)
class DemoSettings:
    """The size of the demonstration; the defaults take about two minutes on two cores."""

    train_sentences: int = 3000
    dev_sentences: int = 200
    test_sentences: int = 600
    calls_shown: int = 20
    """calls of the trajectory shown; more than a tagger needs, so that there is more to see"""
    overrides: tuple[str, ...] = ()
    """overrides of every configuration, as for ``dmf train --set``"""


def run_demo(
    folder: pathlib.Path, *, seed: int = 1, as_json: bool = False, settings: DemoSettings | None = None
) -> dict[str, Any]:
    """Train, compare, tag and draw; prints as it goes and returns what ``--json`` prints."""
    settings = settings or DemoSettings()
    sizes = {
        "train": settings.train_sentences,
        "dev": settings.dev_sentences,
        "test": settings.test_sentences,
    }
    write_corpus(folder / "corpus", flavours=[FLAVOUR], sizes=sizes, seed=seed)
    test = list(generate(FLAVOUR, settings.test_sentences, seed, split="test"))
    taggers, seconds = _train_all(folder, seed, settings)
    rows = compare(
        test,
        {system: tagger.stream(s.units for s in test) for system, tagger in taggers.items()},
        flavour=FLAVOUR,
    )
    # The first sentence with both kinds of groups that fits a terminal, otherwise the shortest with most groups.
    shown = min(test, key=lambda s: (-len(s.groups), max(len(s.units), _LONGEST_SHOWN)))
    tagger = taggers[SHOWN_SYSTEM]
    result = tagger.tag([shown.units], calls=settings.calls_shown, trajectory=True)[0]
    others = {system: other.tag([shown.units])[0].labels for system, other in taggers.items() if system != SHOWN_SYSTEM}
    picture = folder / PICTURE
    draw_trajectory(
        picture,
        result,
        tagger.labels,
        groups=shown.groups,
        first_step=tagger.model.config.diffusion.num_steps,
        title=f"Labels emerging from noise: {SYSTEMS[SHOWN_SYSTEM].title}, {settings.calls_shown} calls",
    )
    values = _values(rows, seconds, result, others, picture)
    if as_json:
        print_json(values)
    else:
        _print(rows, tagger, shown, result, others, picture)
    return values


def _train_all(folder: pathlib.Path, seed: int, settings: DemoSettings) -> tuple[dict[str, Tagger], dict[str, float]]:
    taggers: dict[str, Tagger] = {}
    seconds: dict[str, float] = {}
    for system in DEMO_SYSTEMS:
        note(f"training {SYSTEMS[system].title}")
        start = time.monotonic()
        taggers[system] = _train(_config(folder, system, seed, settings), folder / "models" / system)
        seconds[system] = time.monotonic() - start
        note(f"{SYSTEMS[system].title} took {seconds[system]:.0f} s")
    return taggers, seconds


def _config(folder: pathlib.Path, system: str, seed: int, settings: DemoSettings) -> Config:
    corpus = (folder / "corpus" / FLAVOUR).resolve()
    config = load_config(f"demo/{system}", settings.overrides)
    # Only the end of training matters here, so dev is scored once.
    return config.model_copy(
        update={
            "seed": seed,
            "data": config.data.model_copy(
                update={"train": str(corpus / "train.conllu"), "dev": str(corpus / "dev.conllu")}
            ),
            "training": config.training.model_copy(update={"evaluate_every": config.training.epochs}),
        }
    )


def _train(config: Config, folder: pathlib.Path) -> Tagger:
    # A run's folder cannot be reused, but a demonstration can be repeated, so only its models are kept.
    with tempfile.TemporaryDirectory(prefix="diffusion-mf-demo-") as run, Display() as display:
        tagger = Tagger.load(train(config, output=run, device="cpu", display=display), device="cpu")
    tagger.save(folder)
    return tagger


def _values(
    rows: Sequence[ComparisonRow],
    seconds: Mapping[str, float],
    result: TaggedSentence,
    others: Mapping[str, Sequence[str]],
    picture: pathlib.Path,
) -> dict[str, Any]:
    return {
        "systems": [
            {"system": row.system, **row.scores, "optimal": dict(row.limits), "seconds": round(seconds[row.system], 1)}
            for row in rows
        ],
        "sentence": {
            "units": list(result.units),
            "labels": {SHOWN_SYSTEM: result.labels, **{system: list(labels) for system, labels in others.items()}},
            "scores": [round(score, 4) for score in result.scores],
        },
        "picture": str(picture),
    }


def _print(
    rows: Sequence[ComparisonRow],
    tagger: Tagger,
    shown: SyntheticSentence,
    result: TaggedSentence,
    others: Mapping[str, Sequence[str]],
    picture: pathlib.Path,
) -> None:
    def rounded(value: float | None) -> str:
        return "–" if value is None else half_up(value, 1)

    def beside(row: ComparisonRow, metric: str) -> str:
        return f"{rounded(row.scores[metric])} ({rounded(row.limits[metric])})"

    best = {metric: max((row.limits[metric] or 0.0 for row in rows), default=0.0) for metric in METRICS}
    print_table(
        ["system", *METRICS.values()],
        [
            *([SYSTEMS[row.system].title, *(beside(row, metric) for metric in METRICS)] for row in rows),
            ["best possible", *(rounded(best[metric]) for metric in METRICS)],
        ],
        title="Scores on the test split, %",
    )
    print(
        "In brackets: the score of such a model if it knows the true distribution of labels (docs/synthetic-corpus.md)."
    )
    print("If two labels are almost equally likely, a trained model may exceed it by luck.\n")
    console = Console(file=sys.stdout, highlight=False)
    console.print(f"{SYSTEMS[SHOWN_SYSTEM].title} labels a sentence; {LEGEND}\n", soft_wrap=True)
    titled = {SYSTEMS[system].title: labels for system, labels in others.items()}
    print_trajectory(console, result, tagger.labels, others=titled)
    for title, labels in {SYSTEMS[SHOWN_SYSTEM].title: result.labels, **titled}.items():
        console.print(f"{title}: {_verdict(shown, labels)}", soft_wrap=True)
    console.print(f"\nPicture: {picture}", soft_wrap=True)


def _verdict(shown: SyntheticSentence, labels: Sequence[str]) -> str:
    found = consistency(shown.units, labels, flavour=FLAVOUR)
    return "; ".join(
        f"labels of the {kind} group {'fit each other' if count.consistent else 'never occur together'}"
        for kind, count in found.items()
        if count.groups
    )
