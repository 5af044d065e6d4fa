"""The best possible scores on the synthetic corpus, and the consistency of labels in dependent groups.

Groups are recognised from the units alone, so the predictions of any model, or of a file, can be scored.
"""

from __future__ import annotations

import functools
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from diffusion_mf.data.label_schemes import extract_spans
from diffusion_mf.evaluation import score_sentences
from diffusion_mf.lab.synthetic.flavours import find_flavour
from diffusion_mf.lab.synthetic.grammar import KINDS, DependentGroup, Flavour, GroupTemplate, Pattern, SyntheticSentence


class Consistency(NamedTuple):
    """The number of groups, and the number whose labels can occur together."""

    groups: int
    consistent: int

    @property
    def percentage(self) -> float | None:
        """The score from 0 to 100; None if there is no group."""
        return 100 * self.consistent / self.groups if self.groups else None


def find_groups(units: Sequence[str], *, flavour: str | Flavour) -> tuple[DependentGroup, ...]:
    """The dependent groups of a sentence, recognised from its units: the words of a template occur only in its groups."""
    groups = []
    for template, vocabulary, places in _group_vocabularies(find_flavour(flavour)):
        positions = tuple(index for index, unit in enumerate(units) if unit in vocabulary)
        if len(positions) == len(places) and all(
            units[position] in words for position, words in zip(positions, places, strict=True)
        ):
            groups.append(DependentGroup(template.kind, positions, template.patterns))
    return tuple(groups)


@functools.cache
def _group_vocabularies(flavour: Flavour) -> list[tuple[GroupTemplate, frozenset[str], list[frozenset[str]]]]:
    """For every template, all its words and the words of each of its units."""
    vocabularies = []
    for template in flavour.templates.values():
        places = [frozenset(words.words) for words in template.word_classes]
        vocabularies.append((template, frozenset().union(*places), places))
    return vocabularies


def consistency(units: Sequence[str], labels: Sequence[str], *, flavour: str | Flavour) -> dict[str, Consistency]:
    """The numbers of groups and consistent groups in one sentence, by kind."""
    return total_consistency([(units, labels)], flavour=flavour)


def total_consistency(
    sentences: Iterable[tuple[Sequence[str], Sequence[str]]], *, flavour: str | Flavour
) -> dict[str, Consistency]:
    """`consistency` summed over (units, labels) pairs."""
    totals: Counter[str] = Counter()
    consistent: Counter[str] = Counter()
    for units, labels in sentences:
        for group in find_groups(units, flavour=flavour):
            predicted = tuple(labels[position] for position in group.positions)
            totals[group.kind] += 1
            consistent[group.kind] += any(predicted == pattern.labels for pattern in group.patterns)
    return {kind: Consistency(totals[kind], consistent[kind]) for kind in KINDS}


GroupDecoder = Callable[[GroupTemplate], tuple[str, ...]]


def marginals(patterns: Sequence[Pattern]) -> list[dict[str, float]]:
    """The true distribution of every label of a group."""
    tables: list[dict[str, float]] = [defaultdict(float) for _ in patterns[0].labels]
    for pattern in patterns:
        for table, label in zip(tables, pattern.labels, strict=True):
            table[label] += pattern.probability
    return tables


def pair_marginals(patterns: Sequence[Pattern]) -> list[dict[tuple[str, str], float]]:
    """The true joint distribution of every two neighbouring labels of a slot."""
    tables: list[dict[tuple[str, str], float]] = [defaultdict(float) for _ in patterns[0].labels[1:]]
    for pattern in patterns:
        for table, pair in zip(tables, zip(pattern.labels, pattern.labels[1:], strict=False), strict=True):
            table[pair] += pattern.probability
    return tables


def position_wise(template: GroupTemplate) -> tuple[str, ...]:
    """The most probable label at every position, independently."""
    return tuple(max(table, key=table.__getitem__) for table in marginals(template.patterns))


def joint(template: GroupTemplate) -> tuple[str, ...]:
    """The most probable pattern."""
    return max(template.patterns, key=lambda pattern: pattern.probability).labels


def chain(template: GroupTemplate) -> tuple[str, ...]:
    """Viterbi, slot by slot, on the first-order chain closest to the true distribution."""
    labels: list[str] = []
    for start, end in template.slot_bounds:
        labels.extend(_viterbi([Pattern(p.labels[start:end], p.probability) for p in template.patterns]))
    return tuple(labels)


def _viterbi(patterns: Sequence[Pattern]) -> tuple[str, ...]:
    singles = marginals(patterns)
    # The best way to each label: its log-probability and the labels taken.
    best: dict[str, tuple[float, tuple[str, ...]]] = {
        label: (math.log(probability), (label,)) for label, probability in singles[0].items()
    }
    for single, pairs in zip(singles, pair_marginals(patterns), strict=False):
        longer: dict[str, tuple[float, tuple[str, ...]]] = {}
        for (previous, label), probability in pairs.items():
            log_before, path = best[previous]
            log_probability = log_before + math.log(probability / single[previous])
            if label not in longer or log_probability > longer[label][0]:
                longer[label] = (log_probability, (*path, label))
        best = longer
    return max(best.values())[1]


