"""What another model says about the training sentences: soft labels to learn from."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn


class TeacherMarginals(nn.Module):
    """The marginals of a teacher for every unit of the training corpus, found again by the index of a sentence.

    They move with the model that learns from them, and are not saved with it.
    """

    marginals: Tensor
    starts: Tensor

    def __init__(self, marginals: Float[Tensor, "U K"], lengths: Sequence[int]) -> None:
        super().__init__()
        if sum(lengths) != len(marginals):
            raise ValueError(f"there are marginals of {len(marginals)} units for {sum(lengths)}")
        self.register_buffer("marginals", marginals, persistent=False)
        self.register_buffer("starts", torch.tensor([0, *accumulate(lengths)][:-1]), persistent=False)

    def forward(self, sentences: Int[Tensor, "B"], num_units: int) -> Float[Tensor, "B N K"]:
        """Those of some sentences; past a sentence's length stands what belongs to others."""
        places = self.starts[sentences][:, None] + torch.arange(num_units, device=self.starts.device)
        return self.marginals[places.clamp(max=len(self.marginals) - 1)]
