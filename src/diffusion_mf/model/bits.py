"""DiffusionSL: continuous diffusion over bit codes, written from the papers (`diffusion.bits`)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from diffusion_mf.batches.layouts import Layout
from diffusion_mf.config import Config
from diffusion_mf.decoding import DecoderInput
from diffusion_mf.diffusion import (
    BitCodes,
    CategoricalDiffusion,
    GaussianDiffusion,
    ddim,
    squared_bit_error,
    sum_over_units,
)
from diffusion_mf.model.core import Core, Prediction, PredictionInput, StepDraws, Target, Use
from diffusion_mf.networks.denoisers import BitDenoiser, Conditions
from diffusion_mf.ops.backends import Backend

SELF_CONDITIONING_SHARE = 0.5
"""share of training steps that see a first estimate (Chen et al., 2022)"""


class BitsChoice(NamedTuple):
    """What the host decides for a step."""

    has_estimate: bool
    has_clamps: bool


class BitsCore(Core):
    """x₀ prediction with squared error; DDIM at inference."""

    process: GaussianDiffusion
    codes: BitCodes

    def __init__(self, config: Config, *, num_labels: int, state_width: int, backend: Backend = "auto") -> None:
        super().__init__(config, num_labels=num_labels, state_width=state_width, backend=backend)
        self.codes = BitCodes(num_labels, scale=config.bits.scale)
        with torch.device("cpu"):  # the tables belong on the host, even where parameters are only counted
            self.process = GaussianDiffusion(
                config.diffusion.num_steps, noise=config.bits.noise, cosine_offset=config.diffusion.cosine_offset
            )
            # Its timesteps, t ~ U{1…T−1}, are the categorical systems'.
            self._timesteps = CategoricalDiffusion(num_labels, config.diffusion.num_steps)
        self.denoiser = BitDenoiser(
            config.denoiser,
            num_bits=self.codes.num_bits,
            state_width=state_width,
            use_self_conditioning=config.bits.self_conditioning,
        )

    def choice(self, draws: StepDraws) -> BitsChoice:
        """Whether the step sees a first estimate, and whether labels are given."""
        has_estimate = (
            self.config.bits.self_conditioning and draws.for_step(Use.SELF_CONDITIONING) < SELF_CONDITIONING_SHARE
        )
        return BitsChoice(has_estimate, draws.has_clamps(self.config.diffusion.clamp_share))

    def loss_terms(self, states: Float[Tensor, "*units D"], target: Target, draws: StepDraws) -> dict[str, Tensor]:
        """‖x̂₀ − x₀‖²/b at one t per sentence; given labels have no noise, are flagged, and are not counted."""
        labels, is_unit = target.labels, target.is_unit
        conditions = self.denoiser.prepare(states)
        clean = self.codes.encode(labels)
        t = self._timesteps.sample_timesteps(len(labels), uniforms=draws.uniforms(Use.TIMESTEP, ()))
        noise = draws.normals(Use.BIT_NOISE, (labels.shape[1], self.codes.num_bits))
        noisy = self.process.forward(clean, t, noise)
        choice = self.choice(draws)
        is_given = draws.clamps(target) if choice.has_clamps else None
        if is_given is not None:
            noisy = torch.where(is_given[..., None], clean, noisy)
        previous = None
        if choice.has_estimate:
            with torch.no_grad():
                first = self._predicted(noisy, t, conditions, target.layout, None, is_given)
            previous = first.clamp(-self.codes.scale, self.codes.scale)
        predicted = self._predicted(noisy, t, conditions, target.layout, previous, is_given)
        is_counted = is_unit if is_given is None else is_unit & ~is_given
        return {"bits": sum_over_units(squared_bit_error(predicted, clean), is_counted)}

    def predict(self, inputs: PredictionInput) -> Prediction:
        """z by DDIM with noise keyed by the sentence; ``base`` does not apply."""
        settings = self.config.bits
        conditions = self.denoiser.prepare(inputs.states)
        schedule = self.process.schedule(inputs.num_calls or settings.num_calls)
        is_known = inputs.is_known
        given = None if inputs.allowed is None else self.codes.encode(inputs.allowed.long().argmax(-1))

        def denoise(noisy: Tensor, t: int, previous: Tensor | None) -> Tensor:
            if is_known is not None and given is not None:
                noisy = torch.where(is_known[..., None], given, noisy)
            step = torch.full((1,), t, device=noisy.device)
            return self._predicted(noisy, step, conditions, inputs.layout, previous, is_known)

        def draw_noise(sample: int, call: int) -> Tensor:
            draws = StepDraws(self.config.seed, sample * (len(schedule) + 1) + call, inputs.content_keys)
            return draws.normals(Use.DDIM, (inputs.is_unit.shape[1], self.codes.num_bits))

        result = ddim(
            self.process,
            self.codes,
            denoise,
            schedule=schedule,
            draw_noise=draw_noise,
            eta=settings.eta,
            num_samples=settings.num_samples,
            use_self_conditioning=settings.self_conditioning,
            allowed=inputs.allowed,
            keep_trajectory=inputs.keep_trajectory,
        )
        decoder_input = DecoderInput(
            lengths=inputs.lengths,
            unary_scores=self.codes.unary_scores(result.bits, temperature=settings.temperature),
            bits=result.bits,
            codes=self.codes,
            legality=inputs.legality,
            allowed=inputs.allowed,
            check=inputs.allowed is not None,
        )
        steps = result.trajectory
        return Prediction(
            decoder_input=decoder_input,
            marginals=self._probabilities(result.bits, inputs),
            num_calls=result.num_calls,
            trajectory=None
            if steps is None
            else [(t, self._probabilities(bits, inputs)) for t, bits in zip(schedule[1:], steps, strict=True)],
        )

    def _predicted(
        self,
        noisy: Tensor,
        t: Tensor,
        conditions: Conditions,
        layout: Layout,
        previous: Tensor | None,
        is_known: Tensor | None,
    ) -> Tensor:
        predicted = self.denoiser(noisy, t, conditions, layout, previous=previous, is_known=is_known)
        return predicted * self.codes.scale

    def _probabilities(self, bits: Tensor, inputs: PredictionInput) -> Tensor:
        """softmax of −‖z − c‖²/τ among the allowed labels, 0 at padding."""
        scores = self.codes.unary_scores(bits, temperature=self.config.bits.temperature)
        if inputs.allowed is not None:
            scores = scores.masked_fill(~inputs.allowed & inputs.is_unit[..., None], -torch.inf)
        return torch.where(inputs.is_unit[..., None], scores.softmax(-1), 0)
