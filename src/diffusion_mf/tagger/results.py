"""What a tagger says about a sentence."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float32

from diffusion_mf.data.label_schemes import LabelScheme, extract_spans
from diffusion_mf.decoding import OutputLabels
from diffusion_mf.evaluation.reconstruction import NO_LABEL


class Span(NamedTuple):
    """A labelled stretch of units; ``end`` is exclusive."""

    start: int
    end: int
    label: str
    confidence: float
    """the least score of its units in BMES, which says of every unit whether the span begins and ends there: a span is right only
    if all of them are, and within a span they mostly stand or fall together, so that a product would be too modest"""


class TrajectoryStep(NamedTuple):
    """The state after one call of the denoiser."""

    t: int
    """the noise step reached, 0 at the end"""
    beliefs: Float32[np.ndarray, "N K"]
    """π_t: how probable each label is held to be; the columns are `Tagger.labels`"""


class Alternative(NamedTuple):
    """One of the best sequences of labels."""

    labels: list[str]
    log_ratio: float
    """how far its score is from the best one's, in logarithms: 0 for the first, negative for the others"""


@dataclasses.dataclass(frozen=True)
class TaggedSentence:
    """Labels of a sentence with what speaks for them."""

    units: tuple[str, ...]
    labels: list[str]
    scores: list[float]
    """the calibrated marginal probability of each label (`decoding.output_labels` has its sums in schemes such as BIO); 1 where a
    clamp leaves no choice, 0 for a code without label"""
    spans: list[Span]
    """the complete spans, in order; none for labels without boundaries"""
    trajectory: tuple[TrajectoryStep, ...] | None = None
    """the beliefs after every call, if they were asked for"""
    offsets: tuple[tuple[int, int], ...] | None = None
    """where each unit begins and ends in the text it was tagged in; the end is exclusive"""
    alternatives: tuple[Alternative, ...] | None = None
    """the best legal sequences, the best first, if they were asked for; fewer where there are no more"""


def scored_spans(labels: Sequence[str], scores: Sequence[float], scheme: LabelScheme) -> list[Span]:
    """The complete spans of a possibly malformed sequence, each as sure as its least sure unit."""
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
    best: tuple[list[list[list[int]]], list[list[float]]] | None = None,
    steps: Steps | None = None,
) -> list[TaggedSentence]:
    """The results of a batch; rows of ids and scores, which are used up, may be longer and more than the sentences.

    Ids and ``own_scores`` are those of the model's labels, ``scores`` those of what is printed, where they differ. ``best`` are the ids and the
    scores of the best sequences.
    """
    # `diffusion.NO_LABEL` is −1: the last of the names.
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
                alternatives=None
                if best is None
                else tuple(
                    Alternative(output.printed([names[label] for label in ids[:size]]), score - best[1][index][0])
                    for ids, score in zip(best[0][index], best[1][index], strict=True)
                    if score > -math.inf
                ),
            )
        )
    return results
