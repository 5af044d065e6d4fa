"""Scores of a finished run: with other schedules and readings of the posterior, and an error analysis."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from diffusion_mf.config import Config
from diffusion_mf.data.sentence import Sentence
from diffusion_mf.evaluation import PRIMARY_METRICS, Report, TaskScorer
from diffusion_mf.evaluation.calibration import expected_calibration_error
from diffusion_mf.lab.experiments.folders import schedule_names
from diffusion_mf.model.storage import StoredModel
from diffusion_mf.prediction.devices import choose_device
from diffusion_mf.prediction.predictor import Predictor
from diffusion_mf.tagger import TaggedSentence, Tagger, load_model
from diffusion_mf.training.corpora import TrainingData, read_training_data
from diffusion_mf.training.evaluation import DecoderEvaluation, candidate_decoders, evaluate
from diffusion_mf.training.processes import Processes

RARITY_BINS = ((0, "unseen"), (1, "1"), (4, "2-4"), (16, "5-16"), (64, "17-64"))
"""the highest count of each bin, and its name; more frequent units are in the last bin"""
MOST_FREQUENT = "65+"
MAX_DISTANCE = 5
NUM_BINS = 10


def analyse(model: StoredModel, data: TrainingData, *, device: torch.device) -> dict[str, Any]:
    """Counts and rates for the dev sentences, labelled with the model's own decoder.

    `ambiguity` groups units by their distance to the nearest *other* unit whose form had more than one label in training, since a
    wrong decision there may affect labels nearby. `invalid_by_decoder` has the share of sentences with invalid spans for every
    decoder, because systems can only be compared with the same one.
    """
    sentences = data.dev or ()
    tagger = Tagger(model, device=device)
    tagged = tagger.tag(sentences, decoder=model.decoder, scheme=model.scheme)
    report = _report(model, data, tagged)
    invalid = {model.decoder: report.invalid_rate}
    for decoder in candidate_decoders(model.labeller):
        if decoder not in invalid:
            labelled = tagger.tag(sentences, decoder=decoder, scheme=model.scheme)
            invalid[decoder] = _report(model, data, labelled).invalid_rate
    counts, ambiguous = _training_forms(data.train)
    rarities: list[str] = []
    distances: list[str] = []
    scores: list[float] = []
    is_right: list[bool] = []
    for sentence, result in zip(sentences, tagged, strict=True):
        rarities += [rarity_bin(counts[unit]) for unit in sentence.units]
        distances += ambiguity_distances([unit in ambiguous for unit in sentence.units])
        scores += result.scores
        is_right += [label == gold for label, gold in zip(result.labels, sentence.labels or (), strict=True)]
    return {
        "lengths": [{"name": row.name, "size": row.size, **row.metrics} for row in report.lengths],
        "rarity": _accuracies(rarities, is_right, [*(name for _, name in RARITY_BINS), MOST_FREQUENT]),
        "ambiguity": _accuracies(distances, is_right, _distance_names()),
        "invalid_sentences": report.invalid_rate,
        "invalid_by_decoder": invalid,
        "malformed_fragments": report.malformed_fragments,
        "confusions": [list(each) for each in report.tokens.top_confusions(10)],
        "calibration": _calibration(scores, is_right),
    }


def _report(model: StoredModel, data: TrainingData, tagged: Sequence[TaggedSentence]) -> Report:
    scorer = TaskScorer(model.config.task, data.scheme)
    for sentence, result in zip(data.dev or (), tagged, strict=True):
        scorer.update(sentence.labels or (), result.labels, sentence.units)
    return scorer.result()


def rarity_bin(count: int) -> str:
    """The name of the bin for a form seen ``count`` times in training.

    >>> rarity_bin(0), rarity_bin(3), rarity_bin(1000)
    ('unseen', '2-4', '65+')
    """
    return next((name for highest, name in RARITY_BINS if count <= highest), MOST_FREQUENT)


def ambiguity_distances(is_ambiguous: Sequence[bool]) -> list[str]:
    """For every unit, the distance to the nearest other ambiguous one; long distances share a bin, ``none`` is no such unit.

    >>> ambiguity_distances([True, False, False])
    ['none', '1', '2']
    """
    places = [index for index, flag in enumerate(is_ambiguous) if flag]
    found = []
    for index in range(len(is_ambiguous)):
        distance = min((abs(index - place) for place in places if place != index), default=None)
        found.append("none" if distance is None else _distance_names()[min(distance, MAX_DISTANCE) - 1])
    return found


def _distance_names() -> list[str]:
    return [*(str(number) for number in range(1, MAX_DISTANCE)), f"{MAX_DISTANCE}+", "none"]


def _training_forms(sentences: Iterable[Sentence]) -> tuple[Counter[str], set[str]]:
    """The counts of all forms, and the forms with more than one label."""
    counts: Counter[str] = Counter()
    labels: dict[str, set[str]] = defaultdict(set)
    for sentence in sentences:
        counts.update(sentence.units)
        for unit, label in zip(sentence.units, sentence.labels or (), strict=True):
            labels[unit].add(label)
    return counts, {unit for unit, found in labels.items() if len(found) > 1}


def _accuracies(groups: Sequence[str], is_right: Sequence[bool], names: Sequence[str]) -> list[dict[str, Any]]:
    """Number and share of correct labels of every group, in the order of ``names``."""
    found: dict[str, list[bool]] = defaultdict(list)
    for group, right in zip(groups, is_right, strict=True):
        found[group].append(right)
    return [
        {"name": name, "size": len(found[name]), "accuracy": 100 * sum(found[name]) / len(found[name])}
        for name in names
        if name in found
    ]


def _calibration(scores: Sequence[float], is_right: Sequence[bool]) -> dict[str, Any]:
    """Mean score and share of correct labels in bins of equal width, and the expected calibration error."""
    bins: list[list[tuple[float, bool]]] = [[] for _ in range(NUM_BINS)]
    for score, right in zip(scores, is_right, strict=True):
        bins[min(NUM_BINS - 1, int(score * NUM_BINS))].append((score, right))
    return {
        "error": expected_calibration_error(torch.tensor(scores), torch.tensor(is_right)),
        "bins": [
            {
                "size": len(members),
                "score": sum(score for score, _ in members) / len(members),
                "accuracy": sum(right for _, right in members) / len(members),
            }
            for members in bins
            if members
        ],
    }


DecoderScores = dict[str, dict[str, float]]
"""metrics by decoder"""


def score_model(
    folder: Path,
    config: Config,
    evaluation: Mapping[str, Any],
    *,
    device: str = "auto",
    known: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The part of a result computed from the model in ``folder``; entries of ``known`` are not computed again."""
    processes = Processes(0, 1, choose_device(device))
    model = load_model(folder)
    model.labeller.to(processes.device)
    data = read_training_data(config)
    config = config.with_calls(model.chosen_calls)
    known = known or {}
    result: dict[str, Any] = {
        "metric": PRIMARY_METRICS[config.task],
        "is_diffusion": config.system_entry.is_diffusion,
        "process": config.system_entry.process,
        "parameters": model.labeller.num_parameters(),
        "best_epoch": model.metrics.get("epoch"),
        "decoder": model.decoder,
        "temperature": model.temperature,
        "chosen_calls": model.chosen_calls,
    }
    if known.get("dev") is not None:
        result |= {key: known[key] for key in ("dev", "test", "decoders", "test_decoders") if key in known}
    else:
        result |= _own_scores(model, config, data, processes)
    if model.labeller.codes is not None:
        # Native thresholding and the nearest code are also scored when they cannot be selected, for comparison.
        others = [name for name in ("native", "argmax") if name not in candidate_decoders(model.labeller)]
        result["compared"] = known.get("compared") or _split_scores(model, config, data, processes, decoders=others)
    schedules = dict(known.get("schedules", {}))
    for name, changes in schedule_names(evaluation, process=config.system_entry.process).items():
        if name not in schedules:
            changed = config.model_copy(update={"inference": config.inference.model_copy(update=changes)})
            schedules[name] = _split_scores(model, changed, data, processes)
    result["schedules"] = schedules
    if evaluation.get("analysis", True) and data.dev:
        result["analysis"] = known.get("analysis") or analyse(model, data, device=processes.device)
    return result


