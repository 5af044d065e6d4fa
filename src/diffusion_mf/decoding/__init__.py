"""From scores to labels: constraints, and decoders by name.

A decoder is added here: a frozen object with a ``name`` that turns `DecoderInput` into labels, entered in `DECODERS`.
"""

from diffusion_mf.decoding.constraints import Legality
from diffusion_mf.decoding.decoders import Argmax, Decoder, DecoderInput, MaskViterbi, NativeBits, Viterbi
from diffusion_mf.decoding.k_best import BestSequences, k_best

DECODERS: dict[str, Decoder] = {decoder.name: decoder for decoder in (Argmax(), MaskViterbi(), Viterbi(), NativeBits())}

__all__ = [
    "DECODERS",
    "Argmax",
    "BestSequences",
    "Decoder",
    "DecoderInput",
    "Legality",
    "MaskViterbi",
    "NativeBits",
    "Viterbi",
    "k_best",
]
