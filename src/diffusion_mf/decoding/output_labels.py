"""The labels that users see: a model's labels printed in another scheme, with their probabilities and the meaning of clamps.

A model of entities works in BMES. An open scheme has fewer labels, so several labels of the model are printed as one:

| scheme | prints | for |
|---|---|---|
| bmes, iobes, bilou | a label | one label of the model |
| bio2 | B-x | B-x, S-x |
| bio2 | I-x | M-x, E-x |
| iob1 | B-x | B-x, S-x if the previous unit is also of type x |
| iob1 | I-x | M-x, E-x; B-x and S-x elsewhere |

The probability of a printed label is the sum over the labels printed that way. For IOB1, where this depends on the previous unit,
units are assumed to be independent: P(B-x at i) = (pᵢ(B-x) + pᵢ(S-x)) · pᵢ₋₁(type x).
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Collection, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from diffusion_mf.data.label_schemes import (
    Boundary,
    LabelScheme,
    begins_after_its_type,
    format_label,
    parse_label,
    translate_label,
)

_SMALLEST_BELIEF = 1e-30


class _Tables(NamedTuple):
    """What is printed for each label of the model, on a device."""

    alone: Int[Tensor, " K"]
    following: Int[Tensor, " K"]
    """the same after a unit of its type"""
    is_following: Bool[Tensor, "K K"]


class OutputLabels:
    """The labels of a model in the scheme ``source``, printed in the scheme ``target``."""

    def __init__(self, labels: Sequence[str], source: LabelScheme, target: LabelScheme) -> None:
        self.source, self.target = source, target
        self.model_labels = tuple(labels)
        self.is_same = source is target
        """the model's own labels"""
        self.is_one_to_one = self.is_same or target.is_closed
        self.depends_on_previous = target is LabelScheme.IOB1
        """whether the printed label depends on the previous label"""
        self._alone = self.model_labels
        if not self.is_same:
            self._alone = tuple(translate_label(label, source, target) for label in labels)
        self._following = self._alone
        if self.depends_on_previous:
            self._following = tuple(
                format_label(Boundary.BEGIN, kind, target) if boundary in (Boundary.BEGIN, Boundary.SINGLE) else name
                for name, (boundary, kind) in zip(
                    self._alone, (parse_label(each, source) for each in labels), strict=True
                )
            )
        self.names = self._alone if self.is_one_to_one else tuple(sorted({*self._alone, *self._following}))
        """what is printed, in the order of a trajectory's columns"""
        self._print = dict(zip(self.model_labels, self._alone, strict=True))
        self._made: dict[torch.device, _Tables] = {}

    @functools.cached_property
    def is_following(self) -> Bool[Tensor, "K K"]:
        """[previous, next]: where IOB1 prints B."""
        return torch.tensor(
            [[begins_after_its_type(a, b, self.source) for b in self.model_labels] for a in self.model_labels]
        )

    def printed(self, labels: Sequence[str]) -> list[str]:
        """A sequence of the model's labels, legal or not, as printed, label by label; anything else stays unchanged.

        >>> OutputLabels(["B-X", "E-X", "M-X", "O", "S-X"], LabelScheme.BMES, LabelScheme.IOB1).printed(["S-X", "B-X", "E-X"])
        ['I-X', 'B-X', 'I-X']
        """
        found = [self._print.get(label, label) for label in labels]
        if self.depends_on_previous:
            for index, pair in enumerate(itertools.pairwise(labels), 1):
                if self._print.keys() >= {*pair} and begins_after_its_type(*pair, self.source):
                    found[index] = self._following[self.model_labels.index(pair[1])]
        return found

    def canonical(self, name: str) -> str:
        """The name as it is printed: BMES also reads I for M, and IOBES M for I."""
        try:
            return format_label(*parse_label(name, self.target), self.target)
        except ValueError:
            return name  # labels without boundaries, and those of another scheme

    def ids(self, name: str) -> list[int]:
        """The labels of the model that may be printed as ``name``; empty if no label is."""
        pairs = zip(self._alone, self._following, strict=True)
        return [index for index, printed in enumerate(pairs) if name in printed]

    def prints_at_the_start(self, names: Collection[str]) -> Bool[Tensor, " K"]:
        """Which labels of the model are printed as one of ``names`` at the first unit of a sentence."""
        return torch.tensor([name in names for name in self._alone])

    def prints_after(self, names: Collection[str]) -> Bool[Tensor, "K K"]:
        """[previous, next]: which labels of the model are printed as one of ``names`` after which others."""
        following = torch.tensor([name in names for name in self._following])
        return torch.where(self.is_following, following, self.prints_at_the_start(names))

    def probabilities(
        self, values: Float[Tensor, "B N K"], pairs: Bool[Tensor, "B M K K"] | None = None
    ) -> Float[Tensor, "B N U"]:
        """The probability of every name, given those of the model's labels.

        ``pairs`` are the pairs that clamps in IOB1 allow (`DecoderInput.allowed_pairs`), on which P is conditioned.
        """
        if self.is_one_to_one:
            return values
        if not self.depends_on_previous:
            return self._sums(values, self._tables(values.device).alone).clamp(max=1)
        alone_columns, following_columns, is_following = self._tables(values.device)
        if pairs is None:
            following = values[:, 1:] * (values[:, :-1] @ is_following.to(values.dtype))
            alone = values[:, 1:] - following
        else:
            # If the beliefs in everything a clamp allows are 0, the allowed names share the probability.
            exact = values.double() + _SMALLEST_BELIEF
            joint = exact[:, :-1, :, None] * exact[:, 1:, None, :] * pairs  # (B, N − 1, K, K)
            joint = joint / joint.sum((-2, -1), keepdim=True).clamp(min=torch.finfo(joint.dtype).tiny)
            following, alone = ((joint * chosen).sum(-2).to(values.dtype) for chosen in (is_following, ~is_following))
        rest = self._sums(alone, alone_columns) + self._sums(following, following_columns)
        return torch.cat([self._sums(values[:, :1], alone_columns), rest], 1).clamp(min=0, max=1)

    def scores(
        self,
        values: Float[Tensor, "B N K"],
        label_ids: Int[Tensor, "B N"],
        pairs: Bool[Tensor, "B M K K"] | None = None,
    ) -> Float[Tensor, "B N"]:
        """The probability of the name that each chosen label is printed as; 0 for a code without a label."""
        known = label_ids.clamp(min=0)
        tables = self._tables(values.device)
        columns = known if self.is_one_to_one else tables.alone[known]
        if self.depends_on_previous:
            is_following = tables.is_following[known[:, :-1], known[:, 1:]] & (label_ids[:, :-1] >= 0)
            columns[:, 1:] = torch.where(is_following, tables.following[known[:, 1:]], columns[:, 1:])
        chosen = self.probabilities(values, pairs).gather(-1, columns[..., None])[..., 0]
        return torch.where(label_ids < 0, 0, chosen)

    def _sums(self, values: Tensor, columns: Int[Tensor, " K"]) -> Tensor:
        return values.new_zeros(*values.shape[:-1], len(self.names)).index_add(-1, columns, values)

    def _tables(self, device: torch.device) -> _Tables:
        """The tables on a device, copied once because a copy makes a GPU wait."""
        if device not in self._made:
            ids = {name: index for index, name in enumerate(self.names)}
            alone, following = (
                torch.tensor([ids[name] for name in names], device=device) for names in (self._alone, self._following)
            )
            is_following = self.is_following if self.depends_on_previous else torch.zeros(0, 0, dtype=torch.bool)
            self._made[device] = _Tables(alone, following, is_following.to(device))
        return self._made[device]
