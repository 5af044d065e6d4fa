"""Categorical diffusion with uniform noise: forward process, posterior between any two steps, clamps.

Uniform noise makes every transition matrix a·I + (1 − a)/K · 11ᵀ, with a = ᾱ_t/ᾱ_s from s to t. The matrices are
symmetric and never built: multiplying by one is a scaling and a shift (`CategoricalDiffusion.diffuse`).
"""

from __future__ import annotations

import dataclasses
import math
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from diffusion_mf.diffusion.schedule import SignalTable, Timesteps, cosine_signal, schedule_by_base, schedule_by_calls
from diffusion_mf.errors import InputError

Reading = Literal["product", "mixture", "sampled"]
"""How the reverse posterior is read for beliefs; for one-hot beliefs all three agree (`docs/equations.md`, “Open choices”).

*product*: beliefs act like an observation. *mixture*: the expectation of the posterior over y^t ~ π_t.
*sampled*: y^s is drawn from the posterior given the y^t drawn before, as in the paper's figure.
"""


@dataclasses.dataclass(frozen=True)
class CategoricalDiffusion:
    """q(y^t | y^{t−1}) = (1 − β_t)·[y^t = y^{t−1}] + β_t/K, with a cosine schedule.

    Paper: “Forward Diffusion” and “Denoising”. Beliefs are probabilities that sum to one over the last dimension; half
    precision is raised to float32, float64 is kept. Timesteps are integers, or tensors whose shape is a prefix of the
    batch shape; for tensors the caller ensures 0 ≤ s < t ≤ T, because checking would wait for the device.
    """

    num_labels: int
    num_steps: int = 1000
    _: dataclasses.KW_ONLY
    cosine_power: int | float = 1
    cosine_offset: int | float = 0.008
    signal: SignalTable = dataclasses.field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.num_labels < 1:
            raise InputError(f"diffusion needs at least one label, found {self.num_labels}", remedy="check the data")
        signal = cosine_signal(self.num_steps, power=self.cosine_power, offset=self.cosine_offset)
        object.__setattr__(self, "signal", SignalTable(signal))

    def forward(self, y0: Int[Tensor, " *batch"], t: Timesteps) -> Float[Tensor, "*batch {self.num_labels}"]:
        """q(y^t | y^0) = ᾱ_t·[y^t = y^0] + (1 − ᾱ_t)/K, in the default float type."""
        return self.diffuse(one_hot(y0, self.num_labels), t)

    def sample(
        self,
        y0: Int[Tensor, " *batch"],
        t: Timesteps,
        generator: torch.Generator | None = None,
        *,
        uniforms: Float[Tensor, " 2 *batch"] | None = None,
    ) -> Int[Tensor, " *batch"]:
        """y^t ~ q(y^t | y^0): keep the label with probability ᾱ_t, otherwise draw one uniformly.

        ``uniforms``, numbers from [0, 1), replace the generator where randomness must not depend on the composition of the
        batch: the first row decides whether to keep the label, the second which label to draw.
        """
        if uniforms is None:
            device = y0.device if generator is None else generator.device
            uniforms = torch.rand((2, *y0.shape), generator=generator, device=device).to(y0.device)
        drawn = (uniforms[1] * self.num_labels).to(y0.dtype).clamp_(max=self.num_labels - 1)
        keep, _ = self._coefficients(t, 0, ndim=y0.ndim, like=uniforms)
        return torch.where(uniforms[0] < keep, y0, drawn)

    def sample_timesteps(
        self,
        num_sentences: int,
        generator: torch.Generator | None = None,
        *,
        device: torch.device | str = "cpu",
        uniforms: Float[Tensor, " {num_sentences}"] | None = None,
    ) -> Int[Tensor, " {num_sentences}"]:
        """t ~ U{1…T−1}, one per sentence, shared by its positions; ``uniforms`` replace the generator, as in `sample`."""
        num_choices = max(self.num_steps - 1, 1)
        if uniforms is not None:
            return 1 + (uniforms * num_choices).long().clamp_(max=num_choices - 1)
        source = device if generator is None else generator.device
        return torch.randint(1, num_choices + 1, (num_sentences,), generator=generator, device=source).to(device)

    def uniform(
        self, batch_shape: tuple[int, ...], *, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32
    ) -> Float[Tensor, "*batch {self.num_labels}"]:
        """p(y^T), the beliefs the reverse process starts from."""
        return torch.full((*batch_shape, self.num_labels), 1 / self.num_labels, device=device, dtype=dtype)

    def diffuse(
        self, beliefs: Float[Tensor, "*batch {self.num_labels}"], t: Timesteps, s: Timesteps = 0
    ) -> Float[Tensor, "*batch {self.num_labels}"]:
        """Σ_m p(m) q(y^t = k | y^s = m) = a·p(k) + (1 − a)/K with a = ᾱ_t/ᾱ_s; by symmetry also Σ_j p(j) q(j | k)."""
        beliefs = _raised(beliefs)
        keep, share = self._coefficients(t, s, ndim=beliefs.ndim, like=beliefs)
        return beliefs * keep + share

    def log_diffuse(
        self, log_beliefs: Float[Tensor, "*batch {self.num_labels}"], t: Timesteps, s: Timesteps = 0
    ) -> Float[Tensor, "*batch {self.num_labels}"]:
        """log(a·exp(log p(k)) + (1 − a)/K); −∞ is a valid input, and without noise (t = s) a valid output."""
        log_beliefs = _raised(log_beliefs)
        keep, share = self._coefficients(t, s, ndim=log_beliefs.ndim, like=log_beliefs)
        if not isinstance(share, Tensor):
            return torch.log(log_beliefs.exp() * keep + share) if share > 0 else log_beliefs
        # Without noise the logarithm would see zeros, whose gradient is NaN even where the other branch is taken.
        is_noisy = share > 0
        mixed = torch.log(log_beliefs.exp() * keep + torch.where(is_noisy, share, 1.0))
        return torch.where(is_noisy, mixed, log_beliefs)

    def posterior(
        self,
        pi_t: Float[Tensor, "*batch {self.num_labels}"],
        rho_0: Float[Tensor, "*batch {self.num_labels}"],
        t: Timesteps,
        s: Timesteps,
        *,
        reading: Reading = "product",
    ) -> Float[Tensor, "*batch {self.num_labels}"]:
        """π_s(k) ∝ [Σ_j π_t(j) q(j|k)] · [Σ_m ρ₀(m) q(k|m)]: beliefs at s < t from beliefs at t and about y⁰.

        Paper: the closed-form reverse posterior of Algorithm 1; one-hot inputs give q(y^s | y^t, y^0) exactly. Rows without
        mass (padding) become uniform. With the reading *mixture*, π_s(k) = Σ_j π_t(j) q(k | j, ρ₀), where, with
        r(k) = Σ_m ρ₀(m) q(k|m), q(k | j, ρ₀) = q(j|k) r(k) / Σ_l q(j|l) r(l). As q(j|k) = a·[j = k] + (1 − a)/K, that is
        r(k)·(a·w(k) + (1 − a)/K·Σ_j w(j)) with w(j) = π_t(j) / (a·r(j) + (1 − a)/K·Σ_l r(l)).
        """
        _check_order(t, s)
        if reading == "mixture":
            prior, pi_t = self.diffuse(rho_0, s), _raised(pi_t)
            keep, share = self._coefficients(t, s, ndim=pi_t.ndim, like=pi_t)
            evidence = keep * prior + share * prior.sum(dim=-1, keepdim=True)
            weights = pi_t / torch.where(evidence > 0, evidence, 1.0)
            return _normalised(
                prior * (keep * weights + share * weights.sum(dim=-1, keepdim=True)), 1 / self.num_labels
            )
        # Probabilities, not logarithms: the first factor is at least (1 − a)/K, so that the sum cannot underflow.
        product = self.diffuse(pi_t, t, s) * self.diffuse(rho_0, s)
        return _normalised(product, 1 / self.num_labels)

    def log_posterior(
        self,
        log_pi_t: Float[Tensor, "*batch {self.num_labels}"],
        log_rho_0: Float[Tensor, "*batch {self.num_labels}"],
        t: Timesteps,
        s: Timesteps,
    ) -> Float[Tensor, "*batch {self.num_labels}"]:
        """log π_s: `posterior` in log space; −∞ causes no NaN, neither in values nor in gradients."""
        _check_order(t, s)
        scores = self.log_diffuse(log_pi_t, t, s) + self.log_diffuse(log_rho_0, s)
        has_mass = (scores > -math.inf).any(dim=-1, keepdim=True)
        return torch.log_softmax(torch.where(has_mass, scores, 0.0), dim=-1)

    def schedule(self, *, base: int | float | None = None, num_calls: int | None = None) -> list[int]:
        """The steps that the reverse process visits, T…0: by base (default 2) or by number of denoiser calls."""
        if base is not None and num_calls is not None:
            raise InputError("a reverse schedule takes a base or a number of calls, not both", remedy="drop one")
        if num_calls is not None:
            return schedule_by_calls(self.num_steps, num_calls)
        return schedule_by_base(self.num_steps, 2 if base is None else base)

    def _coefficients(
        self, t: Timesteps, s: Timesteps, *, ndim: int, like: Tensor
    ) -> tuple[float | Tensor, float | Tensor]:
        """a = ᾱ_t/ᾱ_s and (1 − a)/K: floats, or tensors that broadcast over ``ndim`` dimensions on ``like``'s device.

        Both are computed in float64: near t = 1 the difference 1 − a would keep few digits of float32.
        """
        keep = self.signal.at(_on(t, like.device)) / self.signal.at(_on(s, like.device))
        if not isinstance(keep, Tensor):
            return keep, (1 - keep) / self.num_labels
        keep = keep.reshape(*keep.shape, *([1] * (ndim - keep.ndim)))
        return keep.to(like.dtype), ((1 - keep) / self.num_labels).to(like.dtype)


