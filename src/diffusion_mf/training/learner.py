"""A model and all that changes it: optimizer, learning rate, clipping and moving average, saved and loaded together."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from diffusion_mf.config import TrainingConfig
from diffusion_mf.training.checkpoint import damaged
from diffusion_mf.training.optimizer import LearningRate, MovingAverage, Optimizer, copy_into

_WEIGHTS, _AVERAGE, _OPTIMIZER = "weights/", "average/", "optimizer/"


class Update(NamedTuple):
    """What became of a step's gradient; on the device, for the host does not wait."""

    norm: Tensor
    """before clipping"""
    is_skipped: Tensor
    """whether the gradient was not finite, so that nothing was changed"""
    is_damaged: Tensor
    """for every parameter, whether its gradient was not finite"""


class Learner:
    """Applies gradients; what it holds beside the model is the optimizer's memory and the averaged weights."""

    def __init__(self, model: nn.Module, settings: TrainingConfig, *, total_steps: int) -> None:
        self.model = model
        parameters = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
        self.optimizer = Optimizer(parameters, settings)
        self.learning_rate = LearningRate(settings.warmup_steps, total_steps, settings.decay)
        self._average = MovingAverage(parameters, settings.ema_decay) if settings.ema_decay else None
        self._clip_norm = settings.clip_norm

    def update(self, step: int, *, rate: float = 1.0) -> Update:
        """Apply the gradients of ``step``, counted from 0, at ``rate`` times its learning rate, unless one is not finite."""
        parameters = list(self.optimizer.parameters.values())
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        found = iter(torch._foreach_norm(gradients))
        nothing = torch.zeros((), device=parameters[0].device)
        norms = torch.stack([nothing if parameter.grad is None else next(found) for parameter in parameters])
        norm = torch.linalg.vector_norm(norms)
        nn.utils.clip_grads_with_norm_(parameters, self._clip_norm, norm)
        is_skipped = ~norm.isfinite()
        self.optimizer.step(self.learning_rate.factor(step) * rate, is_skipped=is_skipped)
        if self._average is not None:
            self._average.update(step + 1)
        return Update(norm, is_skipped, ~norms.isfinite())

    def averaged(self) -> contextlib.AbstractContextManager[None]:
        """The model with its averaged weights, where there are some, for the time of the block."""
        return contextlib.nullcontext() if self._average is None else self._average.in_place()

    def tensors(self) -> dict[str, Tensor]:
        """Everything a checkpoint needs."""
        groups = {
            _WEIGHTS: self.model.state_dict(),
            _AVERAGE: {} if self._average is None else self._average.tensors(),
            _OPTIMIZER: self.optimizer.tensors(),
        }
        return {prefix + name: tensor for prefix, group in groups.items() for name, tensor in group.items()}

    @torch.no_grad()
    def load_tensors(self, tensors: Mapping[str, Tensor], *, path: Path) -> None:
        """Take back what `tensors` gave; `InputError` naming ``path`` if it is of another model."""

        def group(prefix: str) -> dict[str, Tensor]:
            return {name[len(prefix) :]: tensor for name, tensor in tensors.items() if name.startswith(prefix)}

        try:
            saved, weights = group(_WEIGHTS), self.model.state_dict()
            if set(saved) != set(weights):
                raise ValueError("its weights are of another model")
            for name, weight in weights.items():
                copy_into(weight, saved[name], name)
            if self._average is not None:
                self._average.load_tensors(group(_AVERAGE))
            self.optimizer.load_tensors(group(_OPTIMIZER))
        except KeyError as error:
            raise damaged(path, f"{error.args[0]} is missing") from None
        except ValueError as error:
            raise damaged(path, str(error)) from None
