"""The gradient of one step, summed over pieces and processes; smaller pieces when memory runs out."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from diffusion_mf.acceleration.flat_batch import FlatBatch, Form, unflatten
from diffusion_mf.acceleration.half_weights import HalfWeights
from diffusion_mf.acceleration.recording import Recorder
from diffusion_mf.data.batching import Batch
from diffusion_mf.errors import DiffusionMFError
from diffusion_mf.memory import is_out_of_memory, release_memory
from diffusion_mf.training.distributed import Processes
from diffusion_mf.training.optimizer import Optimizer
from diffusion_mf.training.steps import Piece, PreparedStep, StepPreparer

TOTAL = "total"


class HasLoss(Protocol):
    """What is asked of a model here."""

    def choice(self, *, seed: int, step: int) -> Hashable:
        """What the host decides for a step."""
        ...

    def loss_sums(
        self, batch: Batch, *, seed: int, step: int, sentence_keys: Tensor, device_step: Tensor | None = None
    ) -> Mapping[str, Tensor]:
        """Every term of the loss summed over units, and their weighted ``total``."""
        ...


class PieceResult(NamedTuple):
    """Loss sums, float64, by name, and the gradient of every parameter, None where there is none."""

    names: tuple[str, ...]
    sums: Tensor
    gradients: tuple[Tensor | None, ...]


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
        half_weights: HalfWeights | None = None,
    ) -> None:
        self.num_pieces = num_pieces
        self._model = model
        self._optimizer = optimizer
        self._parameters = list(optimizer.parameters.values())
        self._preparer = preparer
        self._processes = processes
        self._seed = seed
        self._autocast = autocast
        self._half_weights = half_weights
        self._recorder: Recorder[PieceResult] = Recorder(processes.device)

    @property
    def num_recordings(self) -> int:
        """How many forms of batches are replayed by now."""
        return self._recorder.num_recordings

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
            self._recorder.forget()
            release_memory(self._processes.device)
            if max(piece.num_groups for piece in prepared.pieces) == 1:
                num_units = max(int(piece.batch.lengths.sum()) for piece in prepared.pieces)
                has_document = any(int((piece.batch.lengths > 0).sum()) > 1 for piece in prepared.pieces)
                one, ones = ("document", "documents") if has_document else ("sentence", "sentences")
                raise DiffusionMFError(
                    f"there is not enough memory to train on a single {one} of {num_units} units; "
                    f"choose a smaller encoder or size, or leave out the longest {ones}."
                )
            self.num_pieces *= 2
        self._processes.sum_gradients(list(self._optimizer.parameters.values()))
        return sums

    def _attempt(self, prepared: PreparedStep, *, step: int, units: int) -> dict[str, Tensor]:
        torch.manual_seed(dropout_seed(self._seed, step, self._processes.rank))
        sums: dict[str, Tensor] = {}
        for piece in prepared.pieces:
            result = (
                self._directly(piece, step, units) if piece.flat is None else self._by_replay(piece.flat, step, units)
            )
            for name, value in zip(result.names, result.sums.clone(), strict=True):
                sums[name] = sums[name] + value if name in sums else value
            self._add_gradients(result.gradients, is_only=len(prepared.pieces) == 1)
        return sums

    def _add_gradients(self, gradients: Sequence[Tensor | None], *, is_only: bool) -> None:
        for parameter, gradient in zip(self._parameters, gradients, strict=True):
            if gradient is None:
                continue
            if parameter.grad is None:
                # The next piece's replay may write over this one's results: only the last may be taken as they lie.
                parameter.grad = gradient if is_only else gradient.clone()
            else:
                parameter.grad += gradient

    def _directly(self, piece: Piece, step: int, units: int) -> PieceResult:
        device = self._processes.device
        batch, keys = piece.batch.to(device, non_blocking=True), piece.keys.to(device, non_blocking=True)
        return self._compute(batch, keys, step, units)

    def _by_replay(self, flat: FlatBatch, step: int, units: int) -> PieceResult:
        def compute(form: Form, numbers: Tensor) -> PieceResult:
            batch, extras = unflatten(form, numbers)
            return self._compute(batch, extras[:-2], step, extras[-1], extras[-2])

        flat.numbers[-2:] = torch.tensor([step, units])
        return self._recorder(flat, compute, kind=self._model.choice(seed=self._seed, step=step))

    def _compute(
        self, batch: Batch, keys: Tensor, step: int, units: int | Tensor, device_step: Tensor | None = None
    ) -> PieceResult:
        options: dict[str, Any] = {
            "seed": self._seed,
            "step": step,
            "sentence_keys": keys,
            "device_step": device_step,
        }
        halves = self._half_weights
        leaves: Sequence[Tensor] = self._parameters
        if halves is None:
            with self._autocast():
                terms = self._model.loss_sums(batch, **options)
        else:
            leaves = halves.leaves
            halves.refresh()
            model: Any = self._model
            with self._autocast():
                terms = torch.func.functional_call(model, halves.copies, (batch,), options)
        gradients = torch.autograd.grad(terms[TOTAL] / units, leaves, allow_unused=True)
        sums = torch.stack([value.detach().double() for value in terms.values()])
        return PieceResult(tuple(terms), sums, gradients if halves is None else halves.widened(gradients))


def dropout_seed(seed: int, step: int, rank: int) -> int:
    """A seed for PyTorch's generator that no other (seed, step, rank) has, as far as 63 bits go."""
    state = 0
    for part in (seed, step, rank):
        # The multiplier of Knuth's MMIX generator; any odd number with well-mixed bits would do.
        state = ((state ^ part) * 6364136223846793005 + 1442695040888963407) % 2**64
        state ^= state >> 29
    return state >> 1
