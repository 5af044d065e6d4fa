"""The best model of a run: kept in memory when it is found, and written to disk while training goes on."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch

from diffusion_mf.config import Config
from diffusion_mf.model import Labeller
from diffusion_mf.tagger import load_model, save_model
from diffusion_mf.training.corpora import TrainingData
from diffusion_mf.training.resumption import RunFolder


class BestModel:
    """A copy of the labeller as it was at its best.

    It is written as soon as it is found, by a thread, so that short epochs stay short. A run that was killed after that goes
    back to its checkpoint, which may be older, and finds the same model again.
    """

    def __init__(self, folder: RunFolder, config: Config, data: TrainingData, *, is_writer: bool) -> None:
        self._folder = folder
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="best model") if is_writer else None
        self._writing: Future[None] | None = None
        self._config = config
        self._data = data
        self._is_saved = True
        self._labeller: Labeller | None = None
        self._decoder = ""
        self._temperature = 1.0
        self.metrics: Mapping[str, Any] = {}

    @torch.no_grad()
    def take(self, labeller: Labeller, *, decoder: str, temperature: float, metrics: Mapping[str, Any]) -> None:
        """Remember ``labeller`` as it is now, and begin to write it."""
        self.wait()
        if self._labeller is None:
            self._labeller = copy.deepcopy(labeller)
        self._labeller.load_state_dict(labeller.state_dict())
        self._decoder, self._temperature = decoder, temperature
        self.add_metrics(metrics, replace=True)
        self.save()

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
        """Begin to write the model folder if it is not what it should be."""
        if self._is_saved or self._labeller is None or self._writer is None:
            return
        self.wait()
        self._writing = self._writer.submit(
            save_model,
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

    def wait(self) -> None:
        """Until the model is on disk; what went wrong there is raised here."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()
