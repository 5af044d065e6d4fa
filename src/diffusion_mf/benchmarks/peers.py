"""The libraries the chain is measured against, called the way their users call them."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from diffusion_mf.benchmarks.problems import Problem
from diffusion_mf.errors import InputError

# Distribution and module of each.
PEERS = {"pytorch-crf": "torchcrf", "torch-struct": "torch_struct"}


def import_peers() -> dict[str, Any]:
    """The peers' modules by library; one sentence if any is missing."""
    modules, missing = {}, []
    for library, module in PEERS.items():
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                modules[library] = importlib.import_module(module)
        except ImportError:
            missing.append(library)
    if missing:
        raise InputError(
            f"the benchmark compares with {' and '.join(missing)}, which cannot be imported",
            remedy="pip install 'diffusion-mf[benchmarks]'",
        )
    return modules


class PytorchCRF:
    """pytorch-crf: global transitions only. Its start and end scores, which cannot be left out, are zero."""

    library = "pytorch-crf"

    def __init__(self, problem: Problem, module: Any) -> None:
        self._problem = problem
        self._crf = module.CRF(problem.unary.shape[-1], batch_first=True).to(problem.device)
        with torch.no_grad():
            self._crf.start_transitions.zero_()
            self._crf.end_transitions.zero_()
            self._crf.transitions.copy_(problem.transition)

    @property
    def parameters(self) -> tuple[Tensor, ...]:
        """What gradients are taken with respect to."""
        return (self._problem.unary, *self._crf.parameters())

    def log_partition(self) -> Tensor:
        """log Z alone; the library has no public name for it."""
        return self._crf._compute_normalizer(self._problem.unary.transpose(0, 1), self._problem.is_unit.T)

    def negative_log_likelihood(self) -> Tensor:
        """What its users train with."""
        return -self._crf(self._problem.unary, self._problem.labels, self._problem.is_unit, reduction="none")

    def best_labels(self) -> list[list[int]]:
        """Viterbi, as lists on the host."""
        return self._crf.decode(self._problem.unary, self._problem.is_unit)


class TorchStruct:
    """torch-struct: scores of pairs (B, N − 1, next, previous), which its users build from unary and transition scores."""

    library = "torch-struct"

    def __init__(self, problem: Problem, module: Any) -> None:
        self._problem = problem
        self._distribution: Callable[..., Any] = module.LinearChainCRF

    @property
    def parameters(self) -> tuple[Tensor, ...]:
        """What gradients are taken with respect to."""
        return self._problem.scores

    def _chain(self) -> Any:
        unary, transition = self._problem.scores
        pairs = transition.transpose(-1, -2) + unary[:, 1:, :, None]
        first = pairs[:, :1] + unary[:, :1, None, :]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it leaves PyTorch's checks of distributions on, and then defines none
            return self._distribution(torch.cat([first, pairs[:, 1:]], 1), lengths=self._problem.lengths)

    def log_partition(self) -> Tensor:
        """Its ``partition`` is a logarithm."""
        return self._chain().partition
