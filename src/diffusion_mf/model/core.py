"""What stands between encoder states and labels: the contract of the three processes."""

from __future__ import annotations

import abc
from collections.abc import Hashable
from typing import NamedTuple

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from diffusion_mf.config import Config
from diffusion_mf.diffusion import BitCodes, CategoricalDiffusion, GaussianDiffusion
from diffusion_mf.layouts import Layout
from diffusion_mf.model.draws import StepDraws
from diffusion_mf.model.prediction import Prediction, Request
from diffusion_mf.structures import STRUCTURES, InferenceSettings, LabelDistribution, Potentials


class Target(NamedTuple):
    """What a batch is to be labelled with, and how its units lie."""

    labels: Int[Tensor, "B N"]
    lengths: Int[Tensor, "B"]
    is_unit: Bool[Tensor, "B N"]
    layout: Layout
    teacher: Float[Tensor, "B N K"] | None = None
    """marginals of another model, to be learnt beside the labels"""
    others: Int[Tensor, "B N M"] | None = None
    """for recall (`data.batching.Batch.others`)"""


class Core(nn.Module, abc.ABC):
    """A process and its structure, for given encoder states."""

    process: CategoricalDiffusion | GaussianDiffusion | None = None
    """the noise, in diffusion systems"""
    codes: BitCodes | None = None
    """the codes of labels, in DiffusionSL"""

    def __init__(self, config: Config, *, num_labels: int, state_width: int) -> None:
        super().__init__()
        self.config = config
        self.num_labels = num_labels
        self.state_width = state_width
        self.weights = config.weights

    def choice(self, draws: StepDraws) -> Hashable:
        """What the host decides for a whole step: steps of the same choice do the same work."""
        return None

    @abc.abstractmethod
    def loss_terms(
        self,
        states: Float[Tensor, "*units D"],
        target: Target,
        draws: StepDraws,
    ) -> dict[str, Tensor]:
        """The terms of the objective, each a sum over the batch's units."""

    @abc.abstractmethod
    def predict(self, request: Request) -> Prediction:
        """Evidence and marginals."""


class StructuredCore(Core):
    """A core whose output distribution is one of the structures."""

    def __init__(self, config: Config, *, num_labels: int, state_width: int) -> None:
        super().__init__(config, num_labels=num_labels, state_width=state_width)
        name = config.system_entry.structure
        if name is None:
            raise ValueError(f"the process of {config.system} needs a structure")
        self.structure = STRUCTURES[name]
        # Looking for bad scores would wait for the device at every call.
        self.settings = InferenceSettings(num_iterations=config.structure.num_iterations, check=False)

    def distribution(
        self, potentials: Potentials, lengths: Int[Tensor, "B"], allowed: Bool[Tensor, "B N K"] | None = None
    ) -> LabelDistribution:
        """The distribution over label sequences; given ``allowed``, conditional on the clamps."""
        # A row that only fills a batch has no units; structures know no such sentence.
        lengths = lengths.clamp(min=1)
        return self.structure.from_potentials(potentials, lengths, allowed=allowed, settings=self.settings)
