"""Continuous diffusion over bit codes of labels: DiffusionSL.

Written from the papers: Huang et al. (2023) as our paper's appendix describes it, Chen et al. (2022) for analog bits and
self-conditioning, Ho et al. (2020) for the Gaussian process, Song et al. (2021) for DDIM.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from diffusion_mf.diffusion.schedule import SignalTable, Timesteps, cosine_signal, evenly_spaced_schedule, linear_signal
from diffusion_mf.errors import InputError

NO_LABEL_ID = -1
"""The result of native decoding for a bit pattern that is not the code of a label."""


@dataclasses.dataclass(frozen=True)
class BitCodes:
    """c_ℓ = s·(2·bin_b(ℓ) − 1) ∈ {−s, +s}^b with b = ⌈log₂ K⌉, most significant bit first.

    Paper: appendix “Mask-Viterbi Extension for DiffusionSL”, native decoding. A single label still uses one bit.
    """

    num_labels: int
    _: dataclasses.KW_ONLY
    scale: int | float = 1.0

    def __post_init__(self) -> None:
        if self.num_labels < 1 or not self.scale > 0:
            raise InputError(
                f"bit codes need a label and a positive scale, found {self.num_labels} labels and scale {self.scale}",
                remedy="check the data and the scale",
            )

    @property
    def num_bits(self) -> int:
        """b = ⌈log₂ K⌉, at least one."""
        return max((self.num_labels - 1).bit_length(), 1)

    def encode(self, labels: Int[Tensor, " *batch"]) -> Float[Tensor, "*batch {self.num_bits}"]:
        """The codes of labels, in the default float type."""
        bits = (labels.unsqueeze(-1) >> self._shifts(labels.device)) & 1
        return torch.where(bits == 1, self.scale, -self.scale).to(torch.get_default_dtype())

    def codes(self, device: torch.device | str = "cpu") -> Float[Tensor, "{self.num_labels} {self.num_bits}"]:
        """The code of every label, (K, b)."""
        return self.encode(torch.arange(self.num_labels, device=device))

    def decode_native(self, bits: Float[Tensor, "*batch {self.num_bits}"]) -> Int[Tensor, " *batch"]:
        """dec_b([z > 0]): threshold every coordinate; a pattern that encodes no label gives `NO_LABEL_ID`."""
        values = ((bits > 0).long() << self._shifts(bits.device)).sum(dim=-1)
        return torch.where(values < self.num_labels, values, NO_LABEL_ID)

    def unary_scores(
        self, bits: Float[Tensor, "*batch {self.num_bits}"], *, temperature: int | float = 0.05
    ) -> Float[Tensor, "*batch {self.num_labels}"]:
        """u(ℓ) = −‖z − c_ℓ‖²/τ: the distance-based scores that structured decoding needs."""
        bits = _raised(bits)
        difference = bits.unsqueeze(-2) - self.codes(bits.device).to(bits.dtype)  # (…, K, b)
        return difference.square().sum(dim=-1) / -temperature

    def decode_nearest(
        self,
        bits: Float[Tensor, "*batch {self.num_bits}"],
        *,
        allowed: Bool[Tensor, "*batch {self.num_labels}"] | None = None,
    ) -> Int[Tensor, " *batch"]:
        """The label with the nearest code, among the allowed ones if given; ties go to the first."""
        scores = self.unary_scores(bits)
        if allowed is not None:
            scores = torch.where(allowed, scores, -math.inf)
        return scores.argmax(dim=-1)

    def restrict(
        self,
        bits: Float[Tensor, "*batch {self.num_bits}"],
        allowed: Bool[Tensor, "*batch {self.num_labels}"],
    ) -> Float[Tensor, "*batch {self.num_bits}"]:
        """The bits unchanged where every label (or, at padding, none) is allowed; elsewhere the nearest allowed code."""
        held = self.encode(self.decode_nearest(bits, allowed=allowed)).to(bits.dtype)
        num_allowed = allowed.sum(dim=-1, keepdim=True)
        return torch.where((num_allowed == 0) | (num_allowed == self.num_labels), bits, held)

    def _shifts(self, device: torch.device) -> Tensor:
        return torch.arange(self.num_bits - 1, -1, -1, device=device)


@dataclasses.dataclass(frozen=True)
class GaussianDiffusion:
    """q(x_t | x_0) = N(√ᾱ_t·x_0, (1 − ᾱ_t)·I), with linear β (the paper's choice) or a squared-cosine ᾱ."""

    num_steps: int = 1000
    _: dataclasses.KW_ONLY
    noise: Literal["linear", "cosine"] = "linear"
    first_beta: int | float = 1e-4
    last_beta: int | float = 0.02
    cosine_offset: int | float = 0.008
    signal: SignalTable = dataclasses.field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.noise == "linear":
            signal = linear_signal(self.num_steps, first_beta=self.first_beta, last_beta=self.last_beta)
        else:
            signal = cosine_signal(self.num_steps, power=2, offset=self.cosine_offset)
        object.__setattr__(self, "signal", SignalTable(signal))

    def forward(
        self, x0: Float[Tensor, "*batch b"], t: Timesteps, noise: Float[Tensor, "*batch b"]
    ) -> Float[Tensor, "*batch b"]:
        """x_t = √ᾱ_t·x_0 + √(1 − ᾱ_t)·ε for given standard normal noise ε."""
        x0 = _raised(x0)
        signal = self.signal.at(t if isinstance(t, int) else t.to(x0.device, non_blocking=True))
        if not isinstance(signal, Tensor):
            return math.sqrt(signal) * x0 + math.sqrt(1 - signal) * noise
        signal = signal.reshape(*signal.shape, *([1] * (x0.ndim - signal.ndim)))
        return signal.sqrt().to(x0.dtype) * x0 + (1 - signal).sqrt().to(x0.dtype) * noise

    def ddim_step(
        self,
        x_t: Float[Tensor, "*batch b"],
        x0: Float[Tensor, "*batch b"],
        t: int,
        s: int,
        *,
        eta: int | float = 0.0,
        noise: Float[Tensor, "*batch b"] | None = None,
    ) -> Float[Tensor, "*batch b"]:
        """x_s from x_t and the prediction of x_0, for s < t.

        ε̂ = (x_t − √ᾱ_t·x̂_0)/√(1 − ᾱ_t);  σ = η·√((1 − ᾱ_s)/(1 − ᾱ_t))·√(1 − ᾱ_t/ᾱ_s);
        x_s = √ᾱ_s·x̂_0 + √(1 − ᾱ_s − σ²)·ε̂ + σ·noise. With η = 0 no noise is needed; at s = 0 this is x̂_0.
        """
        if not s < t:
            raise ValueError(f"a DDIM step goes back in time, from t to s < t; found t = {t} and s = {s}")
        signal_t, signal_s = self.signal.values[t], self.signal.values[s]
        sigma = eta * math.sqrt((1 - signal_s) / (1 - signal_t) * (1 - signal_t / signal_s))
        if sigma > 0 and noise is None:
            raise ValueError("a DDIM step with η > 0 needs noise")
        predicted_noise = (x_t - math.sqrt(signal_t) * x0) / math.sqrt(1 - signal_t)
        x_s = math.sqrt(signal_s) * x0 + math.sqrt(max(1 - signal_s - sigma**2, 0.0)) * predicted_noise
        return x_s if noise is None else x_s + sigma * noise

    def schedule(self, num_calls: int = 10) -> list[int]:
        """Evenly spaced steps T…0 for n DDIM calls."""
        return evenly_spaced_schedule(self.num_steps, num_calls)


def _raised(values: Tensor) -> Tensor:
    return values.to(torch.promote_types(values.dtype, torch.float32))
