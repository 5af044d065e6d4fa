"""The exact linear-chain CRF: the third row of the paper's grid, also usable as a CRF library (`docs/structures.md`)."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from diffusion_mf.ops.backends import Backend
from diffusion_mf.ops.chain_scores import Lengths, check_lengths, fold_scores, softmax
from diffusion_mf.ops.forward_backward import ForwardBackward, forward_backward, log_partition, pair_marginals
from diffusion_mf.ops.viterbi import BestSequence, viterbi
from diffusion_mf.structures.distribution import (
    InferenceSettings,
    LabelDistribution,
    Potentials,
    check_labels,
    check_legal,
    check_scores,
    check_shapes,
    gather_labels,
    gumbel_noise,
    remember,
    sample_backwards,
)

MAX_PAIRS_AT_ONCE = 1 << 24
"""How many entries of pair marginals `LinearChain.entropy` holds at a time (at least one sentence's)."""


class LinearChain(LabelDistribution):
    """p(y) = exp(score(y)) / Z over label sequences,

    score(y) = start(y₁) + Σᵢ unaryᵢ(yᵢ) + Σᵢ transitionᵢ(yᵢ, yᵢ₊₁) + end(yₙ).

    Paper: section 2.1, “Bigram Models”. Transitions are (K, K), or (B, N − 1, K, K) with one matrix per position, and are
    read as ``transition_scores[previous, next]``; scores may be −∞. ``allowed`` gives the labels each position may have: all
    results are conditional on it. Exact in O(N K²) time and O(N K) memory per sentence.

    ``check`` raises `NoLegalSequenceError` for a sentence without a legal sequence, and `ValueError` for bad lengths and
    scores; it waits for a GPU, so training passes ``check=False``. Then such a sentence has log Z = −∞ and marginals 0.

    One forward–backward pass gives log Z and marginals: if both are needed, call `marginals` before `log_prob`.
    """

    uses_transitions = True

    def __init__(
        self,
        unary_scores: Float[Tensor, "B N K"],
        transition_scores: Float[Tensor, "K K"] | Float[Tensor, "B N-1 K K"],
        lengths: Lengths,
        *,
        start_scores: Float[Tensor, " K"] | None = None,
        end_scores: Float[Tensor, " K"] | None = None,
        allowed: Bool[Tensor, "B N K"] | None = None,
        backend: Backend = "auto",
        check: bool = True,
    ) -> None:
        check_shapes(
            unary_scores,
            transition_scores=transition_scores,
            start_scores=start_scores,
            end_scores=end_scores,
            allowed=allowed,
        )
        super().__init__(unary_scores, lengths, check=check)
        self.backend: Backend = backend
        self.transition_scores = transition_scores
        self.unary_scores = fold_scores(
            unary_scores,
            self.lengths,
            start_scores=None if start_scores is None else start_scores.to(self.dtype),
            end_scores=None if end_scores is None else end_scores.to(self.dtype),
            allowed=allowed,
        )
        if check:
            check_lengths(self.lengths, self.num_units)
            check_scores(self.unary_scores, self._is_unit, transition_scores=transition_scores)
            # With finite scores every sequence is legal; the extra pass is needed only if there are infinite ones.
            if self._has_impossible_scores():
                check_legal(self._pass().log_partition > -torch.inf)

    @classmethod
    def from_potentials(
        cls,
        potentials: Potentials,
        lengths: Lengths,
        *,
        allowed: Bool[Tensor, "B N K"] | None = None,
        settings: InferenceSettings | None = None,
    ) -> LinearChain:
        """From unary and transition scores, and start and end scores if there are any."""
        if potentials.transition_scores is None:
            raise ValueError("a linear chain needs transition scores")
        settings = settings or InferenceSettings()
        return cls(
            potentials.unary_scores,
            potentials.transition_scores,
            lengths,
            start_scores=potentials.start_scores,
            end_scores=potentials.end_scores,
            allowed=allowed,
            backend=settings.backend,
            check=settings.check,
        )

    @remember
    def log_partition(self) -> Float[Tensor, " B"]:
        """log Z = log Σ_y exp score(y)."""
        if ("_pass", torch.is_grad_enabled()) in self._remembered or ("_pass", True) in self._remembered:
            return self._pass().log_partition
        return log_partition(self.unary_scores, self.transition_scores, self.lengths, backend=self.backend)

    def log_score(self, labels: Int[Tensor, "B N"]) -> Float[Tensor, " B"]:
        """score(y), the logarithm of the unnormalised probability; −∞ where y is impossible."""
        if self._check:
            check_labels(labels, self._is_unit, self.num_labels)
        unary = torch.where(self._is_unit, gather_labels(self.unary_scores, labels).to(self.dtype), 0)
        pairs = self._pair_scores(labels[:, :-1], labels[:, 1:]).to(self.dtype)
        return unary.sum(1) + torch.where(self._is_unit[:, 1:], pairs, 0).sum(1)

    def log_prob(self, labels: Int[Tensor, "B N"]) -> Float[Tensor, " B"]:
        """log p(y) = score(y) − log Z; −∞ where y is impossible. Labels past a length may be any number."""
        log_partition = self.log_partition()
        # Without a legal sequence the score is −∞ already; ∞ − ∞ must not arise.
        return self.log_score(labels) - torch.where(log_partition == -torch.inf, 0, log_partition)

    def marginals(self) -> Float[Tensor, "B N K"]:
        """P(yᵢ = k) by forward–backward, differentiable."""
        return self._pass().marginals

    def log_marginals(self) -> Float[Tensor, "B N K"]:
        """log P(yᵢ = k), 0 past each length; probabilities below 1e-30 (2e-300 in float64) are clipped, without gradient.

        The floor keeps gradients, which are reciprocals, from overflowing.
        """
        marginals = self.marginals()
        floor = torch.finfo(marginals.dtype).tiny * 1e8
        return torch.where(self._is_unit[..., None], marginals.clamp(min=floor).log(), 0)

    def pair_marginals(self) -> Float[Tensor, "B M K K"]:
        """P(yᵢ = j, yᵢ₊₁ = k), differentiable; O(B N K²) memory."""
        return pair_marginals(self.unary_scores, self.transition_scores, self.lengths, backend=self.backend)

    def log_conditionals(self, labels: Int[Tensor, "B N"]) -> Float[Tensor, "B M"]:
        """log P(yᵢ₊₁ | yᵢ) of neighbouring ``labels``, 0 past each length; with P(yᵢ) they give the probability of any run of labels."""
        following = (self.unary_scores.to(self.dtype) + self._pass().backward_messages.to(self.dtype))[:, 1:]
        transition = self.transition_scores.to(self.dtype)
        previous = labels[:, :-1].long()
        if transition.dim() == 2:
            rows = transition[previous]
        else:
            index = previous[..., None, None].expand(-1, -1, 1, self.num_labels)
            rows = transition.gather(2, index)[:, :, 0]
        log_probabilities = (rows + following).log_softmax(-1).gather(-1, labels[:, 1:, None].long())[..., 0]
        return torch.where(self._is_unit[:, 1:], log_probabilities, 0)

    def mode(self) -> Int[Tensor, "B N"]:
        """argmax_y score(y) by Viterbi."""
        return self.best_sequence().labels

    @remember
    def best_sequence(self) -> BestSequence:
        """The mode and its score, without subtracting log Z."""
        return viterbi(self.unary_scores, self.transition_scores, self.lengths, backend=self.backend)

    def sample_many(self, generator: torch.Generator | None, num_samples: int) -> Int[Tensor, "S B N"]:
        """y ~ p by forward filtering and backward sampling."""
        messages = self._pass().forward_messages
        shape = (num_samples, *messages.shape)
        return sample_backwards(
            messages,
            self.unary_scores.detach().to(messages.dtype),
            self.transition_scores.detach().to(messages.dtype),
            self.lengths,
            gumbel_noise(shape, generator, device=messages.device, dtype=messages.dtype),
        )

    @remember
    def entropy(self) -> Float[Tensor, " B"]:
        """H(p) = log Z − E[score(y)], computed as H(y₁) + Σᵢ H(yᵢ₊₁ | yᵢ).

        The two are equal for a chain; the second has no large numbers to cancel and never falls below 0. Pair marginals are
        computed for some sentences at a time, and recomputed in the backward pass.
        """
        at_once = MAX_PAIRS_AT_ONCE // (self.num_units * self.num_labels**2)
        if at_once >= self.num_sentences:
            return self._entropy(self.unary_scores, self.transition_scores, self.lengths)
        pieces = []
        for first in range(0, self.num_sentences, max(at_once, 1)):
            piece = slice(first, first + max(at_once, 1))
            transition = self.transition_scores if self.transition_scores.dim() == 2 else self.transition_scores[piece]
            scores = (self.unary_scores[piece], transition, self.lengths[piece])
            pieces.append(checkpoint(self._entropy, *scores, use_reentrant=False))
        return torch.cat(pieces)

    @remember
    def _pass(self) -> ForwardBackward:
        return forward_backward(self.unary_scores, self.transition_scores, self.lengths, backend=self.backend)

    def _entropy(self, unary_scores: Tensor, transition_scores: Tensor, lengths: Tensor) -> Tensor:
        first = softmax(unary_scores[:, 0].to(self.dtype))
        if self.num_units == 1:
            return _expected_log_ratio(first, torch.ones_like(first))
        pairs = pair_marginals(unary_scores, transition_scores, lengths, backend=self.backend)
        before = pairs.sum(-1)
        first = torch.where((lengths > 1)[:, None], before[:, 0], first)
        return _expected_log_ratio(first, torch.ones_like(first)) + _expected_log_ratio(pairs, before[..., None])

    def _has_impossible_scores(self) -> bool:
        is_impossible = ((self.unary_scores == -torch.inf) & self._is_unit[..., None]).any()
        return bool(is_impossible | (self.transition_scores == -torch.inf).any())

    def _pair_scores(self, previous: Tensor, following: Tensor) -> Tensor:
        """transitionᵢ(yᵢ, yᵢ₊₁), (B, N − 1); a number that is not a label counts as any label here, and as −∞ in unary scores."""
        K = self.num_labels
        pairs = previous.long().clamp(0, K - 1) * K + following.long().clamp(0, K - 1)
        if self.transition_scores.dim() == 2:
            return self.transition_scores.flatten()[pairs]
        return self.transition_scores.flatten(2).gather(2, pairs[..., None])[..., 0]


def _expected_log_ratio(part: Tensor, whole: Tensor) -> Tensor:
    """Σ part·log(whole/part) per sentence, with 0·log 0 = 0 and no gradient there."""
    log_part = torch.where(part > 0, part, 1).log()
    log_whole = torch.where(whole > 0, whole, 1).log()
    return (part * (log_whole - log_part)).flatten(1).sum(1)
