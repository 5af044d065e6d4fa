"""All metrics of a task, for a whole file and for parts of it, and their output."""

from __future__ import annotations

import dataclasses
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from diffusion_mf.data.corpus import Task
from diffusion_mf.data.label_schemes import LabelledSpan, LabelScheme
from diffusion_mf.evaluation.metrics import Counts, SpanScorer, TokenResult, TokenScorer, WordScorer, percentage
from diffusion_mf.evaluation.reconstruction import Reconstruction, Reconstructor

# Upper ends of the sentence-length bins, inclusive; longer sentences are in the last bin.
LENGTH_BINS = (10, 20, 30, 40, 60)


@dataclasses.dataclass(frozen=True)
class BreakdownRow:
    """One part of a file: its name, its number of sentences or forms, and the task's metrics."""

    name: str
    size: int
    metrics: Mapping[str, float]


def length_bin_names(upper_ends: Sequence[int]) -> list[str]:
    """The names of the bins between ``upper_ends``.

    >>> length_bin_names([10, 20])
    ['1-10', '11-20', '21+']
    """
    first = [1, *(end + 1 for end in upper_ends)]
    return [*(f"{low}-{high}" for low, high in zip(first, upper_ends, strict=False)), f"{first[-1]}+"]


def split_by_unit(sentence: Reconstruction, vocabulary: Collection[str]) -> Iterator[tuple[bool, int, Reconstruction]]:
    """The known and the unknown part of a sentence, as (is known, number of units, part), for units that are forms.

    A span is known if all of its units are. A correct span has the same units as its gold span, so both are in the same
    part, and precision, recall and F1 of a part are well defined.
    """
    is_known = [unit in vocabulary for unit in sentence.units]

    def is_known_span(span: LabelledSpan) -> bool:
        return all(is_known[span.start : span.end])

    for wanted in (True, False):
        chosen = [index for index, known in enumerate(is_known) if known is wanted]
        yield (
            wanted,
            len(chosen),
            Reconstruction(
                [sentence.units[index] for index in chosen],
                [sentence.gold[index] for index in chosen],
                [sentence.predicted[index] for index in chosen],
                [span for span in sentence.gold_spans if is_known_span(span) is wanted],
                [span for span in sentence.predicted_spans if is_known_span(span) is wanted],
            ),
        )


def split_by_word(sentence: Reconstruction, vocabulary: Collection[str]) -> Iterator[tuple[bool, int, Reconstruction]]:
    """The same for characters of words: the forms are words, and each part holds its own.

    Labels are compared over the characters of the part's gold words.
    """

    def is_known_word(span: LabelledSpan) -> bool:
        return "".join(sentence.units[span.start : span.end]) in vocabulary

    for wanted in (True, False):
        words = [index for index, span in enumerate(sentence.gold_spans) if is_known_word(span) is wanted]
        gold_spans = [sentence.gold_spans[index] for index in words]
        chosen = [unit for span in gold_spans for unit in range(span.start, span.end)]
        yield (
            wanted,
            len(words),
            Reconstruction(
                [sentence.units[index] for index in chosen],
                [sentence.gold[index] for index in chosen],
                [sentence.predicted[index] for index in chosen],
                gold_spans,
                [span for span in sentence.predicted_spans if is_known_word(span) is wanted],
                [span for span in sentence.segments if is_known_word(span) is wanted],
                [sentence.votes[index] for index in words],
            ),
        )


PRIMARY_METRICS: Mapping[Task, str] = {Task.POS: "accuracy", Task.NER: "f1", Task.SEG_POS: "joint_f1"}