GROUP_DECODERS: dict[str, GroupDecoder] = {"position_wise": position_wise, "chain": chain, "joint": joint}


@functools.cache
def group_predictions(flavour: Flavour, decoder: str) -> dict[str, tuple[str, ...]]:
    """The labels that a decoder of `GROUP_DECODERS` gives each kind of group, which depend only on the kind."""
    return {kind: GROUP_DECODERS[decoder](template) for kind, template in flavour.templates.items()}


def decode(sentence: SyntheticSentence, *, flavour: Flavour, decoder: str) -> list[str]:
    """The labels that a decoder knowing the true distribution gives a sentence; labels outside groups are certain."""
    labels = list(sentence.labels)
    for group in sentence.groups:
        for position, label in zip(group.positions, group_predictions(flavour, decoder)[group.kind], strict=True):
            labels[position] = label
    return labels


SyntheticScores = dict[str, float | None]


@dataclass
class SpanCounts:
    """Numbers of correct, predicted and gold spans; floats, because they may be expectations."""

    correct: float = 0
    predicted: float = 0
    gold: float = 0

    def add(self, other: SpanCounts, *, times: float = 1) -> None:
        """Add another count, multiplied by ``times``."""
        self.correct += times * other.correct
        self.predicted += times * other.predicted
        self.gold += times * other.gold

    @property
    def f1(self) -> float | None:
        """Micro F1 as a percentage."""
        total = self.predicted + self.gold
        return 200 * self.correct / total if total else None


@dataclass
class SplitFacts:
    """Everything about a split that the expected scores need."""

    sentences: Counter[tuple[str, ...]] = field(default_factory=Counter)  # by the kinds of group they hold
    units: int = 0
    certain_units: int = 0
    certain_spans: Counter[str] = field(default_factory=Counter)  # by span metric

    @property
    def groups(self) -> Counter[str]:
        """Groups by kind."""
        counts: Counter[str] = Counter()
        for kinds, number in self.sentences.items():
            for kind in kinds:
                counts[kind] += number
        return counts


def spans_of(labels: Sequence[str], flavour: Flavour, *, typed: bool) -> set[tuple[int, int, str]]:
    """The complete spans as a set; without types, only boundaries count."""
    spans = extract_spans(labels, flavour.scheme, match_types=typed)
    return {(span.start, span.end, span.label if typed else "") for span in spans}


def collect_facts(sentences: Sequence[SyntheticSentence], *, flavour: Flavour) -> SplitFacts:
    """Count the certain labels and the groups of a split."""
    facts = SplitFacts()
    for sentence in sentences:
        uncertain = {position for group in sentence.groups for position in group.positions}
        facts.sentences[tuple(group.kind for group in sentence.groups)] += 1
        facts.units += len(sentence.units)
        facts.certain_units += len(sentence.units) - len(uncertain)
        for metric, typed in flavour.span_metrics.items():
            spans = spans_of(sentence.labels, flavour, typed=typed)
            facts.certain_spans[metric] += sum(start not in uncertain for start, _, _ in spans)
    return facts


def expected_scores(facts: SplitFacts, *, flavour: Flavour) -> dict[str, SyntheticScores]:
    """The expected scores of every decoder, and under ``bound`` the best that any decoder can reach on each metric.

    The bound is reached separately for each metric: by position-wise argmax for accuracy, by the joint decoder for exact match
    and consistency, and by `best_f1` for span F1.
    """
    values = {name: _decoder_scores(facts, flavour, group_predictions(flavour, name)) for name in GROUP_DECODERS}
    bound = dict(values["joint"])
    bound["accuracy"] = values["position_wise"]["accuracy"]
    for metric in flavour.span_metrics:
        bound[metric] = best_f1(facts, flavour=flavour, metric=metric)
    return {**values, "bound": bound}


