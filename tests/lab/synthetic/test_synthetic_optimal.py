"""Bayes-optimal values against enumeration of whole sentences, and what they must say about the three kinds of model."""

from __future__ import annotations

import itertools
import math

import pytest

from diffusion_mf.lab.synthetic import (
    FLAVOURS,
    SyntheticSentence,
    collect_facts,
    consistency,
    expected_scores,
    generate,
    realised_scores,
    total_consistency,
)
from diffusion_mf.lab.synthetic.optimal import chain, decode, joint, marginals, position_wise
from oracles import synthetic_enumeration as oracle

flavours = pytest.mark.parametrize("flavour", list(FLAVOURS))
templates = pytest.mark.parametrize(
    "template", [pytest.param(t, id=f"{f.name}-{t.kind}") for f in FLAVOURS.values() for t in f.templates.values()]
)


@templates
def test_tables_have_unequal_modes_and_no_ties(template) -> None:
    probabilities = sorted((p.probability for p in template.patterns), reverse=True)
    assert math.isclose(sum(probabilities), 1)
    assert probabilities[0] / (probabilities[0] + probabilities[1]) >= 0.6
    for table in marginals(template.patterns):
        first, second = sorted(table.values(), reverse=True)[:2]
        assert first - second > 0.1


@templates
def test_what_each_decoder_makes_of_a_group(template) -> None:
    possible = {pattern.labels for pattern in template.patterns}
    assert position_wise(template) not in possible
    assert joint(template) in possible
    if template.kind == "adjacent":
        assert chain(template) == joint(template)
    else:
        assert chain(template) not in possible


def table_of(sentence: SyntheticSentence) -> dict[tuple[str, ...], float]:
    certain: list[str | None] = list(sentence.labels)
    for group in sentence.groups:
        for position in group.positions:
            certain[position] = None
    groups = [(g.positions, [(p.labels, p.probability) for p in g.patterns]) for g in sentence.groups]
    return oracle.sequences(certain, groups)


def shortest_sentences(flavour: str) -> list[SyntheticSentence]:
    """A short sentence for each of: no group, an adjacent one, a distant one, both."""
    sentences = sorted(generate(flavour, 300, 9), key=lambda sentence: len(sentence.units))
    kinds = {tuple(group.kind for group in s.groups): s for s in reversed(sentences)}
    assert len(kinds) == 4
    return list(kinds.values())


@flavours
def test_the_projected_chain_has_the_true_marginals_of_neighbours(flavour: str) -> None:
    # This is what makes it the chain nearest to the truth: no other chain, whatever its scores, is more likely.
    for sentence in shortest_sentences(flavour):
        table = table_of(sentence)
        projected = {y: oracle.chain_probability(table, y) for y in oracle.all_combinations(table)}
        assert math.isclose(sum(projected.values()), 1, abs_tol=1e-9)
        for i in range(1, len(sentence.units)):
            pairs = {y[i - 1 : i + 1] for y in projected}
            for pair in pairs:
                truth = sum(p for y, p in table.items() if y[i - 1 : i + 1] == pair)
                own = sum(p for y, p in projected.items() if y[i - 1 : i + 1] == pair)
                assert math.isclose(truth, own, abs_tol=1e-9)
        if [group.kind for group in sentence.groups] == ["adjacent"]:
            for labels, probability in projected.items():
                assert math.isclose(probability, table.get(labels, 0), abs_tol=1e-9)


@flavours
def test_decoders_agree_with_enumeration_of_whole_sentences(flavour: str) -> None:
    for sentence in shortest_sentences(flavour):
        table = table_of(sentence)
        for name, expected in (
            ("position_wise", oracle.argmax_sequence(table)),
            ("chain", oracle.chain_sequence(table)),
            ("joint", oracle.joint_sequence(table)),
        ):
            assert tuple(decode(sentence, flavour=FLAVOURS[flavour], decoder=name)) == expected


@flavours
def test_expected_scores_agree_with_enumeration(flavour: str) -> None:
    sentences = [*generate(flavour, 25, 10)]
    own = expected_scores(collect_facts(sentences, flavour=FLAVOURS[flavour]), flavour=FLAVOURS[flavour])
    tables = [table_of(sentence) for sentence in sentences]
    units = sum(len(sentence.units) for sentence in sentences)
    for decoder in ("position_wise", "chain", "joint"):
        predictions = [tuple(decode(s, flavour=FLAVOURS[flavour], decoder=decoder)) for s in sentences]
        counts = [oracle.expected_counts(t, y, typed=None) for t, y in zip(tables, predictions, strict=True)]
        assert own[decoder]["accuracy"] == pytest.approx(100 * sum(c["units"] for c in counts) / units)
        assert own[decoder]["exact_match"] == pytest.approx(100 * sum(c["exact"] for c in counts) / len(sentences))
        for metric, typed in FLAVOURS[flavour].span_metrics.items():
            spans = [oracle.expected_counts(t, y, typed=typed) for t, y in zip(tables, predictions, strict=True)]
            correct, both = sum(c["correct"] for c in spans), sum(c["predicted"] + c["gold"] for c in spans)
            assert own[decoder][metric] == pytest.approx(200 * correct / both)


