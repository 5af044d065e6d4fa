"""What turns gradients into weights: the optimizer, its learning rate, and the moving average of the weights."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from diffusion_mf.config import TrainingConfig
from diffusion_mf.training.layer_decay import depths_below_top

Decay = Literal["none", "cosine", "linear"]

ENCODER_PREFIX = "encoder."
TRANSITIONS_SUFFIX = ".global_transitions"
EPSILON = 1e-8


class LearningRate(NamedTuple):
    """The factor on the learning rate at each step, counted from 0.

    Warm-up: (step + 1)/W for the first W steps. Then, with p = (step − W)/(total − W): 1, or 1 − p (linear), or
    (1 + cos πp)/2 (cosine), so that the step after the last would be worth 0.
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
    """Adam or AdamW over named parameters, with own learning rates for the encoder and for global transitions where they are
    set, less in the encoder's lower layers where ``encoder_layer_decay`` says so.

    Weight decay (L2 with Adam, decoupled with AdamW) leaves out vectors: biases and gains of norms.
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
        """Update the parameters at ``factor`` times their learning rates, and forget the gradients.

        Where ``is_skipped``, a truth value on the device, is true, nothing changes, the optimizer's memory included; the host
        does not wait to find out.
        """
        for group, rate in zip(self._inner.param_groups, self._base_rates, strict=True):
            group["lr"] = rate * factor
        # What PyTorch's fused optimizers look at when they are used with a gradient scaler.
        self._inner.found_inf = None if is_skipped is None else is_skipped.float()  # type: ignore[attr-defined]
        self._inner.step()
        self.forget_gradients()

    def forget_gradients(self) -> None:
        """Begin a new step."""
        self._inner.zero_grad(set_to_none=True)

    def tensors(self) -> dict[str, Tensor]:
        """The optimizer's memory under the names ``entry/parameter``."""
        return {
            f"{entry}/{name}": value
            for name, parameter in self.parameters.items()
            for entry, value in self._inner.state.get(parameter, {}).items()
        }

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Take back what `tensors` gave; `KeyError` or `ValueError` if it is of another model."""
        for key, value in tensors.items():
            entry, _, name = key.partition("/")
            parameter = self.parameters[name]
            if value.ndim and value.shape != parameter.shape:
                raise ValueError(f"{name} has another shape")
            # A copy: what safetensors maps from the file is neither aligned nor ours.
            self._inner.state[parameter][entry] = value.to(parameter.device, copy=True)


class MovingAverage:
    """Weights averaged over the steps: average ← d·average + (1 − d)·weights, d = min(decay, (1 + n)/(10 + n)) at the n-th.

    The ramp keeps the random weights of the beginning out of the average of a short training.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter], decay: float) -> None:
        self._names = list(parameters)
        self._parameters = [parameter.detach() for parameter in parameters.values()]
        self._average = [parameter.clone() for parameter in self._parameters]
        self._decay = decay

    def update(self, num_steps: int) -> None:
        """Take the weights in after the ``num_steps``-th step."""
        decay = min(self._decay, (1 + num_steps) / (10 + num_steps))
        torch._foreach_lerp_(self._average, self._parameters, 1 - decay)

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """Give the model the averaged weights for the time of the block."""
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
        """Take back what `tensors` gave; `KeyError` or `ValueError` if it is of another model."""
        for name, average in zip(self._names, self._average, strict=True):
            copy_into(average, tensors[name], name)


def copy_into(target: Tensor, source: Tensor, name: str) -> None:
    """Copy a tensor of exactly the same shape and type, which `Tensor.copy_` would not insist on."""
    if target.shape != source.shape or target.dtype != source.dtype:
        raise ValueError(f"{name} has another shape or type")
    target.copy_(source)
