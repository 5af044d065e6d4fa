"""Losses between two entries of the log, kept on the device until they are asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

import torch
from torch import Tensor

from diffusion_mf.errors import DivergenceError
from diffusion_mf.systems import ObjectiveWeights
from diffusion_mf.training.distributed import Processes
from diffusion_mf.training.gradients import TOTAL

# All that a model may report: processes must agree on the order even if one of them had no sentence to work on.
TERMS = (TOTAL, *(field.name for field in fields(ObjectiveWeights)))


class LossWindow:
    """Sums of loss terms and units over steps, and the largest gradient norm; NaN and infinity stick."""

    def __init__(self, processes: Processes) -> None:
        self._processes = processes
        self._clear()

    def _clear(self) -> None:
        self._sums = torch.zeros(len(TERMS), dtype=torch.float64, device=self._processes.device)
        self._norm = torch.zeros((), device=self._processes.device)
        self._units = 0

    def add(self, sums: Mapping[str, Tensor], *, units: int, norm: Tensor) -> None:
        """Take a step in: this process's loss sums, the whole step's units, the norm of its gradient."""
        zero = self._sums.new_zeros(())
        self._sums += torch.stack([sums.get(name, zero) for name in TERMS])
        self._norm = torch.maximum(self._norm, norm.float())
        self._units += units

    def check(self, step: int) -> None:
        """`DivergenceError` if a loss or gradient since the last reading was no finite number."""
        if not bool(self._sums.isfinite().all() & self._norm.isfinite()):
            raise DivergenceError(
                f"the loss or its gradient was no longer finite by step {step}; train again with a lower "
                "training.learning_rate or more training.warmup_steps."
            )

    def read(self) -> tuple[dict[str, float], float]:
        """Every loss term per unit, over all processes, and the largest norm; begins a new window. Unused terms are left out."""
        self._processes.sum(self._sums)
        means = (self._sums / max(1, self._units)).tolist()
        norm = float(self._norm)
        self._clear()
        return {name: mean for name, mean in zip(TERMS, means, strict=True) if mean or name == TOTAL}, norm
