"""The table of systems: what each system of the paper is made of.

| structure of the output distribution | direct (one pass) | categorical diffusion |
|---|---|---|
| Unigram | unigram | diffusion-uni |
| Mean-Field approximation of a linear chain | mean-field | diffusion-mf |
| exact linear chain | lcrf | diffusion-lcrf |

DiffusionSL, the seventh, diffuses the bit codes of labels and has no structure. To add a system, enter it in `SYSTEMS`;
`docs/systems.md` has an example.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

from diffusion_mf.plugins import Table

Process = Literal["direct", "categorical", "bits"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ObjectiveWeights:
    """The weight of each term of the training objective (paper: table “Training objectives”); 0 leaves the term out."""

    denoising: int | float = 0.0
    """L_den: token cross-entropy of the marginals"""
    sequence: int | float = 0.0
    """L_seq: negative log-likelihood of the label sequence"""
    marginal: int | float = 0.0
    """L_marg: token cross-entropy under the exact marginals of a linear chain"""
    posterior: int | float = 0.0
    """L_post: the sampled term of the variational bound"""
    bits: int | float = 0.0
    """squared error of DiffusionSL's predicted bits"""
    auxiliary: int | float = 0.0
    """token cross-entropy of a scorer on the encoder's states, in addition to the denoiser (ours)"""
    teacher: int | float = 0.0
    """token cross-entropy against a teacher's marginals, in direct systems (ours)"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class System:
    """One system: a process, a structure, an objective, and the decoders that the paper tries for it."""

    name: str
    """the name in configuration files and on the command line"""
    title: str
    """the name in tables"""
    process: Process
    """direct: scores from encoder states; categorical: step-by-step denoising of labels; bits: DiffusionSL"""
    structure: str | None
    """a key of `structures.STRUCTURES`; None for bits"""
    weights: ObjectiveWeights
    plain_decoders: tuple[str, ...]
    """keys of `decoding.DECODERS`, for tasks without constraints (POS)"""
    constrained_decoders: tuple[str, ...]
    """the same for tasks with illegal sequences (NER, Chinese)"""

    @property
    def is_diffusion(self) -> bool:
        """Whether labels are denoised step by step."""
        return self.process != "direct"

    def decoders(self, *, is_constrained: bool, projection: Literal["native", "nearest"] = "native") -> tuple[str, ...]:
        """The candidate decoders, one of which is selected on dev (paper: table “Available final decoders”).

        With the ``nearest`` projection of bits, native thresholding is replaced by the argmax of the distance-based scores,
        that is, by the label with the nearest code.
        """
        names = self.constrained_decoders if is_constrained else self.plain_decoders
        return tuple("argmax" if name == "native" and projection == "nearest" else name for name in names)


_ARGMAX = {"plain_decoders": ("argmax",), "constrained_decoders": ("argmax", "mask-viterbi")}
_VITERBI = {"plain_decoders": ("viterbi",), "constrained_decoders": ("viterbi",)}
_NATIVE = {"plain_decoders": ("native",), "constrained_decoders": ("native", "mask-viterbi")}

SYSTEMS: Table[System] = Table(
    "system",
    {
        system.name: system
        for system in (
            System(
                name="unigram",
                title="Unigram",
                process="direct",
                structure="unigram",
                weights=ObjectiveWeights(denoising=1),
                **_ARGMAX,
            ),
            System(
                name="mean-field",
                title="Mean-Field",
                process="direct",
                structure="mean-field",
                weights=ObjectiveWeights(denoising=1),
                **_ARGMAX,
            ),
            System(
                name="lcrf",
                title="LCRF",
                process="direct",
                structure="linear-chain",
                weights=ObjectiveWeights(sequence=1),
                **_VITERBI,
            ),
            System(
                name="diffusion-uni",
                title="Diffusion-Uni",
                process="categorical",
                structure="unigram",
                weights=ObjectiveWeights(denoising=1, posterior=1),
                **_ARGMAX,
            ),
            System(
                name="diffusion-mf",
                title="Diffusion-MF",
                process="categorical",
                structure="mean-field",
                weights=ObjectiveWeights(denoising=1, posterior=1),
                **_ARGMAX,
            ),
            System(
                name="diffusion-lcrf",
                title="Diffusion-LCRF",
                process="categorical",
                structure="linear-chain",
                # The posterior weight is chosen on dev: 0 for POS, 0.1 for NER and Chinese (scratch).
                weights=ObjectiveWeights(sequence=1, marginal=1, posterior=0),
                **_VITERBI,
            ),
            System(
                name="diffusionsl",
                title="DiffusionSL",
                process="bits",
                structure=None,
                weights=ObjectiveWeights(bits=1),
                **_NATIVE,
            ),
        )
    },
)
