"""What a model says about a batch before a decoder decides."""

from __future__ import annotations

import dataclasses

from jaxtyping import Bool, Float, Int
from torch import Tensor

from diffusion_mf.decoding import Evidence, Legality
from diffusion_mf.diffusion import Reading
from diffusion_mf.layouts import Layout


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Prediction:
    """Evidence for decoders, probabilities to report, and how they came about."""

    evidence: Evidence
    marginals: Float[Tensor, "B N K"]
    """ρ₀ of the last call, or the first (``inference.scores_from``); of a direct system's only one; with bits the softmax of
    the distance-based scores; 0 at padding"""
    num_calls: int
    """of the denoiser; 0 for direct systems"""
    trajectory: list[tuple[int, Float[Tensor, "B N K"]]] | None = None
    """(t reached, beliefs there) after every call, if it was asked for; direct systems have none"""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Request:
    """What `Labeller.predict` was asked for, settled: nothing here is left to a default."""

    states: Float[Tensor, "*units D"]
    layout: Layout
    lengths: Int[Tensor, "B"]
    is_unit: Bool[Tensor, "B N"]
    content_keys: Int[Tensor, "B"]
    legality: Legality | None
    allowed: Bool[Tensor, "B N K"] | None
    num_calls: int | None
    base: int | float | None
    exit_tolerance: int | float | None
    keep_trajectory: bool
    reading: Reading
    keep_first_marginals: bool
    others: Int[Tensor, "B N M"] | None = None
    """for recall (`data.batching.Batch.others`)"""
    document_rows: Int[Tensor, "B"] | None = None

    @property
    def is_known(self) -> Bool[Tensor, "B N"] | None:
        """Where clamps leave one label: the positions that the denoiser's flag marks."""
        return None if self.allowed is None else (self.allowed.sum(-1) == 1) & self.is_unit
