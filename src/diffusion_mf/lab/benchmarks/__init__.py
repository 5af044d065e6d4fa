"""Measurements behind the efficiency tables of ``dmf benchmark`` (`docs/benchmarks.md`)."""

from __future__ import annotations
