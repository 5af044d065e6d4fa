"""The best model of a run: kept in memory when it is found, on disk when a checkpoint says so."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch

from diffusion_mf.config import Config
from diffusion_mf.model import Labeller
from diffusion_mf.tagger import load_model, save_model
from diffusion_mf.training.corpora import TrainingData
from diffusion_mf.training.resumption import RunFolder


class BestModel:
    """A copy of the labeller as it was at its best.

    Writing it before each checkpoint, and not at each improvement, keeps short epochs short; a run that is killed in between
    goes back to the checkpoint and finds the same model again.
    """

    def __init__(self, folder: RunFolder, config: Config, data: TrainingData) -> None:
        self._folder = folder
        self._config = config
        self._data = data
        self._is_saved = True
        self._labeller: Labeller | None = None
        self._decoder = ""
        self._temperature = 1.0
        self.metrics: Mapping[str, Any] = {}

    @torch.no_grad()
    def take(self, labeller: Labeller, *, decoder: str, temperature: float, metrics: Mapping[str, Any]) -> None:
        """Remember ``labeller`` as it is now."""
        if self._labeller is None:
            self._labeller = copy.deepcopy(labeller)
        self._labeller.load_state_dict(labeller.state_dict())
        self._decoder, self._temperature = decoder, temperature
        self.add_metrics(metrics, replace=True)

    def add_metrics(self, metrics: Mapping[str, Any], *, replace: bool = False) -> None:
        """Say more about the model, or other things than before."""
        self.metrics = dict(metrics) if replace else {**self.metrics, **metrics}
        self._is_saved = False

    def labeller(self, device: torch.device) -> tuple[Labeller, str]:
        """The model and its decoder; read from the folder where this session has not seen it itself."""
        if self._labeller is None:
            stored = load_model(self._folder.model)
            self._labeller = stored.labeller.to(device)
            self._decoder, self._temperature, self.metrics = stored.decoder, stored.temperature, stored.metrics
        return self._labeller, self._decoder

    def save(self) -> None:
        """Write the model folder if it is not what it should be."""
        if self._is_saved or self._labeller is None:
            return
        save_model(
            self._folder.model,
            self._labeller,
            self._config,
            self._data.vocabulary,
            self._data.scheme,
            self._decoder,
            self._temperature,
            self.metrics,
        )
        self._is_saved = True
