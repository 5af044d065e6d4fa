"""Losses between two entries of the log, and steps that were skipped, kept on the device until they are asked for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import fields

import torch
from torch import Tensor

from diffusion_mf.systems import ObjectiveWeights
from diffusion_mf.training.distributed import Processes
from diffusion_mf.training.gradients import TOTAL
from diffusion_mf.training.learner import Update

# All that a model may report: processes must agree on the order even if one of them had no sentence to work on.
TERMS = (TOTAL, *(field.name for field in fields(ObjectiveWeights)))


class LossWindow:
    """Sums of loss terms and units over steps, and the largest gradient norm, of the steps that were not skipped.

    Skipped steps are counted, those in a row since the last good one and those in which a parameter was at fault; these
    counts go on from window to window.
    """

    def __init__(self, processes: Processes, parameters: Sequence[str]) -> None:
        self._processes = processes
        self._names = list(parameters)
        self._skipped = torch.zeros((), dtype=torch.int64, device=processes.device)
        self.begin_anew()

    def begin_anew(self) -> None:
        """Forget everything but how many steps were skipped."""
        self._clear()
        self._in_a_row = torch.zeros((), dtype=torch.int64, device=self._processes.device)
        self._faults = torch.zeros(len(self._names), dtype=torch.int64, device=self._processes.device)

    def _clear(self) -> None:
        self._sums = torch.zeros(len(TERMS), dtype=torch.float64, device=self._processes.device)
        self._units = torch.zeros((), dtype=torch.float64, device=self._processes.device)
        self._norm = torch.zeros((), device=self._processes.device)

    def add(self, sums: Mapping[str, Tensor], *, units: int, update: Update) -> None:
        """Take a step in: this process's loss sums, the whole step's units, what became of its gradient."""
        zero = self._sums.new_zeros(())
        terms = torch.stack([sums.get(name, zero) for name in TERMS])
        is_counted = terms.isfinite().all() & ~update.is_skipped
        self._sums += torch.where(is_counted, terms, 0)
        self._units += torch.where(is_counted, float(units), 0)
        self._norm = torch.maximum(self._norm, torch.where(update.is_skipped, 0, update.norm.float()))
        self._skipped += update.is_skipped
        self._in_a_row = torch.where(update.is_skipped, self._in_a_row + 1, 0)
        self._faults += update.is_damaged

    def num_skipped(self) -> int:
        """How many steps have been skipped."""
        return int(self._skipped)

    def skipped_in_a_row(self) -> int:
        """How many steps have been skipped since the last good one."""
        return int(self._in_a_row)

    def faulty_parameters(self, most: int = 3) -> str:
        """The parameters whose gradients were at fault most often, as a list in words; empty if there are none."""
        counts = Counter(dict(zip(self._names, self._faults.tolist(), strict=True)))
        names = [name for name, count in counts.most_common() if count]
        more = f" and {len(names) - most} more" if len(names) > most else ""
        return ", ".join(names[:most]) + more

    def read(self) -> tuple[dict[str, float], float]:
        """Every loss term per unit, over all processes, and the largest norm; begins a new window. Unused terms are left out."""
        self._processes.sum(self._sums)
        means = (self._sums / self._units.clamp(min=1)).tolist()
        norm = float(self._norm)
        self._clear()
        return {name: mean for name, mean in zip(TERMS, means, strict=True) if mean or name == TOTAL}, norm
