"""Distributions over label sequences: the rows of the paper's grid, behind one interface.

To add a structure, subclass `LabelDistribution` (or `Factorised`) and enter it in `STRUCTURES`, where systems look it up
by name. `docs/structures.md` has an example.
"""

from diffusion_mf.plugins import Table
from diffusion_mf.structures.crf import CRF, Constraints
from diffusion_mf.structures.distribution import Factorised, InferenceSettings, LabelDistribution, Potentials
from diffusion_mf.structures.linear_chain import LinearChain
from diffusion_mf.structures.mean_field import MeanField
from diffusion_mf.structures.unigram import Unigram

STRUCTURES: Table[type[LabelDistribution]] = Table(
    "structure", {"unigram": Unigram, "mean-field": MeanField, "linear-chain": LinearChain}
)

__all__ = [
    "CRF",
    "STRUCTURES",
    "Constraints",
    "Factorised",
    "InferenceSettings",
    "LabelDistribution",
    "LinearChain",
    "MeanField",
    "Potentials",
    "Unigram",
]
