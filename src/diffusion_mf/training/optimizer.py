"""From gradients to weights: optimizer, learning rate, moving average, and the model they belong to."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from diffusion_mf.config import TrainingConfig
from diffusion_mf.training.checkpoint import damaged

_LAYER = re.compile(r"encoder\.model\.(?:.*?\.)?(\d+)\.")
_EMBEDDING = re.compile(r"encoder\.model\.[^.]*embed")


def depths_below_top(names: Iterable[str]) -> dict[str, int]:
    """0 for the top layer and for parameters in no layer, 1 for the layer below it, …; embeddings are below all layers.

    Names are those of a labeller's parameters. Layers with shared weights (ALBERT) count as one.

    >>> depths_below_top(["encoder.model.embeddings.w", "encoder.model.layer.0.w", "encoder.model.layer.1.w", "core.w"])
    {'encoder.model.embeddings.w': 2, 'encoder.model.layer.0.w': 1, 'encoder.model.layer.1.w': 0, 'core.w': 0}
    """
    names = list(names)
    layers = {name: int(found[1]) for name in names if (found := _LAYER.match(name)) and not _EMBEDDING.match(name)}
    num_layers = max(layers.values(), default=-1) + 1
    return {
        name: num_layers if _EMBEDDING.match(name) else num_layers - 1 - layers[name] if name in layers else 0
        for name in names
    }


Decay = Literal["none", "cosine", "linear"]

ENCODER_PREFIX = "encoder."
TRANSITIONS_SUFFIX = ".global_transitions"
EPSILON = 1e-8


class LearningRate(NamedTuple):
    """The factor on the learning rate at each step, counted from 0.

    Warm-up: (step + 1)/W for the first W steps. Then, with p = (step − W)/(total − W): 1, or 1 − p (linear), or
    (1 + cos πp)/2 (cosine), so that the factor would reach 0 one step after the last.
    """

    warmup_steps: int
    total_steps: int
    decay: Decay

    def factor(self, step: int) -> float:
        """The factor of ``step``."""
        if step < self.warmup_steps:
            return (step + 1) / self.warmup_steps
        progress = min(1.0, (step - self.warmup_steps) / max(1, self.total_steps - self.warmup_steps))
        if self.decay == "linear":
            return 1 - progress
        return (1 + math.cos(math.pi * progress)) / 2 if self.decay == "cosine" else 1.0


class Optimizer:
    """Adam or AdamW over named parameters, with separate learning rates for the encoder and for global transitions if they are
    set, decreasing towards the encoder's lower layers by ``encoder_layer_decay``.

    Weight decay (L2 with Adam, decoupled with AdamW) excludes vectors: biases and the gains of norms.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter], settings: TrainingConfig) -> None:
        self.parameters = parameters
        layer_decay = settings.encoder_layer_decay
        depths = depths_below_top(parameters) if layer_decay < 1 else {}

        def rate_of(name: str) -> float:
            if name.startswith(ENCODER_PREFIX):
                rate = settings.encoder_learning_rate or settings.learning_rate
                return rate * layer_decay ** depths.get(name, 0)
            own = settings.transition_learning_rate if name.endswith(TRANSITIONS_SUFFIX) else None
            return own or settings.learning_rate

        groups: dict[tuple[float, bool], list[nn.Parameter]] = {}
        for name, parameter in parameters.items():
            groups.setdefault((rate_of(name), parameter.ndim > 1), []).append(parameter)
        self._base_rates = [rate for rate, _ in groups]
        kind = torch.optim.AdamW if settings.optimizer == "adamw" else torch.optim.Adam
        self._inner = kind(
            [
                {"params": members, "weight_decay": settings.weight_decay if is_decayed else 0.0}
                for (_, is_decayed), members in groups.items()
            ],
            lr=settings.learning_rate,
            betas=(settings.beta1, settings.beta2),
            eps=EPSILON,
            fused=True,
        )

    def step(self, factor: float, *, is_skipped: Tensor | None = None) -> None:
        """Update the parameters with ``factor`` times their learning rates, and clear the gradients.

        If ``is_skipped``, a boolean on the device, is true, nothing changes, including the optimizer's state; the host
        does not wait for it.
        """
        for group, rate in zip(self._inner.param_groups, self._base_rates, strict=True):
            group["lr"] = rate * factor
        # PyTorch's fused optimizers read this when they are used with a gradient scaler.
        self._inner.found_inf = None if is_skipped is None else is_skipped.float()  # type: ignore[attr-defined]
        self._inner.step()
        self.forget_gradients()

    def forget_gradients(self) -> None:
        """Start a new step."""
        self._inner.zero_grad(set_to_none=True)

    def tensors(self) -> dict[str, Tensor]:
        """The optimizer's state under the names ``entry/parameter``."""
        return {
            f"{entry}/{name}": value
            for name, parameter in self.parameters.items()
            for entry, value in self._inner.state.get(parameter, {}).items()
        }

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore what `tensors` returned; `KeyError` or `ValueError` if it belongs to another model."""
        for key, value in tensors.items():
            entry, _, name = key.partition("/")
            parameter = self.parameters[name]
            if value.ndim and value.shape != parameter.shape:
                raise ValueError(f"{name} has a different shape")
            # A copy: memory that safetensors maps from the file is neither aligned nor ours.
            self._inner.state[parameter][entry] = value.to(parameter.device, copy=True)


class MovingAverage:
    """Weights averaged over the steps: average ← d·average + (1 − d)·weights, d = min(decay, (1 + n)/(10 + n)) at the n-th.

    The ramp keeps the random initial weights out of the average of a short training run.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter], decay: float) -> None:
        self._names = list(parameters)
        self._parameters = [parameter.detach() for parameter in parameters.values()]
        self._average = [parameter.clone() for parameter in self._parameters]
        self._decay = decay

    def update(self, num_steps: int) -> None:
        """Add the weights after the ``num_steps``-th step."""
        decay = min(self._decay, (1 + num_steps) / (10 + num_steps))
        torch._foreach_lerp_(self._average, self._parameters, 1 - decay)

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """Use the averaged weights in the model for the duration of the block."""
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    def _exchange(self) -> None:
        for parameter, average in zip(self._parameters, self._average, strict=True):
            kept = parameter.clone()
            parameter.copy_(average)
            average.copy_(kept)

    def tensors(self) -> dict[str, Tensor]:
        """The averages by parameter name."""
        return dict(zip(self._names, self._average, strict=True))

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore what `tensors` returned; `KeyError` or `ValueError` if it belongs to another model."""
        for name, average in zip(self._names, self._average, strict=True):
            copy_into(average, tensors[name], name)


def copy_into(target: Tensor, source: Tensor, name: str) -> None:
    """Copy a tensor, requiring exactly the same shape and type, which `Tensor.copy_` does not."""
    if target.shape != source.shape or target.dtype != source.dtype:
        raise ValueError(f"{name} has a different shape or type")
    target.copy_(source)


_WEIGHTS, _AVERAGE, _OPTIMIZER = "weights/", "average/", "optimizer/"


class Update(NamedTuple):
    """The result of a step's update; on the device, since the host does not wait."""

    norm: Tensor
    """before clipping"""
    is_skipped: Tensor
    """whether the gradient was not finite, so that nothing was changed"""
    is_damaged: Tensor
    """for every parameter, whether its gradient was not finite"""


