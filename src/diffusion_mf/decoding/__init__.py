"""Decoding: from scores to labels, with constraints; decoders by name.

To add a decoder, enter it in `DECODERS`: a frozen object with a ``name`` that turns a `DecoderInput` into labels.
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
