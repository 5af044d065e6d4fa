"""What a trained model scores: dev and test, every decoder, every schedule asked for.

Test sentences are labelled in one pass and decoded by every candidate decoder, because the decoder is chosen by the mean dev
score over seeds, which no single run knows. Tables read the chosen decoder's test scores, and no other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from diffusion_mf.acceleration.prediction import Predictor
from diffusion_mf.config import Config
from diffusion_mf.data.sentence import Sentence
from diffusion_mf.evaluation import PRIMARY_METRICS
from diffusion_mf.experiments.folders import schedule_names
from diffusion_mf.tagger import load_model
from diffusion_mf.tagger.storage import StoredModel
from diffusion_mf.training.corpora import TrainingData, read_training_data
from diffusion_mf.training.distributed import Processes, choose_device
from diffusion_mf.training.evaluation import candidate_decoders, evaluate

Scores = dict[str, dict[str, float]]
"""metrics by decoder"""


def score_model(
    folder: Path,
    config: Config,
    evaluation: Mapping[str, Any],
    *,
    device: str = "auto",
    known: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The part of a result that comes from the model in ``folder``; what is in ``known`` is not computed again."""
    processes = Processes(0, 1, choose_device(device))
    model = load_model(folder)
    model.labeller.to(processes.device)
    data = read_training_data(config)
    known = known or {}
    result: dict[str, Any] = {
        "metric": PRIMARY_METRICS[config.task],
        "is_diffusion": config.system_entry.is_diffusion,
        "process": config.system_entry.process,
        "parameters": model.labeller.num_parameters(),
        "best_epoch": model.metrics.get("epoch"),
        "decoder": model.decoder,
        "temperature": model.temperature,
    }
    if known.get("dev") is not None:
        result |= {key: known[key] for key in ("dev", "test", "decoders", "test_decoders") if key in known}
    else:
        result |= _own_scores(model, config, data, processes)
    if model.labeller.codes is not None:
        result["compared"] = known.get("compared") or _compared_scores(model, config, data, processes)
    schedules = dict(known.get("schedules", {}))
    for name, changes in schedule_names(evaluation, process=config.system_entry.process).items():
        if name not in schedules:
            schedules[name] = _schedule_scores(model, config, data, processes, changes)
    result["schedules"] = schedules
    if evaluation.get("analysis", True) and data.dev:
        from diffusion_mf.experiments.error_analysis import analyse

        result["analysis"] = known.get("analysis") or analyse(model, data, device=processes.device)
    return result


def _own_scores(model: StoredModel, config: Config, data: TrainingData, processes: Processes) -> dict[str, Any]:
    """Dev scores as training measured them, where it did; test scores of all decoders in one pass."""
    decoders: Scores = {name: dict(scores) for name, scores in (model.metrics.get("decoders") or {}).items()}
    if not decoders and data.dev:
        decoders = _scores(model, config, data, data.dev, processes)
    scores: dict[str, Any] = {"decoders": decoders, "dev": decoders.get(model.decoder)}
    if data.test:
        scores["test_decoders"] = _scores(model, config, data, data.test, processes)
        scores["test"] = scores["test_decoders"][model.decoder]
    return scores


def _compared_scores(model: StoredModel, config: Config, data: TrainingData, processes: Processes) -> dict[str, Scores]:
    """Of bits, what native thresholding and the nearest code score where they are no candidates: for comparison alone."""
    others = [name for name in ("native", "argmax") if name not in candidate_decoders(model.labeller)]
    splits = {"dev": data.dev, "test": data.test}
    return {
        split: _scores(model, config, data, sentences, processes, decoders=others)
        for split, sentences in splits.items()
        if sentences
    }


def _schedule_scores(
    model: StoredModel, config: Config, data: TrainingData, processes: Processes, changes: Mapping[str, Any]
) -> dict[str, Scores]:
    changed = config.model_copy(update={"inference": config.inference.model_copy(update=dict(changes))})
    splits = {"dev": data.dev, "test": data.test}
    return {
        split: _scores(model, changed, data, sentences, processes) for split, sentences in splits.items() if sentences
    }


def _scores(
    model: StoredModel,
    config: Config,
    data: TrainingData,
    sentences: Sequence[Sentence],
    processes: Processes,
    *,
    decoders: Sequence[str] | None = None,
) -> Scores:
    found = evaluate(
        Predictor(model.labeller, config, processes.device),
        sentences,
        config=config,
        vocabulary=model.vocabulary,
        scheme=data.scheme,
        decoders=candidate_decoders(model.labeller) if decoders is None else decoders,
        processes=processes,
        reported_temperature=model.temperature,
    )
    return {name: {**scores, **found.of_scores.get(name, {})} for name, scores in found.scores.items()}
