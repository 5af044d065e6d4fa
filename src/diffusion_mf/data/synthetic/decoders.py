"""The best each family of models can do with a dependent group, given the true distribution.

| decoder | takes | is what is learnt by |
|---|---|---|
| position_wise | argmax of every true marginal | any model of independent positions (Unigram) trained to likelihood |
| chain | Viterbi on the first-order chain nearest to the truth | a linear-chain CRF with free local scores |
| joint | the most probable pattern | a model of the whole group |

Nearest means the chain of least KL(truth ‖ chain), which is what likelihood training tends to. With scores that may depend
on the position and on all units, its solution is known: the chain that has the true marginals of all single labels and of all
pairs of neighbours, p(y₁) Π p(yᵢ₊₁ | yᵢ). Certain labels between two slots cut it, so each slot is decoded by itself.
"""

from __future__ import annotations

import functools
import math
from collections import defaultdict
from collections.abc import Callable, Sequence

from diffusion_mf.data.synthetic.grammar import Flavour, SyntheticSentence
from diffusion_mf.data.synthetic.groups import GroupTemplate, Pattern

Decoder = Callable[[GroupTemplate], tuple[str, ...]]


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
    """The most probable label at every position, by itself."""
    return tuple(max(table, key=table.__getitem__) for table in marginals(template.patterns))


def joint(template: GroupTemplate) -> tuple[str, ...]:
    """The most probable pattern."""
    return max(template.patterns, key=lambda pattern: pattern.probability).labels


def chain(template: GroupTemplate) -> tuple[str, ...]:
    """Viterbi, slot by slot, on the first-order chain nearest to the truth."""
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


DECODERS: dict[str, Decoder] = {"position_wise": position_wise, "chain": chain, "joint": joint}


@functools.cache
def group_predictions(flavour: Flavour, decoder: str) -> dict[str, tuple[str, ...]]:
    """What a decoder of `DECODERS` says about the groups of each kind; the same for all of them, as their tables are."""
    return {kind: DECODERS[decoder](template) for kind, template in flavour.templates.items()}


def decode(sentence: SyntheticSentence, *, flavour: Flavour, decoder: str) -> list[str]:
    """What a decoder that knows the true distribution says about a sentence; labels outside groups are certain."""
    labels = list(sentence.labels)
    for group in sentence.groups:
        for position, label in zip(group.positions, group_predictions(flavour, decoder)[group.kind], strict=True):
            labels[position] = label
    return labels
