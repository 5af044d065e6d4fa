"""The results of a tagger: labels, scores and spans of a sentence."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float32

from diffusion_mf.data.label_schemes import (
    UNFITTED,
    LabelledSpan,
    LabelScheme,
    Span,
    SpanCalibration,
    encode_spans,
    scored_spans,
)
from diffusion_mf.decoding import OutputLabels
from diffusion_mf.evaluation.reconstruction import NO_LABEL


class TrajectoryStep(NamedTuple):
    """The state after one call of the denoiser."""

    t: int
    """the noise step reached, 0 at the end"""
    beliefs: Float32[np.ndarray, "N K"]
    """π_t, the probability of each label; the columns are `Tagger.labels`"""


class Alternative(NamedTuple):
    """One of the best sequences of labels."""

    labels: list[str]
    log_ratio: float
    """the logarithm of its score relative to that of the best: 0 for the first, negative or 0 for the others"""


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
    """where each unit begins and ends in the text it was tagged in; the end is exclusive"""
    marginals: Float32[np.ndarray, "N K"] | None = None
    """the calibrated probability of every label, if it was asked for; the columns are `Tagger.labels`"""
    alternatives: tuple[Alternative, ...] | None = None
    """the best legal sequences, the best first, if they were asked for; fewer if there are fewer"""
    separator: str = " "
    """what separates units if there are no offsets"""

    def text_of(self, span: Span) -> str:
        """The words of a span as in the text; units that were given as a list are joined by `separator`."""
        units = self.units[span.start : span.end]
        if self.offsets is None:
            return self.separator.join(units)
        places = self.offsets[span.start : span.end]
        gaps = [" " if before[1] < after[0] else "" for before, after in itertools.pairwise(places)]
        return "".join(itertools.chain.from_iterable(zip(units, [*gaps, ""], strict=True)))

    def characters_of(self, span: Span) -> tuple[int, int] | None:
        """Where a span begins and ends in the text, the end exclusive; None for units that were given as a list."""
        return None if self.offsets is None else (self.offsets[span.start][0], self.offsets[span.end - 1][1])

    def second_best(self, labels: Sequence[str]) -> list[tuple[str, float]]:
        """Of every unit the most probable label but the one it has, and how probable; ``labels`` are the columns of `marginals`."""
        if self.marginals is None:
            raise ValueError("the sentence was tagged without marginals")
        columns = {label: column for column, label in enumerate(labels)}
        others = self.marginals.copy()
        for row, label in zip(others, self.labels, strict=True):
            if label in columns:
                row[columns[label]] = -1
        best = others.argmax(1) if len(others) else []
        return [(labels[column], max(0.0, float(row[column]))) for row, column in zip(others, best, strict=True)]

    def to_dict(self) -> dict[str, Any]:
        """Units, labels, scores and spans as lists and numbers, ready for JSON; offsets where there is a text."""
        spans = []
        for span in self.spans:
            values: dict[str, Any] = {**span._asdict(), "text": self.text_of(span)}
            place = self.characters_of(span)
            if place is not None:
                values |= {"start_char": place[0], "end_char": place[1]}
            spans.append(values)
        found = {"units": list(self.units), "labels": self.labels, "scores": self.scores, "spans": spans}
        return found if self.offsets is None else found | {"offsets": [list(place) for place in self.offsets]}


def without_uncertain(
    result: TaggedSentence, min_confidence: float, scheme: LabelScheme, labels: Sequence[str]
) -> TaggedSentence:
    """The sentence without spans below ``min_confidence``; if labels mark no spans, uncertain ones become ``_``.

    The units of such a span are outside of any span, with the score of that; ``labels`` are the columns of `marginals`.
    """
    if scheme is LabelScheme.PLAIN:
        kept_labels = [
            label if score >= min_confidence else "_" for label, score in zip(result.labels, result.scores, strict=True)
        ]
        return dataclasses.replace(result, labels=kept_labels)
    kept = [span for span in result.spans if span.confidence >= min_confidence]
    if len(kept) == len(result.spans):
        return result
    found = encode_spans([LabelledSpan(*span[:3]) for span in kept], len(result.units), scheme)
    scores = list(result.scores)
    for index, label in enumerate(found):
        if label == "O" != result.labels[index] and result.marginals is not None:
            scores[index] = float(result.marginals[index, labels.index("O")]) if "O" in labels else 0.0
    return dataclasses.replace(result, labels=found, scores=scores, spans=kept)


Steps = Sequence[tuple[int, np.ndarray]]
"""t and the beliefs (B, N, K) after every call"""


def tagged_sentences(
    units: Sequence[tuple[str, ...]],
    label_ids: list[list[int]],
    own_scores: list[list[float]],
    output: OutputLabels,
    *,
    scores: list[list[float]] | None = None,
    marginals: Float32[np.ndarray, "B N K"] | None = None,
    best: tuple[list[list[list[int]]], list[list[float]]] | None = None,
    calibration: SpanCalibration = UNFITTED,
    chain: tuple[list[list[float]], list[list[float]]] | None = None,
    steps: Steps | None = None,
    separator: str = " ",
) -> list[TaggedSentence]:
    """The results of a batch; the lists of ids and scores may be padded, and those of scores are shortened in place.

    ``label_ids`` and ``own_scores`` belong to the model's own labels, ``scores`` to the printed labels where they differ. ``best`` holds
    the label ids and the scores of the best sequences; ``calibration`` and ``chain`` are those of `scored_spans`.
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
        spans = []
        if has_spans:
            chain_rows = None if chain is None else (chain[0][index], chain[1][index])
            spans = scored_spans(found, score_row, scheme, calibration=calibration, chain=chain_rows)
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
                marginals=None if marginals is None else marginals[index, :size],
                separator=separator,
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
