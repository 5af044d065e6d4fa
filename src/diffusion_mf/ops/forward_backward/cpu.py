"""Forward–backward on probabilities in float64: the path for CPUs (and any device without Triton).

A step of either direction is a matrix product and a product, written in place:

    mᵢ = pᵢ₋₁ E,   pᵢ = mᵢ ∘ exp(unaryᵢ),   E = exp(transition)

Float64 spans e^±700, so states need scaling only every few steps, and this is exact for all but extreme scores; `messages`
proves from the values it met that nothing underflowed, and says so by returning None where it cannot, for the caller to
work in log space.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from diffusion_mf.ops.chain_scores import accumulation_dtype, unit_mask
from diffusion_mf.ops.length_order import LengthOrder, arrays, batch_major, by_length, length_order, time_major

# Products of one message from each side must stay above the smallest float64, e^-708.
_LOWEST_LOG = -300.0
# How far states may drift, in nats, before they are scaled again.
_DRIFT = 100.0


class _Scale(NamedTuple):
    """The largest of some scores, and how far below it the smallest finite one lies; 0 and 0 if none is finite."""

    top: float
    spread: float


def _scale(scores: Tensor) -> _Scale:
    if scores.numel() == 0:
        return _Scale(0.0, 0.0)
    low, top = (float(bound) for bound in scores.aminmax())
    if low == -math.inf:
        low = float(torch.where(scores == -torch.inf, torch.inf, scores).min())
    return _Scale(top, top - low) if top > -math.inf else _Scale(0.0, 0.0)


def _exp_below(scores: Tensor, scale: _Scale) -> Tensor:
    """exp(scores − top) in float64; a new tensor."""
    return scores.to(torch.float64, copy=True).sub_(scale.top).exp_()


def _local_blanked(transition: Tensor, lengths: Tensor) -> Tensor:
    """Transitions with zeros past each length: they are never used, but must be finite numbers."""
    if transition.dim() == 2 or transition.shape[1] == 0 or int(lengths.min()) > transition.shape[1]:
        return transition
    return transition.masked_fill(~unit_mask(lengths, transition.shape[1] + 1)[:, 1:, None, None], 0)


def _product(values: Any, step: Any, run: Any, *, out: Any) -> None:
    """``values`` (B, K) through (K, K), or through a matrix each, (B, K, K)."""
    if step.ndim == 2:
        run.matmul(values, step, out=out)
    else:
        run.matmul(values[:, None, :], step, out=out[:, None, :])


def _steps(layout: LengthOrder, *, is_forward: bool) -> list[tuple[int, int, int, int]]:
    """Each step's source, target and transition, and how many sentences take it."""
    places = range(1, len(layout.counts))
    if is_forward:
        return [(place - 1, place, place - 1, layout.counts[place]) for place in places]
    return [(place, place - 1, place - 1, layout.counts[place]) for place in reversed(places)]


def _matrices(weights: Any, *, is_forward: bool) -> Any:
    """Rows are what a step comes from, columns what it goes to."""
    return weights if is_forward else weights.swapaxes(-1, -2)


def _sweep(own: Tensor, weights: Tensor, layout: LengthOrder, *, interval: int, is_forward: bool) -> tuple:
    """Messages and states (message ∘ own) of one direction, (N, B, K), and the log-scales (B,) taken out on the way.

    A message is 1 where the direction starts, and in the padding.
    """
    message, state = torch.ones_like(own), own.clone()
    total = torch.zeros(own.shape[1], dtype=own.dtype, device=own.device)
    run, own_, message_, state_, weights_ = arrays(own, message, state, weights)
    matrices = _matrices(weights_, is_forward=is_forward)
    is_global = weights.dim() == 2
    for number, (source, target, place, count) in enumerate(_steps(layout, is_forward=is_forward), 1):
        found, here = message_[target, :count], state_[target, :count]
        step = matrices if is_global else matrices[:count, place]
        _product(state_[source, :count], step, run, out=found)
        run.multiply(found, own_[target, :count], out=here)
        if number % interval == 0:
            top = run.greatest(here, axis=-1, keepdims=True)
            top += top == 0
            here /= top
            total[:count] += torch.as_tensor(top[:, 0]).log()
    return message, state, total


