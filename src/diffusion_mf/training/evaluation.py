"""Dev scores during training with several decoders, and the marginals of a teacher."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from diffusion_mf.batches.vocabulary import Vocabulary
from diffusion_mf.config import Config
from diffusion_mf.config.sections import AUTO
from diffusion_mf.data.label_schemes import LabelScheme, extract_spans, translate_label
from diffusion_mf.data.sentence import Sentence, cut_documents, grouped
from diffusion_mf.decoding import DECODERS
from diffusion_mf.diffusion import CategoricalDiffusion
from diffusion_mf.errors import InputError
from diffusion_mf.evaluation import NO_LABEL, PRIMARY_METRICS, score_sentences
from diffusion_mf.evaluation.calibration import (
    UNFITTED,
    SpanCalibration,
    calibrated,
    expected_calibration_error,
    fit_span_calibration,
    fit_temperature,
    negative_log_likelihood,
)
from diffusion_mf.evaluation.metrics import TokenScorer
from diffusion_mf.model.core import TeacherMarginals
from diffusion_mf.model.storage import legal_decoder, load_model
from diffusion_mf.ops.chain_scores import unit_mask
from diffusion_mf.prediction.memory import placed
from diffusion_mf.prediction.predictor import Predictor
from diffusion_mf.prediction.sentences import predict_sentences
from diffusion_mf.training.corpora import TrainingData
from diffusion_mf.training.processes import Processes

if TYPE_CHECKING:
    from diffusion_mf.model import Labeller, Prediction

NUM_CONFUSIONS = 3


@dataclass(frozen=True, kw_only=True)
class DecoderEvaluation:
    """The metrics of every decoder, and the best decoder by the task's primary metric (ties go to the first)."""

    scores: Mapping[str, Mapping[str, float]]
    decoder: str
    legal_decoder: str
    """the best of those whose output is always legal"""
    score: float
    temperature: float
    """fitted to the marginals of the units whose gold label is known; 1 where there are none"""
    span_calibration: SpanCalibration = UNFITTED
    """fitted to the spans of `legal_decoder`"""
    score_quality: Mapping[str, Mapping[str, float]] = dataclasses.field(default_factory=dict)
    """by decoder, how good the reported scores are: their negative log-likelihood (nats per unit) and calibration error (%)"""
    confusions: Sequence[Mapping[str, Any]] = ()
    """of the best decoder, the most frequent pairs of gold and predicted label that differ, with their counts"""
    confidence: float = 0.0
    """the mean score of the labels that decoder chose (%), for comparison with their accuracy"""


def candidate_decoders(labeller: Labeller) -> tuple[str, ...]:
    """The decoders to try: the configured one, or those of the system."""
    chosen = labeller.config.inference.decoder
    return labeller.decoders if chosen is None else (chosen,)


def best_legal(config: Config, scheme: LabelScheme, decoders: Sequence[str], scores: Mapping[str, float]) -> str:
    """The decoder with the highest score (the first in a tie) among those with legal output, unless one is configured."""
    if config.inference.decoder is not None:
        return config.inference.decoder
    legal = [name for name in decoders if scheme is LabelScheme.PLAIN or DECODERS[name].is_always_legal]
    if legal:
        return max(legal, key=scores.__getitem__)
    return legal_decoder(config, scheme, decoders[0])


NUMBERS_OF_CALLS = (1, 2, 3, 5, 10)
"""those among which dev chooses"""
SCORE_TOLERANCE, EXACT_MATCH_TOLERANCE = 0.02, 0.1
"""points by which a smaller number of calls may be worse than the best"""


def candidate_calls(config: Config) -> list[int]:
    """The numbers of calls to try at the end of training; none unless dev data are to choose."""
    if config.inference.num_calls != AUTO or not config.system_entry.is_diffusion:
        return []
    return [number for number in NUMBERS_OF_CALLS if number <= config.diffusion.num_steps]


def num_calls(config: Config) -> int:
    """The number of denoiser calls in inference; where dev is to choose it, the number until then."""
    number, base = config.inference.calls_and_base()
    if config.system_entry.process == "bits":
        return number or config.bits.num_calls
    return len(CategoricalDiffusion(2, config.diffusion.num_steps).schedule(num_calls=number, base=base)) - 1


def fewest_calls(scores: Mapping[int, Mapping[str, float]], metric: str) -> int:
    """The smallest number of calls whose ``metric`` and exact match are within their tolerances of the best values of each.

    If no number has both, it is the one with the best ``metric``, and the smallest of several.

    >>> row = {"f1": 90.0, "exact_match": 80.0}
    >>> fewest_calls({1: row | {"exact_match": 79.8}, 2: row | {"f1": 89.99}, 10: row}, "f1")
    2
    """
    best, best_exact = (max(row[name] for row in scores.values()) for name in (metric, "exact_match"))
    for number, row in sorted(scores.items()):
        if best - row[metric] <= SCORE_TOLERANCE and best_exact - row["exact_match"] <= EXACT_MATCH_TOLERANCE:
            return number
    return max(sorted(scores), key=lambda number: scores[number][metric])


