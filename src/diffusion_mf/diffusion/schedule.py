"""How much of the clean signal is left at each step, and the steps that the reverse process visits.

One time convention: y⁰ is clean, t ∈ 0…T, tables have length T + 1, ᾱ₀ = 1 and ᾱ_T ≈ 0. A *schedule* of the reverse
process is the list of visited steps, from T down to 0; there is one denoiser call per entry except the last.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
from jaxtyping import Float64, Int
from torch import Tensor

from diffusion_mf.errors import InputError

Timesteps = int | Int[Tensor, " ..."]
"""One step for all sentences, or a tensor whose shape is a prefix of the batch shape: (B,) is one step per sentence."""


def cosine_signal(num_steps: int, *, power: int | float = 1, offset: int | float = 0.008) -> Float64[Tensor, " steps"]:
    """ᾱ_t = f(t)/f(0) with f(t) = cos(((t/T) + s)/(1 + s) · π/2)^p, for t = 0…T.

    Hoogeboom et al. (2021) for p = 1, the choice for categorical noise; p = 2 is the Gaussian schedule of Nichol and
    Dhariwal (2021), here without clipping. f(T) = cos(π/2)^p is stored as an exact zero, so that y^T is exactly uniform.
    """
    _check_num_steps(num_steps)
    if power <= 0 or offset < 0:
        raise InputError(
            f"the cosine schedule needs a positive power and an offset of at least 0, found {power} and {offset}",
            remedy="use power 1 or 2 and offset 0.008",
        )
    fraction = torch.arange(num_steps + 1, dtype=torch.float64) / num_steps
    signal = torch.cos((fraction + offset) / (1 + offset) * (math.pi / 2)) ** power
    signal[-1] = 0.0
    return signal / signal[0]


def linear_signal(
    num_steps: int, *, first_beta: int | float = 1e-4, last_beta: int | float = 0.02
) -> Float64[Tensor, " steps"]:
    """ᾱ_t = Π_{u ≤ t} (1 − β_u) with β rising linearly from β₁ to β_T (Ho et al., 2020), for DiffusionSL."""
    _check_num_steps(num_steps)
    if not 0 < first_beta <= last_beta < 1:
        raise InputError(
            f"the linear schedule needs 0 < first β ≤ last β < 1, found {first_beta} and {last_beta}",
            remedy="use 1e-4 and 0.02",
        )
    betas = torch.linspace(first_beta, last_beta, num_steps, dtype=torch.float64)
    return torch.cat([torch.ones(1, dtype=torch.float64), torch.cumprod(1 - betas, dim=0)])


class SignalTable:
    """ᾱ₀…ᾱ_T in float64, looked up by an integer without using a device, or by a tensor on the tensor's device.

    The table is copied to a device once, at first use or by `prepare`; later look-ups do not wait for the host. `prepare` is
    needed before code is captured in a graph, where that first copy must not happen.
    """

    def __init__(self, signal: Float64[Tensor, " steps"]) -> None:
        self._values: tuple[float, ...] = tuple(signal.tolist())
        self._tables: dict[torch.device, Tensor] = {signal.device: signal}
        self._source = signal

    @property
    def num_steps(self) -> int:
        """T, one less than the length of the table."""
        return len(self._values) - 1

    @property
    def values(self) -> tuple[float, ...]:
        """(ᾱ₀, …, ᾱ_T)."""
        return self._values

    def prepare(self, device: torch.device | str) -> None:
        """Copy the table to ``device`` ahead of time."""
        place = torch.empty(0, device=device).device  # "cuda" alone has no index, tensors do
        self._tables.setdefault(place, self._source.to(place))

    def at(self, t: Timesteps) -> float | Float64[Tensor, "..."]:
        """ᾱ_t: a float for an integer t, else a float64 tensor of t's shape."""
        if isinstance(t, int):
            if not 0 <= t <= self.num_steps:
                raise ValueError(f"timesteps must be in 0…{self.num_steps}, found {t}")
            return self._values[t]
        table = self._tables.get(t.device)
        if table is None:
            table = self._source.to(t.device)
            # A tensor created while tracing belongs to the trace and must not be kept.
            if not torch.compiler.is_compiling():
                self._tables[t.device] = table
        # gather, unlike indexing, refuses negative steps instead of counting them from the end.
        return table.gather(0, t.reshape(-1).long()).reshape(t.shape)


def schedule_by_base(num_steps: int, base: int | float) -> list[int]:
    """T, ⌊T/b⌋, ⌊⌊T/b⌋/b⌋, …, 0: the logarithmic schedule; b = 2 is the paper's halving (Algorithm 1).

    >>> schedule_by_base(1000, 2)
    [1000, 500, 250, 125, 62, 31, 15, 7, 3, 1, 0]
    """
    _check_num_steps(num_steps)
    if not (base > 1 and math.isfinite(base)):
        raise InputError(f"the base of a reverse schedule must be more than 1, found {base}", remedy="use 2")
    steps = [num_steps]
    while steps[-1] > 0:
        steps.append(min(math.floor(steps[-1] / base), steps[-1] - 1))
    return steps


def schedule_by_calls(num_steps: int, num_calls: int) -> list[int]:
    """N calls, log-spaced: backwards from t_N = 0, t_i = max(⌊T·2^(−10 i/N)⌋, t_{i+1} + 1), never above T − i.

    With T = 1000, ten calls are the halving schedule and five are base 4, as in the paper's inference-budget ablation. The
    bound T − i matters only where both T and N are far larger: it keeps the steps distinct and the first one equal to T.

    >>> schedule_by_calls(1000, 5)
    [1000, 250, 62, 15, 3, 0]
    """
    _check_num_steps(num_steps)
    if not 1 <= num_calls <= num_steps:
        raise InputError(
            f"the number of denoiser calls must be between 1 and the number of steps, {num_steps}, found {num_calls}",
            remedy="use 10",
        )
    steps = [0]
    for index in reversed(range(num_calls)):
        log_spaced = math.floor(num_steps * 2.0 ** (-10 * index / num_calls))
        steps.append(min(max(log_spaced, steps[-1] + 1), num_steps - index))
    return steps[::-1]


def evenly_spaced_schedule(num_steps: int, num_calls: int) -> list[int]:
    """T, ⌊T(n−1)/n⌋, …, ⌊T/n⌋, 0: the steps that n DDIM calls visit.

    >>> evenly_spaced_schedule(1000, 4)
    [1000, 750, 500, 250, 0]
    """
    _check_num_steps(num_steps)
    if not 1 <= num_calls <= num_steps:
        raise InputError(
            f"the number of DDIM steps must be between 1 and the number of diffusion steps, {num_steps}, found {num_calls}",
            remedy="use 10",
        )
    return [num_steps * (num_calls - index) // num_calls for index in range(num_calls + 1)]


def check_schedule(schedule: Sequence[int], num_steps: int) -> None:
    """Raise `ValueError` unless ``schedule`` falls strictly within T…0 and has at least one call."""
    falls = all(earlier > later for earlier, later in itertools.pairwise(schedule))
    if len(schedule) < 2 or not falls or schedule[0] > num_steps or schedule[-1] < 0:
        raise ValueError(f"a reverse schedule must fall strictly within {num_steps}…0, found {list(schedule)}")


def _check_num_steps(num_steps: int) -> None:
    if num_steps < 1:
        raise InputError(f"diffusion needs at least one step, found {num_steps}", remedy="use 1000")
