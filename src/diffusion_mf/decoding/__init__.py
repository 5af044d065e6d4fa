"""From scores to labels: constraints, and decoders by name.

A decoder is added here: a frozen object with a ``name`` that turns `Evidence` into labels, entered in `DECODERS`.
"""

from diffusion_mf.decoding.constraints import Legality
from diffusion_mf.decoding.decoders import Argmax, Decoder, Evidence, MaskViterbi, NativeBits, Viterbi
from diffusion_mf.decoding.k_best import BestSequences, k_best
from diffusion_mf.plugins import Table

DECODERS: Table[Decoder] = Table(
    "decoder", {decoder.name: decoder for decoder in (Argmax(), MaskViterbi(), Viterbi(), NativeBits())}
)

__all__ = [
    "DECODERS",
    "Argmax",
    "BestSequences",
    "Decoder",
    "Evidence",
    "Legality",
    "MaskViterbi",
    "NativeBits",
    "Viterbi",
    "k_best",
]
