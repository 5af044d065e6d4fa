"""Model sizes: about 20, 40, 60, 80 and 650 million parameters on English EWT, embeddings counted.

Paper: “Architectures” (appendix A.3). Conventional systems grow the encoder; diffusion systems keep theirs and grow the
denoiser. The paper publishes the totals only: the dimensions are ours.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

Size = Literal["XS", "S", "M", "L", "XL"]
SIZES: tuple[Size, ...] = get_args(Size)

MILLIONS_OF_PARAMETERS: dict[Size, int] = {"XS": 20, "S": 40, "M": 60, "L": 80, "XL": 650}

_WORDS = {"word_width": 304, "character_width": 64, "character_hidden": 128}
_DIRECT: dict[Size, dict[str, dict[str, int]]] = {
    "XS": {"encoder": {**_WORDS, "width": 512, "layers": 4, "heads": 8}},
    "S": {"encoder": {**_WORDS, "width": 640, "layers": 7, "heads": 10}},
    "M": {"encoder": {**_WORDS, "width": 704, "layers": 9, "heads": 11}},
    "L": {"encoder": {**_WORDS, "width": 832, "layers": 9, "heads": 13}},
    "XL": {"encoder": {**_WORDS, "width": 2048, "layers": 13, "heads": 16}},
}

_FIXED_ENCODER = {**_WORDS, "width": 512, "layers": 2, "heads": 8}
_DIFFUSION: dict[Size, dict[str, dict[str, int]]] = {
    "XS": {"encoder": _FIXED_ENCODER, "denoiser": {"width": 256, "layers": 3, "heads": 8}},
    "S": {"encoder": _FIXED_ENCODER, "denoiser": {"width": 512, "layers": 5, "heads": 8}},
    "M": {"encoder": _FIXED_ENCODER, "denoiser": {"width": 512, "layers": 8, "heads": 8}},
    "L": {"encoder": _FIXED_ENCODER, "denoiser": {"width": 640, "layers": 8, "heads": 16}},
    "XL": {"encoder": _FIXED_ENCODER, "denoiser": {"width": 2048, "layers": 11, "heads": 16}},
}


def preset(size: Size, *, is_diffusion: bool) -> dict[str, dict[str, Any]]:
    """The settings that ``size`` stands for, as sections of a configuration."""
    table = _DIFFUSION if is_diffusion else _DIRECT
    return {section: dict(values) for section, values in table[size].items()}