def evaluate(
    predictor: Predictor,
    sentences: Sequence[Sentence],
    *,
    config: Config,
    vocabulary: Vocabulary,
    scheme: LabelScheme,
    decoders: Sequence[str],
    processes: Processes,
    reported_temperature: float | None = None,
    fits_temperature: bool = False,
    source_scheme: LabelScheme | None = None,
    num_calls: int | None = None,
) -> DecoderEvaluation:
    """Score a model on labelled ``sentences``; processes share the work, and all get the result.

    With ``reported_temperature`` or, if ``fits_temperature``, with the one fitted here, and if all gold labels are known, the
    reported probabilities are evaluated, too. Confusions are named in ``source_scheme``, that of the user's data. ``num_calls``
    replaces the configuration's schedule.
    """
    labeller = predictor.labeller
    was_training = labeller.training
    labeller.eval()
    try:
        labels, marginals = predict_all(
            predictor, sentences, config, vocabulary, decoders, processes, num_calls=num_calls
        )
    finally:
        labeller.train(was_training)
    # `diffusion.NO_LABEL_ID` is −1: the last of the names.
    names = [*vocabulary.labels, NO_LABEL]
    lengths = [len(sentence.units) for sentence in sentences]
    gold = [sentence.labels or () for sentence in sentences]
    scores, predicted = {}, {}
    for decoder, flat in zip(decoders, labels, strict=True):
        predicted[decoder] = [[names[index] for index in row.tolist()] for row in flat.split(lengths)]
        scores[decoder] = score_sentences(config.task, scheme, gold, predicted[decoder])
    metric = PRIMARY_METRICS[config.task]
    best = max(decoders, key=lambda decoder: scores[decoder][metric])
    gold_ids = torch.tensor(
        [vocabulary.label_ids.get(label, -1) for label in itertools.chain.from_iterable(gold)], dtype=torch.int64
    )
    is_known = gold_ids >= 0
    temperature, score_quality = fit_temperature(marginals[is_known], gold_ids[is_known]), {}
    if fits_temperature:
        reported_temperature = temperature
    if reported_temperature is not None and is_known.all():
        score_quality = {
            decoder: _score_quality(marginals, chosen, gold_ids, reported_temperature)
            for decoder, chosen in zip(decoders, labels, strict=True)
        }
    # None are confident if training diverged and marginals are not finite.
    best_scores = _scores_of(calibrated(marginals, reported_temperature or temperature), labels[decoders.index(best)])
    tokens = TokenScorer()
    target = source_scheme or scheme
    printed = functools.cache(lambda label: label if label == NO_LABEL else translate_label(label, scheme, target))
    for right, found in zip(gold, predicted[best], strict=True):
        tokens.update([*map(printed, right)], [*map(printed, found)])
    legal = best_legal(config, scheme, decoders, {name: found[metric] for name, found in scores.items()})
    span_calibration = UNFITTED
    if scheme is not LabelScheme.PLAIN and legal in decoders:
        found_scores = _scores_of(calibrated(marginals, temperature), labels[decoders.index(legal)])
        rows = found_scores.double().nan_to_num(0.0).split(lengths)
        span_calibration = _fitted_to_spans(predicted[legal], [row.tolist() for row in rows], gold, scheme)
    return DecoderEvaluation(
        scores=scores,
        decoder=best,
        legal_decoder=legal,
        span_calibration=span_calibration,
        score=scores[best][metric],
        temperature=temperature,
        score_quality=score_quality,
        confusions=[
            {"gold": right, "predicted": found, "count": count}
            for right, found, count in tokens.top_confusions(NUM_CONFUSIONS)
        ],
        confidence=100 * float(best_scores.double().nan_to_num(0.0).mean()),
    )


def _fitted_to_spans(
    predicted: Sequence[Sequence[str]],
    scores: Sequence[Sequence[float]],
    gold: Sequence[Sequence[str]],
    scheme: LabelScheme,
) -> SpanCalibration:
    lowest: list[float] = []
    is_right: list[bool] = []
    for labels, of_labels, right_labels in zip(predicted, scores, gold, strict=True):
        right = {*extract_spans(right_labels, scheme)}
        for span in extract_spans(labels, scheme):
            lowest.append(min(of_labels[span.start : span.end]))
            is_right.append(span in right)
    return fit_span_calibration(torch.tensor(lowest, dtype=torch.float64), torch.tensor(is_right, dtype=torch.bool))