def messages(unary: Tensor, transition: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor, Tensor] | None:
    """Log-partition (accumulation type), forward and backward messages (float64); None if unsafe.

    Messages are those of the reference up to a constant per sentence and position, and 0 past each length.
    """
    num_units, num_labels = unary.shape[1:]
    layout = length_order(lengths, num_units)
    unary_scores = time_major(unary, layout)
    transition_scores = _local_blanked(transition, lengths)
    unary_scale, transition_scale = _scale(unary_scores), _scale(transition_scores)
    # A state's largest value falls by no more than this in a step, and rises by no more than log K.
    decay = unary_scale.spread + 2 * transition_scale.spread
    if not decay < -_LOWEST_LOG:
        return None
    interval = max(1, int(_DRIFT / max(decay, math.log(num_labels), 1e-3)))
    own = _exp_below(unary_scores, unary_scale)
    weights = _exp_below(by_length(transition_scores, layout), transition_scale)
    forward, left, log_scale = _sweep(own, weights, layout, interval=interval, is_forward=True)
    backward, right, _ = _sweep(own, weights, layout, interval=interval, is_forward=False)
    # Every true value is at most a factor e^-decay below one seen here: none was lost unless one this low was seen.
    if min(_lowest_log(left), _lowest_log(right)) - decay < _LOWEST_LOG:
        return None

    final = left.view(-1, num_labels).index_select(0, layout.last).sum(-1).log()
    log_scale = torch.empty_like(log_scale).index_copy_(0, layout.order, log_scale)
    tops = lengths.double() * unary_scale.top + (lengths - 1).double() * transition_scale.top
    log_partition = (final + log_scale + tops).to(accumulation_dtype(unary.dtype))
    return log_partition, batch_major(forward.log_(), layout), batch_major(backward.log_(), layout)


def _lowest_log(states: Tensor) -> float:
    """log of the smallest positive value."""
    low = float(states.min()) if states.numel() else 1.0
    if low == 0:
        low = float(torch.where(states > 0, states, 1).min())
    return math.log(low)


def marginals(unary: Tensor, lengths: Tensor, forward: Tensor, backward: Tensor) -> Tensor:
    """Marginals (B, N, K) from messages."""
    is_unit = unit_mask(lengths, unary.shape[1])[..., None]
    score = torch.where(is_unit, forward + unary + backward, -torch.inf)
    score -= score.amax(-1, keepdim=True).clamp_(min=-1e300)
    weights = score.exp_()
    weights /= weights.sum(-1, keepdim=True).clamp_(min=1e-300)
    return weights.to(accumulation_dtype(unary.dtype))


class _Chain(NamedTuple):
    """A chain as its backward pass sees it: pairᵢ(j, k) = beforeᵢ(j) E(j, k) afterᵢ₊₁(k), float64 and batch-major.

    ``left`` and ``right`` (B, N, K) are message ∘ exp(unary) up to a constant per position; ``onward`` (B, N, K) is what the
    right side says to each label, 1 at the last unit; ``share`` (B, N, 1) normalises left ∘ onward, and is 0 past each
    length and in sentences without a legal sequence.
    """

    left: Tensor
    right: Tensor
    onward: Tensor
    share: Tensor
    weights: Tensor


def _matmul(left: Tensor, right: Tensor) -> Tensor:
    run, left_, right_ = arrays(left, right)
    return torch.as_tensor(run.matmul(left_, right_))


def _through(values: Tensor, weights: Tensor) -> Tensor:
    """(B, M, K) through (K, K), or through a matrix each, (B, M, K, K)."""
    if weights.dim() == 2:
        return _matmul(values.flatten(0, 1), weights).view_as(values)
    return _matmul(values[..., None, :], weights)[..., 0, :]


def _chain(unary: Tensor, transition: Tensor, lengths: Tensor, forward: Tensor, backward: Tensor) -> _Chain:
    is_unit = unit_mask(lengths, unary.shape[1])[..., None]
    # Any finite number will do for padding, but it must not shift the scale.
    unary_scores = torch.where(is_unit, unary, unary[:, :1]).double()
    unary_scores -= _scale(unary_scores).top
    transition_scores = _local_blanked(transition, lengths)
    weights = _exp_below(transition_scores, _scale(transition_scores))
    left, right = (forward + unary_scores).exp_(), (unary_scores + backward).exp_()
    onward = torch.ones_like(left)
    onward[:, :-1] = _through(right[:, 1:], weights.transpose(-1, -2)).masked_fill_(~is_unit[:, 1:], 1)
    share = torch.linalg.vecdot(left, onward)[..., None]
    share = torch.where(is_unit & (share > 0), 1 / share, 0)
    return _Chain(left, right, onward, share, weights)


def _tangents(
    states: Tensor, received: Tensor, moves: Tensor, weights: Tensor, layout: LengthOrder, *, is_forward: bool
) -> Tensor:
    """Derivatives (B, N, K) of one direction's log-states when unary scores move along ``moves``.

    Ḟᵢ(k) = movesᵢ(k) + Σⱼ P(yᵢ₋₁ = j | yᵢ = k, before) Ḟᵢ₋₁(j), where P = statesᵢ₋₁(j) E(j, k) / receivedᵢ(k).
    """
    states = time_major(states, layout)
    shares = time_major(torch.where(received > 0, 1 / received, 0), layout)
    result = time_major(moves, layout)
    weighted, flow = torch.empty_like(states[0]), torch.empty_like(states[0])
    run, states_, shares_, result_, weights_, weighted_, flow_ = arrays(
        states, shares, result, by_length(weights, layout), weighted, flow
    )
    matrices = _matrices(weights_, is_forward=is_forward)
    for source, target, place, count in _steps(layout, is_forward=is_forward):
        step = matrices if weights.dim() == 2 else matrices[:count, place]
        run.multiply(states_[source, :count], result_[source, :count], out=weighted_[:count])
        _product(weighted_[:count], step, run, out=flow_[:count])
        run.multiply(flow_[:count], shares_[target, :count], out=flow_[:count])
        result_[target, :count] += flow_[:count]
    return batch_major(result, layout)


