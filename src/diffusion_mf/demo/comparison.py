"""The systems of the demonstration side by side, and beside what can be reached at all."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from diffusion_mf.data.synthetic import FLAVOURS, SyntheticSentence, realised_scores, total_consistency
from diffusion_mf.tagger import TaggedSentence

METRICS = {
    "accuracy": "accuracy",
    "exact_match": "exact match",
    "consistency_adjacent": "consistent, adjacent",
    "consistency_distant": "consistent, distant",
}
"""the scores of a row and their titles"""

# What each system could reach if it learnt the corpus perfectly: the names of `data.synthetic.decoders`.
_LIMITS = {"unigram": "position_wise", "lcrf": "chain", "diffusion-mf": "joint"}


class ComparisonRow(NamedTuple):
    """A system's scores in per cent, and those of a decoder that knows the true distribution of labels."""

    system: str
    scores: Mapping[str, float | None]
    limits: Mapping[str, float | None]


def system_scores(
    sentences: Sequence[SyntheticSentence], results: Iterable[TaggedSentence], *, flavour: str
) -> dict[str, float | None]:
    """Accuracy, exact match and consistency of predicted labels, under the names of `METRICS`."""
    predicted = [result.labels for result in results]
    pairs = list(zip(sentences, predicted, strict=True))
    num_right = sum(sum(map(str.__eq__, sentence.labels, labels)) for sentence, labels in pairs)
    num_exact = sum(list(sentence.labels) == labels for sentence, labels in pairs)
    consistency = total_consistency([(sentence.units, labels) for sentence, labels in pairs], flavour=flavour)
    return {
        "accuracy": 100 * num_right / sum(len(sentence.units) for sentence in sentences),
        "exact_match": 100 * num_exact / len(sentences),
        **{f"consistency_{kind}": counts.percentage for kind, counts in consistency.items()},
    }


def compare(
    sentences: Sequence[SyntheticSentence], results: Mapping[str, Iterable[TaggedSentence]], *, flavour: str
) -> list[ComparisonRow]:
    """A row for every system of ``results``."""
    limits: Mapping[str, Any] = realised_scores(sentences, flavour=FLAVOURS[flavour])
    return [
        ComparisonRow(
            system,
            system_scores(sentences, tagged, flavour=flavour),
            {metric: limits[_LIMITS[system]][metric] for metric in METRICS},
        )
        for system, tagged in results.items()
    ]
