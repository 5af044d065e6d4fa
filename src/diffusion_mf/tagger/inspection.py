"""A labelled corpus beside what a tagger makes of it, for those who look for its mistakes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from diffusion_mf.data.corpus import Corpus
from diffusion_mf.data.label_schemes import convert_labels
from diffusion_mf.evaluation.mistakes import CheckedSentence, SpanMistake, sentence_counts, span_mistakes
from diffusion_mf.evaluation.reconstruction import Reconstructor
from diffusion_mf.evaluation.report import Report, TaskScorer
from diffusion_mf.tagger.files import TaggingOptions
from diffusion_mf.tagger.tagger import Tagger


class SpanPlace(NamedTuple):
    """A span in its context."""

    line: int
    context: str
    type: str


@dataclasses.dataclass(frozen=True)
class CheckedCorpus:
    """The sentences of a corpus beside what a tagger makes of them."""

    report: Report
    sentences: list[CheckedSentence]
    counts: Int[np.ndarray, "S 3"]
    """`evaluation.mistakes.sentence_counts` of each"""
    exact: Int[np.ndarray, "S 3"]
    """the same of whole sentences: (1, 1, 1) where all labels are right, else (0, 1, 1)"""
    spans: Mapping[SpanMistake, list[SpanPlace]]


def checked_corpus(
    tagger: Tagger,
    corpus: Corpus,
    *,
    options: TaggingOptions | None = None,
    advance: Callable[[int], None] = lambda count: None,
) -> CheckedCorpus:
    """Tag a labelled corpus and put the labels, in the scheme that users read, beside the right ones."""
    options = options or TaggingOptions()
    scheme = options.scheme or tagger.scheme
    labels = tagger.labels_in(scheme)
    scorer = TaskScorer(tagger.task, corpus.scheme, predicted_scheme=scheme, length_bins=None)
    reconstruct = Reconstructor(tagger.task, corpus.scheme, predicted_scheme=scheme)
    results = tagger.stream(
        corpus,
        batch_tokens=options.batch_tokens,
        calls=options.calls,
        decoder=options.decoder,
        scheme=scheme,
        marginals=True,
    )
    sentences, counts, exact = [], [], []
    spans: dict[SpanMistake, list[SpanPlace]] = {kind: [] for kind in SpanMistake}
    for sentence, result in zip(corpus, results, strict=True):
        gold = sentence.labels or ()
        scorer.update(gold, result.labels, sentence.units)
        seen = reconstruct(gold, result.labels, sentence.units)
        checked = CheckedSentence(
            sentence.units,
            convert_labels(gold, corpus.scheme, scheme),
            result.labels,
            result.scores,
            result.second_best(labels),
            [corpus.unit_line(sentence, index) for index in range(len(sentence.units))],
            result.separator,
        )
        sentences.append(checked)
        counts.append(sentence_counts(tagger.task, seen))
        exact.append((int(all(map(str.__eq__, seen.gold, seen.predicted))), 1, 1))
        for kind, span in span_mistakes(seen.gold_spans, seen.predicted_spans):
            spans[kind].append(SpanPlace(checked.lines[span.start], checked.context(span.start, span.end), span.label))
        advance(1)
    return CheckedCorpus(
        scorer.result(), sentences, _rows(counts), _rows(exact), {kind: found for kind, found in spans.items() if found}
    )


def _rows(counts: list[tuple[int, int, int]]) -> Int[np.ndarray, "S 3"]:
    return np.array(counts, dtype=np.int64).reshape(-1, 3)
