"""The gradient of one step, summed over pieces and processes, and the losses between two log entries."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any, NamedTuple

import torch
from torch import Tensor

from diffusion_mf.batches.batching import Batch
from diffusion_mf.model import Labeller
from diffusion_mf.model.core import TOTAL
from diffusion_mf.prediction.memory import DoesNotFitError, MemoryGuard, release_memory
from diffusion_mf.prediction.precision import HalfWeights
from diffusion_mf.prediction.recording import BatchSignature, Recorder, unflatten
from diffusion_mf.systems import ObjectiveWeights
from diffusion_mf.training.optimizer import Optimizer, Update
from diffusion_mf.training.processes import Processes
from diffusion_mf.training.steps import PreparedStep, StepPreparer


class PieceResult(NamedTuple):
    """Loss sums by name, in float64, and the gradient of every parameter, None if it has none."""

    names: tuple[str, ...]
    sums: Tensor
    gradients: tuple[Tensor | None, ...]


class StepGradients:
    """Computes gradients of total / units, where units counts the whole batch of the step over all pieces and processes.

    If a piece does not fit into memory, the step is recomputed in twice as many pieces: its sentences and its normalisation
    stay the same, and so does the effective batch. Dropout is seeded for every step and process, so that there is no random
    state to save.
    """

    def __init__(
        self,
        model: Labeller,
        optimizer: Optimizer,
        preparer: StepPreparer,
        processes: Processes,
        *,
        seed: int,
        autocast: Callable[[], contextlib.AbstractContextManager[object]],
        half_weights: HalfWeights | None = None,
    ) -> None:
        self._model = model
        self._optimizer = optimizer
        self._parameters = list(optimizer.parameters.values())
        self._preparer = preparer
        self._processes = processes
        self._seed = seed
        self._autocast = autocast
        self._half_weights = half_weights
        self._recorder: Recorder[PieceResult] = Recorder(processes.device)
        self._buffers: dict[int, Tensor] = {}

    @property
    def num_recordings(self) -> int:
        """How many kinds of batches have been recorded."""
        return self._recorder.num_recordings

    def compute(
        self, prepared: PreparedStep, *, step: int, units: int, num_pieces: int = 1
    ) -> tuple[dict[str, Tensor], int]:
        """Leave the gradient of the step in the parameters; each process's share is split into ``num_pieces``, or more.

        Returns the loss sums of this process's share, and the number of pieces that fitted into memory.
        """
        while True:
            if prepared.num_pieces != num_pieces:
                prepared = self._preparer.prepare(prepared.plan, num_pieces)
            with MemoryGuard() as guard:
                sums = self._sum_over_pieces(prepared, step=step, units=units)
            if not guard.ran_out:
                break
            self._optimizer.forget_gradients()
            self.release_memory()
            if max(piece.num_groups for piece in prepared.pieces) == 1:
                raise DoesNotFitError(
                    max(int(piece.batch.lengths.sum()) for piece in prepared.pieces),
                    is_document=any(int((piece.batch.lengths > 0).sum()) > 1 for piece in prepared.pieces),
                    advice="choose a smaller encoder or size, or leave it out of the training data",
                )
            num_pieces *= 2
        self._processes.sum_gradients(self._parameters)
        return sums, num_pieces

    def release_memory(self) -> None:
        """Drop all recordings, which are of pieces of one size."""
        release_memory(self._processes.device, [self._recorder])

    def _sum_over_pieces(self, prepared: PreparedStep, *, step: int, units: int) -> dict[str, Tensor]:
        """Add up losses and gradients of the pieces; the memory of a failed attempt is freed with this frame."""

        def recorded_piece(signature: BatchSignature, numbers: Tensor) -> PieceResult:
            batch, extras = unflatten(signature, numbers)
            result = self._loss_and_gradients(batch, extras[:-2], step, extras[-1], device_step=extras[-2])
            return result._replace(gradients=self._in_shared_buffers(result.gradients))

        torch.manual_seed(dropout_seed(self._seed, step, self._processes.rank))
        device = self._processes.device
        sums: dict[str, Tensor] = {}
        for piece in prepared.pieces:
            if piece.flat is None:
                batch, keys = piece.batch.to(device, non_blocking=True), piece.keys.to(device, non_blocking=True)
                result = self._loss_and_gradients(batch, keys, step, units)
                result = result._replace(gradients=HalfWeights.widened(result.gradients))
            else:
                piece.flat.numbers[-2:] = torch.tensor([step, units])
                result = self._recorder(piece.flat, recorded_piece, kind=self._model.choice(seed=self._seed, step=step))
            for name, value in zip(result.names, result.sums.clone(), strict=True):
                sums[name] = sums[name] + value if name in sums else value
            for parameter, gradient in zip(self._parameters, result.gradients, strict=True):
                if gradient is None:
                    continue
                if parameter.grad is None:
                    # The replay of the next piece may overwrite this one's results: only the last one's are used in place.
                    parameter.grad = gradient if len(prepared.pieces) == 1 else gradient.clone()
                else:
                    parameter.grad += gradient
        return sums

    def _loss_and_gradients(
        self, batch: Batch, keys: Tensor, step: int, units: int | Tensor, device_step: Tensor | None = None
    ) -> PieceResult:
        """Loss sums and gradients of sentences on the device, those of half weights in their type; recorded and replayed."""
        options: dict[str, Any] = {"seed": self._seed, "step": step, "sentence_keys": keys, "device_step": device_step}
        halves = self._half_weights
        leaves: Sequence[Tensor] = self._parameters
        if halves is None:
            with self._autocast():
                terms = self._model.loss_sums(batch, **options)
        else:
            leaves = halves.leaves
            halves.refresh()
            with self._autocast():
                terms = torch.func.functional_call(self._model, halves.copies, (batch,), options)
        gradients = torch.autograd.grad(terms[TOTAL] / units, leaves, allow_unused=True)
        sums = torch.stack([value.detach().double() for value in terms.values()])
        return PieceResult(tuple(terms), sums, gradients)

    def _in_shared_buffers(self, gradients: Sequence[Tensor | None]) -> tuple[Tensor | None, ...]:
        """Copies in the type of the parameters, in memory that all recordings share.

        Each would otherwise keep gradients of its own: with many kinds of batches, more memory than everything else.
        """
        found = {index: gradient for index, gradient in enumerate(gradients) if gradient is not None}
        for index in found.keys() - self._buffers.keys():
            # Not while recording: every kind of batch is first computed directly.
            self._buffers[index] = torch.empty_like(self._parameters[index])
        # One type at a time: lists of mixed types would be copied one tensor after the other.
        for dtype in {gradient.dtype for gradient in found.values()}:
            alike = {index: gradient for index, gradient in found.items() if gradient.dtype == dtype}
            torch._foreach_copy_([self._buffers[index] for index in alike], list(alike.values()))
        return tuple(self._buffers[index] if index in found else None for index in range(len(gradients)))


def dropout_seed(seed: int, step: int, rank: int) -> int:
    """A seed for PyTorch's generator, distinct for every (seed, step, rank) as far as 63 bits go."""
    state = 0
    for part in (seed, step, rank):
        # The multiplier of Knuth's MMIX generator; any odd number with well-mixed bits would do.
        state = ((state ^ part) * 6364136223846793005 + 1442695040888963407) % 2**64
        state ^= state >> 29
    return state >> 1


