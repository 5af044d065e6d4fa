"""What is checked before anything is computed, so that a mistake is a sentence and not a NaN three modules later.

Shapes are known to the host and always checked. Values are not: looking at them waits for a GPU, so it is done on request.
"""

from __future__ import annotations

import torch
from torch import Tensor

from diffusion_mf.errors import NoLegalSequenceError


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
            f"transition_scores must be {(K, K)} or {(B, N - 1, K, K)} beside unary_scores {(B, N, K)},"
            f" found {tuple(transition_scores.shape)}"
        )
    expected = {
        "start_scores": (start_scores, (K,)),
        "end_scores": (end_scores, (K,)),
        "allowed": (allowed, (B, N, K)),
    }
    for name, (tensor, shape) in expected.items():
        if tensor is not None and tensor.shape != shape:
            raise ValueError(f"{name} must be {shape} beside unary_scores {(B, N, K)}, found {tuple(tensor.shape)}")
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
    """Raise `ValueError` for NaN or +∞ where a score is read; −∞ is a score."""
    is_bad = (~(unary_scores < torch.inf) & is_unit[..., None]).flatten(1).any(1)
    if transition_scores is not None and transition_scores.dim() == 4:
        is_bad = is_bad | (~(transition_scores < torch.inf) & is_unit[:, 1:, None, None]).flatten(1).any(1)
    if bool(is_bad.any()):
        raise ValueError(f"scores of sentence {_first(is_bad)} of the batch hold NaN or +∞")
    shared = {"start_scores": start_scores, "end_scores": end_scores}
    if transition_scores is not None and transition_scores.dim() == 2:
        shared["transition_scores"] = transition_scores
    for name, scores in shared.items():
        if scores is not None and not bool((scores < torch.inf).all()):
            raise ValueError(f"{name} hold NaN or +∞")


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
    """Raise `ValueError` for a number at a unit that is no label."""
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
