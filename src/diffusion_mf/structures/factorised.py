"""What distributions with independent positions share; Unigram is one, and the Mean-Field approximation another."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from diffusion_mf.ops.chain_scores import Lengths
from diffusion_mf.structures.distribution import LabelDistribution
from diffusion_mf.structures.sampling import gumbel_noise
from diffusion_mf.structures.validation import check_labels


class Factorised(LabelDistribution):
    """q(y) = Πᵢ qᵢ(yᵢ); a subclass gives `marginals` and `log_marginals`."""

    def __init__(self, unary_scores: Tensor, lengths: Lengths, *, check: bool) -> None:
        super().__init__(unary_scores, lengths)
        self._check = check

    def log_prob(self, labels: Int[Tensor, "B N"]) -> Float[Tensor, "B"]:
        """log q(y) = Σᵢ log qᵢ(yᵢ)."""
        if self._check:
            check_labels(labels, self._is_unit, self.num_labels)
        log_probs = gather_labels(self.log_marginals(), labels)
        return torch.where(self._is_unit, log_probs, 0).sum(1)

    def mode(self) -> Int[Tensor, "B N"]:
        """argmaxₖ qᵢ(k) at every position."""
        return torch.where(self._is_unit, self.marginals().argmax(-1), 0)

    def sample_many(self, generator: torch.Generator | None, num_samples: int) -> Int[Tensor, "S B N"]:
        """yᵢ ~ qᵢ, each by itself."""
        log_probs = self.log_marginals().detach()
        shape = (num_samples, *log_probs.shape)
        noise = gumbel_noise(shape, generator, device=log_probs.device, dtype=log_probs.dtype)
        return torch.where(self._is_unit, (log_probs + noise).argmax(-1), 0)

    def entropy(self) -> Float[Tensor, "B"]:
        """−Σᵢ Σₖ qᵢ(k) log qᵢ(k)."""
        log_probs = self.log_marginals()
        # 0·log 0 = 0, and at log q = 0 the product below is 0 too.
        log_probs = torch.where(log_probs == -torch.inf, 0, log_probs)
        return -(log_probs.exp() * log_probs).flatten(1).sum(1)


def safe_log_softmax(scores: Tensor, is_unit: Tensor) -> Tensor:
    """log softmax over the last dimension; 0 where there is no unit, −∞ where every score is −∞; no gradient at either."""
    is_empty = (scores == -torch.inf).all(-1)
    is_usual = (is_unit & ~is_empty)[..., None]
    log_probs = torch.log_softmax(torch.where(is_usual, scores, 0), -1)
    return torch.where(is_usual, log_probs, torch.where(is_unit, -torch.inf, 0)[..., None])


def gather_labels(values: Tensor, labels: Tensor) -> Tensor:
    """``values`` (…, K) at ``labels`` (…); −∞ at numbers that are no label."""
    num_labels = values.shape[-1]
    found = values.gather(-1, labels.long().clamp(0, num_labels - 1)[..., None])[..., 0]
    return torch.where((labels >= 0) & (labels < num_labels), found, -torch.inf)
