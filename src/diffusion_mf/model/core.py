"""Between encoder states and labels: the interface `Core` of the processes, its inputs, random draws, losses and results."""

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
from diffusion_mf.errors import InputError
from diffusion_mf.ops.backends import Backend
from diffusion_mf.structures import STRUCTURES, InferenceSettings, LabelDistribution, Potentials
from diffusion_mf.systems import ObjectiveWeights


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Prediction:
    """The input for decoders, the probabilities to report, and the trajectory."""

    decoder_input: DecoderInput
    marginals: Float[Tensor, "B N K"]
    """ρ₀ of the last or the first call (``inference.scores_from``), or of a direct system; for bits, the softmax of
    the distance-based scores; 0 at padding"""
    num_calls: int
    """of the denoiser; 0 for direct systems"""
    trajectory: list[tuple[int, Float[Tensor, "B N K"]]] | None = None
    """(t reached, beliefs there) after every call, if requested; direct systems have none"""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class PredictionInput:
    """The input of `Core.predict`: encoder states and options, with all defaults resolved."""

    states: Float[Tensor, "*units D"]
    layout: Layout
    lengths: Int[Tensor, " B"]
    is_unit: Bool[Tensor, "B N"]
    content_keys: Int[Tensor, " B"]
    legality: Legality | None
    allowed: Bool[Tensor, "B N K"] | None
    num_calls: int | None
    base: int | float | None
    keep_trajectory: bool
    reading: Reading
    keep_first_marginals: bool
    others: Int[Tensor, "B N M"] | None = None
    """for recall (`batches.batching.Batch.others`)"""
    document_rows: Int[Tensor, " B"] | None = None

    @property
    def is_known(self) -> Bool[Tensor, "B N"] | None:
        """Positions where clamps leave a single label; the denoiser's flag marks them."""
        return None if self.allowed is None else (self.allowed.sum(-1) == 1) & self.is_unit


class Use(enum.IntEnum):
    """The purpose of a stream of random numbers; streams are independent."""

    TIMESTEP = 0
    LABEL_NOISE = 1
    BIT_NOISE = 2
    CLAMPS_OF_SENTENCES = 3
    CLAMPS_OF_LABELS = 4
    OWN_TRAJECTORY = 5
    NUM_OWN_CALLS = 6
    SELF_CONDITIONING = 7
    DDIM = 8
    SAMPLED_LABELS = 9
    CLAMPED_STEPS = 10
    CLAMPS_OF_STEP = 11


@dataclasses.dataclass(frozen=True)
class StepDraws:
    """Random numbers keyed by seed, step and sentence, independent of how sentences are split into batches."""

    seed: int
    step: int
    sentence_keys: Int[Tensor, " B"]
    device_step: Int[Tensor, ""] | None = None
    """the step as a tensor, where work is recorded once and replayed for other steps; the host's decisions are not recorded"""

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
        """One number from [0, 1) that all sentences of the step share; drawn on the host, for decisions of the host."""
        return random.Random(f"{use.name} {self.seed} {self.step}").random()

    def has_clamps(self, share: float) -> bool:
        """Whether labels are given in this step; the host decides it for all sentences.

        With recall, a document must often have no given label at all: that would never happen if each of its sentences decided.
        """
        return self.for_step(Use.CLAMPED_STEPS) < share

    def clamps(self, target: Target) -> Bool[Tensor, "B N"]:
        """Which labels are given in a step with clamps: what annotators may have confirmed, in whichever order they work.

        Of a sentence that is being worked on, these are all labels up to a random position, or each with the same probability
        u², u ~ U[0, 1]. With recall, where labels of other sentences matter, a share of the sentences is done, the same in the
        whole step, and half of the others have not been begun. Where annotators fix spans, they are given as a whole.

        None of this depends on what the model believes: if labels were given because the model has them wrong, the others would
        be those that it has right, and it would learn to stay with them.
        """
        num_units = target.labels.shape[1]
        choice = self.uniforms(Use.CLAMPS_OF_SENTENCES, (4,))
        is_before = (
            torch.arange(num_units, device=choice.device) < (choice[:, 1] * (target.lengths + 1))[:, None].floor()
        )
        is_drawn = self.uniforms(Use.CLAMPS_OF_LABELS, (num_units,)) < choice[:, 1, None].square()
        is_given = torch.where(choice[:, 0, None] < 0.5, is_before, is_drawn)
        if target.others is not None:
            of_step = torch.zeros(1, dtype=torch.int64, device=choice.device)
            progress = keyed_uniforms(of_step, (), seed=self.seed, step=self._step, stream=Use.CLAMPS_OF_STEP)
            is_given = (choice[:, 2] < progress)[:, None] | (is_given & (choice[:, 3, None] < 0.5))
        if target.is_continuation is not None:
            is_given = whole_spans(is_given & target.is_unit, target.is_continuation[target.labels])
        return is_given & target.is_unit


def whole_spans(is_given: Bool[Tensor, "B N"], is_continuation: Bool[Tensor, "B N"]) -> Bool[Tensor, "B N"]:
    """The positions of all spans that have a given one; ``is_continuation`` tells which belong to the span of the previous one."""
    spans = (~is_continuation).cumsum(1) - (~is_continuation[:, :1]).long()
    return torch.zeros_like(spans).scatter_reduce(1, spans, is_given.long(), "amax").gather(1, spans) > 0


_FACTOR = 0x5851F42D4C957F2D  # odd, with well-mixed bits