# All terms that a model may report: processes must agree on the order even if one of them has no sentences.
TERMS = (TOTAL, *(field.name for field in fields(ObjectiveWeights)))


class LossWindow:
    """Sums of loss terms and units over steps that were not skipped, and the largest gradient norm.

    Skipped steps are counted: in total, in a row since the last good step, and by the parameters at fault; these counts
    continue across windows.
    """

    def __init__(self, processes: Processes, parameters: Sequence[str]) -> None:
        self._processes = processes
        self._names = list(parameters)
        self._skipped = torch.zeros((), dtype=torch.int64, device=processes.device)
        self.begin_anew()

    def begin_anew(self) -> None:
        """Reset everything except the counts of skipped steps."""
        self._clear()
        self._in_a_row = torch.zeros((), dtype=torch.int64, device=self._processes.device)
        self._faults = torch.zeros(len(self._names), dtype=torch.int64, device=self._processes.device)

    def _clear(self) -> None:
        self._sums = torch.zeros(len(TERMS), dtype=torch.float64, device=self._processes.device)
        self._units = torch.zeros((), dtype=torch.float64, device=self._processes.device)
        self._norm = torch.zeros((), device=self._processes.device)

    def add(self, sums: Mapping[str, Tensor], *, units: int, update: Update) -> None:
        """Add a step: this process's loss sums, the units of the whole step, and the result of its update."""
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
        """The parameters whose gradients were most often not finite, as text; empty if there are none."""
        counts = Counter(dict(zip(self._names, self._faults.tolist(), strict=True)))
        names = [name for name, count in counts.most_common() if count]
        more = f" and {len(names) - most} more" if len(names) > most else ""
        return ", ".join(names[:most]) + more

    def read(self) -> tuple[dict[str, float], float]:
        """Every loss term per unit, over all processes, and the largest norm; starts a new window. Unused terms are omitted."""
        self._processes.sum(self._sums)
        means = (self._sums / self._units.clamp(min=1)).tolist()
        norm = float(self._norm)
        self._clear()
        return {name: mean for name, mean in zip(TERMS, means, strict=True) if mean or name == TOTAL}, norm
