"""The results of a tagger: labels, scores and spans of a sentence."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float32

from diffusion_mf.data.label_schemes import LabelScheme, extract_spans
from diffusion_mf.decoding import OutputLabels
from diffusion_mf.evaluation.reconstruction import NO_LABEL


class Span(NamedTuple):
    """A labelled range of units; ``end`` is exclusive."""

    start: int
    end: int
    label: str
    confidence: float
    """the lowest score of its units' BMES labels, which also mark where the span begins and ends; a product would be too low, since
    the labels inside a span are mostly right or wrong together"""


class TrajectoryStep(NamedTuple):
    """The state after one call of the denoiser."""

    t: int
    """the noise step reached, 0 at the end"""
    beliefs: Float32[np.ndarray, "N K"]
    """π_t, the probability of each label; the columns are `Tagger.labels`"""


@dataclasses.dataclass(frozen=True)
class TaggedSentence:
    """The labels of a sentence with their scores and spans."""

    units: tuple[str, ...]
    labels: list[str]
    scores: list[float]
    """the calibrated marginal probability of each label (in schemes such as BIO a sum, see `decoding.output_labels`); 1 where a
    clamp allows only one label, 0 for a bit code without a label"""
    spans: list[Span]
    """the complete spans, in order; none for labels without boundaries"""
    trajectory: tuple[TrajectoryStep, ...] | None = None
    """the beliefs after every call, if they were asked for"""
    offsets: tuple[tuple[int, int], ...] | None = None
    """where each unit begins and ends in the text; the end is exclusive"""


def scored_spans(labels: Sequence[str], scores: Sequence[float], scheme: LabelScheme) -> list[Span]:
    """The complete spans of a possibly malformed sequence, each with the lowest score of its units."""
    return [Span(start, end, label, min(scores[start:end])) for start, end, label in extract_spans(labels, scheme)]


Steps = Sequence[tuple[int, np.ndarray]]
"""t and the beliefs (B, N, K) after every call"""


def tagged_sentences(
    units: Sequence[tuple[str, ...]],
    label_ids: list[list[int]],
    own_scores: list[list[float]],
    output: OutputLabels,
    *,
    scores: list[list[float]] | None = None,
    steps: Steps | None = None,
) -> list[TaggedSentence]:
    """The results of a batch; the lists of ids and scores may be padded, and those of scores are shortened in place.

    ``label_ids`` and ``own_scores`` belong to the model's own labels, ``scores`` to the printed labels where they differ.
    """
    # `diffusion.NO_LABEL_ID` is −1: the last of the names.
    names = [*output.model_labels, NO_LABEL]
    scheme = output.source
    has_spans = scheme is not LabelScheme.PLAIN
    results = []
    for index, (sentence, label_row, score_row) in enumerate(zip(units, label_ids, own_scores, strict=False)):
        size = len(sentence)
        found = [names[label] for label in label_row[:size]]
        del score_row[size:]
        spans = scored_spans(found, score_row, scheme) if has_spans else []
        if not output.is_same:
            found = output.printed(found)
        if scores is not None:
            score_row = scores[index][:size]
        results.append(
            TaggedSentence(
                sentence,
                found,
                score_row,
                spans,
                None if steps is None else tuple(TrajectoryStep(t, beliefs[index, :size]) for t, beliefs in steps),
            )
        )
    return results
