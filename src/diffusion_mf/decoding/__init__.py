"""Decoding: from scores to labels, with constraints; decoders by name, and labels in the scheme that users read.

To add a decoder, enter it in `DECODERS`: a frozen object with a ``name`` that turns a `DecoderInput` into labels and knows whether
they are always a legal sequence.
"""

from diffusion_mf.decoding.constraints import Legality
from diffusion_mf.decoding.decoders import Argmax, Decoder, DecoderInput, MaskViterbi, NativeBits, Viterbi
from diffusion_mf.decoding.k_best import BestSequences, k_best, k_best_of
from diffusion_mf.decoding.output_labels import OutputLabels
from diffusion_mf.plugins import Table

DECODERS: Table[Decoder] = Table(
    "decoder", {decoder.name: decoder for decoder in (Argmax(), MaskViterbi(), Viterbi(), NativeBits())}
)

__all__ = [
    "DECODERS",
    "Argmax",
    "BestSequences",
    "Decoder",
    "DecoderInput",
    "Legality",
    "MaskViterbi",
    "NativeBits",
    "OutputLabels",
    "Viterbi",
    "k_best",
    "k_best_of",
]