def content_keys(form_ids: Int[Tensor, "B N"], is_unit: Bool[Tensor, "B N"]) -> Int[Tensor, " B"]:
    """A number for each sentence that depends only on its forms: Σᵢ formᵢ·fⁱ⁺¹ modulo 2⁶⁴.

    It keys the noise of DDIM and the samples of the reverse process, so that a sentence gets the same labels in every batch.
    """
    powers = torch.full((form_ids.shape[1],), _FACTOR, device=form_ids.device, dtype=torch.int64).cumprod(0)
    return torch.where(is_unit, form_ids * powers, 0).sum(1)


TOTAL = "total"


class NoisyLabels(NamedTuple):
    """What L_post needs from the forward process."""

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
    """L_den, L_seq, L_marg and L_post, those with a non-zero weight; L_post only with noisy labels.

    L_den and L_marg are both −Σ log P(yᵢ): the table separates them because L_marg uses a linear chain's exact marginals.
    """
    terms: dict[str, Tensor] = {}
    if weights.denoising:
        terms["denoising"] = sum_over_units(token_cross_entropy(distribution.log_marginals(), labels), is_unit)
    if weights.marginal:
        terms["marginal"] = sum_over_units(token_cross_entropy(distribution.log_marginals(), labels), is_unit)
    if weights.posterior and noisy is not None:
        divergence = posterior_kl(noisy.process, distribution.log_marginals(), labels, noisy.labels, noisy.t)
        terms["posterior"] = sum_over_units(divergence, is_unit)
    if weights.sequence:
        # After the marginals: a linear chain's pass for them has found log Z, too.
        terms["sequence"] = sum_over_units(-distribution.log_prob(labels), is_unit[:, 0])
    return terms


class TeacherMarginals(nn.Module):
    """The marginals of a teacher for every unit of the training corpus, looked up by sentence index.

    They move with the model that learns from them, but are not saved with it.
    """

    marginals: Tensor
    starts: Tensor

    def __init__(self, marginals: Float[Tensor, "U K"], lengths: Sequence[int]) -> None:
        super().__init__()
        if sum(lengths) != len(marginals):
            raise ValueError(f"there are marginals for {len(marginals)} units, but {sum(lengths)} units")
        self.register_buffer("marginals", marginals, persistent=False)
        self.register_buffer("starts", torch.tensor([0, *accumulate(lengths)][:-1]), persistent=False)

    def forward(self, sentences: Int[Tensor, " B"], num_units: int) -> Float[Tensor, "B N K"]:
        """Those of some sentences; past a sentence's length, the marginals of other sentences."""
        places = self.starts[sentences][:, None] + torch.arange(num_units, device=self.starts.device)
        return self.marginals[places.clamp(max=len(self.marginals) - 1)]


class Target(NamedTuple):
    """The gold labels of a batch, and the layout of its units."""

    labels: Int[Tensor, "B N"]
    lengths: Int[Tensor, " B"]
    is_unit: Bool[Tensor, "B N"]
    layout: Layout
    teacher: Float[Tensor, "B N K"] | None = None
    """marginals of another model, to be learnt in addition to the labels"""
    others: Int[Tensor, "B N M"] | None = None
    """for recall (`batches.batching.Batch.others`)"""
    document_rows: Int[Tensor, " B"] | None = None
    is_continuation: Bool[Tensor, " K"] | None = None
    """the labels that continue a span, where annotators fix spans as a whole"""


def auxiliary_loss(scores: Float[Tensor, "*units K"], target: Target) -> Float[Tensor, ""]:
    """The cross-entropy of scores of the encoder's states, summed over units."""
    log_probs = target.layout.unpack(scores).log_softmax(-1)
    return sum_over_units(token_cross_entropy(log_probs, target.labels), target.is_unit)


class Core(nn.Module, abc.ABC):
    """A process and its structure, given encoder states of ``state_width``; ``backend`` is that of the structure."""

    process: CategoricalDiffusion | GaussianDiffusion | None = None
    """the noise, in diffusion systems"""
    codes: BitCodes | None = None
    """the codes of labels, in DiffusionSL"""

    def __init__(self, config: Config, *, num_labels: int, state_width: int, backend: Backend = "auto") -> None:
        super().__init__()
        self.config = config
        self.num_labels = num_labels
        self.backend: Backend = backend
        self.weights = config.weights

    def choice(self, draws: StepDraws) -> Hashable:
        """What the host decides for a whole step: steps with the same choice do the same work."""
        return None

    @abc.abstractmethod
    def loss_terms(self, states: Float[Tensor, "*units D"], target: Target, draws: StepDraws) -> dict[str, Tensor]:
        """The terms of the objective, each a sum over the batch's units."""

    @abc.abstractmethod
    def predict(self, inputs: PredictionInput) -> Prediction:
        """The decoder input and the marginals."""


class StructuredCore(Core):
    """A core whose output distribution is one of the structures."""

    def __init__(self, config: Config, *, num_labels: int, state_width: int, backend: Backend = "auto") -> None:
        super().__init__(config, num_labels=num_labels, state_width=state_width, backend=backend)
        name = config.system_entry.structure
        if name is None:
            raise ValueError(f"the process of {config.system} needs a structure")
        if name not in STRUCTURES:
            raise InputError(
                f"the system {config.system} needs the structure {name!r}, which nothing adds",
                remedy="enter it in STRUCTURES before the system is used",
            )
        self.structure = STRUCTURES[name]
        # Checking the scores would wait for the device at every call.
        self.settings = InferenceSettings(num_iterations=config.structure.num_iterations, backend=backend, check=False)

    def distribution(
        self, potentials: Potentials, lengths: Int[Tensor, " B"], allowed: Bool[Tensor, "B N K"] | None = None
    ) -> LabelDistribution:
        """The distribution over label sequences, conditional on the clamps ``allowed`` if given."""
        # Filler rows have no units, but structures expect sentences of at least one.
        lengths = lengths.clamp(min=1)
        return self.structure.from_potentials(potentials, lengths, allowed=allowed, settings=self.settings)
