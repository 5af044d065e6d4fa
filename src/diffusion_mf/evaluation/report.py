"""All metrics of a task, for a whole file and for parts of it, and their output."""

from __future__ import annotations

import dataclasses
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from diffusion_mf.data.corpus import Task
from diffusion_mf.data.label_schemes import LabelledSpan, LabelScheme
from diffusion_mf.evaluation.metrics import Counts, SpanScorer, TokenScorer, WordScorer, percentage
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


def split_by_vocabulary(
    sentence: Reconstruction, vocabulary: Collection[str], task: Task
) -> Iterator[tuple[bool, int, Reconstruction]]:
    """The known and the unknown part of a sentence, as (is known, number of forms, part).

    Forms are units or, where units are characters, the gold words. A span of units is known if all of them are. A correct span has
    the same units as its gold span, so both are in the same part, and precision, recall and F1 of a part are well defined.
    """
    units = sentence.units
    forms: Sequence[LabelledSpan] = [LabelledSpan(index, index + 1, "") for index in range(len(units))]
    if task is Task.SEG_POS:
        forms = sentence.gold_spans

    def is_known(span: LabelledSpan) -> bool:
        own = units[span.start : span.end]
        return "".join(own) in vocabulary if task is Task.SEG_POS else all(unit in vocabulary for unit in own)

    for wanted in (True, False):

        def chosen(spans: Sequence[LabelledSpan], wanted: bool = wanted) -> list[LabelledSpan]:
            return [span for span in spans if is_known(span) is wanted]

        part = chosen(forms)
        indices = [index for form in part for index in range(form.start, form.end)]
        yield (
            wanted,
            len(part),
            Reconstruction(
                [units[index] for index in indices],
                [sentence.gold[index] for index in indices],
                [sentence.predicted[index] for index in indices],
                chosen(sentence.gold_spans),
                chosen(sentence.predicted_spans),
                chosen(sentence.segments),
                [vote for form, vote in zip(forms, sentence.votes, strict=False) if is_known(form) is wanted],
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
    tokens: TokenScorer
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
            for is_known, size, part in split_by_vocabulary(sentence, self._vocabulary, self.task):
                self._part_sizes[is_known] += size
                self._parts[is_known].update(part)
        if self._lengths:
            self._lengths[bisect_left(self._length_bins, len(units))].update(sentence)

    def result(self) -> Report:
        """The result so far."""
        tokens = self._all.tokens
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
                BreakdownRow(name, part.tokens.sentences, part.metrics_of_sentences())
                for name, part in zip(length_bin_names(self._length_bins), self._lengths, strict=False)
                if part.tokens.sentences
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
        return (self.words.joint if self.task is Task.SEG_POS else self.spans).types

    def metrics_of_sentences(self) -> dict[str, float]:
        """`metrics`, and exact match, which is meaningless where sentences are split."""
        return {**self.metrics(), "exact_match": self.tokens.exact_match}

    def metrics(self) -> dict[str, float]:
        tokens = self.tokens.counts
        if self.task is Task.SEG_POS:
            return {"accuracy": tokens.recall, **self.words.metrics()}
        counts = tokens if self.task is Task.POS else self.spans.counts
        return {"accuracy": tokens.recall, "precision": counts.precision, "recall": counts.recall, "f1": counts.f1}


def score_sentences(
    task: Task | str, scheme: LabelScheme, gold: Iterable[Sequence[str]], predicted: Iterable[Sequence[str]]
) -> dict[str, float]:
    """The task's metrics by name, for sequences of gold and predicted labels; `PRIMARY_METRICS` names the selecting one."""
    scorer = TaskScorer(task, scheme, length_bins=None)
    for gold_labels, predicted_labels in zip(gold, predicted, strict=True):
        # The units themselves do not affect any metric.
        scorer.update(gold_labels, predicted_labels, gold_labels)
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
