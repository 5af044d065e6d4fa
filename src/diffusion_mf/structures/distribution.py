"""The contract between structures and everything else: a distribution over the label sequences of a batch."""

from __future__ import annotations

import abc
import dataclasses
import functools
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from diffusion_mf.ops.backends import Backend
from diffusion_mf.ops.chain_scores import Lengths, accumulation_dtype, length_tensor, unit_mask

Result = TypeVar("Result")


class Potentials(NamedTuple):
    """The scores a network gives a batch (`ops.chain_scores` has the formula)."""

    unary_scores: Float[Tensor, "B N K"]
    transition_scores: Float[Tensor, "K K"] | Float[Tensor, "B M K K"] | None = None
    """one matrix for all places, or one for each of the N − 1; None for structures without transitions"""
    start_scores: Float[Tensor, "K"] | None = None
    end_scores: Float[Tensor, "K"] | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class InferenceSettings:
    """How a structure is to be computed; each structure reads what concerns it."""

    num_iterations: int = 5
    """updates of Mean-Field"""
    backend: Backend = "auto"
    check: bool = True
    """look for bad lengths, NaN and sentences without a legal sequence; waits for a GPU, so training turns it off"""


class LabelDistribution(abc.ABC):
    """p(y) over label sequences y of B sentences with at most N units and K labels.

    Results are float64 for float64 scores, else float32. Positions past a sentence's length carry no information: nothing
    there changes a bit of any result, marginals and labels there are 0, and so are gradients.

    A distribution computes at first use and remembers: its results share one graph, so add up losses and go backward once.
    """

    uses_transitions: ClassVar[bool]
    """whether a network has to give transition scores"""
    takes_coarse_transitions: ClassVar[bool] = False
    """whether they may have the three digits of bfloat16: where they only weigh neighbours' beliefs"""

    def __init__(self, unary_scores: Tensor, lengths: Lengths) -> None:
        self.lengths = length_tensor(lengths, unary_scores)
        self.dtype = accumulation_dtype(unary_scores.dtype)
        self.num_sentences, self.num_units, self.num_labels = unary_scores.shape
        self._is_unit = unit_mask(self.lengths, self.num_units)
        self._remembered: dict[tuple[str, bool], Any] = {}

    @classmethod
    @abc.abstractmethod
    def from_potentials(
        cls,
        potentials: Potentials,
        lengths: Lengths,
        *,
        allowed: Bool[Tensor, "B N K"] | None = None,
        settings: InferenceSettings | None = None,
    ) -> LabelDistribution:
        """The distribution a network's scores define; the one signature that all structures share."""

    @abc.abstractmethod
    def log_prob(self, labels: Int[Tensor, "B N"]) -> Float[Tensor, "B"]:
        """log p(y); −∞ where y is impossible. Labels past a length may be any number."""

    @abc.abstractmethod
    def marginals(self) -> Float[Tensor, "B N K"]:
        """P(yᵢ = k)."""

    @abc.abstractmethod
    def log_marginals(self) -> Float[Tensor, "B N K"]:
        """log P(yᵢ = k) for losses, 0 past each length: a sum over gold labels needs no mask."""

    @abc.abstractmethod
    def mode(self) -> Int[Tensor, "B N"]:
        """argmax_y p(y); ties to the smaller label."""

    @abc.abstractmethod
    def sample_many(self, generator: torch.Generator | None, num_samples: int) -> Int[Tensor, "S B N"]:
        """Independent draws y ~ p; without a generator from torch's global one."""

    def sample(self, generator: torch.Generator | None = None) -> Int[Tensor, "B N"]:
        """One draw y ~ p. Its noise is the generator's, the same for every backend."""
        return self.sample_many(generator, 1)[0]

    @abc.abstractmethod
    def entropy(self) -> Float[Tensor, "B"]:
        """−Σ_y p(y) log p(y), in nats, differentiable."""


def remember(method: Callable[[Any], Result]) -> Callable[[Any], Result]:
    """Compute once per distribution; what was computed without gradients is not taken where gradients are wanted."""

    @functools.wraps(method)
    def remembering(self: Any) -> Result:
        memory, name = self._remembered, method.__name__
        has_grad = torch.is_grad_enabled()
        if (name, has_grad) not in memory:
            if not has_grad and (name, True) in memory:
                memory[name, has_grad] = _detached(memory[name, True])
            else:
                memory[name, has_grad] = method(self)
        return memory[name, has_grad]

    return remembering


def _detached(result: Any) -> Any:
    if isinstance(result, Tensor):
        return result.detach()
    return type(result)(*(_detached(part) for part in result))
