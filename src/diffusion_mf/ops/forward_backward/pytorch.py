"""Forward–backward on probabilities in float64: the path for CPUs and for any device without Triton.

A step of either direction is a matrix product and an elementwise product, computed in place:

    mᵢ = pᵢ₋₁ E,   pᵢ = mᵢ ∘ exp(unaryᵢ),   E = exp(transition)

Float64 spans e^±700, so states need scaling only every few steps, and this is exact for all but extreme scores. `messages` proves
from the values it sees that nothing underflowed; if it cannot, it returns None, and the caller works in log space.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from diffusion_mf.ops.chain_scores import accumulation_dtype, unit_mask
from diffusion_mf.ops.length_order import LengthOrder, arrays, batch_major, by_length, length_order, time_major

# Products of one message from each side must stay above the smallest float64, e^-708.
_LOWEST_LOG = -300.0
# Below these sizes of a matrix product and of a matrix–vector product, NumPy's BLAS starts no threads, which would cost more
# than the product and wait for each other on a busy machine.
_SMALL_PRODUCT, _SMALL_VECTOR_PRODUCT = 1 << 18, 9216
# How far states may drift, in nats, before they are scaled again.
_DRIFT = 150.0


class _Scale(NamedTuple):
    """The largest of some scores, and its distance to the smallest finite one; 0 and 0 if none is finite."""

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
    """Transitions with zeros past each length, where they are not used but must be finite."""
    if transition.dim() == 2 or transition.numel() == 0 or int(lengths.min()) > transition.shape[1]:
        return transition
    return transition.masked_fill(~unit_mask(lengths, transition.shape[1] + 1)[:, 1:, None, None], 0)


def _is_small(values: Tensor, weights: Tensor) -> bool:
    """Whether a product of ``values`` (M, K) with (K, K), or with a matrix for each row, is small enough for NumPy."""
    size = weights.shape[-1] ** 2
    return values.shape[0] * size <= _SMALL_PRODUCT if weights.dim() == 2 else size < _SMALL_VECTOR_PRODUCT


def _steps(layout: LengthOrder, weights: Any, *, is_forward: bool) -> Iterator[tuple[int, int, int, Any]]:
    """The source, target, number of sentences and weights (from rows to columns) of each step."""
    is_global = weights.ndim == 2
    weights = weights if is_forward else weights.swapaxes(-1, -2)
    places = range(1, len(layout.counts))
    for place in places if is_forward else reversed(places):
        count = layout.counts[place]
        source, target = (place - 1, place) if is_forward else (place, place - 1)
        yield source, target, count, weights if is_global else weights[:count, place - 1]


def _sweep(own: Tensor, weights: Tensor, layout: LengthOrder, *, interval: int, is_forward: bool) -> tuple:
    """Messages and states (message ∘ own) of one direction, (N, B, K), and the log-scales (B,) divided out on the way.

    A message is 1 at the start of the direction and in padding.
    """
    message, state = torch.ones_like(own), own.clone()
    log_scale = torch.zeros(own.shape[1], dtype=own.dtype, device=own.device)
    run, own_, message_, state_, log_scale_, weights_ = arrays(
        own, message, state, log_scale, weights, use_numpy=_is_small(own[0], weights)
    )
    is_global = weights.dim() == 2
    until_scaling = interval
    for source, target, count, step in _steps(layout, weights_, is_forward=is_forward):
        found, here = message_[target, :count], state_[target, :count]
        if is_global:
            run.matmul(state_[source, :count], step, out=found)
        else:
            run.matmul(state_[source, :count, None], step, out=found[:, None])
        run.multiply(found, own_[target, :count], out=here)
        until_scaling -= 1
        if until_scaling == 0:
            until_scaling = interval
            top = run.greatest(here, axis=-1, keepdims=True)
            top += top == 0
            here /= top
            log_scale_[:count] += run.log(top[:, 0])
    return message, state, log_scale


def messages(unary: Tensor, transition: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor, Tensor] | None:
    """Log-partition (accumulation type), forward and backward messages (float64); None if unsafe.

    Messages are those of the reference up to a constant per sentence and position, and 0 past each length.
    """
    num_units, num_labels = unary.shape[1:]
    if bool((lengths < 1).any()):
        return None  # only the reference knows rows without units
    layout = length_order(lengths, num_units)
    unary_scores = time_major(unary, layout)
    transition_scores = _local_blanked(transition, lengths)
    unary_scale, transition_scale = _scale(unary_scores), _scale(transition_scores)
    # The log of a state's largest value falls by at most this in a step, and rises by at most log K.
    decay = unary_scale.spread + 2 * transition_scale.spread
    if not decay < -_LOWEST_LOG:
        return None
    interval = max(1, int(_DRIFT / max(decay, math.log(num_labels), 1e-3)))
    own = _exp_below(unary_scores, unary_scale)
    weights = _exp_below(by_length(transition_scores, layout), transition_scale)
    forward, left, log_scale = _sweep(own, weights, layout, interval=interval, is_forward=True)
    backward, right, _ = _sweep(own, weights, layout, interval=interval, is_forward=False)
    # Every exact value is at most a factor e^-decay below one seen here, so none was lost unless one this low was seen.
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

    ``left`` and ``right`` (B, N, K) are message ∘ exp(unary) up to a constant per position; ``onward`` (B, N, K) is the message
    from the right, 1 at the last unit; ``share`` (B, N, 1) normalises left ∘ onward, and is 0 past each length and in sentences
    without a legal sequence.
    """

    left: Tensor
    right: Tensor
    onward: Tensor
    share: Tensor
    weights: Tensor


