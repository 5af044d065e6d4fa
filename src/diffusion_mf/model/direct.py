"""The first column of the grid: scores computed directly from encoder states."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from diffusion_mf.config import Config
from diffusion_mf.decoding import DecoderInput
from diffusion_mf.diffusion import sum_over_units
from diffusion_mf.model.core import Prediction, PredictionInput, StepDraws, StructuredCore, Target, structured_terms
from diffusion_mf.networks.scorers import Scorer
from diffusion_mf.ops.backends import Backend
from diffusion_mf.structures import Factorised


class DirectCore(StructuredCore):
    """Unigram, Mean-Field and LCRF: p(y | s) in one pass (paper: “Standard Sequence Labelling Model”)."""

    def __init__(self, config: Config, *, num_labels: int, state_width: int, backend: Backend = "auto") -> None:
        super().__init__(config, num_labels=num_labels, state_width=state_width, backend=backend)
        self.scorer = Scorer(state_width, num_labels, config.structure, self.structure)

    def loss_terms(self, states: Float[Tensor, "*units D"], target: Target, draws: StepDraws) -> dict[str, Tensor]:
        """L_den or L_seq, and the cross-entropy against a teacher's marginals if there is a teacher."""
        potentials = self.scorer(states, target.layout)
        distribution = self.distribution(potentials, target.lengths)
        terms = structured_terms(distribution, target.labels, target.is_unit, self.weights)
        if target.teacher is not None:
            cross_entropy = -(target.teacher * distribution.log_marginals()).sum(-1)
            terms["teacher"] = sum_over_units(cross_entropy, target.is_unit)
        return terms

    def predict(self, inputs: PredictionInput) -> Prediction:
        """Log-marginals for argmax and Mask-Viterbi, potentials for Viterbi; both are conditional on clamps."""
        potentials = self.scorer(inputs.states, inputs.layout)
        distribution = self.distribution(potentials, inputs.lengths, inputs.allowed)
        log_marginals = distribution.log_marginals()
        decoder_input = DecoderInput(
            lengths=inputs.lengths,
            unary_scores=log_marginals,
            potentials=potentials,
            legality=inputs.legality,
            allowed=inputs.allowed,
            check=inputs.allowed is not None,
        )
        # Mean-Field would compute its updates twice; a chain has computed both, with exact zeros.
        is_factorised = isinstance(distribution, Factorised)
        marginals = log_marginals.exp() if is_factorised else distribution.marginals()
        marginals = torch.where(inputs.is_unit[..., None], marginals, 0)
        return Prediction(decoder_input=decoder_input, marginals=marginals, num_calls=0)
