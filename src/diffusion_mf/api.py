"""The functions of the public interface; `diffusion_mf` imports them when they are first used."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence

from diffusion_mf.config import Config, load_config
from diffusion_mf.data.files import StrPath
from diffusion_mf.tagger import Tagger


def load(name: StrPath, *, device: str = "auto", plugins: Sequence[str] = ()) -> Tagger:
    """The tagger of a model folder, or of a model on the Hugging Face hub; ``plugins`` as for `Tagger.load`."""
    return Tagger.from_pretrained(name, device=device, plugins=plugins)


def train(
    config: Config | StrPath, *, output: StrPath | None = None, resume: bool = False, device: str = "auto"
) -> Tagger:
    """Train what a configuration (or its file or name) describes and return the best model; what ``dmf train`` does.

    ``output`` keeps checkpoints, log and model; without it nothing is kept but the tagger returned.
    """
    # Not at the top: training imports the tagger.
    from diffusion_mf.training.loop import train as run

    if not isinstance(config, Config):
        config = load_config(config)
    if output is not None:
        return Tagger.load(run(config, output=output, resume=resume, device=device), device=device)
    with tempfile.TemporaryDirectory(prefix="diffusion-mf-") as folder:
        return Tagger.load(run(config, output=folder, device=device), device=device)
