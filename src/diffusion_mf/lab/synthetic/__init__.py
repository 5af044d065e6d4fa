"""The synthetic corpus: invented languages whose labels depend on near or distant labels with known probabilities."""

from __future__ import annotations

from diffusion_mf.lab.synthetic.corpus import write_corpus
from diffusion_mf.lab.synthetic.flavours import FLAVOURS, generate
from diffusion_mf.lab.synthetic.grammar import DependentGroup, Flavour, Pattern, SyntheticSentence
from diffusion_mf.lab.synthetic.optimal import (
    Consistency,
    collect_facts,
    consistency,
    drawn_scores,
    expected_scores,
    find_groups,
    realised_scores,
    total_consistency,
)

__all__ = [
    "FLAVOURS",
    "Consistency",
    "DependentGroup",
    "Flavour",
    "Pattern",
    "SyntheticSentence",
    "collect_facts",
    "consistency",
    "drawn_scores",
    "expected_scores",
    "find_groups",
    "generate",
    "realised_scores",
    "total_consistency",
    "write_corpus",
]
