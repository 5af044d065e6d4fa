"""The second column of the grid: discrete diffusion with a structure inside every denoising call."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from diffusion_mf.batches.layouts import Layout
from diffusion_mf.config import Config
from diffusion_mf.decoding import DecoderInput
from diffusion_mf.diffusion import CategoricalDiffusion, Denoised, Reading, draw, one_hot, restrict, reverse_diffusion
from diffusion_mf.model.core import (
    NoisyLabels,
    Prediction,
    PredictionInput,
    StepDraws,
    StructuredCore,
    Target,
    Use,
    auxiliary_loss,
    structured_terms,
)
from diffusion_mf.networks.denoisers import Conditions, LabelDenoiser
from diffusion_mf.networks.scorers import Scorer, ScoringMLP
from diffusion_mf.ops.backends import Backend
from diffusion_mf.structures import Potentials


class CategoricalChoice(NamedTuple):
    """What the host decides for a step."""

    num_calls: int | None
    """that lead to the model's own beliefs; None for a step on noisy gold labels"""
    has_clamps: bool


class CategoricalCore(StructuredCore):
    """Diffusion-Uni, Diffusion-MF and Diffusion-LCRF (paper: “Discrete Diffusion Models for Labelling”)."""

    process: CategoricalDiffusion

    def __init__(self, config: Config, *, num_labels: int, state_width: int, backend: Backend = "auto") -> None:
        super().__init__(config, num_labels=num_labels, state_width=state_width, backend=backend)
        diffusion = config.diffusion
        with torch.device("cpu"):  # the tables belong on the host, even where parameters are only counted
            self.process = CategoricalDiffusion(
                num_labels,
                diffusion.num_steps,
                cosine_power=diffusion.cosine_power,
                cosine_offset=diffusion.cosine_offset,
            )
        self.denoiser = LabelDenoiser(
            config.denoiser,
            num_labels=num_labels,
            state_width=state_width,
            sees_clamps=diffusion.clamp_share > 0,
            state_scorer=ScoringMLP(state_width, num_labels, config.structure) if config.has_state_scores else None,
        )
        self.scorer = Scorer(config.denoiser.width, num_labels, config.structure, self.structure)
        if config.has_state_scores:
            for parameter in self.scorer.unary[-1].parameters():
                nn.init.zeros_(parameter)

    def potentials(
        self,
        beliefs: Float[Tensor, "B N K"],
        t: Int[Tensor, " b"],
        conditions: Conditions,
        layout: Layout,
        is_known: Bool[Tensor, "B N"] | None = None,
        others: Int[Tensor, "B N M"] | None = None,
    ) -> Potentials:
        """One call of the network: scores given beliefs about y^t, without the structure."""
        potentials = self.scorer(self.denoiser(beliefs, t, conditions, layout, is_known, others), layout)
        if conditions.scores is None:
            return potentials
        return potentials._replace(unary_scores=potentials.unary_scores + layout.unpack(conditions.scores))

    def choice(self, draws: StepDraws) -> CategoricalChoice:
        """How a step begins, and whether labels are given."""
        diffusion = self.config.diffusion
        has_clamps = draws.has_clamps(diffusion.clamp_share)
        if not diffusion.own_trajectory_share or draws.for_step(Use.OWN_TRAJECTORY) >= diffusion.own_trajectory_share:
            return CategoricalChoice(None, has_clamps)
        num_calls = int(draws.for_step(Use.NUM_OWN_CALLS) * (diffusion.own_trajectory_calls + 1))
        return CategoricalChoice(num_calls, has_clamps)

    def loss_terms(self, states: Float[Tensor, "*units D"], target: Target, draws: StepDraws) -> dict[str, Tensor]:
        """L_den + λ·L_post, or L_seq + L_marg + λ·L_post, at one t per sentence.

        Departures from the paper, off by default: given labels (`StepDraws.clamps`) have no noise, are flagged and conditioned
        on, so that they add nothing to the loss; a share of the steps continues from the model's own beliefs, without L_post,
        which needs samples of the forward process.
        """
        labels, is_unit = target.labels, target.is_unit
        conditions = self.denoiser.prepare(states)
        num_calls, has_clamps = self.choice(draws)
        is_given = allowed = None
        if has_clamps:
            is_given = draws.clamps(target)
            allowed = ~is_given[..., None] | (one_hot(labels, self.num_labels) > 0)
            conditions = self._with_known(conditions, allowed, is_given, target)
        noisy: NoisyLabels | None = None
        if num_calls is not None:
            beliefs, t = self._own_beliefs(num_calls, conditions, target, allowed, is_given, draws)
        else:
            t = self.process.sample_timesteps(len(labels), uniforms=draws.uniforms(Use.TIMESTEP, ()))
            # Two numbers per unit, in this order, so that more padding changes none of them.
            uniforms = draws.uniforms(Use.LABEL_NOISE, (labels.shape[1], 2)).movedim(-1, 0)
            y_t = self.process.sample(labels, t, uniforms=uniforms)
            if is_given is not None:
                y_t = torch.where(is_given, labels, y_t)
            noisy = NoisyLabels(self.process, y_t, t)
            beliefs = one_hot(y_t, self.num_labels)
        potentials = self.potentials(beliefs, t, conditions, target.layout, is_given, target.others)
        distribution = self.distribution(potentials, target.lengths, allowed)
        terms = structured_terms(distribution, labels, is_unit, self.weights, noisy=noisy)
        if conditions.scores is not None and self.weights.auxiliary:
            terms["auxiliary"] = auxiliary_loss(conditions.scores, target)
        return terms

    def predict(self, inputs: PredictionInput) -> Prediction:
        """Algorithm 1; Mask-Viterbi and argmax get log π₀, Viterbi the last call's potentials."""
        conditions = self.denoiser.prepare(inputs.states)
        if inputs.allowed is not None and inputs.is_known is not None:
            conditions = self._with_known(conditions, inputs.allowed, inputs.is_known, inputs)
        schedule = self.process.schedule(base=inputs.base, num_calls=inputs.num_calls)
        # The same for a sentence in every batch.
        draws = StepDraws(self.config.seed, 0, inputs.content_keys)
        result = reverse_diffusion(
            self.process,
            self._denoise(conditions, inputs, inputs.allowed, inputs.is_known),
            batch_shape=(inputs.is_unit.shape[0], inputs.is_unit.shape[1]),
            schedule=schedule,
            device=inputs.states.device,
            allowed=inputs.allowed,
            keep_trajectory=inputs.keep_trajectory,
            keep_first_marginals=inputs.keep_first_marginals,
            reading=inputs.reading,
            uniforms=self._uniforms(inputs.reading, draws, inputs.is_unit.shape[1], len(schedule) - 1),
        )
        assert isinstance(result.potentials, Potentials)
        decoder_input = DecoderInput(
            lengths=inputs.lengths,
            unary_scores=result.log_beliefs(),
            potentials=result.potentials,
            legality=inputs.legality,
            allowed=result.allowed,
            check=result.allowed is not None,
        )
        # Reported scores come from the first call's marginals if they were kept, otherwise from the last call's.
        marginals = result.marginals
        if result.first_marginals is not None:
            follows_known = self._follows_known(inputs)
            first = result.first_marginals
            marginals = first if follows_known is None else torch.where(follows_known, marginals, first)
        steps = result.trajectory
        return Prediction(
            decoder_input=decoder_input,
            marginals=torch.where(inputs.is_unit[..., None], marginals, 0),
            num_calls=result.num_calls,
            trajectory=None if steps is None else [(step.t, step.beliefs) for step in steps],
        )

    def _follows_known(self, inputs: PredictionInput) -> Bool[Tensor, "B 1 1"] | None:
        """Where labels given in the document may change others, which the first call does not know yet; None: nowhere."""
        if inputs.is_known is None or inputs.document_rows is None or self.denoiser.known_in_document is not None:
            return None
        counts = inputs.is_known.sum(dim=1)
        return torch.zeros_like(counts).index_add(0, inputs.document_rows, counts)[inputs.document_rows, None, None] > 0

    def _with_known(
        self, conditions: Conditions, allowed: Tensor, is_known: Tensor, of: Target | PredictionInput
    ) -> Conditions:
        known = (allowed & is_known[..., None]).float()
        return self.denoiser.with_known(conditions, known, of.layout, of.others, of.document_rows)

    @torch.no_grad()
    def _own_beliefs(
        self,
        num_calls: int,
        conditions: Conditions,
        target: Target,
        allowed: Tensor | None,
        is_known: Tensor | None,
        draws: StepDraws,
    ) -> tuple[Tensor, Tensor]:
        """Beliefs after some calls with the schedule and reading of inference, and the step reached.

        Dropout is active here, too.
        """
        of_inference, base = self.config.inference.calls_and_base()
        reading = self.config.inference.posterior
        schedule = self.process.schedule(num_calls=of_inference, base=base)
        num_calls = min(num_calls, len(schedule) - 2)
        device = target.lengths.device
        t = torch.full((1,), schedule[num_calls], device=device)
        shape = (target.is_unit.shape[0], target.is_unit.shape[1])
        uniforms = self._uniforms(reading, draws, shape[1], num_calls + 1)
        if num_calls == 0:
            beliefs = self.process.uniform(shape, device=device)
            if allowed is not None:
                beliefs = restrict(beliefs, allowed)
            return (beliefs if uniforms is None else draw(beliefs, uniforms[..., 0])), t
        result = reverse_diffusion(
            self.process,
            self._denoise(conditions, target, allowed, is_known),
            batch_shape=shape,
            schedule=schedule[: num_calls + 1],
            device=device,
            allowed=allowed,
            reading=reading,
            uniforms=uniforms,
        )
        return result.beliefs, t

    @staticmethod
    def _uniforms(reading: Reading, draws: StepDraws, num_units: int, num_labels: int) -> Tensor | None:
        """Numbers for this many labels of each unit, (B, N, labels), if the reading draws labels."""
        # The numbers of a unit are adjacent, so that more padding changes none of them.
        return draws.uniforms(Use.SAMPLED_LABELS, (num_units, num_labels)) if reading == "sampled" else None

    def _denoise(
        self, conditions: Conditions, of: Target | PredictionInput, allowed: Tensor | None, is_known: Tensor | None
    ) -> Callable[[Tensor, int], Denoised]:
        def denoise(beliefs: Tensor, t: int) -> Denoised:
            step = torch.full((1,), t, device=beliefs.device)
            potentials = self.potentials(beliefs, step, conditions, of.layout, is_known, of.others)
            return Denoised(self.distribution(potentials, of.lengths, allowed).marginals(), potentials)

        return denoise
