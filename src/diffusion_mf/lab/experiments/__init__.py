"""Experiments: grids of runs, selection on dev, tables with the paper's values, plots, hyperparameter search."""

from __future__ import annotations