@pytest.mark.parametrize(("flavour", "metric"), [(f.name, m) for f in FLAVOURS.values() for m in f.span_metrics])
def test_best_f1_is_the_best_of_all_sets_of_spans(flavour: str, metric: str) -> None:
    typed = FLAVOURS[flavour].span_metrics[metric]
    for sentence in shortest_sentences(flavour):
        probabilities: dict[tuple[int, int, str], float] = {}
        for labels, probability in table_of(sentence).items():
            for span in oracle.spans(labels, typed=typed):
                probabilities[span] = probabilities.get(span, 0) + probability
        facts = collect_facts([sentence], flavour=FLAVOURS[flavour])
        bound = expected_scores(facts, flavour=FLAVOURS[flavour])["bound"][metric]
        if not probabilities:
            assert bound is None
            continue
        gold = sum(probabilities.values())
        certain = [span for span, p in probabilities.items() if p > 1 - 1e-9]
        uncertain = [span for span in probabilities if span not in certain]
        best = 0.0
        for size in range(len(uncertain) + 1):
            for chosen in itertools.combinations(sorted(uncertain), size):
                if all(a[1] <= b[0] for a, b in itertools.pairwise(chosen)):
                    correct = len(certain) + sum(probabilities[span] for span in chosen)
                    best = max(best, 2 * correct / (len(certain) + size + gold))
        assert bound == pytest.approx(100 * best)


@flavours
def test_the_bound_is_above_every_decoder(flavour: str) -> None:
    for knobs in ((0.5, 0.5), (1, 0), (0, 1), (1, 1), (0, 0)):
        sentences = list(generate(flavour, 200, 11, adjacent=knobs[0], distant=knobs[1]))
        values = expected_scores(collect_facts(sentences, flavour=FLAVOURS[flavour]), flavour=FLAVOURS[flavour])
        for decoder, metric in itertools.product(("position_wise", "chain", "joint"), values["bound"]):
            value, bound = values[decoder][metric], values["bound"][metric]
            assert (value is None) == (bound is None)
            assert value is None or value <= bound + 1e-9
        if knobs == (0, 0):
            assert all(value in (None, 100.0) for scores in values.values() for value in scores.values())


def expected(flavour: str, adjacent: float, distant: float) -> dict[str, dict[str, float]]:
    sentences = list(generate(flavour, 300, 12, adjacent=adjacent, distant=distant))
    return expected_scores(collect_facts(sentences, flavour=FLAVOURS[flavour]), flavour=FLAVOURS[flavour])


@flavours
def test_position_wise_decoding_falls_short_on_the_adjacent_knob_and_a_chain_does_not(flavour: str) -> None:
    values = expected(flavour, 1, 0)
    assert values["position_wise"]["exact_match"] == 0
    assert values["position_wise"]["consistency_adjacent"] == 0
    assert values["chain"] == values["joint"]
    assert values["joint"]["exact_match"] == pytest.approx(44 if flavour == "seg-pos" else 40)
    assert values["joint"]["consistency_adjacent"] == 100
    if flavour == "ner":
        assert values["position_wise"]["f1"] < values["chain"]["f1"] - 1.5


@flavours
def test_a_chain_falls_short_on_the_distant_knob_as_far_as_position_wise_decoding(flavour: str) -> None:
    values = expected(flavour, 0, 1)
    assert values["chain"] == values["position_wise"]
    assert values["chain"]["exact_match"] == 0
    assert values["chain"]["consistency_distant"] == 0
    assert values["joint"]["exact_match"] == pytest.approx(40)
    assert values["joint"]["consistency_distant"] == 100
    for metric, least in (("f1", 20), ("seg_f1", 5), ("joint_f1", 5)):
        if metric in values["joint"]:
            assert values["chain"][metric] < values["joint"][metric] - least


@flavours
def test_scores_on_drawn_labels_come_near_their_expectation(flavour: str) -> None:
    sentences = list(generate(flavour, 2500, 13))
    drawn = realised_scores(sentences, flavour=FLAVOURS[flavour])
    values = expected_scores(collect_facts(sentences, flavour=FLAVOURS[flavour]), flavour=FLAVOURS[flavour])
    for decoder, scores in drawn.items():
        for metric, value in scores.items():
            assert value == pytest.approx(values[decoder][metric], abs=4 if metric == "exact_match" else 2)


@flavours
def test_consistency_counts_possible_patterns_by_kind(flavour: str) -> None:
    sentences = list(generate(flavour, 200, 14))
    groups = {kind: sum(g.kind == kind for s in sentences for g in s.groups) for kind in ("adjacent", "distant")}
    for labels_of, scores in (
        (lambda s: s.labels, {"adjacent": 100, "distant": 100}),
        (lambda s: decode(s, flavour=FLAVOURS[flavour], decoder="chain"), {"adjacent": 100, "distant": 0}),
        (lambda s: decode(s, flavour=FLAVOURS[flavour], decoder="position_wise"), {"adjacent": 0, "distant": 0}),
    ):
        totals = total_consistency(((s.units, labels_of(s)) for s in sentences), flavour=flavour)
        assert {kind: total.groups for kind, total in totals.items()} == groups
        assert {kind: total.percentage for kind, total in totals.items()} == scores
    plain = next(s for s in sentences if not s.groups)
    assert all(c.percentage is None for c in consistency(plain.units, plain.labels, flavour=flavour).values())
    # Another possible pattern than the one drawn is as consistent.
    one = next(s for s in sentences if [g.kind for g in s.groups] == ["distant"])
    for pattern in one.groups[0].patterns:
        labels = list(one.labels)
        for position, label in zip(one.groups[0].positions, pattern.labels, strict=True):
            labels[position] = label
        assert consistency(one.units, labels, flavour=flavour)["distant"].consistent == 1