class Learner:
    """Applies gradients; besides the model, it holds the optimizer's state and the averaged weights."""

    def __init__(self, model: nn.Module, settings: TrainingConfig, *, total_steps: int) -> None:
        self.model = model
        parameters = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
        self.optimizer = Optimizer(parameters, settings)
        self.learning_rate = LearningRate(settings.warmup_steps, total_steps, settings.decay)
        self._average = MovingAverage(parameters, settings.ema_decay) if settings.ema_decay else None
        self._clip_norm = settings.clip_norm

    def update(self, step: int, *, rate: float = 1.0) -> Update:
        """Apply the gradients of ``step``, counted from 0, with ``rate`` times its learning rate, unless one is not finite."""
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
        """The model with its averaged weights, if there are any, for the duration of the block."""
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
        """Restore what `tensors` returned; `InputError` naming ``path`` if it belongs to another model."""

        def group(prefix: str) -> dict[str, Tensor]:
            return {name[len(prefix) :]: tensor for name, tensor in tensors.items() if name.startswith(prefix)}

        try:
            saved, weights = group(_WEIGHTS), self.model.state_dict()
            if set(saved) != set(weights):
                raise ValueError("its weights belong to another model")
            for name, weight in weights.items():
                copy_into(weight, saved[name], name)
            if self._average is not None:
                self._average.load_tensors(group(_AVERAGE))
            self.optimizer.load_tensors(group(_OPTIMIZER))
        except KeyError as error:
            raise damaged(path, f"{error.args[0]} is missing") from None
        except ValueError as error:
            raise damaged(path, str(error)) from None
