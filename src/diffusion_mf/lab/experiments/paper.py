"""The paper's values, from one data file (`paper_values.toml`)."""

from __future__ import annotations

import functools
import tomllib
from importlib import resources
from typing import Any, NamedTuple

from diffusion_mf.data.corpus import Task

# The corpus used for each task in the paper's full tables.
_CORPORA = {"conll2003": "ner", "zh-gsdsimp": "seg-pos"}

LANGUAGES = ("en-ewt", "de-gsd", "fr-gsd", "nl-lassysmall")
"""the treebanks of the multilingual POS experiments"""


PAPER_ENCODERS = {"pos": "roberta-large", "ner": "bert-large-cased", "seg-pos": "chinese-roberta-wwm-ext"}
"""the pretrained encoders of the paper's values, by task"""


class PaperValue(NamedTuple):
    """A mean, and its sample deviation if the paper gives one."""

    mean: float
    deviation: float | None = None


@functools.cache
def paper_tables() -> dict[str, Any]:
    """Everything in the data file."""
    text = resources.files("diffusion_mf.lab.experiments").joinpath("paper_values.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def kind_of_encoder(encoder: str) -> str:
    """``scratch``, or ``pretrained`` for all others."""
    return "scratch" if encoder == "scratch" else "pretrained"


def paper_encoder(corpus: str) -> str | None:
    """The pretrained encoder of the paper's values for a corpus."""
    return PAPER_ENCODERS["pos"] if corpus in (*LANGUAGES, "average") else PAPER_ENCODERS.get(_CORPORA.get(corpus, ""))


def paper_score(
    corpus: str, system: str, encoder: str, metric: str, *, split: str = "test", decoder: str | None = None
) -> PaperValue | None:
    """A system's score in the paper's main or full tables; by default with the decoder that the paper chose on dev."""
    tables, kind = paper_tables(), kind_of_encoder(encoder)
    if corpus in (*LANGUAGES, "average"):
        values = tables["pos"][kind].get(system)
        if values is None or metric != "accuracy" or split != "test":
            return None
        return PaperValue(values[tables["pos"]["columns"].index(corpus)])
    if corpus not in _CORPORA:
        return None
    table = tables[_CORPORA[corpus]]
    columns = table.get("columns") or table[f"{kind}_columns"]
    if metric not in columns:
        return None
    for name, its_decoder, is_selected, *numbers in table[f"{kind}_{split}"]["rows"]:
        if name == system and (is_selected if decoder is None else its_decoder == decoder):
            place = 2 * columns.index(metric)
            return PaperValue(numbers[place], numbers[place + 1])
    return None


def paper_ablation(kind: str, setting: str, corpus: str, *, difference: bool = False) -> PaperValue | None:
    """A value of the ablations of kind ``objective`` or ``calls``, or its paired difference."""
    table = paper_tables()[kind]
    values = (table["differences"] if difference else table).get(setting)
    if values is None or corpus not in table["columns"]:
        return None
    return PaperValue(*values[table["columns"].index(corpus)])


def paper_sweep(kind: str, system: str, setting: str, *, encoder: str = "scratch") -> PaperValue | None:
    """Development accuracy on English EWT in the sweeps ``scaling``, ``depth`` and ``base``."""
    table = paper_tables()[kind]
    if kind == "scaling":
        table = table[kind_of_encoder(encoder)]
    value = table.get(system, {}).get(setting)
    if value is None:
        return None
    return PaperValue(value[0] if isinstance(value, list) else value)


def paper_relative_throughput(system: str, iterations: str, *, phase: str = "training") -> PaperValue | None:
    """Throughput for a number of Mean-Field iterations, in percent of that with one."""
    value = paper_tables()["iterations"][phase].get(system, {}).get(iterations)
    return None if value is None else PaperValue(value)


def ablation_decoder(task: Task) -> str:
    """The decoder of the paper's ablations: argmax for POS, Mask-Viterbi for NER and Chinese."""
    return "argmax" if task is Task.POS else "mask-viterbi"
