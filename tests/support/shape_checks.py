"""Every public tensor function is checked against its annotation while the tests run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

from beartype import beartype
from jaxtyping import AbstractArray, install_import_hook

TYPES_CHECKED = ("structures", "decoding", "diffusion", "model")
"""rooms in which all types are checked"""
SHAPES_CHECKED = ("batches", "ops", "networks", "prediction", "evaluation", "tagger")
"""rooms in which annotations with shapes are checked"""


def install() -> None:
    """Check what is imported from now on."""
    hook = install_import_hook([f"diffusion_mf.{room}" for room in SHAPES_CHECKED], "shape_checks.check").hook
    is_in_a_room = hook.should_instrument
    # Not the modules of Triton kernels: a kernel must reach the compiler as it was written.
    hook.should_instrument = lambda name: is_in_a_room(name) and not name.rpartition(".")[2].startswith("triton")
    install_import_hook([f"diffusion_mf.{room}" for room in TYPES_CHECKED], "beartype.beartype")


def check(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` checked by beartype as far as its annotations have shapes; stand-ins may take the place of all else."""
    hints = function.__annotations__
    function.__annotations__ = {name: hint for name, hint in hints.items() if _has_shape(hint)}
    return beartype(function) if function.__annotations__ else function


def _has_shape(hint: object) -> bool:
    if isinstance(hint, type) and issubclass(hint, AbstractArray):
        return True
    return any(map(_has_shape, get_args(hint)))