def _own_scores(model: StoredModel, config: Config, data: TrainingData, processes: Processes) -> dict[str, Any]:
    """Dev scores from training if available, and test scores of all decoders in one pass."""
    decoders: DecoderScores = {name: dict(scores) for name, scores in (model.metrics.get("decoders") or {}).items()}
    if not decoders and data.dev:
        decoders = _scores(model, config, data, data.dev, processes)
    scores: dict[str, Any] = {"decoders": decoders, "dev": decoders.get(model.decoder)}
    if data.test:
        scores["test_decoders"] = _scores(model, config, data, data.test, processes)
        scores["test"] = scores["test_decoders"][model.decoder]
    return scores


def _split_scores(
    model: StoredModel,
    config: Config,
    data: TrainingData,
    processes: Processes,
    *,
    decoders: Sequence[str] | None = None,
) -> dict[str, DecoderScores]:
    """Scores on dev and test, if the corpus has them; the temperature of the probabilities is fitted on dev.

    That of the model belongs to its own schedule: another number of calls makes other marginals.
    """
    found: dict[str, DecoderScores] = {}
    temperature = model.temperature
    if data.dev:
        evaluation = _evaluation(model, config, data, data.dev, processes, decoders=decoders)
        temperature = evaluation.temperature
        found["dev"] = _with_quality(evaluation)
    if data.test:
        found["test"] = _with_quality(
            _evaluation(model, config, data, data.test, processes, decoders=decoders, temperature=temperature)
        )
    return found


def _scores(
    model: StoredModel, config: Config, data: TrainingData, sentences: Sequence[Sentence], processes: Processes
) -> DecoderScores:
    return _with_quality(_evaluation(model, config, data, sentences, processes, temperature=model.temperature))


def _evaluation(
    model: StoredModel,
    config: Config,
    data: TrainingData,
    sentences: Sequence[Sentence],
    processes: Processes,
    *,
    decoders: Sequence[str] | None = None,
    temperature: float | None = None,
) -> DecoderEvaluation:
    """The probabilities are evaluated at the temperature given, or fitted to these sentences."""
    return evaluate(
        Predictor(model.labeller, config, processes.device),
        sentences,
        config=config,
        vocabulary=model.vocabulary,
        scheme=data.scheme,
        decoders=candidate_decoders(model.labeller) if decoders is None else decoders,
        processes=processes,
        reported_temperature=temperature,
        fits_temperature=temperature is None,
    )


def _with_quality(found: DecoderEvaluation) -> DecoderScores:
    """Metrics of the labels, and of their probabilities, by decoder."""
    return {name: {**scores, **found.score_quality.get(name, {})} for name, scores in found.scores.items()}
