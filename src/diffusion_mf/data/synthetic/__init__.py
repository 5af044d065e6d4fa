"""The synthetic corpus: invented languages whose labels depend on each other, near by or far apart, by known odds."""

from diffusion_mf.data.synthetic.consistency import Consistency, consistency, find_groups, total_consistency
from diffusion_mf.data.synthetic.corpus import write_corpus
from diffusion_mf.data.synthetic.flavours import FLAVOURS, generate
from diffusion_mf.data.synthetic.grammar import Flavour, SyntheticSentence
from diffusion_mf.data.synthetic.groups import DependentGroup, Pattern
from diffusion_mf.data.synthetic.optimal import collect_facts, expected_scores, realised_scores

__all__ = [
    "FLAVOURS",
    "Consistency",
    "DependentGroup",
    "Flavour",
    "Pattern",
    "SyntheticSentence",
    "collect_facts",
    "consistency",
    "expected_scores",
    "find_groups",
    "generate",
    "realised_scores",
    "total_consistency",
    "write_corpus",
]
