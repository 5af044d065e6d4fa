"""What stands between encoder states and labels: the contract `Core` of the processes, its requests, draws, losses, predictions."""

from __future__ import annotations

import abc
import dataclasses
import enum
import random
from collections.abc import Hashable, Sequence
from itertools import accumulate
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from diffusion_mf.batches.layouts import Layout
from diffusion_mf.config import Config
from diffusion_mf.decoding import DecoderInput, Legality
from diffusion_mf.diffusion import (
    BitCodes,
    CategoricalDiffusion,
    GaussianDiffusion,
    Reading,
    keyed_normals,
    keyed_uniforms,
    posterior_kl,
    sum_over_units,
    token_cross_entropy,
)
from diffusion_mf.ops.backends import Backend
from diffusion_mf.structures import STRUCTURES, InferenceSettings, LabelDistribution, Potentials
from diffusion_mf.systems import ObjectiveWeights


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Prediction:
    """DecoderInput for decoders, probabilities to report, and how they came about."""

    decoder_input: DecoderInput
    marginals: Float[Tensor, "B N K"]
    """ρ₀ of the last call, or the first (``inference.scores_from``); of a direct system's only one; with bits the softmax of
    the distance-based scores; 0 at padding"""
    num_calls: int
    """of the denoiser; 0 for direct systems"""
    trajectory: list[tuple[int, Float[Tensor, "B N K"]]] | None = None
    """(t reached, beliefs there) after every call, if it was asked for; direct systems have none"""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class PredictionInput:
    """What `Labeller.predict` was asked for, settled: nothing here is left to a default."""

    states: Float[Tensor, "*units D"]
    layout: Layout
    lengths: Int[Tensor, " B"]
    is_unit: Bool[Tensor, "B N"]
    content_keys: Int[Tensor, " B"]
    legality: Legality | None
    allowed: Bool[Tensor, "B N K"] | None
    num_calls: int | None
    base: int | float | None
    exit_tolerance: int | float | None
    keep_trajectory: bool
    reading: Reading
    keep_first_marginals: bool
    others: Int[Tensor, "B N M"] | None = None
    """for recall (`batches.batching.Batch.others`)"""
    document_rows: Int[Tensor, " B"] | None = None

    @property
    def is_known(self) -> Bool[Tensor, "B N"] | None:
        """Where clamps leave one label: the positions that the denoiser's flag marks."""
        return None if self.allowed is None else (self.allowed.sum(-1) == 1) & self.is_unit


class Use(enum.IntEnum):
    """What a stream of numbers is for; streams are independent."""

    TIMESTEP = 0
    LABEL_NOISE = 1
    BIT_NOISE = 2
    CLAMPED_SENTENCES = 3
    CLAMPED_LABELS = 4
    OWN_TRAJECTORY = 5
    NUM_OWN_CALLS = 6
    SELF_CONDITIONING = 7
    DDIM = 8
    SAMPLED_LABELS = 9


@dataclasses.dataclass(frozen=True)
class StepDraws:
    """Numbers keyed by seed, step and sentence: how a step's sentences are split into batches changes none of them."""

    seed: int
    step: int
    sentence_keys: Int[Tensor, " B"]
    device_step: Int[Tensor, ""] | None = None
    """the step again, where work is recorded once and replayed for other steps; decisions of the host are not recorded"""

    def uniforms(self, use: Use, shape: tuple[int, ...]) -> Float[Tensor, "B ..."]:
        """From [0, 1), (B, *shape)."""
        return keyed_uniforms(self.sentence_keys, shape, seed=self.seed, step=self._step, stream=use)

    def normals(self, use: Use, shape: tuple[int, ...]) -> Float[Tensor, "B ..."]:
        """Standard normal, (B, *shape)."""
        return keyed_normals(self.sentence_keys, shape, seed=self.seed, step=self._step, stream=use)

    @property
    def _step(self) -> int | Tensor:
        return self.step if self.device_step is None else self.device_step

    def for_step(self, use: Use) -> float:
        """One number from [0, 1) that all sentences of the step share; made on the host, for decisions of the host."""
        return random.Random(f"{use.name} {self.seed} {self.step}").random()

    def clamps(self, share: float, num_units: int) -> Bool[Tensor, "B N"] | None:
        """Which labels are given: in a ``share`` of the sentences, a part of them, itself uniform; None if share is 0."""
        if share == 0:
            return None
        choice = self.uniforms(Use.CLAMPED_SENTENCES, (2,))
        part = torch.where(choice[:, 0] < share, choice[:, 1], 0.0)
        return self.uniforms(Use.CLAMPED_LABELS, (num_units,)) < part[:, None]


_FACTOR = 0x5851F42D4C957F2D  # odd, with well-mixed bits


def content_keys(form_ids: Int[Tensor, "B N"], is_unit: Bool[Tensor, "B N"]) -> Int[Tensor, " B"]:
    """A number for each sentence from its forms alone: Σᵢ formᵢ·fⁱ⁺¹ modulo 2⁶⁴.

    It keys the noise of DDIM and the samples of the reverse process at inference, so that a sentence gets the same labels in every batch.
    """
    powers = torch.full((form_ids.shape[1],), _FACTOR, device=form_ids.device, dtype=torch.int64).cumprod(0)
    return torch.where(is_unit, form_ids * powers, 0).sum(1)


