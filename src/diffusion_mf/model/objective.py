"""The terms of the training objective, each a sum over units, and their weighted total.

Paper: table “Training objectives”. Callers divide by the number of units of the global batch, so that the loss does not
depend on how sentences are put into batches, accumulation steps and processes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from diffusion_mf.diffusion import (
    CategoricalDiffusion,
    posterior_kl,
    squared_bit_error,
    sum_over_units,
    token_cross_entropy,
)
from diffusion_mf.structures import LabelDistribution
from diffusion_mf.systems import ObjectiveWeights

TOTAL = "total"


class NoisyLabels(NamedTuple):
    """What L_post needs to know of the forward process."""

    process: CategoricalDiffusion
    labels: Int[Tensor, "B N"]
    """y^t ~ q(y^t | y⁰)"""
    t: Int[Tensor, "B"]


def structured_terms(
    distribution: LabelDistribution,
    labels: Int[Tensor, "B N"],
    is_unit: Bool[Tensor, "B N"],
    weights: ObjectiveWeights,
    *,
    noisy: NoisyLabels | None = None,
) -> dict[str, Tensor]:
    """L_den, L_seq, L_marg and L_post where their weight is not 0; L_post only where there are noisy labels.

    L_den and L_marg are both −Σ log P(yᵢ): the table keeps them apart because L_marg takes a linear chain's exact marginals.
    """
    terms: dict[str, Tensor] = {}
    if weights.denoising:
        terms["denoising"] = sum_over_units(token_cross_entropy(distribution.log_marginals(), labels), is_unit)
    if weights.sequence:
        terms["sequence"] = sum_over_units(-distribution.log_prob(labels), is_unit[:, 0])
    if weights.marginal:
        terms["marginal"] = sum_over_units(token_cross_entropy(distribution.log_marginals(), labels), is_unit)
    if weights.posterior and noisy is not None:
        divergence = posterior_kl(noisy.process, distribution.log_marginals(), labels, noisy.labels, noisy.t)
        terms["posterior"] = sum_over_units(divergence, is_unit)
    return terms


def bit_terms(
    predicted: Float[Tensor, "B N b"], codes: Float[Tensor, "B N b"], is_counted: Bool[Tensor, "B N"]
) -> dict[str, Tensor]:
    """DiffusionSL's squared error ‖x̂₀ − x₀‖²/b."""
    return {"bits": sum_over_units(squared_bit_error(predicted, codes), is_counted)}


def with_total(terms: Mapping[str, Tensor], weights: ObjectiveWeights) -> dict[str, Tensor]:
    """The terms and their weighted sum under the name ``total``."""
    weight_of = dataclasses.asdict(weights)
    weighted = [weight_of[name] * value for name, value in terms.items()]
    return {**terms, TOTAL: torch.stack(weighted).sum()}