def _both_tangents(
    chain: _Chain, marginals: Tensor, lengths: Tensor, direction: Tensor, pair_direction: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Derivatives of left and right log-states when scores move along the directions, of mean 0 under the marginals.

    A shift per position changes no derivative of a normalised quantity.
    """
    incoming = torch.ones_like(chain.left)
    incoming[:, 1:] = _through(chain.left[:, :-1], chain.weights)
    left_moves, right_moves = direction, direction
    if pair_direction is not None:
        # What moving transitions add to each message, before it is normalised.
        flow = chain.weights * pair_direction
        left_moves, right_moves = direction.clone(), direction.clone()
        left_flow = torch.einsum("bnj,bnjk->bnk", chain.left[:, :-1], flow)
        right_flow = torch.einsum("bnk,bnjk->bnj", chain.right[:, 1:], flow)
        left_moves[:, 1:] += torch.where(incoming[:, 1:] > 0, left_flow / incoming[:, 1:], 0)
        right_moves[:, :-1] += torch.where(chain.onward[:, :-1] > 0, right_flow / chain.onward[:, :-1], 0)
    layout = length_order(lengths, direction.shape[1])
    left = _tangents(chain.left, incoming, left_moves, chain.weights, layout, is_forward=True)
    right = _tangents(chain.right, chain.onward, right_moves, chain.weights, layout, is_forward=False)
    return left - _mean(left, marginals), right - _mean(right, marginals)


def _mean(values: Tensor, marginals: Tensor) -> Tensor:
    return torch.linalg.vecdot(marginals, values)[..., None]


def gradient(
    unary: Tensor,
    transition: Tensor,
    lengths: Tensor,
    forward: Tensor,
    backward: Tensor,
    grad_log_partition: Tensor | None,
    grad_marginals: Tensor | None,
    grad_pairs: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Gradients with respect to unary and transition scores of ⟨g, log Z⟩ + ⟨G, marginals⟩ + ⟨W, pair marginals⟩.

    ∇ log Z are the marginals themselves; ∇⟨G, marginals⟩ is the derivative of all marginals when the scores move along G
    (the Hessian of log Z is symmetric), computed by `_tangents`.
    """
    chain = _chain(unary, transition, lengths, forward, backward)
    normalised = chain.left * chain.share
    marginals = normalised * chain.onward
    before, after = normalised[:, :-1] * (chain.share[:, 1:] > 0), chain.right[:, 1:]
    grad_unary: Tensor | None = None
    # The factor of each pair: constant(b) + movement of its left label + of its right label (+ of the pair itself).
    factors: list[tuple[Tensor, Tensor]] = []
    pair_factor: Tensor | None = None
    if grad_log_partition is not None:
        weight = grad_log_partition.double()[:, None, None]
        grad_unary = weight * marginals
        factors.append((before * weight, after))
    if grad_marginals is not None or grad_pairs is not None:
        is_unit = unit_mask(lengths, unary.shape[1])[..., None]
        direction = torch.zeros_like(marginals)
        if grad_marginals is not None:
            direction = grad_marginals.double().masked_fill(~is_unit, 0)
        if grad_pairs is not None:
            pair_factor = grad_pairs.double().masked_fill(~is_unit[:, 1:, None], 0)
        left_moves, right_moves = _both_tangents(chain, marginals, lengths, direction, pair_factor)
        # left_moves holds Ḟ + G and right_moves G + Ṁ: together G is in twice.
        whole = left_moves + right_moves - direction
        moved = marginals * (whole - _mean(whole, marginals))
        grad_unary = moved if grad_unary is None else grad_unary + moved
        factors.append((before * left_moves[:, :-1], after))
        factors.append((before, after * right_moves[:, 1:]))
    assert grad_unary is not None
    grad_transition = _transition_gradient(before, after, chain.weights, factors, pair_factor)
    if transition.dim() == 2 and grad_transition.dim() == 4:
        grad_transition = grad_transition.sum((0, 1))
    return grad_unary.to(unary.dtype), grad_transition.to(transition.dtype)


def _transition_gradient(
    before: Tensor, after: Tensor, weights: Tensor, factors: list[tuple[Tensor, Tensor]], pair_factor: Tensor | None
) -> Tensor:
    """Σ of left(j) E(j, k) right(k) over ``factors``, and the pairs' own movement: (K, K) if summing is free, else local."""
    if weights.dim() == 2 and pair_factor is None:
        lefts, rights = (torch.cat(sides, 1).flatten(0, 1) for sides in zip(*factors, strict=True))
        return weights * _matmul(lefts.T, rights)
    # Local scores, or a movement per pair.
    total = sum((left[..., :, None] * right[..., None, :] for left, right in factors), torch.zeros_like(weights))
    total = total * weights
    if pair_factor is not None:
        pairs = before[..., :, None] * weights * after[..., None, :]
        total = total + pairs * (pair_factor - (pairs * pair_factor).sum((-1, -2), keepdim=True))
    return total
