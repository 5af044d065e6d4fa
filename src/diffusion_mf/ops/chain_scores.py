"""The inputs common to all chain operations, and small functions that are safe at −∞.

Every operation scores a label sequence of a sentence with n units as

    score(y) = start(y₁) + Σᵢ unaryᵢ(yᵢ) + Σᵢ transitionᵢ(yᵢ, yᵢ₊₁) + end(yₙ)

with ``unary_scores`` (B, N, K), ``transition_scores`` (K, K) or, for position-specific ones, (B, N−1, K, K), ``lengths`` (B,) ≥ 1,
and ``allowed`` (B, N, K), the labels that each position may take. Scores may be −∞ but not +∞ or NaN; values past a sentence's
length do not matter.
"""

from __future__ import annotations

import reprlib
from collections.abc import Sequence

import numpy
import torch
from jaxtyping import Bool, Float, Int, Integer
from torch import Tensor

Lengths = Int[Tensor, " B"] | Integer[numpy.ndarray, " B"] | Sequence[int]
"""The number of units of each sentence, in the forms users may give it."""


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """The type for accumulating sums: float64 for float64, float32 for all smaller types."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def unit_mask(lengths: Int[Tensor, " B"], num_units: int) -> Bool[Tensor, "B N"]:
    """True where a sentence has a unit."""
    return torch.arange(num_units, device=lengths.device) < lengths[:, None]


def length_tensor(lengths: Lengths, unary_scores: Float[Tensor, "B N K"]) -> Int[Tensor, " B"]:
    """Lengths as a contiguous tensor on the device of the scores; `ValueError` if they cannot be lengths.

    Values in a tensor on a GPU are not looked at, for that waits for it; `check_lengths` does it on request. Rows that only fill a
    batch have length 0.
    """
    found = lengths if isinstance(lengths, Tensor) else _on_host(lengths)
    if found.shape != unary_scores.shape[:1]:
        raise ValueError(
            f"lengths must be {tuple(unary_scores.shape[:1])} for unary_scores {tuple(unary_scores.shape)},"
            f" found {tuple(found.shape)}"
        )
    if found.is_floating_point() or found.is_complex() or found.dtype == torch.bool:
        raise ValueError(f"lengths must be of an integer type, found {found.dtype}")
    if not isinstance(lengths, Tensor):
        found = found.long()
        check_lengths(found, unary_scores.shape[1])
    elif found.device.type == "cpu":
        check_lengths(found, unary_scores.shape[1], least=0)
    return found.to(unary_scores.device).contiguous()


def _on_host(lengths: object) -> Tensor:
    try:
        return torch.from_numpy(numpy.array(lengths))
    except (TypeError, ValueError):
        message = f"lengths must have one integer for each sentence, found {reprlib.repr(lengths)}"
        raise ValueError(message) from None


def check_lengths(lengths: Int[Tensor, " B"], num_units: int, *, least: int = 1) -> None:
    """Raise `ValueError` for a length outside 1…N."""
    is_bad = (lengths < least) | (lengths > num_units)
    if bool(is_bad.any()):
        sentence = int(is_bad.nonzero()[0, 0])
        raise ValueError(
            f"lengths must be in 1…{num_units}, found {int(lengths[sentence])} for sentence {sentence} of the batch"
        )


def fold_scores(
    unary_scores: Float[Tensor, "B N K"],
    lengths: Lengths,
    *,
    start_scores: Float[Tensor, " K"] | None = None,
    end_scores: Float[Tensor, " K"] | None = None,
    allowed: Bool[Tensor, "B N K"] | None = None,
) -> Float[Tensor, "B N K"]:
    """Unary scores with start and end scores added and −∞ for labels not allowed; differentiable in all three."""
    if start_scores is not None or end_scores is not None:
        lengths = length_tensor(lengths, unary_scores)
        unary_scores = unary_scores.to(accumulation_dtype(unary_scores.dtype))
        positions = torch.arange(unary_scores.shape[1], device=lengths.device)
        if start_scores is not None:
            is_first = (positions == 0)[:, None]
            unary_scores = torch.where(is_first, unary_scores + start_scores, unary_scores)
        if end_scores is not None:
            is_last = (positions == lengths[:, None] - 1)[..., None]
            unary_scores = torch.where(is_last, unary_scores + end_scores, unary_scores)
    if allowed is not None:
        unary_scores = unary_scores.masked_fill(~allowed, -torch.inf)
    return unary_scores


def blank_padding(
    unary_scores: Float[Tensor, "B N K"],
    transition_scores: Float[Tensor, "K K"] | Float[Tensor, "B M K K"],
    lengths: Int[Tensor, " B"],
) -> tuple[Tensor, Tensor]:
    """The scores with zeros past each length, for code that computes whole rectangles."""
    num_units = unary_scores.shape[1]
    if unary_scores.shape[0] * num_units == 0:
        return unary_scores, transition_scores
    padding = ~unit_mask(lengths, num_units)
    unary_scores = unary_scores.masked_fill(padding[..., None], 0)
    if transition_scores.dim() == 4:
        transition_scores = transition_scores.masked_fill(padding[:, 1:, None, None], 0)
    return unary_scores, transition_scores


def transitions_into(transition_scores: Tensor, position: int) -> Tensor:
    """Scores of the transition from ``position − 1`` to ``position``: (B, K, K), or (1, K, K) if they are global."""
    return transition_scores[None] if transition_scores.dim() == 2 else transition_scores[:, position - 1]


def logsumexp(scores: Tensor, dim: int) -> Tensor:
    """log Σ exp that is −∞, with zero gradient, where every score is −∞ (torch's own gives NaN gradients there)."""
    top = scores.detach().amax(dim, keepdim=True)
    top = torch.where(top == -torch.inf, 0, top)
    total = (scores - top).exp().sum(dim)
    is_empty = total == 0
    return torch.where(is_empty, -torch.inf, torch.where(is_empty, 1, total).log() + top.squeeze(dim))


def softmax(scores: Tensor) -> Tensor:
    """Softmax over the last dimension that is zero, with zero gradient, where every score is −∞."""
    is_empty = (scores == -torch.inf).all(-1, keepdim=True)
    return torch.where(is_empty, 0, torch.softmax(torch.where(is_empty, 0, scores), -1))


def log_softmax(scores: Tensor) -> Tensor:
    """Log-softmax over the last dimension that is −∞, with zero gradient, where every score is −∞."""
    is_empty = (scores == -torch.inf).all(-1, keepdim=True)
    return torch.where(is_empty, -torch.inf, torch.log_softmax(torch.where(is_empty, 0, scores), -1))
