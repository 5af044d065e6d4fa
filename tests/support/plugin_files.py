"""Plugins for tests: files that add a system, and a package's tables as they were before."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

from diffusion_mf import plugins
from diffusion_mf.decoding import DECODERS
from diffusion_mf.networks.encoders import ENCODERS
from diffusion_mf.structures import STRUCTURES
from diffusion_mf.systems import SYSTEMS


def system_text(name: str) -> str:
    """A module that adds a direct system."""
    return f"""
from diffusion_mf.systems import SYSTEMS, ObjectiveWeights, System

SYSTEMS["{name}"] = System(
    name="{name}", title="Own", process="direct", structure="unigram", weights=ObjectiveWeights(denoising=1),
    plain_decoders=("argmax",), constrained_decoders=("argmax",),
)
"""


@contextlib.contextmanager
def forgotten_plugins() -> Iterator[None]:
    """What a new process would know at the beginning; plugins imported inside are forgotten at the end."""
    tables = [(table, dict(table)) for table in (SYSTEMS, STRUCTURES, ENCODERS, DECODERS)]
    modules = set(sys.modules)
    plugins._entry_points.cache_clear()
    try:
        yield
    finally:
        for table, before in tables:
            table.data = before
        for name in plugins._imported.keys() - modules:
            sys.modules.pop(name, None)
        plugins._imported.clear()
        plugins._owners.clear()
        plugins._entry_points.cache_clear()