def _through(values: Tensor, weights: Tensor) -> Tensor:
    """The product of (B, M, K) with one matrix (K, K), or with a matrix per position, (B, M, K, K)."""
    is_global = weights.dim() == 2
    use_numpy = values.numel() > 0 and _is_small(values[0], weights)
    run, values_, weights_ = arrays(values if is_global else values[..., None, :], weights, use_numpy=use_numpy)
    return torch.as_tensor(run.matmul(values_, weights_)).view_as(values)


def _summed_products(left: Tensor, right: Tensor) -> Tensor:
    """Σ left(j) right(k) over sentences and positions, (K, K), from two (B, M, K), with one product per sentence."""
    use_numpy = left.shape[1] * left.shape[2] ** 2 <= _SMALL_PRODUCT
    run, left_, right_ = arrays(left.transpose(1, 2), right, use_numpy=use_numpy)
    return torch.as_tensor(run.matmul(left_, right_).sum(0))


def _chain(unary: Tensor, transition: Tensor, lengths: Tensor, forward: Tensor, backward: Tensor) -> _Chain:
    B, N, K = unary.shape
    is_ragged = B > 0 and int(lengths.min()) < N
    is_unit = unit_mask(lengths, N)[..., None]
    if is_ragged:
        # Padding may be any finite number that does not change the scale, so it repeats the sentence's last unit.
        positions = torch.minimum(torch.arange(N, device=lengths.device), lengths[:, None] - 1)
        rows = (positions + N * torch.arange(B, device=lengths.device)[:, None]).flatten()
        unary = unary.reshape(B * N, K).index_select(0, rows).view(B, N, K)
    scores = unary.to(torch.float64, copy=True).sub_(_scale(unary).top)
    transition = _local_blanked(transition, lengths)
    weights = _exp_below(transition, _scale(transition))
    left, right = (forward + scores).exp_(), scores.add_(backward).exp_()
    onward = torch.ones_like(left)
    onward[:, :-1] = _through(right[:, 1:], weights.transpose(-1, -2))
    if is_ragged:
        onward.masked_fill_(~torch.nn.functional.pad(is_unit[:, 1:], (0, 0, 0, 1)), 1)
    total = torch.linalg.vecdot(left, onward)[..., None]
    share = torch.where(is_unit & (total > 0), 1 / total, 0)
    return _Chain(left, right, onward, share, weights)


def _tangents(
    states: Tensor, received: Tensor, moves: Tensor, weights: Tensor, layout: LengthOrder, *, is_forward: bool
) -> Tensor:
    """Derivatives (B, N, K) of one direction's log-states if unary scores have the tangent ``moves``.

    Ḟᵢ(k) = movesᵢ(k) + Σⱼ P(yᵢ₋₁ = j | yᵢ = k, before) Ḟᵢ₋₁(j), where P = statesᵢ₋₁(j) E(j, k) / receivedᵢ(k).
    """
    states = time_major(states, layout)
    shares = time_major(torch.where(received > 0, 1 / received, 0), layout)
    result = time_major(moves, layout)
    weighted, flow = torch.empty_like(states[0]), torch.empty_like(states[0])
    run, states_, shares_, result_, weights_, weighted_, flow_ = arrays(
        states, shares, result, by_length(weights, layout), weighted, flow, use_numpy=_is_small(flow, weights)
    )
    is_global = weights.dim() == 2
    for source, target, count, step in _steps(layout, weights_, is_forward=is_forward):
        moved, arrived = weighted_[:count], flow_[:count]
        run.multiply(states_[source, :count], result_[source, :count], out=moved)
        if is_global:
            run.matmul(moved, step, out=arrived)
        else:
            run.matmul(moved[:, None], step, out=arrived[:, None])
        run.multiply(arrived, shares_[target, :count], out=arrived)
        result_[target, :count] += arrived
    return batch_major(result, layout)


def _both_tangents(
    chain: _Chain, marginals: Tensor, lengths: Tensor, direction: Tensor, pair_direction: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Derivatives of left and right log-states for the given tangents of the scores, centred to mean 0 under the marginals.

    Centring at each position changes no derivative of a normalised quantity.
    """
    incoming = torch.ones_like(chain.left)
    incoming[:, 1:] = _through(chain.left[:, :-1], chain.weights)
    left_moves, right_moves = direction, direction
    if pair_direction is not None:
        # The contribution of the transitions' tangent to each message, before normalisation.
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
        # left_moves is Ḟ + G and right_moves is G + Ṁ, so their sum contains G twice.
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
    """Σ of left(j) E(j, k) right(k) times ``factors`` and the pairs' own tangent: (K, K) if summing is free, else local."""
    if weights.dim() == 2 and pair_factor is None:
        return weights * torch.stack([_summed_products(left, right) for left, right in factors]).sum(0)
    # Local scores, or a movement per pair.
    total = sum((left[..., :, None] * right[..., None, :] for left, right in factors), torch.zeros_like(weights))
    total = total * weights
    if pair_factor is not None:
        pairs = before[..., :, None] * weights * after[..., None, :]
        total = total + pairs * (pair_factor - (pairs * pair_factor).sum((-1, -2), keepdim=True))
    return total
