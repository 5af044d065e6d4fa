"""The first column of the grid: scores straight from encoder states."""

from __future__ import annotations

from jaxtyping import Bool, Float, Int
from torch import Tensor

from diffusion_mf.config import Config
from diffusion_mf.decoding import Evidence
from diffusion_mf.model.core import StructuredCore
from diffusion_mf.model.draws import StepDraws
from diffusion_mf.model.objective import structured_terms
from diffusion_mf.model.prediction import Prediction, Request
from diffusion_mf.scorers import Scorer


class DirectCore(StructuredCore):
    """Unigram, Mean-Field and LCRF: p(y | s) by one pass (paper: “Standard Sequence Labelling Model”)."""

    def __init__(self, config: Config, *, num_labels: int, state_width: int) -> None:
        super().__init__(config, num_labels=num_labels, state_width=state_width)
        self.scorer = Scorer(
            state_width, num_labels, config.structure, uses_transitions=self.structure.uses_transitions
        )

    def loss_terms(
        self,
        states: Float[Tensor, "B N D"],
        labels: Int[Tensor, "B N"],
        lengths: Int[Tensor, "B"],
        is_unit: Bool[Tensor, "B N"],
        draws: StepDraws,
    ) -> dict[str, Tensor]:
        """L_den or L_seq."""
        return structured_terms(self.distribution(self.scorer(states), lengths), labels, is_unit, self.weights)

    def predict(self, request: Request) -> Prediction:
        """Log-marginals for argmax and Mask-Viterbi, potentials for Viterbi; clamps condition both."""
        potentials = self.scorer(request.states)
        distribution = self.distribution(potentials, request.lengths, request.allowed)
        evidence = Evidence(
            lengths=request.lengths,
            unary_scores=distribution.log_marginals(),
            potentials=potentials,
            legality=request.legality,
            allowed=request.allowed,
            check=request.allowed is not None,
        )
        return Prediction(evidence=evidence, marginals=distribution.marginals(), num_calls=0)
