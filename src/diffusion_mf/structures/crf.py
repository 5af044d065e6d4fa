"""`CRF`: a linear-chain CRF as the last layer of any network, with the names of pytorch-crf (`docs/crf-layer.md`)."""

from __future__ import annotations

from typing import Literal, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn

from diffusion_mf.ops.backends import Backend
from diffusion_mf.ops.chain_scores import Lengths
from diffusion_mf.structures.linear_chain import LinearChain

Reduction = Literal["none", "sum", "mean", "token_mean"]


@runtime_checkable
class Constraints(Protocol):
    """Which label sequences are legal; `decoding.Legality` makes them from label schemes and rules."""

    @property
    def transitions(self) -> Bool[Tensor, "K K"]:
        """``[previous, next]``"""
        ...

    @property
    def starts(self) -> Bool[Tensor, " K"]:
        """the labels a sentence may begin with"""
        ...

    @property
    def ends(self) -> Bool[Tensor, " K"]:
        """the labels a sentence may end with"""
        ...


class CRF(nn.Module):
    """log p(tags | emissions) of a linear-chain CRF with learned start, end and transition scores.

    Emissions are (N, B, K), or (B, N, K) with ``batch_first``; ``transitions[previous, next]``. Parameters have pytorch-crf's
    names, shapes and initial values, so state dicts load either way. Which positions are units is said by ``mask``, in the layout
    of the tags, with padding at the end only, or by ``lengths`` (B,); without either all are. Values at padding are never read.

    ``constraints`` make all other sequences impossible, in the likelihood as in decoding; they are not part of the state dict.
    ``check`` looks for holes in masks, bad tags, NaN and sentences without a legal sequence. That waits for a GPU: a training loop
    passes ``check=False``.
    """

    def __init__(
        self,
        num_tags: int,
        batch_first: bool = False,
        *,
        constraints: Constraints | None = None,
        backend: Backend = "auto",
        check: bool = True,
    ) -> None:
        if num_tags <= 0:
            raise ValueError(f"num_tags must be at least 1, found {num_tags}")
        super().__init__()
        self.num_tags = num_tags
        self.batch_first = batch_first
        self.backend: Backend = backend
        self.check = check
        self.start_transitions = nn.Parameter(torch.empty(num_tags))
        self.end_transitions = nn.Parameter(torch.empty(num_tags))
        self.transitions = nn.Parameter(torch.empty(num_tags, num_tags))
        if constraints is not None and len(constraints.starts) != num_tags:
            raise ValueError(f"constraints are on {len(constraints.starts)} labels, but num_tags is {num_tags}")
        self.has_constraints = constraints is not None
        if constraints is not None:
            # They move with the module, but a state dict holds parameters only.
            for name in ("transitions", "starts", "ends"):
                self.register_buffer(f"illegal_{name}", ~getattr(constraints, name), persistent=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw all parameters from −0.1…0.1 uniformly."""
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -0.1, 0.1)

    def extra_repr(self) -> str:
        """The settings that are not the defaults."""
        parts = [f"num_tags={self.num_tags}"]
        parts += ["batch_first=True"] if self.batch_first else []
        parts += ["with constraints"] if self.has_constraints else []
        parts += [] if self.backend == "auto" else [f"backend={self.backend!r}"]
        return ", ".join(parts)

    def forward(
        self,
        emissions: Float[Tensor, "first second K"],
        tags: Int[Tensor, "first second"],
        mask: Shaped[Tensor, "first second"] | None = None,
        reduction: Reduction = "sum",
        *,
        lengths: Lengths | None = None,
    ) -> Float[Tensor, ""] | Float[Tensor, " B"]:
        """log p(tags | emissions): its ``sum`` or ``mean`` over sentences, ``token_mean`` over units, or (B,) with ``none``."""
        if reduction not in ("none", "sum", "mean", "token_mean"):
            raise ValueError(f"reduction must be none, sum, mean or token_mean, found {reduction!r}")
        if tags.shape != emissions.shape[:2]:
            raise ValueError(
                f"tags must be {tuple(emissions.shape[:2])} beside emissions {tuple(emissions.shape)}, found {tuple(tags.shape)}"
            )
        chain = self.distribution(emissions, mask, lengths=lengths)
        log_likelihood = chain.log_prob(tags if self.batch_first else tags.T)
        if reduction == "none":
            return log_likelihood
        if reduction == "mean":
            return log_likelihood.mean()
        total = log_likelihood.sum()
        return total if reduction == "sum" else total / chain.lengths.sum()

    def decode(
        self,
        emissions: Float[Tensor, "first second K"],
        mask: Shaped[Tensor, "first second"] | None = None,
        *,
        lengths: Lengths | None = None,
    ) -> list[list[int]]:
        """The best tags of every sentence, without padding."""
        with torch.no_grad():
            chain = self.distribution(emissions, mask, lengths=lengths)
            rows = zip(chain.mode().tolist(), chain.lengths.tolist(), strict=True)
            return [row[:length] for row, length in rows]

    def marginals(
        self,
        emissions: Float[Tensor, "first second K"],
        mask: Shaped[Tensor, "first second"] | None = None,
        *,
        lengths: Lengths | None = None,
    ) -> Float[Tensor, "first second K"]:
        """P(tag) at every unit given the emissions, differentiable; 0 in padding."""
        marginals = self.distribution(emissions, mask, lengths=lengths).marginals()
        return marginals if self.batch_first else marginals.transpose(0, 1)

    def distribution(
        self,
        emissions: Float[Tensor, "first second K"],
        mask: Shaped[Tensor, "first second"] | None = None,
        *,
        lengths: Lengths | None = None,
        allowed: Bool[Tensor, "B N K"] | None = None,
    ) -> LinearChain:
        """The distribution itself, batch first: samples, entropy and pair marginals; ``allowed`` clamps positions."""
        if emissions.dim() != 3 or emissions.shape[2] != self.num_tags:
            raise ValueError(
                f"emissions must have 3 dimensions, the last of size {self.num_tags}, found {tuple(emissions.shape)}"
            )
        if mask is not None and mask.shape != emissions.shape[:2]:
            raise ValueError(
                f"mask must be {tuple(emissions.shape[:2])} beside emissions {tuple(emissions.shape)}, found {tuple(mask.shape)}"
            )
        if not self.batch_first:
            emissions = emissions.transpose(0, 1)
            mask = None if mask is None else mask.T
        if mask is not None and lengths is not None:
            raise ValueError("mask and lengths are both given; leave one out")
        if mask is not None:
            lengths = self._lengths(mask.bool())
        elif lengths is None:
            lengths = [emissions.shape[1]] * emissions.shape[0]
        return LinearChain(
            emissions,
            self._legal(self.transitions, "transitions"),
            lengths,
            start_scores=self._legal(self.start_transitions, "starts"),
            end_scores=self._legal(self.end_transitions, "ends"),
            allowed=allowed,
            backend=self.backend,
            check=self.check,
        )

    def _legal(self, scores: Tensor, name: str) -> Tensor:
        return scores.masked_fill(self.get_buffer(f"illegal_{name}"), -torch.inf) if self.has_constraints else scores

    def _lengths(self, is_unit: Tensor) -> Tensor:
        """The number of units of each sentence; raises `ValueError` for padding before a unit and for sentences without units."""
        lengths = is_unit.sum(1)
        if self.check:
            is_late = is_unit[:, 1:] & ~is_unit[:, :-1]
            is_bad = is_late.any(1) | ~is_unit[:, 0]
            if bool(is_bad.any()):
                sentence = int(is_bad.nonzero()[0, 0])
                if not bool(is_unit[sentence].any()):
                    raise ValueError(f"mask leaves sentence {sentence} of the batch no unit; leave that sentence out")
                hole = int((~is_unit[sentence]).nonzero()[0, 0])
                raise ValueError(
                    f"mask of sentence {sentence} of the batch is off at position {hole} but on after it; move what is masked"
                    " to the end of the sentence, for a chain has no holes"
                )
        return lengths
