"""The gold and predicted labels of a sentence in comparable form, before counting: BMES labels, spans, words, votes.

Paper: “Metrics and Output Reconstruction” (appendix). Every metric of every system is counted from this one record.

The gold sequence must be legal and is converted to BMES. The predicted sequence may be anything:

* in a closed scheme (BMES, IOBES, BILOU) its letters are renamed label by label, so that malformed parts stay malformed
  and every label is right or wrong by itself;
* in an open scheme (IOB1, BIO2) a label does not determine its BMES letter, which depends on where the span ends; spans
  are read as in conlleval (an I that continues nothing starts a span) and encoded again. One wrong label can therefore
  change the BMES letter of its neighbour, and the accuracy differs from one computed over the file's own labels;
* what is not a label of the scheme (such as a DiffusionSL code without label) becomes `NO_LABEL`: wrong, and in no span.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from diffusion_mf.data.corpus import Task
from diffusion_mf.data.label_schemes import (
    LabelError,
    LabelledSpan,
    LabelScheme,
    check_sequence,
    convert_labels,
    encode_spans,
    extract_spans,
    format_label,
    is_label,
    is_legal_start,
    is_legal_transition,
    parse_label,
    split_label,
)

# CoNLL-U's sign for an empty field: the predicted label where a code has no label.
NO_LABEL = "_"


class Reconstruction(NamedTuple):
    """One sentence in the form that metrics are computed from.

    ``gold`` and ``predicted`` are the labels, compared one by one. The spans are the complete ones of each side (entities,
    or words with a constant tag); ``segments`` are the predicted words without tags. ``votes`` holds, for every gold
    word, the majority tag of its characters. ``malformed`` counts fragments that are not spans, see `Reconstructor`.
    """

    units: Sequence[str]
    gold: Sequence[str]
    predicted: Sequence[str]
    gold_spans: Sequence[LabelledSpan] = ()
    predicted_spans: Sequence[LabelledSpan] = ()
    segments: Sequence[LabelledSpan] = ()
    votes: Sequence[str] = ()
    malformed: int = 0


class Reconstructor:
    """Turns label sequences of a task and scheme into `Reconstruction` records.

    A malformed fragment is a maximal run of units that are neither outside (O; Chinese has no O) nor in a complete span, so
    that a closed sequence is legal if and only if it has none. In an open scheme there are no such runs, and each position
    where the sequence violates the scheme counts instead.
    """

    def __init__(self, task: Task | str, scheme: LabelScheme, *, predicted_scheme: LabelScheme | None = None) -> None:
        self.task = Task(task)
        self.scheme = scheme
        self.predicted_scheme = scheme if predicted_scheme is None else predicted_scheme
        for each in (self.scheme, self.predicted_scheme):
            if (each is LabelScheme.PLAIN) != (self.task is Task.POS):
                raise ValueError(f"the task {task} cannot be scored in the scheme {each}")
        self._outside = "O" if self.task is Task.NER else None
        self._gold_names: dict[str, str] = {}
        self._predicted_names: dict[str, str] = {}

    def __call__(self, gold: Sequence[str], predicted: Sequence[str], units: Sequence[str]) -> Reconstruction:
        """Read one sentence; `ValueError` for different lengths, `LabelError` if the gold labels are not legal."""
        if not len(gold) == len(predicted) == len(units):
            raise ValueError(
                f"a sentence of {len(units)} units has {len(gold)} gold and {len(predicted)} predicted labels"
            )
        gold = self._gold_labels(gold)
        if self.task is Task.POS:
            return Reconstruction(units, gold, predicted, malformed=_num_runs([x == NO_LABEL for x in predicted]))
        breaks = 0 if self.predicted_scheme.is_closed else self._num_breaks(predicted)
        predicted = self._rename(predicted) if self.predicted_scheme.is_closed else self._encode_again(predicted)
        gold_spans = extract_spans(gold, LabelScheme.BMES)
        spans = extract_spans(predicted, LabelScheme.BMES)
        sentence = Reconstruction(
            units, gold, predicted, gold_spans, spans, malformed=breaks or self._num_fragments(predicted, spans)
        )
        if self.task is Task.NER:
            return sentence
        tags = [NO_LABEL if label == NO_LABEL else split_label(label)[1] for label in predicted]
        return sentence._replace(
            # Tags only matter for malformed fragments.
            segments=extract_spans(predicted, LabelScheme.BMES, match_types=False) if sentence.malformed else spans,
            votes=[majority(tags[start:end]) for start, end, _ in gold_spans],
        )

    def _gold_labels(self, labels: Sequence[str]) -> Sequence[str]:
        if NO_LABEL in labels:
            raise LabelError("a gold unit has no label", list(labels).index(NO_LABEL))
        if self.task is Task.POS:
            return labels
        scheme = self.scheme
        if scheme.is_closed:
            check_sequence(labels, scheme)
        else:
            labels, scheme = convert_labels(labels, scheme, LabelScheme.BMES), LabelScheme.BMES
        names = self._gold_names
        for label in set(labels) - names.keys():
            if self.task is Task.SEG_POS and label == "O":
                raise LabelError("every character must belong to a word, found O", list(labels).index(label))
            if self.task is Task.SEG_POS and split_label(label)[1] == NO_LABEL:
                raise LabelError("a gold unit has no label", list(labels).index(label))
            names[label] = format_label(*parse_label(label, scheme), LabelScheme.BMES)
        return [names[label] for label in labels]

    def _rename(self, labels: Sequence[str]) -> list[str]:
        names = self._predicted_names
        for label in set(labels) - names.keys():
            names[label] = (
                format_label(*parse_label(label, self.predicted_scheme), LabelScheme.BMES)
                if self._is_known(label)
                else NO_LABEL
            )
        return [names[label] for label in labels]

    def _encode_again(self, labels: Sequence[str]) -> list[str]:
        encoded = encode_spans(extract_spans(labels, self.predicted_scheme), len(labels), LabelScheme.BMES)
        return [label if self._is_known(raw) else NO_LABEL for label, raw in zip(encoded, labels, strict=True)]

    def _is_known(self, label: str) -> bool:
        return is_label(label, self.predicted_scheme) and (label != "O" or self._outside == "O")

    def _num_breaks(self, labels: Sequence[str]) -> int:
        is_unknown = [not self._is_known(label) for label in labels]
        known = ["O" if unknown else label for label, unknown in zip(labels, is_unknown, strict=True)]
        num_illegal = sum(not is_legal_start(label, self.predicted_scheme) for label in known[:1])
        for before, after in itertools.pairwise(known):
            num_illegal += not is_legal_transition(before, after, self.predicted_scheme)
        return num_illegal + _num_runs(is_unknown)

    def _num_fragments(self, labels: Sequence[str], spans: Sequence[LabelledSpan]) -> int:
        if sum(end - start for start, end, _ in spans) + labels.count(self._outside or "") == len(labels):
            return 0
        is_stray = [label != self._outside for label in labels]
        for start, end, _ in spans:
            is_stray[start:end] = [False] * (end - start)
        return _num_runs(is_stray)


def majority(tags: Sequence[str]) -> str:
    """The most frequent tag; ties go to the first.

    >>> majority(["NN", "VV", "VV"]), majority(["VV", "NN"])
    ('VV', 'VV')
    """
    if len(tags) == 1:
        return tags[0]
    # Counters keep the order in which tags first occur.
    return Counter(tags).most_common(1)[0][0]


def _num_runs(marks: Sequence[bool]) -> int:
    return sum(mark and not before for before, mark in zip([False, *marks], marks, strict=False))
