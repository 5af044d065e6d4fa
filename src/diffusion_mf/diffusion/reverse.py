"""The reverse loops: beliefs from uniform to π₀ (Algorithm 1), and bits from Gaussian noise to z by DDIM.

Both take any callable as the denoiser, so that the encoder runs once, outside, and compiled or captured networks can be used.
Neither disables gradients nor waits for the device.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from diffusion_mf.diffusion.bits import BitCodes, GaussianDiffusion
from diffusion_mf.diffusion.categorical import CategoricalDiffusion, Reading, draw, restrict
from diffusion_mf.diffusion.schedule import check_schedule


class Denoised(NamedTuple):
    """The result of a denoiser call that returns more than marginals."""

    marginals: Tensor
    """ρ₀ (B, N, K)"""
    potentials: object = None
    """whatever the decoder needs; the last call's are kept"""


Denoise = Callable[[Tensor, int], Tensor | Denoised]
"""``denoise(beliefs (B, N, K), t)`` → marginals ρ₀ (B, N, K), or `Denoised`."""

DenoiseBits = Callable[[Tensor, int, Tensor | None], Tensor]
"""``denoise(x_t (B, N, b), t, previous x̂₀ or None)`` → x̂₀ (B, N, b); None unless self-conditioning is on."""

DrawNoise = Callable[[int, int], Tensor]
"""``draw(sample, call)`` → standard normal (B, N, b); call 0 is the starting point, call i the noise of step i."""


class ReverseStep(NamedTuple):
    """One entry of a trajectory."""

    t: int
    """the step reached"""
    beliefs: Tensor
    """π_t (B, N, K)"""
    marginals: Tensor
    """ρ₀ (B, N, K) that led there"""


@dataclasses.dataclass(frozen=True, eq=False)
class ReverseResult:
    """The result of the reverse process."""

    beliefs: Float[Tensor, "B N K"]
    """π at the last step of the schedule, usually π₀: it decides the label, but is too sharp to report as a probability"""
    marginals: Float[Tensor, "B N K"]
    """ρ₀ of the last call"""
    potentials: object
    """the potentials of the same call; None if the denoiser returns none"""
    num_calls: int
    allowed: Bool[Tensor, "B N K"] | None = None
    """the clamps that were applied"""
    trajectory: tuple[ReverseStep, ...] | None = None
    """the state after every update, if requested"""
    first_marginals: Float[Tensor, "B N K"] | None = None
    """the first call's ρ₀, if requested"""

    def log_beliefs(self) -> Float[Tensor, "B N K"]:
        """log π for decoders; only labels that a clamp forbids are −∞.

        A probability that merely underflowed is floored: structured decoding may need that label to repair a sequence.
        """
        log_beliefs = self.beliefs.clamp(min=torch.finfo(self.beliefs.dtype).tiny).log()
        if self.allowed is None:
            return log_beliefs
        is_forbidden = ~self.allowed & self.allowed.any(dim=-1, keepdim=True)
        return torch.where(is_forbidden, -torch.inf, log_beliefs)