def _decoder_scores(facts: SplitFacts, flavour: Flavour, predictions: Mapping[str, tuple[str, ...]]) -> SyntheticScores:
    groups = facts.groups
    correct_units = float(facts.certain_units)
    probability_exact: dict[str, float] = {}
    for kind, template in flavour.templates.items():
        predicted = predictions[kind]
        for pattern in template.patterns:
            agreeing = sum(a == b for a, b in zip(predicted, pattern.labels, strict=True))
            correct_units += groups[kind] * pattern.probability * agreeing
        probability_exact[kind] = sum(p.probability for p in template.patterns if p.labels == predicted)
    exact = sum(
        number * math.prod(probability_exact[kind] for kind in kinds) for kinds, number in facts.sentences.items()
    )
    scores: SyntheticScores = {
        "accuracy": _percentage(correct_units, facts.units),
        "exact_match": _percentage(exact, facts.sentences.total()),
    }
    for metric, typed in flavour.span_metrics.items():
        certain = facts.certain_spans[metric]
        counts = SpanCounts(certain, certain, certain)
        for kind, template in flavour.templates.items():
            counts.add(_expected_spans(template, predictions[kind], flavour, typed), times=groups[kind])
        scores[metric] = counts.f1
    for kind in KINDS:
        # The prediction is the same for all groups of a kind, so it is consistent in all of them or in none.
        scores[f"consistency_{kind}"] = _percentage(groups[kind] * (probability_exact[kind] > 0), groups[kind])
    return scores


def _group_spans(
    template: GroupTemplate, labels: Sequence[str], flavour: Flavour, typed: bool
) -> set[tuple[int, int, str]]:
    return spans_of(template.lay_out(labels), flavour, typed=typed)


def _expected_spans(template: GroupTemplate, predicted: Sequence[str], flavour: Flavour, typed: bool) -> SpanCounts:
    predicted_spans = _group_spans(template, predicted, flavour, typed)
    counts = SpanCounts(predicted=len(predicted_spans))
    for pattern in template.patterns:
        gold_spans = _group_spans(template, pattern.labels, flavour, typed)
        counts.correct += pattern.probability * len(gold_spans & predicted_spans)
        counts.gold += pattern.probability * len(gold_spans)
    return counts


def best_f1(facts: SplitFacts, *, flavour: Flavour, metric: str) -> float | None:
    """The highest F1 of any decoder, as the ratio of expected counts.

    By Dinkelbach's method: F is best when the maximum over predictions of 2 E[correct] − F (predicted + E[gold]) is zero. For
    a given F the maximum is found span by span: a set of non-overlapping spans of greatest Σ (2 p(span) − F).
    """
    typed = flavour.span_metrics[metric]
    groups = facts.groups
    certain = facts.certain_spans[metric]
    probabilities: dict[str, dict[tuple[int, int, str], float]] = {}
    for kind, template in flavour.templates.items():
        probabilities[kind] = defaultdict(float)
        for pattern in template.patterns:
            for span in _group_spans(template, pattern.labels, flavour, typed):
                probabilities[kind][span] += pattern.probability
    best = 0.0
    while True:
        counts = SpanCounts(certain, certain, certain)
        for kind, table in probabilities.items():
            chosen = _heaviest_spans({span: 2 * p - best for span, p in table.items()})
            in_kind = SpanCounts(sum(table[span] for span in chosen), len(chosen), sum(table.values()))
            counts.add(in_kind, times=groups[kind])
        if counts.f1 is None or counts.f1 / 100 <= best + 1e-12:
            return counts.f1
        best = counts.f1 / 100


def _heaviest_spans(weights: Mapping[tuple[int, int, str], float]) -> list[tuple[int, int, str]]:
    """Non-overlapping spans of the greatest total weight, by dynamic programming over their ends."""
    best: list[tuple[float, list[tuple[int, int, str]]]] = [(0.0, [])]
    for position in range(1, max((end for _, end, _ in weights), default=0) + 1):
        ways = [best[position - 1]]
        for span, weight in weights.items():
            if span[1] == position:
                total, spans = best[span[0]]
                ways.append((total + weight, [*spans, span]))
        best.append(max(ways, key=lambda way: way[0]))
    return best[-1][1]


def realised_scores(sentences: Sequence[SyntheticSentence], *, flavour: Flavour) -> dict[str, SyntheticScores]:
    """The scores of the same decoders against the labels drawn, for comparison with a model's scores."""
    return {
        name: drawn_scores(
            sentences, [decode(sentence, flavour=flavour, decoder=name) for sentence in sentences], flavour=flavour
        )
        for name in GROUP_DECODERS
    }


def drawn_scores(
    sentences: Sequence[SyntheticSentence], predicted: Sequence[Sequence[str]], *, flavour: Flavour
) -> SyntheticScores:
    """Accuracy, exact match, span F1 and consistency of predicted labels against the labels drawn."""
    gold = [sentence.labels for sentence in sentences]
    metrics = score_sentences(flavour.name, flavour.scheme, gold, predicted)
    pairs = [(sentence.units, labels) for sentence, labels in zip(sentences, predicted, strict=True)]
    return {
        **{name: metrics[name] for name in ("accuracy", "exact_match", *flavour.span_metrics)},
        **{
            f"consistency_{kind}": counts.percentage
            for kind, counts in total_consistency(pairs, flavour=flavour).items()
        },
    }


def _percentage(part: float, whole: float) -> float | None:
    return 100 * part / whole if whole else None
