"""Benchmarks under load: more data, longer sentences, several runs on one device; and agreement with the reference."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import multiprocessing
import os
import statistics
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import torch

from diffusion_mf import plugins
from diffusion_mf.config import Config
from diffusion_mf.data.corpus import Task
from diffusion_mf.data.sentence import Sentence
from diffusion_mf.errors import DiffusionMFError, InputError
from diffusion_mf.evaluation import NO_LABEL, PRIMARY_METRICS, score_sentences
from diffusion_mf.lab.benchmarks.sessions import Session, read_data
from diffusion_mf.lab.benchmarks.throughput import (
    BENCHMARK_CORPORA,
    FAST,
    IMPLEMENTATIONS,
    PLAIN,
    benchmark_config,
)
from diffusion_mf.model import Labeller
from diffusion_mf.model.core import StructuredCore
from diffusion_mf.prediction.precision import Precision
from diffusion_mf.prediction.predictor import Predictor
from diffusion_mf.tagger import StoredModel
from diffusion_mf.training.corpora import read_training_data
from diffusion_mf.training.evaluation import predict_all
from diffusion_mf.training.processes import Processes

SYSTEM = "diffusion-mf"


def measure_scaling(
    task: Task,
    *,
    device: torch.device,
    overrides: Sequence[str],
    times: Sequence[int],
    lengths: Sequence[int],
    units: int,
    repeats: int,
) -> Iterator[list[dict[str, Any]]]:
    """Yield rows of training and inference with several copies of the data, then of inference at several lengths.

    For each length there are about ``units`` units: enough batches for a steady state.
    """
    config = benchmark_config(task, SYSTEM, overrides=[*IMPLEMENTATIONS[FAST], *overrides])
    data = read_data(config)
    dev = data.dev
    if not dev:
        raise InputError("the configuration has no development data", remedy="set data.dev")
    repeated = dataclasses.replace(data, train=data.train * max(times))
    session = Session(config, repeated, device)
    common = {
        "benchmark": "scaling",
        "corpus": BENCHMARK_CORPORA[task].name,
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
                run = session.training_run(range(num_sentences))
            else:
                run = session.inference_run(split * count)
            seconds = [run() for _ in range(repeats)]
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
        run = session.inference_run(sentences)
        seconds = [run() for _ in range(repeats)]
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
    """Sentences of equal length, made by repeating the units of ``source`` in order."""
    stream = itertools.cycle([unit for sentence in source for unit in sentence.units])
    return tuple(Sentence(tuple(itertools.islice(stream, length))) for _ in range(count))


AGREEMENT_ROW_KEY = ("benchmark", "corpus", "system", "phase", "implementation", "setting", "model", "hardware")


def measure_agreement(
    model: StoredModel,
    sentences: Sequence[Sentence],
    *,
    device: torch.device,
    precision: Precision = "auto",
) -> Iterator[list[dict[str, Any]]]:
    """A row for the reference and one for the fast path."""
    if not any(sentence.units for sentence in sentences):
        raise InputError("there is nothing to label", remedy="use a file with sentences")
    config = model.config
    packed = "packed" if config.encoder.kind == "scratch" else "auto"
    paths: dict[str, dict[str, Any]] = {
        PLAIN: {"layout": "padded", "precision": "float32"},
        FAST: {"layout": packed, "precision": precision},
    }
    labeller = model.labeller.to(device).eval()
    prepared = [config.data.prepare(sentence) for sentence in sentences]
    lengths = [len(sentence.units) for sentence in prepared]
    gold = [sentence.labels or () for sentence in sentences]
    names = [*model.vocabulary.labels, NO_LABEL]
    metric = PRIMARY_METRICS[config.task]
    reference: tuple[torch.Tensor, torch.Tensor, float] | None = None
    # A packed batch is padded to the budget, which therefore need not exceed the file.
    budget = min(config.inference.budget, sum(lengths))
    for name, changes in paths.items():
        changes["budget"] = budget
        changed = config.model_copy(update={"inference": config.inference.model_copy(update=changes)})
        predictor = Predictor(_with_reference_structures(labeller) if name == PLAIN else labeller, changed, device)
        # Labels are those of the decoder that training chose.
        labels, marginals = predict_all(
            predictor, prepared, changed, model.vocabulary, [model.decoder], Processes(0, 1, device)
        )
        predicted = [[names[label] for label in row.tolist()] for row in labels[0].split(lengths)]
        scores = score_sentences(config.task, model.scheme, gold, predicted)
        if reference is None:
            reference = (labels, marginals, scores[metric])
        yield [
            {
                "benchmark": "agreement",
                "system": config.system,
                "phase": "inference",
                "implementation": name,
                "setting": None,
                "metric": metric,
                "score": scores[metric],
                "score_difference": scores[metric] - reference[2],
                "scores": scores,
                "units": sum(lengths),
                "share_labelled_differently": (labels != reference[0]).double().mean().item(),
                "mean_marginal_difference": (marginals - reference[1]).abs().amax(-1).mean().item(),
                "largest_marginal_difference": (marginals - reference[1]).abs().max().item(),
            }
        ]


def _with_reference_structures(labeller: Labeller) -> Labeller:
    """A copy that uses the reference implementation of structures."""
    copied = copy.deepcopy(labeller)
    if isinstance(copied.core, StructuredCore):
        copied.core.settings = dataclasses.replace(copied.core.settings, backend="reference")
    return copied


LEAST_GAIN = 0.05
"""the gain in aggregate throughput that justifies more processes"""


def measure_sharing(
    config: Config, *, corpus: str, device: str, counts: Sequence[int], seconds: float
) -> Iterator[list[dict[str, Any]]]:
    """Yield a row for each number of processes as soon as it is measured."""
    read_data(config)  # report errors in the data here rather than in a process
    alone: float | None = None
    for count in counts:
        found = run_together(count, config, device=device, seconds=seconds)
        each = [answer["sentences"] / answer["seconds"] for answer in found]
        total = sum(each)
        alone = alone or total / count
        yield [
            {
                "benchmark": "sharing",
                "corpus": corpus,
                "system": config.system,
                "phase": "training",
                "implementation": "fast, MPS" if device == "cuda" and has_multi_process_service() else "fast",
                "setting": count,
                "sentences_per_second": total,
                "sentences_per_second_each": each,
                "relative": total / alone,
                "peak_memory_gb": found[0]["peak_memory_gb"],
                "parameters": found[0]["parameters"],
                "seconds": [answer["seconds"] for answer in found],
            }
        ]


def has_multi_process_service() -> bool:
    """Whether CUDA programs run concurrently on a GPU (NVIDIA's MPS) instead of taking turns."""
    # The pipe of its daemon, at the configured or the default path.
    return os.path.exists(os.path.join(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps"), "control"))


def best_count(rows: Sequence[Mapping[str, Any]]) -> int:
    """The smallest number of processes beyond which aggregate throughput grows by less than `LEAST_GAIN`."""
    best = rows[0]
    for row in rows[1:]:
        if row["sentences_per_second"] > (1 + LEAST_GAIN) * best["sentences_per_second"]:
            best = row
    return int(best["setting"])


def run_together(count: int, config: Config, *, device: str, seconds: float) -> list[dict[str, Any]]:
    """The measurements of ``count`` processes that train at the same time."""
    context = multiprocessing.get_context("spawn")
    with context.Manager() as manager, ProcessPoolExecutor(count, context) as pool:
        start = manager.Barrier(count)
        task = (config, plugins.environment(), device, seconds, start)
        runs = [pool.submit(_train, *task) for _ in range(count)]
        # A pool that starts a process on demand watches over it only after the next task has been submitted.
        pool.submit(int)
        errors = [error for run in runs if (error := run.exception()) is not None]
        # If one run fails, the others must not wait for it.
        for error in sorted(errors, key=lambda each: isinstance(each, threading.BrokenBarrierError)):
            raise DiffusionMFError(f"a run that shares the device has failed: {error}")
        return [run.result() for run in runs]


def _train(
    config: Config, environment: dict[str, str], device: str, seconds: float, start: threading.Barrier
) -> dict[str, Any]:
    """One of the processes: warms up, waits for the others and trains."""
    try:
        os.environ.update(environment)
        plugins.import_plugins(plugins.from_environment())
        if config.training.threads is not None:
            torch.set_num_threads(config.training.threads)
        session = Session(config, read_training_data(config), torch.device(device))
        num_sentences, measured = session.train_for(seconds, wait=start.wait)
    except Exception:
        start.abort()
        raise
    return {
        "sentences": num_sentences,
        "seconds": measured,
        "parameters": session.labeller.num_parameters(),
        "peak_memory_gb": torch.cuda.max_memory_reserved() / 1e9 if device == "cuda" else None,
    }
