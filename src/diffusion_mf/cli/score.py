"""``dmf score``: every metric of a task from two files, without a model."""

from __future__ import annotations


def score() -> None:
    """Score predictions against gold labels."""
    raise NotImplementedError
