"""Random chain problems for property tests: ragged, with NaN past every length, and at least one legal sequence each."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from oracles.chain_enumeration import Enumerated


@dataclasses.dataclass
class ChainProblem:
    unary: Tensor
    transition: Tensor
    lengths: Tensor
    start: Tensor | None
    end: Tensor | None
    allowed: Tensor | None
    gold: Tensor
    """a legal sequence, −100 past each length"""

    @property
    def options(self) -> dict[str, Any]:
        return {"start_scores": self.start, "end_scores": self.end, "allowed": self.allowed}

    @property
    def scores(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.unary, self.transition, self.lengths

    @property
    def leaves(self) -> list[Tensor]:
        return [leaf for leaf in (self.unary, self.transition, self.start, self.end) if leaf is not None]

    def require_grad(self) -> ChainProblem:
        for leaf in self.leaves:
            leaf.requires_grad_()
        return self

    def enumerated(self) -> list[Enumerated]:
        return [
            Enumerated(
                self.unary[sentence, :length],
                self.transition if self.transition.dim() == 2 else self.transition[sentence, : length - 1],
                length,
                self.start,
                self.end,
                None if self.allowed is None else self.allowed[sentence],
            )
            for sentence, length in enumerate(self.lengths.tolist())
        ]

    def is_unit(self) -> Tensor:
        return torch.arange(self.unary.shape[1]) < self.lengths[:, None]


def make_problem(
    lengths: list[int],
    num_labels: int,
    *,
    seed: int,
    is_local: bool = False,
    has_ends: bool = False,
    is_clamped: bool = False,
    impossible: float = 0.0,
    scale: float = 1.0,
    dtype: torch.dtype = torch.float64,
    num_units: int | None = None,
) -> ChainProblem:
    generator = torch.Generator().manual_seed(seed)
    B, N, K = len(lengths), num_units or max(lengths), num_labels
    gold = torch.randint(K, (B, N), generator=generator)

    def scores(*shape: int) -> Tensor:
        values = torch.randn(shape, generator=generator, dtype=torch.float64) * scale
        holes = torch.rand(shape, generator=generator) < impossible
        return values.masked_fill(holes, -math.inf).to(dtype)

    unary = scores(B, N, K)
    transition = scores(B, N - 1, K, K) if is_local else scores(K, K)
    start = scores(K) if has_ends else None
    end = scores(K) if has_ends else None
    allowed = torch.rand((B, N, K), generator=generator) < 0.6 if is_clamped else None
    for sentence, length in enumerate(lengths):
        path = gold[sentence, :length]
        for position, label in enumerate(path.tolist()):
            unary[sentence, position, label].nan_to_num_(neginf=0.25)
            if allowed is not None:
                allowed[sentence, position, label] = True
            if position + 1 < length:
                matrix = transition[sentence, position] if is_local else transition
                matrix[label, path[position + 1]].nan_to_num_(neginf=0.25)
        if start is not None and end is not None:
            start[path[0]].nan_to_num_(neginf=0.25)
            end[path[-1]].nan_to_num_(neginf=0.25)
        unary[sentence, length:] = math.nan
        gold[sentence, length:] = -100
        if is_local:
            transition[sentence, length - 1 :] = math.nan
    return ChainProblem(unary, transition, torch.tensor(lengths), start, end, allowed, gold)


@st.composite
def chain_problems(draw: st.DrawFn, *, dtype: torch.dtype = torch.float64) -> ChainProblem:
    return make_problem(
        draw(st.lists(st.integers(1, 4), min_size=1, max_size=3)),
        draw(st.integers(1, 3)),
        seed=draw(st.integers(0, 10**6)),
        is_local=draw(st.booleans()),
        has_ends=draw(st.booleans()),
        is_clamped=draw(st.booleans()),
        impossible=draw(st.sampled_from([0.0, 0.3, 0.8])),
        scale=draw(st.sampled_from([0.1, 1.0, 5.0])),
        dtype=dtype,
        num_units=draw(st.sampled_from([None, 5])),
    )
