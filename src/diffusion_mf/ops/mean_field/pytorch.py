"""Mean-Field in plain PyTorch: each operation covers the whole batch, and the backward pass recomputes the iterations.

The map from beliefs to neighbour scores is its own transpose (i sends to i + 1 through T, i + 1 sends to i through Tᵀ), so one
function serves both passes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from diffusion_mf.ops.chain_scores import accumulation_dtype, blank_padding, log_softmax, softmax, unit_mask


def _softmax(scores: Tensor) -> Tensor:
    return torch.softmax(scores, -1)


def _log_softmax(scores: Tensor) -> Tensor:
    return torch.log_softmax(scores, -1)


def _neighbour_scores(values: Tensor, transition: Tensor) -> Tensor:
    result = torch.zeros_like(values)
    if transition.dim() == 2:
        # Both products are computed over all positions, so no slices need to be copied to be contiguous.
        num_labels = len(transition)
        both = values.flatten(0, 1) @ torch.cat([transition, transition.T], 1)
        both = both.view(*values.shape[:2], 2 * num_labels)
        result[:, 1:] = both[:, :-1, :num_labels]
        result[:, :-1] += both[:, 1:, num_labels:]
    else:
        result[:, 1:] = (values[:, :-1, None, :] @ transition).squeeze(-2)
        result[:, :-1] += (transition @ values[:, 1:, :, None]).squeeze(-1)
    return result


def _prepare(unary: Tensor, transition: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    dtype = accumulation_dtype(unary.dtype)
    unary, transition = blank_padding(unary.to(dtype), transition.to(dtype), lengths)
    return unary, transition, unit_mask(lengths, unary.shape[1])[..., None]


def iterate(unary: Tensor, transition: Tensor, lengths: Tensor, num_iterations: int, *, is_log: bool = False) -> Tensor:
    """Beliefs after the last update, or their logarithms."""
    unary, transition, is_unit = _prepare(unary, transition, lengths)
    # Searching for positions that allow no label costs as much as the updates themselves, and there are rarely any. On a GPU
    # it would require synchronisation.
    is_finite = unary.device.type == "cpu" and unary.numel() > 0 and bool(unary.amin() > -torch.inf)
    normalise, log_normalise = (_softmax, _log_softmax) if is_finite else (softmax, log_softmax)
    scores = unary
    for _ in range(num_iterations):
        scores = _neighbour_scores(normalise(scores).mul_(is_unit), transition).add_(unary)
    return log_normalise(scores).masked_fill_(~is_unit, 0) if is_log else normalise(scores).mul_(is_unit)


def gradient(
    unary: Tensor,
    transition: Tensor,
    lengths: Tensor,
    num_iterations: int,
    grad_beliefs: Tensor,
    *,
    is_log: bool = False,
) -> tuple[Tensor, Tensor]:
    """Gradients with respect to unary and transition scores, given those of the beliefs or of their logarithms."""
    dtypes = unary.dtype, transition.dtype
    unary, transition, is_unit = _prepare(unary, transition, lengths)
    trajectory = [softmax(unary) * is_unit]
    for _ in range(num_iterations):
        trajectory.append(softmax(unary + _neighbour_scores(trajectory[-1], transition)) * is_unit)
    grad = grad_beliefs.to(unary.dtype).masked_fill(~is_unit, 0)  # padding may produce NaN: 0 · ∞ of a masked log
    grad_unary = torch.zeros_like(unary)
    grad_transition = torch.zeros_like(transition)
    for step in range(num_iterations, -1, -1):
        beliefs = trajectory[step]
        if is_log and step == num_iterations:
            # A position that allows no label has no gradient either.
            grad_scores = grad * (beliefs.sum(-1, keepdim=True) > 0) - beliefs * grad.sum(-1, keepdim=True)
        else:
            grad_scores = beliefs * (grad - (beliefs * grad).sum(-1, keepdim=True))
        grad_unary += grad_scores
        if step > 0:
            before = trajectory[step - 1]
            grad = _neighbour_scores(grad_scores, transition)
            sides = [(before[:, :-1], grad_scores[:, 1:]), (grad_scores[:, :-1], before[:, 1:])]
            for left, right in sides:
                if transition.dim() == 2:
                    grad_transition += left.flatten(0, 1).T @ right.flatten(0, 1)
                else:
                    grad_transition += left[..., :, None] * right[..., None, :]
    return grad_unary.to(dtypes[0]), grad_transition.to(dtypes[1])
