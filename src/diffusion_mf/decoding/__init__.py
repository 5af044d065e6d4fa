"""From scores to labels: constraints, and decoders by name.

A decoder is added here: a frozen object with a ``name`` that turns `Evidence` into labels, entered in `DECODERS`.
"""

from diffusion_mf.decoding.argmax import Argmax
from diffusion_mf.decoding.constraints import Legality
from diffusion_mf.decoding.evidence import Decoder, Evidence
from diffusion_mf.decoding.k_best import BestSequences, k_best
from diffusion_mf.decoding.native_bits import NativeBits
from diffusion_mf.decoding.viterbi import MaskViterbi, Viterbi

DECODERS: dict[str, Decoder] = {decoder.name: decoder for decoder in (Argmax(), MaskViterbi(), Viterbi(), NativeBits())}

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
