"""The interface of structures, `LabelDistribution` and `Factorised`, with input checks and sampling that they share.

Inputs are checked before anything is computed, so that a mistake is reported at once and not as a NaN much later.

Shapes are known to the host and always checked. Values are checked on request only, since reading them waits for the GPU.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from diffusion_mf.errors import NoLegalSequenceError
from diffusion_mf.ops.backends import Backend
from diffusion_mf.ops.chain_scores import Lengths, accumulation_dtype, length_tensor, unit_mask


def check_shapes(
    unary_scores: Tensor,
    *,
    transition_scores: Tensor | None = None,
    start_scores: Tensor | None = None,
    end_scores: Tensor | None = None,
    allowed: Tensor | None = None,
) -> None:
    """Raise `ValueError` naming the tensor whose shape or type does not fit ``unary_scores`` (B, N, K)."""
    if unary_scores.dim() != 3 or 0 in unary_scores.shape:
        raise ValueError(
            f"unary_scores must be (B, N, K) with no dimension of size 0, found {tuple(unary_scores.shape)}"
        )
    if not unary_scores.is_floating_point():
        raise ValueError(f"unary_scores must be of a floating-point type, found {unary_scores.dtype}")
    B, N, K = unary_scores.shape
    if transition_scores is not None and transition_scores.shape not in ((K, K), (B, N - 1, K, K)):
        raise ValueError(
            f"transition_scores must be {(K, K)} or {(B, N - 1, K, K)} for unary_scores {(B, N, K)},"
            f" found {tuple(transition_scores.shape)}"
        )
    expected = {
        "start_scores": (start_scores, (K,)),
        "end_scores": (end_scores, (K,)),
        "allowed": (allowed, (B, N, K)),
    }
    for name, (tensor, shape) in expected.items():
        if tensor is not None and tensor.shape != shape:
            raise ValueError(f"{name} must be {shape} for unary_scores {(B, N, K)}, found {tuple(tensor.shape)}")
    if allowed is not None and allowed.dtype != torch.bool:
        raise ValueError(f"allowed must be boolean, found {allowed.dtype}")


def check_scores(
    unary_scores: Tensor,
    is_unit: Tensor,
    *,
    transition_scores: Tensor | None = None,
    start_scores: Tensor | None = None,
    end_scores: Tensor | None = None,
) -> None:
    """Raise `ValueError` for NaN or +∞ in scores that are read, and for scores whose sums would overflow; −∞ is allowed."""
    is_bad = (~(unary_scores < torch.inf) & is_unit[..., None]).flatten(1).any(1)
    if transition_scores is not None and transition_scores.dim() == 4:
        is_bad = is_bad | (~(transition_scores < torch.inf) & is_unit[:, 1:, None, None]).flatten(1).any(1)
    if bool(is_bad.any()):
        raise ValueError(f"the scores of sentence {_first(is_bad)} of the batch contain NaN or +∞")
    shared = {"start_scores": start_scores, "end_scores": end_scores}
    if transition_scores is not None and transition_scores.dim() == 2:
        shared["transition_scores"] = transition_scores
    for name, scores in shared.items():
        if scores is not None and not bool((scores < torch.inf).all()):
            raise ValueError(f"{name} contain NaN or +∞")
    total = (_largest(unary_scores, -1) * is_unit).sum(1)
    if transition_scores is not None and transition_scores.dim() == 4:
        total = total + (_largest(transition_scores, (-1, -2)) * is_unit[:, 1:]).sum(1)
    for scores in shared.values():
        if scores is not None:
            total = total + _largest(scores, tuple(range(scores.dim()))) * is_unit.sum(1)
    # A message may be the difference of two such sums.
    is_bad = total > torch.finfo(accumulation_dtype(unary_scores.dtype)).max / 4
    if bool(is_bad.any()):
        raise ValueError(f"the scores of sentence {_first(is_bad)} of the batch are so large that their sums overflow")


def _largest(scores: Tensor, dim: int | tuple[int, ...]) -> Tensor:
    """The largest finite magnitude along ``dim``."""
    scores = scores.detach().double()
    return scores.masked_fill(scores == -torch.inf, 0).abs().amax(dim)


def check_positions(unary_scores: Tensor, is_unit: Tensor) -> None:
    """Raise `NoLegalSequenceError` where a unit has no label with a score above −∞."""
    is_empty = (unary_scores == -torch.inf).all(-1) & is_unit
    if bool(is_empty.any()):
        sentence = _first(is_empty.any(1))
        raise NoLegalSequenceError(
            f"sentence {sentence} of the batch has no label left at position {_first(is_empty[sentence])}",
            remedy="allow a label there",
        )


def check_legal(is_legal: Tensor) -> None:
    """Raise `NoLegalSequenceError` for the first sentence of (B,) that is not legal."""
    if not bool(is_legal.all()):
        raise NoLegalSequenceError(
            f"sentence {_first(~is_legal)} of the batch has no legal label sequence",
            remedy="relax its clamps or the constraints",
        )


def check_labels(labels: Tensor, is_unit: Tensor, num_labels: int) -> None:
    """Raise `ValueError` if a unit has a number that is not a label, or ``labels`` another shape than the units."""
    if labels.shape != is_unit.shape:
        raise ValueError(f"labels must have the shape {tuple(is_unit.shape)}, found {tuple(labels.shape)}")
    is_bad = ((labels < 0) | (labels >= num_labels)) & is_unit
    if bool(is_bad.any()):
        sentence = _first(is_bad.any(1))
        position = _first(is_bad[sentence])
        raise ValueError(
            f"labels must lie in 0…{num_labels - 1}, found {int(labels[sentence, position])}"
            f" at position {position} of sentence {sentence} of the batch"
        )


def _first(flags: Tensor) -> int:
    return int(flags.nonzero()[0, 0])


def gumbel_noise(
    shape: tuple[int, ...], generator: torch.Generator | None, *, device: torch.device, dtype: torch.dtype
) -> Tensor:
    """−log of exponential draws, drawn on the generator's device; in float64, for an accurate tail."""
    source = device if generator is None else generator.device
    draws = torch.empty(shape, dtype=torch.float64, device=source).exponential_(generator=generator)
    return draws.log_().neg_().to(device=device, dtype=dtype)


