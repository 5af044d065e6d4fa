"""Samplers whose draws follow from a trial's number: workers that share a study never draw the same by accident.

A sampler with a generator of its own would begin anew in every process and after every interruption.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Any

import optuna
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler
from optuna.trial import FrozenTrial

FIXED = "fixed_params"
"""Optuna's name for the settings of trials that were enqueued"""


class NumberedSampler(BaseSampler):
    """Draws for each trial with a sampler made for its number: ``make(seed)``."""

    def __init__(self, name: str, make: Callable[[int], BaseSampler]) -> None:
        self._name, self._make = name, make
        self._current: tuple[int, BaseSampler] | None = None

    def _for(self, trial: FrozenTrial) -> BaseSampler:
        if self._current is None or self._current[0] != trial.number:
            seed = zlib.crc32(f"{self._name}/{trial.number}".encode())
            self._current = (trial.number, self._make(seed))
        return self._current[1]

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """As the sampler of the trial's number does."""
        return self._for(trial).infer_relative_search_space(study, trial)

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """As the sampler of the trial's number does."""
        return self._for(trial).sample_relative(study, trial, search_space)

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """As the sampler of the trial's number does."""
        return self._for(trial).sample_independent(study, trial, param_name, param_distribution)


class CombinationSampler(BaseSampler):
    """Every combination once, in an order of chance: the r-th trial that is no repetition takes the r-th of them."""

    def __init__(self, name: str, combinations: Sequence[dict[str, Any]]) -> None:
        self._order = sorted(combinations, key=lambda each: zlib.crc32(f"{name}/{sorted(each.items())}".encode()))

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """Nothing: each setting is looked up on its own."""
        return {}

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Nothing: each setting is looked up on its own."""
        return {}

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """The setting's value in the trial's combination."""
        trials = study.get_trials(deepcopy=False)
        rank = sum(other.number < trial.number and FIXED not in other.system_attrs for other in trials)
        return self._order[rank % len(self._order)][param_name]