def reverse_diffusion(
    process: CategoricalDiffusion,
    denoise: Denoise,
    *,
    batch_shape: tuple[int, int],
    schedule: Sequence[int],
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    allowed: Bool[Tensor, "B N {process.num_labels}"] | None = None,
    keep_trajectory: bool = False,
    keep_first_marginals: bool = False,
    reading: Reading = "product",
    uniforms: Float[Tensor, "B N C"] | None = None,
) -> ReverseResult:
    """Algorithm 1: from uniform beliefs, ρ₀ = denoise(π_t, t) and π_t′ = posterior(π_t, ρ₀, t, t′) along ``schedule``.

    ``allowed`` clamps labels in every π and ρ₀ (see `restrict`). A schedule that ends above 0 gives the beliefs at that step,
    for training on the model's own trajectory.

    ``reading`` selects the posterior of beliefs. With *sampled* every π except π₀ is one-hot, drawn with ``uniforms``,
    numbers from [0, 1), one per call: y^T, and then y^s. π₀ stays a distribution, for the decoders.
    """
    check_schedule(schedule, process.num_steps)
    if reading == "sampled" and uniforms is None:
        raise ValueError("the reading sampled needs uniforms")

    def clamped(probabilities: Tensor) -> Tensor:
        return probabilities if allowed is None else restrict(probabilities, allowed)

    def drawn(beliefs: Tensor, call: int) -> Tensor:
        return beliefs if reading != "sampled" or uniforms is None else draw(beliefs, uniforms[..., call])

    beliefs = drawn(clamped(process.uniform(batch_shape, device=device, dtype=dtype)), 0)
    trajectory: list[ReverseStep] = []
    first_marginals: Tensor | None = None
    for call, (t, s) in enumerate(itertools.pairwise(schedule), start=1):
        marginals, potentials = _denoised(denoise(beliefs, t))
        marginals = clamped(marginals.to(torch.promote_types(marginals.dtype, dtype)))
        beliefs = clamped(process.posterior(beliefs, marginals, t, s, reading=reading))
        if s > 0:
            beliefs = drawn(beliefs, call)
        # Copies: a recorded denoiser answers in the same memory every time.
        if keep_first_marginals and call == 1:
            first_marginals = marginals.clone()
        if keep_trajectory:
            trajectory.append(ReverseStep(s, beliefs, marginals.clone()))
    return ReverseResult(
        beliefs=beliefs,
        marginals=marginals,
        potentials=potentials,
        num_calls=len(schedule) - 1,
        allowed=allowed,
        trajectory=tuple(trajectory) if keep_trajectory else None,
        first_marginals=first_marginals,
    )


def _denoised(answer: Tensor | Denoised) -> Denoised:
    return Denoised(answer) if isinstance(answer, Tensor) else answer


@dataclasses.dataclass(frozen=True, eq=False)
class BitResult:
    """The result of DDIM."""

    bits: Float[Tensor, "B N b"]
    """z: the mean over samples, with clamps applied"""
    num_calls: int
    trajectory: tuple[Float[Tensor, "B N b"], ...] | None = None
    """x̂₀ after every call of the first sample, if requested"""


def ddim(
    process: GaussianDiffusion,
    codes: BitCodes,
    denoise: DenoiseBits,
    *,
    schedule: Sequence[int],
    draw_noise: DrawNoise,
    eta: int | float = 0.0,
    num_samples: int = 1,
    use_self_conditioning: bool = False,
    allowed: Bool[Tensor, "B N {codes.num_labels}"] | None = None,
    keep_trajectory: bool = False,
) -> BitResult:
    """z by DDIM from x_T ~ N(0, I): x̂₀ = denoise(x_t, t, …), clipped to ±scale, then `GaussianDiffusion.ddim_step`.

    With several samples, each with its own trajectory, z is their mean. Self-conditioning passes the previous x̂₀ to every
    call, zeros at first (Chen et al., 2022). ``allowed`` keeps x̂₀ at the code of an allowed label (see `BitCodes.restrict`).
    ``draw_noise`` is the caller's, so that a sentence's noise need not depend on its batch.
    """
    check_schedule(schedule, process.num_steps)
    if num_samples < 1:
        raise ValueError(f"DDIM needs at least one sample, found {num_samples}")
    finals: list[Tensor] = []
    trajectory: list[Tensor] = []
    for sample in range(num_samples):
        x_t = draw_noise(sample, 0)
        previous = torch.zeros_like(x_t) if use_self_conditioning else None
        for call, (t, s) in enumerate(itertools.pairwise(schedule), start=1):
            x0 = denoise(x_t, t, previous).to(x_t.dtype).clamp(-codes.scale, codes.scale)
            if allowed is not None:
                x0 = codes.restrict(x0, allowed)
            if use_self_conditioning:
                previous = x0
            x_t = process.ddim_step(x_t, x0, t, s, eta=eta, noise=draw_noise(sample, call) if eta and s else None)
            if keep_trajectory and sample == 0:
                trajectory.append(x0)
        finals.append(x_t)
    bits = torch.stack(finals).mean(dim=0)
    if allowed is not None:
        bits = codes.restrict(bits, allowed)
    return BitResult(
        bits=bits,
        num_calls=num_samples * (len(schedule) - 1),
        trajectory=tuple(trajectory) if keep_trajectory else None,
    )