TOTAL = "total"


class NoisyLabels(NamedTuple):
    """What L_post needs to know of the forward process."""

    process: CategoricalDiffusion
    labels: Int[Tensor, "B N"]
    """y^t ~ q(y^t | y⁰)"""
    t: Int[Tensor, " B"]


def structured_terms(
    distribution: LabelDistribution,
    labels: Int[Tensor, "B N"],
    is_unit: Bool[Tensor, "B N"],
    weights: ObjectiveWeights,
    *,
    noisy: NoisyLabels | None = None,
) -> dict[str, Tensor]:
    """L_den, L_seq, L_marg and L_post where their weight is not 0; L_post only where there are noisy labels.

    L_den and L_marg are both −Σ log P(yᵢ): the table keeps them apart because L_marg takes a linear chain's exact marginals.
    """
    terms: dict[str, Tensor] = {}
    if weights.denoising:
        terms["denoising"] = sum_over_units(token_cross_entropy(distribution.log_marginals(), labels), is_unit)
    if weights.sequence:
        terms["sequence"] = sum_over_units(-distribution.log_prob(labels), is_unit[:, 0])
    if weights.marginal:
        terms["marginal"] = sum_over_units(token_cross_entropy(distribution.log_marginals(), labels), is_unit)
    if weights.posterior and noisy is not None:
        divergence = posterior_kl(noisy.process, distribution.log_marginals(), labels, noisy.labels, noisy.t)
        terms["posterior"] = sum_over_units(divergence, is_unit)
    return terms


class TeacherMarginals(nn.Module):
    """The marginals of a teacher for every unit of the training corpus, found again by the index of a sentence.

    They move with the model that learns from them, and are not saved with it.
    """

    marginals: Tensor
    starts: Tensor

    def __init__(self, marginals: Float[Tensor, "U K"], lengths: Sequence[int]) -> None:
        super().__init__()
        if sum(lengths) != len(marginals):
            raise ValueError(f"there are marginals of {len(marginals)} units for {sum(lengths)}")
        self.register_buffer("marginals", marginals, persistent=False)
        self.register_buffer("starts", torch.tensor([0, *accumulate(lengths)][:-1]), persistent=False)

    def forward(self, sentences: Int[Tensor, " B"], num_units: int) -> Float[Tensor, "B N K"]:
        """Those of some sentences; past a sentence's length stands what belongs to others."""
        places = self.starts[sentences][:, None] + torch.arange(num_units, device=self.starts.device)
        return self.marginals[places.clamp(max=len(self.marginals) - 1)]


class Target(NamedTuple):
    """What a batch is to be labelled with, and how its units lie."""

    labels: Int[Tensor, "B N"]
    lengths: Int[Tensor, " B"]
    is_unit: Bool[Tensor, "B N"]
    layout: Layout
    teacher: Float[Tensor, "B N K"] | None = None
    """marginals of another model, to be learnt beside the labels"""
    others: Int[Tensor, "B N M"] | None = None
    """for recall (`batches.batching.Batch.others`)"""


class Core(nn.Module, abc.ABC):
    """A process and its structure, for given encoder states; ``backend`` says how the structure is computed."""

    process: CategoricalDiffusion | GaussianDiffusion | None = None
    """the noise, in diffusion systems"""
    codes: BitCodes | None = None
    """the codes of labels, in DiffusionSL"""

    def __init__(self, config: Config, *, num_labels: int, state_width: int, backend: Backend = "auto") -> None:
        super().__init__()
        self.config = config
        self.num_labels = num_labels
        self.state_width = state_width
        self.backend: Backend = backend
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
    def predict(self, inputs: PredictionInput) -> Prediction:
        """DecoderInput and marginals."""


class StructuredCore(Core):
    """A core whose output distribution is one of the structures."""

    def __init__(self, config: Config, *, num_labels: int, state_width: int, backend: Backend = "auto") -> None:
        super().__init__(config, num_labels=num_labels, state_width=state_width, backend=backend)
        name = config.system_entry.structure
        if name is None:
            raise ValueError(f"the process of {config.system} needs a structure")
        self.structure = STRUCTURES[name]
        # Looking for bad scores would wait for the device at every call.
        self.settings = InferenceSettings(num_iterations=config.structure.num_iterations, backend=backend, check=False)

    def distribution(
        self, potentials: Potentials, lengths: Int[Tensor, " B"], allowed: Bool[Tensor, "B N K"] | None = None
    ) -> LabelDistribution:
        """The distribution over label sequences; given ``allowed``, conditional on the clamps."""
        # A row that only fills a batch has no units; structures know no such sentence.
        lengths = lengths.clamp(min=1)
        return self.structure.from_potentials(potentials, lengths, allowed=allowed, settings=self.settings)
