"""Whether the fast path says what the reference says: scores, labels and marginals of one trained model, both ways.

The reference is the plain way: padded, float32, eager, structures by the readable implementation, all calls. The fast path
is what `dmf tag` and `Tagger` take on a GPU.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from diffusion_mf.acceleration.precision import Precision
from diffusion_mf.acceleration.prediction import Predictor
from diffusion_mf.benchmarks.throughput import FAST, PLAIN
from diffusion_mf.data.sentence import Sentence
from diffusion_mf.errors import InputError
from diffusion_mf.evaluation import NO_LABEL, PRIMARY_METRICS, score_sentences
from diffusion_mf.model import Labeller
from diffusion_mf.model.core import StructuredCore
from diffusion_mf.tagger import StoredModel
from diffusion_mf.training.distributed import Processes
from diffusion_mf.training.evaluation import predict_all

ROW_KEY = ("benchmark", "corpus", "system", "phase", "implementation", "setting", "model", "hardware")


def measure_agreement(
    model: StoredModel,
    sentences: Sequence[Sentence],
    *,
    device: torch.device,
    precision: Precision = "auto",
) -> Iterator[list[dict[str, Any]]]:
    """A row of the reference and one of the fast path."""
    if not any(sentence.units for sentence in sentences):
        raise InputError("there is nothing to label", remedy="name a file with sentences")
    config = model.config
    packed = "packed" if config.encoder.kind == "scratch" else "auto"
    paths: dict[str, dict[str, Any]] = {
        PLAIN: {"layout": "padded", "precision": "float32", "exit_tolerance": None},
        FAST: {"layout": packed, "precision": precision, "exit_tolerance": None},
    }
    labeller = model.labeller.to(device).eval()
    prepared = [config.data.prepare(sentence) for sentence in sentences]
    lengths = [len(sentence.units) for sentence in prepared]
    gold = [sentence.labels or () for sentence in sentences]
    names = [*model.vocabulary.labels, NO_LABEL]
    metric = PRIMARY_METRICS[config.task]
    reference: tuple[torch.Tensor, torch.Tensor, float] | None = None
    # A packed batch is filled up to the budget: a small file needs none that is larger than itself.
    budget = min(config.inference.budget, sum(lengths))
    for name, changes in paths.items():
        changes["budget"] = budget
        changed = config.model_copy(update={"inference": config.inference.model_copy(update=changes)})
        with _reference_structures(labeller) if name == PLAIN else contextlib.nullcontext():
            predictor = Predictor(labeller, changed, device)
            # Labels and all follow the decoder that training chose.
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


@contextlib.contextmanager
def _reference_structures(labeller: Labeller) -> Iterator[None]:
    """Take the readable structures for the time of the block."""
    core = labeller.core
    if not isinstance(core, StructuredCore):
        yield
        return
    settings = core.settings
    core.settings = dataclasses.replace(settings, backend="reference")
    try:
        yield
    finally:
        core.settings = settings
