"""How cost grows: sentences per second with more data, and time per sentence with longer sentences.

The split is repeated for more data. Long sentences are made of the corpus's words, one sentence after the other, cut at the
length wanted. One model serves all measurements.
"""

from __future__ import annotations

import dataclasses
import itertools
import statistics
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from diffusion_mf.benchmarks.sessions import Session
from diffusion_mf.benchmarks.throughput import CORPORA, FAST, IMPLEMENTATIONS, REPEATS, benchmark_config
from diffusion_mf.data.corpus import Task
from diffusion_mf.data.sentence import Sentence
from diffusion_mf.errors import InputError
from diffusion_mf.training.corpora import read_training_data

SYSTEM = "diffusion-mf"
TIMES = (1, 4, 16)
LENGTHS = (16, 32, 64, 128, 256, 512, 1024, 2000)
UNITS = 200_000
"""of the sentences of one length, about: batches enough for a steady state"""


def measure_scaling(
    task: Task,
    *,
    device: torch.device,
    folder: str,
    overrides: Sequence[str] = (),
    times: Sequence[int] = TIMES,
    lengths: Sequence[int] = LENGTHS,
    units: int = UNITS,
    repeats: int = REPEATS,
) -> Iterator[list[dict[str, Any]]]:
    """Training and inference at several times the data, then inference at several lengths; a list of rows for each."""
    config = benchmark_config(task, SYSTEM, folder=folder, overrides=[*IMPLEMENTATIONS[FAST], *overrides])
    data = read_training_data(config)
    dev = data.dev
    if not dev:
        raise InputError("the configuration names no development data", remedy="set data.dev")
    repeated = dataclasses.replace(data, train=data.train * max(times, default=1))
    session = Session(config, repeated, device)
    common = {
        "benchmark": "scaling",
        "corpus": CORPORA[task].name,
        "system": SYSTEM,
        "implementation": FAST,
        "parameters": session.labeller.num_parameters(),
    }
    first: dict[str, float] = {}
    for phase in ("training", "inference"):
        split = data.train if phase == "training" else dev
        for count in times:
            num_sentences = count * len(split)
            if phase == "training":
                seconds = session.training_seconds(repeats=repeats, members=range(num_sentences))
            else:
                seconds = session.inference_seconds(split * count, repeats=repeats)
            speed = num_sentences / statistics.median(seconds)
            yield [
                {
                    **common,
                    "phase": phase,
                    "setting": f"{count}× data",
                    "sentences": num_sentences,
                    "sentences_per_second": speed,
                    "relative": speed / first.setdefault(phase, speed),
                    "seconds": seconds,
                }
            ]
    for length in lengths:
        sentences = sentences_of_length(dev, length, max(1, units // length))
        seconds = session.inference_seconds(sentences, repeats=repeats)
        median = statistics.median(seconds)
        yield [
            {
                **common,
                "phase": "inference",
                "setting": f"{length} units",
                "sentences": len(sentences),
                "sentences_per_second": len(sentences) / median,
                "milliseconds_per_sentence": 1e3 * median / len(sentences),
                "microseconds_per_unit": 1e6 * median / (len(sentences) * length),
                "seconds": seconds,
            }
        ]


def sentences_of_length(source: Sequence[Sentence], length: int, count: int) -> tuple[Sentence, ...]:
    """So many sentences of so many units, the units of ``source`` in their order, over and over."""
    stream = itertools.cycle([unit for sentence in source for unit in sentence.units])
    return tuple(Sentence(tuple(itertools.islice(stream, length))) for _ in range(count))
