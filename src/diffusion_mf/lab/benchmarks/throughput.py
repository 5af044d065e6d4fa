"""The paper's efficiency table and its two sweeps: sentences per second in training and inference.

Paper: table “Median sentences/s for the three diffusion denoisers” and appendix “Efficiency Benchmark”: L preset, batches of
5,000 units, 15 Mean-Field updates per call, training on the training split (full updates), inference on the development
split (encoder, reverse process, argmax), the median of five runs after warm-up.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from diffusion_mf.config import Config, load_config
from diffusion_mf.data.corpus import Task
from diffusion_mf.data.files import StrPath
from diffusion_mf.diffusion import CategoricalDiffusion
from diffusion_mf.errors import InputError
from diffusion_mf.lab.benchmarks.sessions import Session, inference_run, linear_operations, read_data
from diffusion_mf.lab.experiments.paper import paper_relative_throughput, paper_tables
from diffusion_mf.model.storage import load_model
from diffusion_mf.prediction.precision import compile_blocks
from diffusion_mf.prediction.predictor import Predictor
from diffusion_mf.systems import SYSTEMS as SYSTEM_TABLE
from diffusion_mf.training.corpora import TrainingData
from diffusion_mf.training.evaluation import evaluate, num_calls
from diffusion_mf.training.processes import Processes

THROUGHPUT_ROW_KEY = (
    *("benchmark", "corpus", "system", "phase", "implementation", "setting", "num_calls", "parameters", "hardware"),
)
REPEATS = 5
BUDGET = 5000
PEAK_OPERATIONS = 790e12
"""bf16 matrix products per second measured on an H200; utilisation is relative to it"""

DIFFUSION_SYSTEMS = ("diffusion-uni", "diffusion-mf", "diffusion-lcrf")


class BenchmarkCorpus(NamedTuple):
    """A task of the efficiency table."""

    name: str
    transitions: str


BENCHMARK_CORPORA: dict[Task, BenchmarkCorpus] = {
    Task.POS: BenchmarkCorpus("en-ewt", "local"),
    Task.NER: BenchmarkCorpus("conll2003", "global"),
    Task.SEG_POS: BenchmarkCorpus("zh-gsdsimp", "global"),
}

FAST, PLAIN = "fast", "plain eager"
_FAST_SETTINGS = ("training.compile=true",)
IMPLEMENTATIONS: dict[str, tuple[str, ...]] = {
    FAST: _FAST_SETTINGS,
    PLAIN: (
        "training.precision=float32",
        "training.layout=padded",
        "training.use_graphs=false",
        "inference.precision=float32",
        "inference.layout=padded",
    ),
}


def benchmark_config(task: Task, system: str, *, overrides: Sequence[str] = ()) -> Config:
    """The configuration of a cell: the paper's for the task, at size L, and otherwise equal for all systems."""
    denoiser = ["denoiser.layers=8", "denoiser.heads=16"] if SYSTEM_TABLE[system].is_diffusion else []
    return load_config(
        f"{task.value}/{system}",
        [
            "size=L",
            *denoiser,
            f"structure.transitions={BENCHMARK_CORPORA[task].transitions}",
            "structure.num_iterations=15",
            f"training.budget={BUDGET}",
            "training.accumulation=1",
            f"inference.budget={BUDGET}",
            *overrides,
        ],
    )


def measure_throughput(
    tasks: Sequence[Task],
    systems: Sequence[str],
    implementations: Sequence[str],
    *,
    device: torch.device,
    overrides: Mapping[Task, Sequence[str]],
    repeats: int,
) -> Iterator[list[dict[str, Any]]]:
    """Yield the training and inference rows of every system on every task."""
    torch.backends.cudnn.allow_tf32 = False  # affects only float32
    corpora: dict[Task, TrainingData] = {}
    for implementation in implementations:
        for task in tasks:
            for system in systems:
                settings = [*IMPLEMENTATIONS[implementation], *overrides.get(task, ())]
                config = benchmark_config(task, system, overrides=settings)
                if task not in corpora:
                    corpora[task] = read_data(config)
                yield _measure(config, corpora[task], device, implementation=implementation, repeats=repeats)


def _measure(
    config: Config, data: TrainingData, device: torch.device, *, implementation: str, repeats: int = REPEATS
) -> list[dict[str, Any]]:
    session = Session(config, data, device, is_plain=implementation == PLAIN)
    own_calls = num_calls(config)
    training, inference = linear_operations(session.labeller, num_calls=own_calls)
    corpus = BENCHMARK_CORPORA[config.task].name
    assert data.dev is not None
    rows = []
    for phase, sentences, operations in (("training", data.train, training), ("inference", data.dev, inference)):
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        run = session.training_run() if phase == "training" else session.inference_run(sentences)
        seconds = [run() for _ in range(repeats)]
        median = statistics.median(seconds)
        units = sum(len(sentence.units) for sentence in sentences)
        published = _published(config.system, corpus, phase)
        rows.append(
            {
                **_row(config.system, corpus, phase, len(sentences) / median, published, implementation=implementation),
                "utilisation": operations * units / median / PEAK_OPERATIONS,
                "peak_memory_gb": torch.cuda.max_memory_allocated() / 1e9 if device.type == "cuda" else None,
                "parameters": session.labeller.num_parameters(),
                "num_calls": own_calls if phase == "inference" else None,
                "seconds": seconds,
            }
        )
    return rows


def _row(
    system: str, corpus: str, phase: str, speed: float, published: float | None, *, implementation: str = FAST
) -> dict[str, Any]:
    """What all rows have: a speed in sentences per second, and the paper's."""
    return {
        "benchmark": "throughput",
        "corpus": corpus,
        "system": system,
        "phase": phase,
        "implementation": implementation,
        "setting": None,
        "sentences_per_second": speed,
        "paper_sentences_per_second": published,
        "ratio_to_paper": None if published is None else speed / published,
    }