def _score_quality(marginals: Tensor, chosen: Tensor, gold: Tensor, temperature: float) -> dict[str, float]:
    """The quality of the probabilities, and those of the chosen labels; a code without a label has probability 0."""
    scores = _scores_of(calibrated(marginals, temperature), chosen)
    return {
        "negative_log_likelihood": negative_log_likelihood(marginals, gold, temperature=temperature),
        "calibration_error": 100 * expected_calibration_error(scores, chosen == gold),
    }


def _scores_of(probabilities: Tensor, chosen: Tensor) -> Tensor:
    return probabilities.gather(1, chosen.clamp(min=0)[:, None])[:, 0].masked_fill(chosen < 0, 0.0)


@torch.no_grad()
def predict_all(
    predictor: Predictor,
    sentences: Sequence[Sentence],
    config: Config,
    vocabulary: Vocabulary,
    decoders: Sequence[str],
    processes: Processes,
    *,
    num_calls: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Label ids (decoders, units) and marginals (units, K) of all sentences, one after the other."""

    def finish(prediction: Prediction, *, members: Sequence[int], allowed: Tensor | None) -> list[Tensor]:
        return [prediction.marginals.float(), *(DECODERS[name](prediction.decoder_input) for name in decoders)]

    if predictor.recall:
        sentences = [*cut_documents(sentences)]
    lengths = torch.tensor([len(sentence.units) for sentence in sentences])
    starts = lengths.cumsum(0) - lengths
    labels = torch.zeros(len(decoders), int(lengths.sum()), dtype=torch.int64)
    marginals = torch.zeros(labels.shape[1], len(vocabulary.labels))
    sizes = predictor.labeller.encoder.sizes(sentences)
    documents = [sentence.document if predictor.recall else 0 for sentence in sentences]
    # Shared by sentence or document, not by batch: a process with less memory still labels its own share.
    groups = sorted(grouped(documents), key=lambda group: -max(sizes[index] for index in group))
    share = [*itertools.chain.from_iterable(processes.share(groups))]
    chosen = [sentences[index] for index in share]
    batches = predict_sentences(
        predictor, chosen, vocabulary, finish, budget=config.inference.budget, num_calls=num_calls
    )
    for members, (batch_marginals, *batch_labels) in batches:
        indices = [share[member] for member in members]
        rows, columns = len(indices), int(lengths[indices].max())
        is_unit = unit_mask(lengths[indices], columns)
        places = (starts[indices][:, None] + torch.arange(columns))[is_unit]
        marginals[places] = batch_marginals[:rows, :columns][is_unit]
        for row, label_ids in enumerate(batch_labels):
            labels[row, places] = label_ids[:rows, :columns][is_unit]
    # Every unit was labelled by one process, and is 0 in the others.
    processes.sum(labels)
    processes.sum(marginals)
    return labels, marginals


def teacher_marginals(
    config: Config, data: TrainingData, processes: Processes, *, note: Callable[[str], None]
) -> TeacherMarginals | None:
    """The calibrated marginals of the model ``config.data.teacher`` for every training unit; None without a teacher.

    Processes share the work. A teacher with different labels is an `InputError`.
    """
    folder = config.data.teacher
    if folder is None:
        return None
    teacher = load_model(folder)
    # A teacher trained by an earlier version lacks boundary labels that do not occur in training.
    occurring = {label for sentence in data.train for label in sentence.labels or ()}
    if not occurring <= set(teacher.vocabulary.labels) <= set(data.vocabulary.labels):
        raise InputError(
            "the teacher's labels differ from those of the training data",
            path=folder,
            remedy="train it on the same data",
        )
    for name in ("lowercase", "normalise_handles"):
        if (value := getattr(teacher.config.data, name)) != getattr(config.data, name):
            raise InputError(
                f"the teacher was trained with data.{name} = {str(value).lower()}",
                path=folder,
                remedy="set the same here",
            )
    note(f"the teacher is labelling {len(data.train):,} training sentences")
    predictor = Predictor(placed(teacher.labeller, processes.device).eval(), teacher.config, processes.device)
    _, marginals = predict_all(predictor, data.train, teacher.config, teacher.vocabulary, [teacher.decoder], processes)
    softened = torch.zeros(len(marginals), len(data.vocabulary.labels))
    columns = [data.vocabulary.label_ids[label] for label in teacher.vocabulary.labels]
    softened[:, columns] = calibrated(marginals.clamp(min=1e-12), teacher.temperature)
    return TeacherMarginals(softened, [len(sentence.units) for sentence in data.train]).to(processes.device)
