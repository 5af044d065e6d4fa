"""Sequence labelling by structured discrete diffusion.

    from diffusion_mf import Tagger, load, train

`Tagger` labels sentences with a trained model, `load` reads one from a folder, `train` makes one from a configuration. They
are imported when they are first asked for, so that ``import diffusion_mf`` does not wait for PyTorch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from diffusion_mf.api import load as load
    from diffusion_mf.api import train as train
    from diffusion_mf.tagger import Tagger as Tagger

__version__ = "0.1.0"

__all__ = ["Tagger", "__version__", "load", "train"]


def __getattr__(name: str) -> Any:
    if name in ("load", "train"):
        from diffusion_mf import api

        return getattr(api, name)
    if name == "Tagger":
        from diffusion_mf.tagger import Tagger

        return Tagger
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