PAPER_CALLS = 10
TRAINED = "trained"
"""the setting of rows about a trained model, which has a score"""


def measure_trained(folder: StrPath, *, device: torch.device, repeats: int) -> list[dict[str, Any]]:
    """Inference rows of a trained diffusion model on its dev data: with the paper's ten calls, and with the model's own.

    Rows have the dev score with that number of calls, so that speeds can be compared at equal scores.
    """
    model = load_model(folder)
    config = model.config
    if not config.system_entry.is_diffusion:
        raise InputError(
            f"the system {config.system} has no denoiser to call", path=folder, remedy="use a diffusion model"
        )
    data = read_data(config)
    if not data.dev:
        raise InputError("the model was trained without dev data", path=folder, remedy="use another model")
    labeller = model.labeller.to(device)
    if device.type == "cuda":
        torch._dynamo.reset()
        compile_blocks(labeller)
    numbers = {PAPER_CALLS: PAPER_CALLS, num_calls(config): None}
    rows = []
    for number, given in sorted(numbers.items(), reverse=True):
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        run = inference_run(labeller, config, model.vocabulary, data.dev, device, num_calls=given)
        seconds = [run() for _ in range(repeats)]
        found = evaluate(
            Predictor(labeller, config, device),
            data.dev,
            config=config,
            vocabulary=model.vocabulary,
            scheme=data.scheme,
            decoders=[model.decoder],
            processes=Processes(0, 1, device),
            num_calls=given,
        )
        speed = len(data.dev) / statistics.median(seconds)
        corpus = _corpus_of(config)
        published = _published(config.system, corpus, "inference")
        rows.append(
            {
                **_row(config.system, corpus, "inference", speed, published),
                "setting": TRAINED,
                "peak_memory_gb": torch.cuda.max_memory_allocated() / 1e9 if device.type == "cuda" else None,
                "parameters": labeller.num_parameters(),
                "num_calls": number,
                "chosen_calls": model.chosen_calls,
                "decoder": model.decoder,
                "dev_score": found.score,
                "dev_exact_match": found.scores[model.decoder]["exact_match"],
                "seconds": seconds,
            }
        )
    return rows


def _corpus_of(config: Config) -> str:
    """The name of the efficiency table's corpus if the model's dev file has the place of its dev file, else the file's name."""
    own = Path(config.data.dev or config.data.train or "")
    entry = BENCHMARK_CORPORA.get(config.task)
    if entry is not None:
        paper = load_config(f"{config.task.value}/{config.system}").data.dev
        if paper is not None and own.parts[-2:] == Path(paper).parts[-2:]:
            return entry.name
    return own.stem


def _published(system: str, corpus: str, phase: str) -> float | None:
    """The paper's sentences per second."""
    paper = paper_tables()["efficiency"].get(system, {}).get(corpus)
    return None if paper is None else paper[("training", "inference").index(phase)]


def measure_iterations(
    numbers: Sequence[int], *, device: torch.device, overrides: Sequence[str]
) -> Iterator[list[dict[str, Any]]]:
    """Throughput by number of Mean-Field iterations (paper: “Relative throughput in the iteration sweep”), English POS.

    Relative throughput is relative to the first of the ``numbers`` of iterations.
    """
    data: TrainingData | None = None
    for system in ("mean-field", "diffusion-mf"):
        first: dict[str, float] = {}
        for iterations in numbers:
            changes = [*_FAST_SETTINGS, f"structure.num_iterations={iterations}", *overrides]
            config = benchmark_config(Task.POS, system, overrides=changes)
            data = data or read_data(config)
            rows = _measure(config, data, device, implementation=FAST)
            for row in rows:
                first.setdefault(row["phase"], row["sentences_per_second"])
                paper = paper_relative_throughput(system, str(iterations), phase=row["phase"])
                row |= {
                    "benchmark": "mean-field",
                    "setting": iterations,
                    "relative": row["sentences_per_second"] / first[row["phase"]],
                    "paper_relative": None if paper is None else paper.mean / 100,
                    "paper_sentences_per_second": None,
                    "ratio_to_paper": None,
                }
            yield rows


BASES = (1.5, 2.0, 3.0, 4.0)


def measure_schedules(*, device: torch.device, overrides: Sequence[str]) -> Iterator[list[dict[str, Any]]]:
    """Inference throughput by base of the reverse schedule, on one-layer denoisers (paper: speed–accuracy sweep)."""
    data: TrainingData | None = None
    for system in DIFFUSION_SYSTEMS:
        config = benchmark_config(
            Task.POS,
            system,
            overrides=[*_FAST_SETTINGS, "denoiser.layers=1", "structure.num_iterations=1", *overrides],
        )
        data = data or read_data(config)
        assert data.dev is not None
        session = Session(config, data, device)
        for base in BASES:
            own_calls = len(CategoricalDiffusion(2, config.diffusion.num_steps).schedule(base=base)) - 1
            run = session.inference_run(data.dev, base=base)
            speed = len(data.dev) / statistics.median(run() for _ in range(REPEATS))
            # The paper's sweep has a pretrained encoder, so a ratio to it is meaningless for another.
            is_comparable = config.encoder.kind == "pretrained"
            paper = paper_tables()["base"].get(system, {}).get(f"{base:g}") if is_comparable else None
            yield [
                {
                    **_row(system, "en-ewt", "inference", speed, None if paper is None else paper[2]),
                    "benchmark": "schedule",
                    "setting": base,
                    "parameters": session.labeller.num_parameters(),
                    "num_calls": own_calls,
                }
            ]
