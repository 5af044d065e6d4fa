"""From units to states: encoders by name.

An encoder is a subclass of `Encoder`, added by entering what builds it in `ENCODERS`; ``encoder.kind`` of a configuration is the name. `docs/systems.md` shows an example.
"""

import difflib
from collections.abc import Callable
from pathlib import Path

from diffusion_mf.config import EncoderConfig
from diffusion_mf.data.vocabulary import Vocabulary
from diffusion_mf.encoders.encoder import Encoder
from diffusion_mf.encoders.pretrained import PretrainedEncoder
from diffusion_mf.encoders.scratch import ScratchEncoder
from diffusion_mf.encoders.window import WindowEncoder
from diffusion_mf.errors import InputError

ENCODERS: dict[str, Callable[[EncoderConfig, Vocabulary], Encoder]] = {
    "scratch": ScratchEncoder,
    "pretrained": PretrainedEncoder,
    "window": WindowEncoder,
}


def build_encoder(config: EncoderConfig, vocabulary: Vocabulary, *, files: Path | None = None) -> Encoder:
    """The encoder that a configuration names, or, where it has ``files``, one as it was saved, its weights yet to come."""
    if config.kind not in ENCODERS:
        close = difflib.get_close_matches(config.kind, ENCODERS, n=1)
        raise InputError(
            f"encoder.kind must be one of {', '.join(ENCODERS)}, found {config.kind!r}",
            remedy=f"the nearest is {close[0]}" if close else "choose one of them",
        )
    builder = ENCODERS[config.kind]
    if builder is PretrainedEncoder and files is not None:
        return PretrainedEncoder.from_files(config, files)
    return builder(config, vocabulary)


__all__ = ["ENCODERS", "Encoder", "PretrainedEncoder", "ScratchEncoder", "WindowEncoder", "build_encoder"]