@torch.no_grad()
def sample_backwards(
    forward_messages: Float[Tensor, "B N K"],
    unary_scores: Float[Tensor, "B N K"],
    transition_scores: Float[Tensor, "K K"] | Float[Tensor, "B N-1 K K"],
    lengths: Int[Tensor, " B"],
    noise: Float[Tensor, "S B N K"],
) -> Int[Tensor, "S B N"]:
    """Forward filtering, backward sampling: exact draws from a linear chain, O(N K) each once messages are known.

    yₙ ~ softmax(Fₙ + unaryₙ), then yᵢ | yᵢ₊₁ ~ softmax(Fᵢ + unaryᵢ + transitionᵢ(·, yᵢ₊₁)), with forward messages Fᵢ.
    """
    is_unit = unit_mask(lengths, unary_scores.shape[1])
    before = torch.where(is_unit[..., None], forward_messages + unary_scores, 0)
    into = transition_scores.transpose(-1, -2)  # [next, previous]
    num_units = unary_scores.shape[1]
    sentences = torch.arange(len(lengths), device=lengths.device)
    labels = torch.zeros(noise.shape[:-1], dtype=torch.long, device=unary_scores.device)
    for position in range(num_units - 1, -1, -1):
        score = before[:, position] + noise[:, :, position]  # (S, B, K)
        if position < num_units - 1:
            after = labels[:, :, position + 1]
            step = into[after] if into.dim() == 2 else into[sentences, position, after]
            score = score + torch.where((position < lengths - 1)[:, None], step, 0)
        labels[:, :, position] = torch.where(is_unit[:, position], score.argmax(-1), 0)
    return labels


Result = TypeVar("Result")


class Potentials(NamedTuple):
    """The scores that a network computes for a batch (`ops.chain_scores` has the formula)."""

    unary_scores: Float[Tensor, "B N K"]
    transition_scores: Float[Tensor, "K K"] | Float[Tensor, "B M K K"] | None = None
    """one matrix for all positions, or one for each of the N − 1; None for structures without transitions"""
    start_scores: Float[Tensor, " K"] | None = None
    end_scores: Float[Tensor, " K"] | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class InferenceSettings:
    """Settings of inference; each structure reads those that concern it."""

    num_iterations: int = 5
    """updates of Mean-Field"""
    backend: Backend = "auto"
    check: bool = True
    """check lengths, NaN, and that a legal sequence exists; waits for a GPU, so training turns it off"""


