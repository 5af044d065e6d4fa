"""The random numbers of one training step, by what they decide."""

from __future__ import annotations

import dataclasses
import enum
import random

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from diffusion_mf.diffusion import keyed_normals, keyed_uniforms


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
    sentence_keys: Int[Tensor, "B"]
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


def content_keys(form_ids: Int[Tensor, "B N"], is_unit: Bool[Tensor, "B N"]) -> Int[Tensor, "B"]:
    """A number for each sentence from its forms alone: Σᵢ formᵢ·fⁱ⁺¹ modulo 2⁶⁴.

    It keys the noise of DDIM and the samples of the reverse process at inference, so that a sentence gets the same labels in every batch.
    """
    powers = torch.full((form_ids.shape[1],), _FACTOR, device=form_ids.device, dtype=torch.int64).cumprod(0)
    return torch.where(is_unit, form_ids * powers, 0).sum(1)
