"""Forward–backward with few, large PyTorch operations: the path for CPUs (and any device without Triton).

Two ideas make it fast. Both directions run in one loop: the backward recursion is the forward one on the mirrored sentence
with transposed transitions, so the two are stacked. And the loop works on probabilities in float64, where a step is one
matrix product, a product and a division:

    mₙ = pₙ₋₁ E,   pₙ ∝ mₙ ∘ exp(unaryₙ),   E = exp(transition)

Float64 spans e^±700, so this is exact for all but extreme scores; `messages` proves from the values it met that nothing
underflowed, and says so by returning None where it cannot, for the caller to work in log space.
"""

from __future__ import annotations

import torch
from torch import Tensor

from diffusion_mf.ops.chain_scores import accumulation_dtype, blank_padding, unit_mask

# Products of one message from each side must stay above the smallest float64, e^-708.
_LOWEST_LOG = -300.0


def _mirror(values: Tensor, lengths: Tensor) -> Tensor:
    """Each sentence's first ``length`` entries of (B, N, …) in reverse order; an involution on them."""
    positions = torch.arange(values.shape[1], device=values.device)
    mirrored = (lengths[:, None] - 1 - positions).clamp_(min=0)
    return values[torch.arange(values.shape[0], device=values.device)[:, None], mirrored]


def _stack(values: Tensor, lengths: Tensor) -> Tensor:
    """(B, N, K) to (N, 2, B, K): forward and mirrored, a contiguous slice per step."""
    return torch.stack([values, _mirror(values, lengths)]).permute(2, 0, 1, 3).contiguous()