@dataclasses.dataclass(frozen=True)
class Report:
    """The scores of a file.

    ``metrics`` holds the task's metrics under the names of the table above. ``invalid_rate`` is the share of sentences whose
    predicted labels are not a legal sequence, ``malformed_fragments`` the number of ignored fragments (see `Reconstructor`).
    ``types`` are the entity types, or the tags of words (the counts of joint F1); empty for pos.
    ``vocabulary`` is empty without a training vocabulary; ``lengths`` has rows only for lengths that occur.
    """

    task: Task
    scheme: LabelScheme
    predicted_scheme: LabelScheme
    sentences: int
    units: int
    metrics: Mapping[str, float]
    invalid_rate: float
    malformed_fragments: int
    tokens: TokenResult
    types: Mapping[str, Counts]
    vocabulary: Sequence[BreakdownRow]
    lengths: Sequence[BreakdownRow]

    @property
    def exact_match(self) -> float:
        """The share of sentences whose labels are all right."""
        return self.tokens.exact_match

    @property
    def primary(self) -> float:
        """The metric that selects models of this task."""
        return self.metrics[PRIMARY_METRICS[self.task]]


class TaskScorer:
    """Scores sentence by sentence; memory grows with the number of labels, not with the file.

    Gold labels must be legal in ``scheme``; predicted labels may be anything, and are read in ``predicted_scheme`` (default:
    the same). ``vocabulary`` holds the forms of the training file: words, even where units are characters.
    ``length_bins`` are the upper ends of all bins but the last; None omits the breakdown.
    """

    def __init__(
        self,
        task: Task | str,
        scheme: LabelScheme,
        *,
        predicted_scheme: LabelScheme | None = None,
        vocabulary: Collection[str] | None = None,
        length_bins: Sequence[int] | None = LENGTH_BINS,
    ) -> None:
        self.task = task = Task(task)
        self._reconstruct = Reconstructor(task, scheme, predicted_scheme=predicted_scheme)
        self._vocabulary = vocabulary
        self._length_bins = () if length_bins is None else tuple(length_bins)
        self._all = _Part(task)
        self._units = self._invalid = self._malformed = 0
        self._parts = {True: _Part(task), False: _Part(task)}
        self._part_sizes = {True: 0, False: 0}
        self._lengths = [] if length_bins is None else [_Part(task) for _ in range(len(length_bins) + 1)]

    def update(self, gold: Sequence[str], predicted: Sequence[str], units: Sequence[str]) -> None:
        """Add one sentence; `ValueError` for different lengths, `LabelError` if the gold labels are not legal."""
        sentence = self._reconstruct(gold, predicted, units)
        self._all.update(sentence)
        self._units += len(units)
        self._malformed += sentence.malformed
        self._invalid += sentence.malformed > 0
        if self._vocabulary is not None:
            split = split_by_word if self.task is Task.SEG_POS else split_by_unit
            for is_known, size, part in split(sentence, self._vocabulary):
                self._part_sizes[is_known] += size
                self._parts[is_known].update(part)
        if self._lengths:
            self._lengths[bisect_left(self._length_bins, len(units))].update(sentence)

    def result(self) -> Report:
        """The result so far."""
        tokens = self._all.tokens.result()
        names = {True: "in vocabulary", False: "out of vocabulary"}
        return Report(
            task=self.task,
            scheme=self._reconstruct.scheme,
            predicted_scheme=self._reconstruct.predicted_scheme,
            sentences=tokens.sentences,
            units=self._units,
            metrics=self._all.metrics_of_sentences(),
            invalid_rate=percentage(self._invalid, tokens.sentences),
            malformed_fragments=self._malformed,
            tokens=tokens,
            types=self._all.types(),
            vocabulary=[
                BreakdownRow(names[is_known], self._part_sizes[is_known], part.metrics())
                for is_known, part in self._parts.items()
                if self._vocabulary is not None
            ],
            lengths=[
                BreakdownRow(name, part.tokens.result().sentences, part.metrics_of_sentences())
                for name, part in zip(length_bin_names(self._length_bins), self._lengths, strict=False)
                if part.tokens.result().sentences
            ],
        )


