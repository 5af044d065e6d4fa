"""Which label sequences are legal: by label scheme, by user-defined rules, or both."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from diffusion_mf.data.label_schemes import (
    LabelScheme,
    is_legal_end,
    is_legal_start,
    is_legal_transition,
    parse_label,
    split_label,
)
from diffusion_mf.errors import InputError
from diffusion_mf.ops.chain_scores import unit_mask

LabelPair = tuple[str, str]


@dataclasses.dataclass(frozen=True, eq=False)
class Legality:
    """The labels a sentence may begin and end with, and those that may follow each other.

    Paper: “Fixed constraints” (appendix B.3). ``transitions[previous, next]``; `&` combines two sets of constraints. Tensors
    are not moved automatically: use `to` once, with the device of the scores.
    """

    transitions: Bool[Tensor, "K K"]
    starts: Bool[Tensor, " K"]
    ends: Bool[Tensor, " K"]

    @classmethod
    def everything(cls, num_labels: int) -> Legality:
        """Every sequence is legal."""
        is_legal = torch.ones(num_labels, dtype=torch.bool)
        return cls(is_legal.expand(num_labels, -1).clone(), is_legal, is_legal.clone())

    @classmethod
    def of_scheme(cls, labels: Sequence[str], scheme: LabelScheme) -> Legality:
        """What ``scheme`` allows: spans open and close completely and keep their type."""
        if scheme is LabelScheme.PLAIN:
            return cls.everything(len(labels))
        for label in labels:
            parse_label(label, scheme)
        # Of two labels, only the letters and whether their types are equal matter, and there may be thousands of labels.
        letters, kinds = zip(*map(split_label, labels), strict=True)
        known, letter = np.unique(letters, return_inverse=True)
        kind = np.unique(kinds, return_inverse=True)[1]
        same, different = (
            np.array([[is_legal_transition(_typed(a, "x"), _typed(b, other), scheme) for b in known] for a in known])
            for other in ("x", "y")
        )
        pair = (letter[:, None], letter[None, :])
        transitions = torch.from_numpy(np.where(kind[:, None] == kind[None, :], same[pair], different[pair]))
        starts = torch.tensor([is_legal_start(label, scheme) for label in labels])
        return cls(transitions, starts, torch.tensor([is_legal_end(label, scheme) for label in labels]))

    @classmethod
    def of_rules(
        cls,
        labels: Sequence[str],
        *,
        transition: Callable[[str, str], bool] | None = None,
        start: Callable[[str], bool] | None = None,
        end: Callable[[str], bool] | None = None,
    ) -> Legality:
        """What the given functions of label names allow; a function that is not given allows everything."""
        return cls(
            torch.tensor([[transition is None or bool(transition(a, b)) for b in labels] for a in labels]),
            torch.tensor([start is None or bool(start(label)) for label in labels]),
            torch.tensor([end is None or bool(end(label)) for label in labels]),
        )

    @classmethod
    def of_pairs(
        cls,
        labels: Sequence[str],
        *,
        forbidden: Iterable[LabelPair] = (),
        allowed: Iterable[LabelPair] | None = None,
        forbidden_starts: Iterable[str] = (),
        forbidden_ends: Iterable[str] = (),
    ) -> Legality:
        """What lists of label names allow: pairs in ``allowed`` (default: all) that are not in ``forbidden``."""
        forbidden, starts, ends = set(forbidden), set(forbidden_starts), set(forbidden_ends)
        permitted = None if allowed is None else set(allowed)
        pairs = forbidden | (permitted or set())
        _check_known({label for pair in pairs for label in pair} | starts | ends, labels)
        return cls.of_rules(
            labels,
            transition=lambda *pair: pair not in forbidden and (permitted is None or pair in permitted),
            start=lambda label: label not in starts,
            end=lambda label: label not in ends,
        )

    def __and__(self, other: Legality) -> Legality:
        if len(self.starts) != len(other.starts):
            raise ValueError(f"constraints on {len(self.starts)} and on {len(other.starts)} labels cannot be combined")
        return Legality(self.transitions & other.transitions, self.starts & other.starts, self.ends & other.ends)

    @property
    def num_labels(self) -> int:
        """K."""
        return len(self.starts)

    def to(self, device: torch.device | str) -> Legality:
        """The same on another device; itself if it is already there."""
        if self.starts.device == torch.device(device):
            return self
        return Legality(self.transitions.to(device), self.starts.to(device), self.ends.to(device))

    def restrict_ends(
        self, allowed: Bool[Tensor, "B N K"] | None, lengths: Int[Tensor, " B"], num_units: int
    ) -> Bool[Tensor, "B N K"]:
        """The labels each position may have: those in ``allowed`` and, at both ends of a sentence, only the legal ones."""
        positions = torch.arange(num_units, device=lengths.device)
        is_first = (positions == 0)[:, None]
        is_last = (positions == lengths[:, None] - 1)[..., None]
        result = (self.starts | ~is_first) & (self.ends | ~is_last)
        return result if allowed is None else result & allowed

    def permits(self, labels: Int[Tensor, "B N"], lengths: Int[Tensor, " B"]) -> Bool[Tensor, " B"]:
        """Whether each sequence is legal; numbers that are not labels are illegal, and positions past a length are ignored."""
        num_units = labels.shape[1]
        is_unit = unit_mask(lengths, num_units)
        is_label = (labels >= 0) & (labels < self.num_labels)
        known = torch.where(is_label & is_unit, labels, 0).long()
        is_good = self.transitions[known[:, :-1], known[:, 1:]] | ~is_unit[:, 1:]
        last = known.gather(1, (lengths - 1).long()[:, None])[:, 0]
        return (is_label | ~is_unit).all(1) & is_good.all(1) & self.starts[known[:, 0]] & self.ends[last]


def _typed(letter: str, kind: str) -> str:
    return letter if letter == "O" else f"{letter}-{kind}"


def _check_known(names: set[str], labels: Sequence[str]) -> None:
    unknown = sorted(names - set(labels))
    if unknown:
        raise InputError(
            f"constraints name labels that do not exist: {', '.join(unknown)}", remedy="check their spelling"
        )
