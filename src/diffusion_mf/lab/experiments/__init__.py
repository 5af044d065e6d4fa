"""Experiments: grids of runs, selection on dev, tables beside the paper's, plots, hyperparameter search."""

from __future__ import annotations
