"""Model sizes: about 20, 40, 60, 80 and 650 million parameters on English EWT, embeddings counted.

Paper: “Architectures” (appendix A.3). Conventional systems grow the encoder; diffusion systems keep theirs and grow the
denoiser. The paper publishes the totals only: the dimensions are ours.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

Size = Literal["XS", "S", "M", "L", "XL"]
SIZES: tuple[Size, ...] = get_args(Size)

MILLIONS_OF_PARAMETERS: dict[Size, int] = {"XS": 20, "S": 40, "M": 60, "L": 80, "XL": 650}

_DIRECT: dict[Size, dict[str, dict[str, int]]] = {
    "XS": {"encoder": {"width": 512, "layers": 4, "heads": 8}},
    "S": {"encoder": {"width": 640, "layers": 6, "heads": 8}},
    "M": {"encoder": {"width": 768, "layers": 7, "heads": 12}},
    "L": {"encoder": {"width": 768, "layers": 10, "heads": 12}},
    "XL": {"encoder": {"width": 2048, "layers": 12, "heads": 16}},
}

_SMALL_ENCODER = {"width": 512, "layers": 2, "heads": 8}
_DIFFUSION: dict[Size, dict[str, dict[str, int]]] = {
    "XS": {"encoder": _SMALL_ENCODER, "denoiser": {"width": 256, "layers": 2, "heads": 8}},
    "S": {"encoder": _SMALL_ENCODER, "denoiser": {"width": 512, "layers": 5, "heads": 8}},
    "M": {"encoder": _SMALL_ENCODER, "denoiser": {"width": 512, "layers": 8, "heads": 8}},
    "L": {"encoder": _SMALL_ENCODER, "denoiser": {"width": 640, "layers": 8, "heads": 16}},
    "XL": {"encoder": _SMALL_ENCODER, "denoiser": {"width": 2048, "layers": 8, "heads": 16}},
}


def preset(size: Size, *, is_diffusion: bool) -> dict[str, dict[str, Any]]:
    """The settings that ``size`` stands for, as sections of a configuration."""
    table = _DIFFUSION if is_diffusion else _DIRECT
    return {section: dict(values) for section, values in table[size].items()}
