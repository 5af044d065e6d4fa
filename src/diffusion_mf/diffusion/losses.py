"""The terms of the training objective, one value per unit; callers sum them and divide by the global number of units.

Paper: “Training”. L_post is `posterior_kl` and L_den (and L_marg) is `token_cross_entropy`; DiffusionSL uses
`squared_bit_error`. L_seq is the structure's own `log_prob`.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from diffusion_mf.diffusion.categorical import CategoricalDiffusion, one_hot
from diffusion_mf.diffusion.schedule import Timesteps


def posterior_kl(
    process: CategoricalDiffusion,
    log_rho_0: Float[Tensor, "*batch K"],
    y0: Int[Tensor, " *batch"],
    y_t: Int[Tensor, " *batch"],
    t: Timesteps,
) -> Float[Tensor, " *batch"]:
    """KL(q(y^{t−1} | y^t, y^0) ‖ q(y^{t−1} | y^t, ŷ^0)) per unit, from log-marginals of ŷ^0: L_post.

    At t = 1 the gold posterior is a point mass and this is −log of the normalised ŷ^0(y^0)·q(y^1|y^0): reconstruction.
    """
    s = t - 1
    gold_0, gold_t = one_hot(y0, process.num_labels), one_hot(y_t, process.num_labels)
    gold_0, gold_t = gold_0.to(log_rho_0.dtype), gold_t.to(log_rho_0.dtype)
    log_predicted = process.log_posterior(gold_t.log(), log_rho_0, t, s)
    log_gold = process.log_posterior(gold_t.log(), gold_0.log(), t, s)
    # 0·log 0 = 0: where the gold posterior has no mass, both logarithms are left out.
    has_mass = log_gold > -torch.inf
    difference = torch.where(has_mass, log_gold, 0.0) - torch.where(has_mass, log_predicted, 0.0)
    return (log_gold.exp() * difference).sum(dim=-1)


def token_cross_entropy(
    log_marginals: Float[Tensor, "*batch K"], labels: Int[Tensor, " *batch"]
) -> Float[Tensor, " *batch"]:
    """−log ŷ^0[y^0] per unit: L_den, and L_marg under exact marginals; undefined at negative labels (padding)."""
    log_marginals = log_marginals.to(torch.promote_types(log_marginals.dtype, torch.float32))
    return -log_marginals.gather(-1, labels.clamp(min=0).long().unsqueeze(-1)).squeeze(-1)


def squared_bit_error(
    predicted: Float[Tensor, "*batch b"], codes: Float[Tensor, "*batch b"]
) -> Float[Tensor, " *batch"]:
    """‖x̂_0 − x_0‖²/b per unit: DiffusionSL's x₀ prediction."""
    predicted = predicted.to(torch.promote_types(predicted.dtype, torch.float32))
    return (predicted - codes).square().mean(dim=-1)


def sum_over_units(values: Float[Tensor, " *batch"], is_unit: Bool[Tensor, " *batch"]) -> Float[Tensor, ""]:
    """Σ over non-padding units; values at padding, NaN included, are ignored.

    The caller divides by the number of units of the global batch, across accumulation steps and processes.
    """
    return torch.where(is_unit, values, 0.0).sum()
