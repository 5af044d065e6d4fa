"""Encoder and core in one module: losses for training, predictions for inference."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable
from pathlib import Path

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from diffusion_mf.batches.batching import Batch, PrepareInput
from diffusion_mf.batches.layouts import Layout
from diffusion_mf.batches.vocabulary import Vocabulary
from diffusion_mf.config import Config
from diffusion_mf.config.sections import InferenceConfig
from diffusion_mf.data.corpus import Task
from diffusion_mf.data.label_schemes import LabelScheme
from diffusion_mf.decoding import Legality
from diffusion_mf.diffusion import (
    BitCodes,
    CategoricalDiffusion,
    GaussianDiffusion,
)
from diffusion_mf.model.bits import BitsCore
from diffusion_mf.model.categorical import CategoricalCore
from diffusion_mf.model.core import (
    TOTAL,
    Core,
    Prediction,
    PredictionInput,
    StepDraws,
    Target,
    TeacherMarginals,
    auxiliary_loss,
    content_keys,
)
from diffusion_mf.model.direct import DirectCore
from diffusion_mf.networks.encoders import build_encoder
from diffusion_mf.networks.recall import RecalledStates
from diffusion_mf.networks.scorers import ScoringMLP
from diffusion_mf.ops.backends import Backend
from diffusion_mf.ops.chain_scores import unit_mask
from diffusion_mf.systems import Process

CORES: dict[Process, type[Core]] = {"direct": DirectCore, "categorical": CategoricalCore, "bits": BitsCore}


class Labeller(nn.Module):
    """A system of the table, ready to be trained or used.

    It consists of ``encoder`` and ``core``; the encoder runs once per sentence, whatever the number of denoiser calls. Scores
    and everything after them are float32, even under autocast. ``backend`` selects the implementation of the structure.
    """

    legal_transitions: Tensor
    legal_starts: Tensor
    legal_ends: Tensor

    def __init__(
        self,
        config: Config,
        vocabulary: Vocabulary,
        scheme: LabelScheme,
        *,
        encoder_files: Path | None = None,
        backend: Backend = "auto",
    ) -> None:
        super().__init__()
        self.config = config
        self.scheme = scheme
        self.num_labels = len(vocabulary.labels)
        self.encoder = build_encoder(config.encoder, vocabulary, files=encoder_files)
        state_width = self.encoder.width
        self.core = CORES[config.system_entry.process](
            config, num_labels=self.num_labels, state_width=state_width, backend=backend
        )
        self.recall = RecalledStates(config.encoder, state_width) if config.encoder.recall else None
        self.auxiliary: ScoringMLP | None = None
        if config.weights.auxiliary and config.system_entry.is_diffusion and not config.has_state_scores:
            self.auxiliary = ScoringMLP(state_width, self.num_labels, config.structure)
        self.teacher: TeacherMarginals | None = None
        legality = Legality.of_scheme(vocabulary.labels, scheme)
        # They move with the model to its device, and follow from the labels: no need to save them.
        self.register_buffer("legal_transitions", legality.transitions, persistent=False)
        self.register_buffer("legal_starts", legality.starts, persistent=False)
        self.register_buffer("legal_ends", legality.ends, persistent=False)

    @property
    def legality(self) -> Legality | None:
        """The constraints of the label scheme, on the model's device; None if it allows everything."""
        if self.scheme is LabelScheme.PLAIN:
            return None
        return Legality(self.legal_transitions, self.legal_starts, self.legal_ends)

    @property
    def process(self) -> CategoricalDiffusion | GaussianDiffusion | None:
        """The noise; None for direct systems."""
        return self.core.process

    @property
    def codes(self) -> BitCodes | None:
        """DiffusionSL's codes; None for other systems."""
        return self.core.codes

    @property
    def decoders(self) -> tuple[str, ...]:
        """The candidate decoders for selection on dev."""
        return self.config.system_entry.decoders(
            is_constrained=self.scheme is not LabelScheme.PLAIN, projection=self.config.bits.projection
        )

    @property
    def prepare_input(self) -> PrepareInput | None:
        """What the encoder does when a batch is collated."""
        return self.encoder.prepare_input

    def num_parameters(self) -> int:
        """The number of trained parameters."""
        return sum(parameter.numel() for parameter in self.parameters())

    def choice(self, *, seed: int, step: int) -> Hashable:
        """What the host decides for a step: `loss_sums` does the same work in steps with the same choice."""
        return self.core.choice(StepDraws(seed, step, torch.empty(0, dtype=torch.int64)))

    def loss_sums(
        self,
        batch: Batch,
        *,
        seed: int,
        step: int,
        sentence_keys: Int[Tensor, " B"],
        device_step: Int[Tensor, ""] | None = None,
    ) -> dict[str, Tensor]:
        """Every term of the objective as a sum over units, and their weighted sum ``total``.

        The caller divides by the units of the global batch. Timesteps, noise and clamps are keyed by (seed, step, sentence);
        dropout uses torch's generator. Nothing here waits for the device. ``device_step`` replaces ``step`` where the
        work is recorded for other steps with the same `choice`.
        """
        if batch.label_ids is None:
            raise ValueError("losses need labels")
        layout, is_unit = batch.layout, unit_mask(batch.lengths, batch.form_ids.shape[1])
        states = self._states(batch, layout)
        draws = StepDraws(seed, step, sentence_keys.to(batch.lengths.device, non_blocking=True), device_step)
        taught = None if self.teacher is None else self.teacher(draws.sentence_keys, batch.form_ids.shape[1])
        # In the schemes of spans, the labels that cannot begin a sentence are those inside and at the end of a span.
        is_continuation = ~self.legal_starts if self.config.task is Task.NER else None
        target = Target(
            batch.label_ids,
            batch.lengths,
            is_unit,
            layout,
            teacher=taught,
            others=batch.others,
            document_rows=batch.document_rows,
            is_continuation=is_continuation,
        )
        terms = self.core.loss_terms(states, target, draws)
        if self.auxiliary is not None:
            terms["auxiliary"] = auxiliary_loss(self.auxiliary(states), target)
        weight_of = dataclasses.asdict(self.config.weights)
        terms[TOTAL] = torch.stack([weight_of[name] * value for name, value in terms.items()]).sum()
        return terms

    def _states(self, batch: Batch, layout: Layout) -> Float[Tensor, "*units D"]:
        states = self.encoder(batch, layout)
        if self.recall is None:
            return states
        if batch.others is None:
            raise ValueError("an encoder with recall needs the other occurrences of each unit")
        return self.recall(states, batch.others, layout)

    forward = loss_sums
    """for code that calls modules, such as `torch.func.functional_call`"""

    @torch.no_grad()
    def predict(
        self,
        batch: Batch,
        *,
        num_calls: int | None = None,
        allowed: Bool[Tensor, "B N K"] | None = None,
        keep_trajectory: bool = False,
        settings: InferenceConfig | None = None,
    ) -> Prediction:
        """The prediction for a batch, from which decoders decide on labels; call `eval` first.

        ``num_calls`` takes the place of the schedule in ``settings`` (default: the configuration). ``allowed`` clamps labels; decoders
        then check that a legal sequence exists. Nothing waits for the device.
        """
        if self.training:
            raise RuntimeError("predict would use dropout: call eval() first")
        settings = settings or self.config.inference
        layout, is_unit = batch.layout, unit_mask(batch.lengths, batch.form_ids.shape[1])
        num_calls, base = settings.calls_and_base(num_calls)
        inputs = PredictionInput(
            states=self._states(batch, layout),
            layout=layout,
            # Filler rows have no units, but structures and decoders expect sentences of at least one.
            lengths=batch.lengths.clamp(min=1),
            is_unit=is_unit,
            content_keys=content_keys(batch.form_ids, is_unit),
            legality=self.legality,
            allowed=allowed,
            num_calls=num_calls,
            base=base,
            keep_trajectory=keep_trajectory,
            reading=settings.posterior,
            keep_first_marginals=settings.scores_from == "first",
            others=batch.others,
            document_rows=batch.document_rows,
        )
        return self.core.predict(inputs)


def count_parameters(config: Config, vocabulary: Vocabulary, scheme: LabelScheme) -> int:
    """The number of parameters, without allocating or initialising them."""
    with torch.device("meta"):
        return Labeller(config, vocabulary, scheme).num_parameters()
