"""One colour for each label, the same on paper and in a terminal."""

from __future__ import annotations

import colorsys
from collections.abc import Sequence

# Neighbours in this list differ most in hue: labels that stand beside each other in sorted order rarely look alike.
_COLOURS = (
    "#4E79A7", "#F28E2B", "#59A14F", "#E15759", "#B07AA1", "#EDC948", "#76B7B2", "#FF9DA7", "#9C755F",
    "#3B4262", "#D37295", "#8CD17D", "#6B6ECF", "#D4A017", "#A0CBE8", "#B6992D", "#499894", "#BAB0AC",
)  # fmt: skip


def label_colours(labels: Sequence[str]) -> dict[str, str]:
    """Hexadecimal colours by label; where there are more labels than chosen colours, further ones around the wheel."""
    colours = list(_COLOURS[: len(labels)])
    for index in range(len(labels) - len(colours)):
        # The golden angle never comes back to where it was.
        red, green, blue = colorsys.hls_to_rgb((index * 0.381966) % 1, 0.45 + 0.2 * (index % 3) / 2, 0.5)
        colours.append(f"#{round(red * 255):02X}{round(green * 255):02X}{round(blue * 255):02X}")
    return dict(zip(labels, colours, strict=True))
