"""What each family of Mean-Field kernels brings: time with its kernels, and with plain PyTorch in their place.

    DIFFUSION_MF_DATA=… python benchmarks/kernel_families.py [--tasks pos,ner,seg-pos] [--output results/kernel_families.json]

Models are those of `dmf benchmark throughput`, and Mean-Field's like them. Without a family plain PyTorch takes its work
(`ops.mean_field.triton`). Only families that a model launches are left out. Each variant has a model of its own, so that what is
recorded and replayed is its own; variants take turns, an epoch or a pass each, and the median counts.

Blocks are compiled only with `--compile`: that takes minutes, and the milliseconds that a family saves are the same.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import gc
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import torch

from diffusion_mf.cli.benchmark import measured_task, overrides_of
from diffusion_mf.config import Config
from diffusion_mf.data.corpus import Task
from diffusion_mf.errors import InputError
from diffusion_mf.evaluation.terminal import half_up, note, print_table
from diffusion_mf.lab.benchmarks.sessions import Session
from diffusion_mf.lab.benchmarks.throughput import BENCHMARK_CORPORA, benchmark_config
from diffusion_mf.lab.benchmarks.timing import raise_clocks
from diffusion_mf.lab.results import provenance, write_rows
from diffusion_mf.ops.mean_field import triton as kernels
from diffusion_mf.prediction.devices import choose_device
from diffusion_mf.training.corpora import TrainingData, read_training_data

ROW_KEY = ("corpus", "system", "phase", "without", "is_compiled", "sentences", "hardware")
SYSTEMS = ("diffusion-mf", "mean-field")

Run = Callable[[], float]


@contextlib.contextmanager
def without(family: str | None) -> Iterator[None]:
    """Leave a family out for the time of a block; None: all may be launched."""
    with mock.patch.object(kernels, "FAMILIES", kernels.FAMILIES - {family}):
        yield


@contextlib.contextmanager
def recorded() -> Iterator[set[str]]:
    """The families that are launched within the block."""
    found: set[str] = set()
    pick = kernels.family_of

    def recording(transition: torch.Tensor) -> str | None:
        family = pick(transition)
        if family is not None:
            found.add(family)
        return family

    with mock.patch.object(kernels, "family_of", recording):
        yield found


def take_turns(
    runs: dict[str | None, Run], *, repeats: int, seconds: float, device: torch.device
) -> dict[str | None, list[float]]:
    """The times of each run, by the family left out; fewer than ``repeats`` if all together take ``seconds`` each before."""
    found: dict[str | None, list[float]] = {family: [] for family in runs}
    raise_clocks(device)
    end = time.perf_counter() + seconds * len(runs)
    for _ in range(repeats):
        for family, run in runs.items():
            with without(family):
                found[family].append(run())
        if time.perf_counter() > end:
            break
    return found


def measure(
    config: Config,
    data: TrainingData,
    device: torch.device,
    *,
    repeats: int,
    seconds: float,
    num_sentences: int,
    is_compiled: bool,
) -> list[dict[str, Any]]:
    """The rows of one model: training and inference, with all families and without each that it launches."""
    assert data.dev is not None
    sentences = data.dev[:num_sentences]
    data = dataclasses.replace(data, train=data.train[:num_sentences])
    sessions: dict[str | None, Session] = {}

    def warm_run(phase: str, family: str | None) -> Run:
        if family not in sessions:
            sessions[family] = Session(config, data, device)
            if is_compiled:
                # Not by the session, which would forget what was compiled for the variant before.
                from diffusion_mf.prediction.precision import compile_blocks

                compile_blocks(sessions[family].labeller)
        session = sessions[family]
        with without(family):
            return session.training_run() if phase == "training" else session.inference_run(sentences)

    torch._dynamo.reset()
    rows = []
    for phase, count in (("training", len(data.train)), ("inference", len(sentences))):
        with recorded() as launched:
            runs: dict[str | None, Run] = {None: warm_run(phase, None)}
        for family in sorted(launched):
            runs[family] = warm_run(phase, family)
        times = take_turns(runs, repeats=repeats, seconds=seconds, device=device)
        first = statistics.median(times[None])
        for family, found in times.items():
            median = statistics.median(found)
            rows.append(
                {
                    "benchmark": "kernel-families",
                    "corpus": BENCHMARK_CORPORA[config.task].name,
                    "system": config.system,
                    "phase": phase,
                    "without": family,
                    "launched": sorted(launched),
                    "seconds": found,
                    "median_seconds": median,
                    "times_all_families": median / first,
                    "sentences": count,
                    "is_compiled": is_compiled,
                    "parameters": sessions[None].labeller.num_parameters(),
                }
            )
            note(
                f"{config.task.value} {config.system} {phase} without {family or 'none'}: {median:.4f} s, {median / first:.3f} times"
            )
    return rows


def measure_all(
    tasks: Sequence[Task],
    systems: Sequence[str],
    *,
    device: torch.device,
    overrides: list[str] | None,
    **options: Any,
) -> Iterator[list[dict[str, Any]]]:
    """The rows of one model after the other."""
    for task in tasks:
        data: TrainingData | None = None
        for system in systems:
            changes = ["training.compile=false", *overrides_of(task.value, overrides)]
            config = benchmark_config(task, system, overrides=changes)
            data = data or read_training_data(config)
            yield measure(config, data, device, **options)
            gc.collect()
            if device.type == "cuda":
                torch.cuda.empty_cache()


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", default="pos,ner,seg-pos")
    parser.add_argument("--systems", default=",".join(SYSTEMS), help=f"of {', '.join(SYSTEMS)}")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4, help="of a measurement, at most (warm-up comes on top)")
    parser.add_argument("--sentences", type=int, default=4000, help="of the training and of the development split")
    parser.add_argument("--compile", action="store_true", help="compile blocks, as dmf benchmark throughput does")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--set", action="append", dest="overrides", metavar="[TASK:]KEY=VALUE")
    parser.add_argument("--output", default="results/kernel_families.json", metavar="FILE")
    given = parser.parse_args(arguments)
    try:
        tasks = [measured_task("--tasks", name.strip()) for name in given.tasks.split(",")]
        systems = [name.strip() for name in given.systems.split(",")]
        if not set(systems) <= set(SYSTEMS):
            raise InputError(f"--systems: {given.systems!r}", remedy=f"choose from {', '.join(SYSTEMS)}")
        device = choose_device(given.device)
        source = provenance(
            shlex.join(["python", "benchmarks/kernel_families.py", *(sys.argv[1:] if arguments is None else arguments)])
        )
        rows: list[dict[str, Any]] = []
        for part in measure_all(
            tasks,
            systems,
            device=device,
            overrides=given.overrides,
            repeats=given.repeats,
            seconds=given.seconds,
            num_sentences=given.sentences,
            is_compiled=given.compile,
        ):
            found = [{**row, **source} for row in part]
            rows += found
            write_rows(given.output, found, replace_by=ROW_KEY)
    except InputError as error:
        sys.exit(str(error))
    print_table(
        ["corpus", "system", "phase", "without", "milliseconds", "× all families"],
        [
            [
                row["corpus"],
                row["system"],
                row["phase"],
                row["without"],
                half_up(1000 * row["median_seconds"], 1),
                half_up(row["times_all_families"], 3),
            ]
            for row in rows
        ],
        title=f"Families of Mean-Field kernels on {rows[0]['hardware']}: medians",
    )


if __name__ == "__main__":
    main()