class LabelDistribution(abc.ABC):
    """p(y) over label sequences y of B sentences with at most N units and K labels.

    Results are float64 for float64 scores, otherwise float32. Positions past a sentence's length have no influence: their
    contents do not change any bit of a result, and marginals, labels and gradients there are 0.

    Results are computed on first use and cached. They share one graph, so add up losses and call backward once.
    """

    uses_transitions: ClassVar[bool]
    """whether the network must provide transition scores"""
    takes_coarse_transitions: ClassVar[bool] = False
    """whether transition scores may be bfloat16, because they only weight the neighbours' beliefs"""

    def __init__(self, unary_scores: Tensor, lengths: Lengths, *, check: bool = True) -> None:
        self.lengths = length_tensor(lengths, unary_scores)
        self.dtype = accumulation_dtype(unary_scores.dtype)
        self.num_sentences, self.num_units, self.num_labels = unary_scores.shape
        self._is_unit = unit_mask(self.lengths, self.num_units)
        self._check = check
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
        """The distribution defined by a network's scores; this signature is the same for all structures."""

    @abc.abstractmethod
    def log_prob(self, labels: Int[Tensor, "B N"]) -> Float[Tensor, " B"]:
        """log p(y); −∞ where y is impossible. Labels past a length may be any number."""

    @abc.abstractmethod
    def marginals(self) -> Float[Tensor, "B N K"]:
        """P(yᵢ = k)."""

    @abc.abstractmethod
    def log_marginals(self) -> Float[Tensor, "B N K"]:
        """log P(yᵢ = k) for losses, 0 past each length, so that a sum over gold labels needs no mask."""

    @abc.abstractmethod
    def mode(self) -> Int[Tensor, "B N"]:
        """argmax_y p(y); ties to the smaller label."""

    @abc.abstractmethod
    def sample_many(self, generator: torch.Generator | None, num_samples: int) -> Int[Tensor, "S B N"]:
        """Independent draws y ~ p; without a generator, from torch's global one."""

    def sample(self, generator: torch.Generator | None = None) -> Int[Tensor, "B N"]:
        """One draw y ~ p; the noise comes from the generator and is the same for every backend."""
        return self.sample_many(generator, 1)[0]

    @abc.abstractmethod
    def entropy(self) -> Float[Tensor, " B"]:
        """−Σ_y p(y) log p(y), in nats, differentiable."""


def remember(method: Callable[[Any], Result]) -> Callable[[Any], Result]:
    """Cache a result per distribution; one computed without gradients is not reused where gradients are needed."""

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


class Factorised(LabelDistribution):
    """q(y) = Πᵢ qᵢ(yᵢ); subclasses implement `marginals` and `log_marginals`."""

    def log_prob(self, labels: Int[Tensor, "B N"]) -> Float[Tensor, " B"]:
        """log q(y) = Σᵢ log qᵢ(yᵢ)."""
        if self._check:
            check_labels(labels, self._is_unit, self.num_labels)
        log_probs = gather_labels(self.log_marginals(), labels)
        return torch.where(self._is_unit, log_probs, 0).sum(1)

    def mode(self) -> Int[Tensor, "B N"]:
        """argmaxₖ qᵢ(k) at every position."""
        return torch.where(self._is_unit, self.marginals().argmax(-1), 0)

    def sample_many(self, generator: torch.Generator | None, num_samples: int) -> Int[Tensor, "S B N"]:
        """yᵢ ~ qᵢ, independently."""
        log_probs = self.log_marginals().detach()
        shape = (num_samples, *log_probs.shape)
        noise = gumbel_noise(shape, generator, device=log_probs.device, dtype=log_probs.dtype)
        return torch.where(self._is_unit, (log_probs + noise).argmax(-1), 0)

    def entropy(self) -> Float[Tensor, " B"]:
        """−Σᵢ Σₖ qᵢ(k) log qᵢ(k)."""
        log_probs = self.log_marginals()
        # 0·log 0 = 0, and where log q = 0 the product below is 0, too.
        log_probs = torch.where(log_probs == -torch.inf, 0, log_probs)
        return -(log_probs.exp() * log_probs).flatten(1).sum(1)


def safe_log_softmax(scores: Tensor, is_unit: Tensor) -> Tensor:
    """log softmax over the last dimension; 0 at padding, −∞ where every score is −∞; no gradient in either case."""
    is_empty = (scores == -torch.inf).all(-1)
    is_usual = (is_unit & ~is_empty)[..., None]
    log_probs = torch.log_softmax(torch.where(is_usual, scores, 0), -1)
    return torch.where(is_usual, log_probs, torch.where(is_unit, -torch.inf, 0)[..., None])


def gather_labels(values: Tensor, labels: Tensor) -> Tensor:
    """``values`` (…, K) at ``labels`` (…); −∞ at numbers that are not labels."""
    num_labels = values.shape[-1]
    found = values.gather(-1, labels.long().clamp(0, num_labels - 1)[..., None])[..., 0]
    return torch.where((labels >= 0) & (labels < num_labels), found, -torch.inf)
