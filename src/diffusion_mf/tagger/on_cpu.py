"""What a tagger does on a CPU and not on a GPU: word vectors looked up in a table, and smaller batches."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from diffusion_mf.encoders.known_words import KnownWords
    from diffusion_mf.tagger.storage import StoredModel

CPU_BATCH_UNITS = 2000
"""of a batch on a CPU, padding counted: what a Transformer computes for more at once falls out of its caches"""


def known_words(model: StoredModel) -> KnownWords | None:
    """A table for the words of a model whose encoder has a part that sees one at a time."""
    from diffusion_mf.encoders.known_words import KnownWords
    from diffusion_mf.encoders.words import WordEncoder

    encoder = getattr(model.labeller, "encoder", None)
    return KnownWords(encoder, model.vocabulary) if isinstance(encoder, WordEncoder) else None


def has_transformer(model: StoredModel) -> bool:
    """Whether there is one anywhere between words and labels."""
    from diffusion_mf.encoders import WindowEncoder

    encoder = getattr(model.labeller, "encoder", None)
    return model.config.system_entry.is_diffusion or not isinstance(encoder, WindowEncoder)