def one_hot(labels: Int[Tensor, " *batch"], num_labels: int) -> Float[Tensor, "*batch {num_labels}"]:
    """[k = label] in the default float type; a label outside 0…K−1 (padding) gives a row of zeros."""
    return (labels.unsqueeze(-1) == torch.arange(num_labels, device=labels.device)).to(torch.get_default_dtype())


def draw(beliefs: Float[Tensor, "*batch K"], uniforms: Float[Tensor, " *batch"]) -> Float[Tensor, "*batch K"]:
    """A label from each distribution, one-hot, by inverting its cumulative sum at a number from [0, 1).

    Labels without mass are never drawn.
    """
    cumulative = beliefs.double().cumsum(dim=-1)
    threshold = uniforms.double().unsqueeze(-1) * cumulative[..., -1:]
    labels = (cumulative <= threshold).sum(dim=-1).clamp(max=beliefs.shape[-1] - 1)
    return one_hot(labels, beliefs.shape[-1]).to(beliefs.dtype)


def restrict(beliefs: Float[Tensor, "*batch K"], allowed: Bool[Tensor, "*batch K"]) -> Float[Tensor, "*batch K"]:
    """Beliefs given that the label is an allowed one: p(k)·[k allowed], renormalised.

    If the allowed labels have no mass, they share it equally. Where no label is allowed (padding), nothing changes.
    """
    beliefs = _raised(beliefs)
    num_allowed = allowed.sum(dim=-1, keepdim=True)
    kept = torch.where(allowed, beliefs, 0.0)
    shared = allowed / num_allowed.clamp(min=1).to(beliefs.dtype)
    return torch.where(num_allowed > 0, _normalised(kept, shared), beliefs)


def _normalised(masses: Tensor, otherwise: float | Tensor) -> Tensor:
    total = masses.sum(dim=-1, keepdim=True)
    has_mass = total > 0
    # The divisor is made safe before the division: a masked 0/0 would still put NaN into the gradient.
    return torch.where(has_mass, masses / torch.where(has_mass, total, 1.0), otherwise)


def _raised(values: Tensor) -> Tensor:
    return values.to(torch.promote_types(values.dtype, torch.float32))


def _on(t: Timesteps, device: torch.device) -> Timesteps:
    return t if isinstance(t, int) else t.to(device, non_blocking=True)


def _check_order(t: Timesteps, s: Timesteps) -> None:
    if isinstance(t, int) and isinstance(s, int) and not s < t:
        raise ValueError(f"the posterior goes back in time, from t to s < t; found t = {t} and s = {s}")
