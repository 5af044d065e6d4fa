"""Where a run stands: everything beside tensors that a resumed run must know."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any


@dataclasses.dataclass
class TrainingState:
    """Position, selection and early stopping; randomness needs no more than ``step``, for it is keyed by it."""

    step: int = 0
    """optimizer steps taken"""
    epoch: int = 0
    """epochs finished"""
    position: int = 0
    """steps taken in the present epoch"""
    best_score: float | None = None
    best_epoch: int = 0
    """epochs finished when the best model was saved"""
    best_decoder: str | None = None
    is_stopped: bool = False
    """by early stopping"""
    num_pieces: int = 1
    """see `gradients.StepGradients`"""
    num_skipped: int = 0
    """steps whose gradient was not finite, as far as the host has looked"""
    num_returns: int = 0
    """how often the run went back to a checkpoint after too many of them in a row"""
    seconds: float = 0.0
    """spent so far"""

    def to_dict(self) -> dict[str, Any]:
        """What JSON can hold."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TrainingState:
        """The inverse of `to_dict`; `ValueError` for anything else."""
        # Checkpoints of earlier versions lack the counts of skipped steps.
        values = {"num_skipped": 0, "num_returns": 0, **values}
        if set(values) != {field.name for field in dataclasses.fields(cls)}:
            raise ValueError("entries are missing or unknown")
        for name in ("step", "epoch", "position", "best_epoch", "num_pieces", "num_skipped", "num_returns"):
            if not isinstance(values[name], int) or values[name] < 0:
                raise ValueError(f"{name} is no count")
        return cls(**values)
