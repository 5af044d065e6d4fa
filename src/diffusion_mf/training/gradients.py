"""The gradient of one step, summed over pieces and processes; smaller pieces when memory runs out."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Protocol

import torch
from torch import Tensor

from diffusion_mf.data.batching import Batch
from diffusion_mf.errors import DiffusionMFError
from diffusion_mf.memory import is_out_of_memory, release_memory
from diffusion_mf.training.distributed import Processes
from diffusion_mf.training.optimizer import Optimizer
from diffusion_mf.training.steps import PreparedStep, StepPreparer

TOTAL = "total"


class HasLoss(Protocol):
    """What is asked of a model here."""

    def loss_sums(self, batch: Batch, *, seed: int, step: int, sentence_keys: Tensor) -> Mapping[str, Tensor]:
        """Every term of the loss summed over units, and their weighted ``total``."""
        ...


class StepGradients:
    """Computes gradients of total / units, with the units of the step's whole batch over all pieces and processes.

    ``num_pieces`` doubles whenever a piece does not fit into memory, and the step is computed anew: its sentences and its
    normalisation stay the same, so the effective batch does, too. Dropout is seeded for every step and process, so that it
    needs no state that would have to be saved.
    """

    def __init__(
        self,
        model: HasLoss,
        optimizer: Optimizer,
        preparer: StepPreparer,
        processes: Processes,
        *,
        seed: int,
        autocast: Callable[[], contextlib.AbstractContextManager[object]],
        num_pieces: int = 1,
    ) -> None:
        self.num_pieces = num_pieces
        self._model = model
        self._optimizer = optimizer
        self._preparer = preparer
        self._processes = processes
        self._seed = seed
        self._autocast = autocast

    def compute(self, prepared: PreparedStep, *, step: int, units: int) -> dict[str, Tensor]:
        """Leave the gradient of the step in the parameters; returns the loss sums of this process's share."""
        while True:
            if prepared.num_pieces != self.num_pieces:
                prepared = self._preparer.prepare(prepared.plan, self.num_pieces)
            try:
                sums = self._attempt(prepared, step=step, units=units)
                break
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
            # Outside the handler, whose exception would hold on to the tensors of the failed attempt.
            self._optimizer.forget_gradients()
            release_memory(self._processes.device)
            longest = max(len(piece.keys) for piece in prepared.pieces)
            if longest == 1:
                num_units = max(int(piece.batch.lengths.max()) for piece in prepared.pieces)
                raise DiffusionMFError(
                    f"there is not enough memory to train on a single sentence of {num_units} units; "
                    "choose a smaller size, or leave out the longest sentences."
                )
            self.num_pieces *= 2
        self._processes.sum_gradients(list(self._optimizer.parameters.values()))
        return sums

    def _attempt(self, prepared: PreparedStep, *, step: int, units: int) -> dict[str, Tensor]:
        torch.manual_seed(dropout_seed(self._seed, step, self._processes.rank))
        device = self._processes.device
        sums: dict[str, Tensor] = {}
        for batch, keys in prepared.pieces:
            with self._autocast():
                terms = self._model.loss_sums(
                    batch.to(device, non_blocking=True),
                    seed=self._seed,
                    step=step,
                    sentence_keys=keys.to(device, non_blocking=True),
                )
            (terms[TOTAL] / units).backward()
            for name, value in terms.items():
                value = value.detach().double()
                sums[name] = sums[name] + value if name in sums else value
        return sums


def dropout_seed(seed: int, step: int, rank: int) -> int:
    """A seed for PyTorch's generator that no other (seed, step, rank) has, as far as 63 bits go."""
    state = 0
    for part in (seed, step, rank):
        # The multiplier of Knuth's MMIX generator; any odd number with well-mixed bits would do.
        state = ((state ^ part) * 6364136223846793005 + 1442695040888963407) % 2**64
        state ^= state >> 29
    return state >> 1