def _unstack(values: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """The inverse of `_stack`: both directions as (B, N, K), in sentence order."""
    forward, mirrored = values.permute(1, 2, 0, 3).unbind(0)
    return forward, _mirror(mirrored, lengths)


def _stack_transitions(transition: Tensor, lengths: Tensor) -> Tensor:
    """Both directions' transitions, from rows to columns: (1, 2, K, K), or (N − 1, 2, B, K, K) for local ones."""
    if transition.dim() == 2:
        return torch.stack([transition, transition.T])[None]
    mirrored = _mirror(transition, lengths - 1).transpose(-1, -2)
    return torch.stack([transition, mirrored]).permute(2, 0, 1, 3, 4)


def _scaled_exp(scores: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """exp(scores − top) with the top along ``dim`` taken out; zero where everything is −∞."""
    top = scores.amax(dim, keepdim=True)
    top = torch.where(top == -torch.inf, 0, top)
    return (scores - top).exp_(), top.squeeze(dim)


def _finite_range(scores: Tensor) -> float:
    """Largest minus smallest finite score."""
    if scores.numel() == 0:
        return 0.0
    low = torch.where(scores == -torch.inf, torch.inf, scores).min()
    return max(0.0, float(scores.max() - low))


def _advance(probabilities: Tensor, weights: Tensor) -> Tensor:
    """One step of either direction: (2, B, K) through (2, K, K) or (2, B, K, K)."""
    if weights.dim() == 3:
        return torch.bmm(probabilities, weights)
    return torch.matmul(probabilities[..., None, :], weights).squeeze(-2)


def messages(unary: Tensor, transition: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor, Tensor] | None:
    """Log-partition (accumulation type), forward and backward messages (float64); None if unsafe.

    Messages are those of the reference up to a constant per position: here the state they start from,
    message + unary at the position before, is scaled to a largest value of 0.
    """
    dtype = accumulation_dtype(unary.dtype)
    unary, transition = blank_padding(unary.double(), transition.double(), lengths)
    decay = _finite_range(unary) + 2 * _finite_range(transition)
    if not decay < -_LOWEST_LOG:
        return None
    num_units = unary.shape[1]
    weights, to_top = _scaled_exp(_stack_transitions(transition, lengths), -2)
    scores = _stack(unary, lengths)
    if to_top.dim() == 3:
        to_top = to_top[:, :, None]  # (1, 2, 1, K), to stand beside (N, 2, B, K)
    scores[1:] += to_top
    own, log_scale = _scaled_exp(scores, -1)

    stacked = torch.ones_like(own)  # messages without their column scale; none enters the first unit
    scale = torch.ones_like(log_scale)
    state = own[0]
    lowest = torch.where(state > 0, state, 1)
    for position in range(1, num_units):
        message = _advance(state, weights[0 if weights.shape[0] == 1 else position - 1])
        stacked[position] = message
        state = message * own[position]
        top = state.amax(-1, keepdim=True).clamp_(min=1e-300)
        scale[position] = top[..., 0]
        state = state / top
        lowest = torch.minimum(lowest, torch.where(state > 0, state, 1))
    if float(lowest.min().log()) - decay < _LOWEST_LOG:
        return None

    # The forward direction's last state, taken at each sentence's own end.
    total = (log_scale + scale.log())[:, 0].cumsum(0)  # (N, B)
    last = (lengths - 1)[None]
    final = (stacked[:, 0] * own[:, 0]).gather(0, last[..., None].expand(1, -1, own.shape[-1]))[0]
    final_scale = scale[:, 0].gather(0, last)[0]
    log_partition = total.gather(0, last)[0] + (final / final_scale[:, None]).sum(-1).log()

    stacked = stacked.log_()
    stacked[1:] += to_top
    return log_partition.to(dtype), *_unstack(stacked, lengths)


def marginals(unary: Tensor, lengths: Tensor, forward: Tensor, backward: Tensor) -> Tensor:
    """Marginals (B, N, K) from messages."""
    is_unit = unit_mask(lengths, unary.shape[1])[..., None]
    score = torch.where(is_unit, forward + unary.double() + backward, -torch.inf)
    return _share(score).to(accumulation_dtype(unary.dtype))


def _share(score: Tensor) -> Tensor:
    """Softmax over the last dimension, zero where everything is −∞."""
    weights, _ = _scaled_exp(score, -1)
    return weights / weights.sum(-1, keepdim=True).clamp_(min=1e-300)


def _tangents(
    left: Tensor,
    right: Tensor,
    weights: Tensor,
    marginals: Tensor,
    lengths: Tensor,
    direction: Tensor,
    inflow: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Derivatives of left and right states (message + unary) when unary scores move along ``direction``.

    Ḟₙ(k) = Σⱼ P(yₙ₋₁ = j | yₙ = k, before) (Ḟ + direction)ₙ₋₁(j), per direction; each state is shifted so that its mean
    under the marginals is 0, which changes no derivative of a normalised quantity and keeps long sums small.
    ``inflow`` (N − 1, 2, B, K) is the same mean of a movement of the transitions, where they move too.
    """
    states = torch.stack([left, _mirror(right, lengths)]).permute(2, 0, 1, 3)
    moves = _stack(direction, lengths)
    means = _stack(marginals, lengths)
    result = torch.empty_like(moves)
    for position in range(moves.shape[0]):
        tangent = moves[position]
        if position > 0:
            step = weights[0 if weights.shape[0] == 1 else position - 1]
            before = states[position - 1]
            message = _advance(before, step)
            flow = _advance(before * result[position - 1], step)
            if inflow is not None:
                flow = flow + inflow[position - 1]
            tangent = tangent + flow / torch.where(message > 0, message, 1)
        result[position] = tangent - (means[position] * tangent).sum(-1, keepdim=True)
    return _unstack(result, lengths)


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
    unary_dtype, transition_dtype = unary.dtype, transition.dtype
    is_global = transition.dim() == 2
    unary, transition = blank_padding(unary.double(), transition.double(), lengths)
    mask = unit_mask(lengths, unary.shape[1])
    marginals = _share(forward + unary + backward) * mask[..., None]
    left, _ = _scaled_exp(forward + unary, -1)
    right, _ = _scaled_exp(unary + backward, -1)
    weights, _ = _scaled_exp(transition.flatten(-2), -1)
    weights = weights.view(transition.shape)

    grad_unary = torch.zeros_like(unary)
    if grad_log_partition is not None:
        grad_unary += grad_log_partition.double()[:, None, None] * marginals

    # pair(j, k) = left(j) E(j, k) right(k) / normaliser
    onward = right[:, 1:] @ weights.T if is_global else (weights @ right[:, 1:, :, None]).squeeze(-1)
    normaliser = (left[:, :-1] * onward).sum(-1)
    share = torch.where(mask[:, 1:] & (normaliser > 0), 1 / torch.where(normaliser > 0, normaliser, 1), 0)
    before, after = left[:, :-1] * share[..., None], right[:, 1:]
    # The factor of each pair: constant(b) + movement of its left label + of its right label (+ of the pair itself).
    factors: list[tuple[Tensor, Tensor]] = []
    if grad_log_partition is not None:
        factors.append((before * grad_log_partition.double()[:, None, None], after))
    pair_factor: Tensor | None = None
    if grad_marginals is not None or grad_pairs is not None:
        direction = torch.zeros_like(unary) if grad_marginals is None else grad_marginals.double()
        direction = direction.masked_fill(~mask[..., None], 0)
        stacked = _stack_transitions(weights, lengths)
        inflow = None
        if grad_pairs is not None:
            moves = grad_pairs.double().masked_fill(~mask[:, 1:, None, None], 0)
            pair_factor = moves
            forward_flow = torch.einsum("bnj,bnjk->bnk", left[:, :-1], weights * moves)
            backward_flow = torch.einsum("bnk,bnjk->bnj", right[:, 1:], weights * moves)
            inflow = torch.stack([forward_flow, _mirror(backward_flow, lengths - 1)]).permute(2, 0, 1, 3)
        left_moves, right_moves = _tangents(left, right, stacked, marginals, lengths, direction, inflow)
        # left_moves holds Ḟ + G and right_moves G + Ṁ: together G is in twice.
        whole = left_moves + right_moves - direction
        grad_unary += marginals * (whole - (marginals * whole).sum(-1, keepdim=True))
        factors.append((before * left_moves[:, :-1], after))
        factors.append((before, after * right_moves[:, 1:]))

    if is_global and pair_factor is None:
        lefts = torch.cat([factor[0] for factor in factors], 1).flatten(0, 1)
        rights = torch.cat([factor[1] for factor in factors], 1).flatten(0, 1)
        grad_transition = weights * (lefts.T @ rights)
    else:
        total = torch.zeros_like(share)[..., None, None].expand(*share.shape, *weights.shape[-2:]).clone()
        for factor in factors:
            total += factor[0][..., :, None] * factor[1][..., None, :]
        grad_transition = total * weights
        if pair_factor is not None:
            pairs = before[..., :, None] * weights * after[..., None, :]
            grad_transition += pairs * (pair_factor - (pairs * pair_factor).sum((-1, -2), keepdim=True))
        if is_global:
            grad_transition = grad_transition.sum((0, 1))
    return grad_unary.to(unary_dtype), grad_transition.to(transition_dtype)