class _Part:
    """The counts of a whole file, or of a part of it."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.tokens = TokenScorer()
        self.spans = SpanScorer()
        self.words = WordScorer()

    def update(self, sentence: Reconstruction) -> None:
        self.tokens.update(sentence.gold, sentence.predicted)
        if self.task is Task.NER:
            self.spans.update(sentence.gold_spans, sentence.predicted_spans)
        elif self.task is Task.SEG_POS:
            self.words.update(sentence)

    def types(self) -> Mapping[str, Counts]:
        return (self.words.result().joint if self.task is Task.SEG_POS else self.spans.result()).types

    def metrics_of_sentences(self) -> dict[str, float]:
        """`metrics`, and exact match, which is meaningless where sentences are split."""
        return {**self.metrics(), "exact_match": self.tokens.result().exact_match}

    def metrics(self) -> dict[str, float]:
        tokens = self.tokens.result()
        if self.task is Task.SEG_POS:
            words = self.words.result()
            return {
                "accuracy": tokens.accuracy,
                "seg_f1": words.seg_f1,
                "gold_xpos": words.gold_xpos,
                "aligned_xpos": words.aligned_xpos,
                "joint_f1": words.joint_f1,
            }
        counts = tokens.counts if self.task is Task.POS else self.spans.result().counts
        return {
            "accuracy": tokens.accuracy,
            "precision": counts.precision,
            "recall": counts.recall,
            "f1": counts.f1,
        }


def score_sentences(
    task: Task | str,
    scheme: LabelScheme,
    gold: Iterable[Sequence[str]],
    predicted: Iterable[Sequence[str]],
    *,
    units: Iterable[Sequence[str]] | None = None,
) -> dict[str, float]:
    """The task's metrics by name, for sequences of gold and predicted labels; `PRIMARY_METRICS` names the selecting one.

    ``units`` do not affect any metric and may be omitted.
    """
    scorer = TaskScorer(task, scheme, length_bins=None)
    if units is None:
        for gold_labels, predicted_labels in zip(gold, predicted, strict=True):
            scorer.update(gold_labels, predicted_labels, gold_labels)
    else:
        for gold_labels, predicted_labels, sentence_units in zip(gold, predicted, units, strict=True):
            scorer.update(gold_labels, predicted_labels, sentence_units)
    return dict(scorer.result().metrics)


def summary_values(report: Report) -> dict[str, object]:
    """The figures of a report as one flat object; the task's metrics have their own names."""
    return {
        "task": str(report.task),
        "scheme": str(report.scheme),
        "predicted_scheme": str(report.predicted_scheme),
        "sentences": report.sentences,
        "units": report.units,
        **report.metrics,
        "primary_metric": PRIMARY_METRICS[report.task],
        "invalid_rate": report.invalid_rate,
        "malformed_fragments": report.malformed_fragments,
    }


def detail_values(report: Report) -> dict[str, object]:
    """The tables of a report: labels, types, the full confusion table, lengths."""
    return {
        "labels": _counts_values(report.tokens.labels),
        "types": _counts_values(report.types),
        "confusion": [
            {"gold": gold, "predicted": predicted, "count": count}
            for (gold, predicted), count in sorted(report.tokens.confusion.items())
        ],
        "lengths": breakdown_values(report.lengths, size_name="sentences"),
    }


def breakdown_values(rows: Sequence[BreakdownRow], *, size_name: str) -> list[dict[str, object]]:
    """One object per part of the file."""
    return [{"name": row.name, size_name: row.size, **row.metrics} for row in rows]


def _counts_values(table: Mapping[str, Counts]) -> list[dict[str, object]]:
    return [
        {
            "label": label,
            "precision": counts.precision,
            "recall": counts.recall,
            "f1": counts.f1,
            "support": counts.gold,
            "predicted": counts.predicted,
            "correct": counts.correct,
        }
        for label, counts in table.items()
    ]
