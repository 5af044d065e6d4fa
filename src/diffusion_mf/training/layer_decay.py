"""Layer-wise decay of the learning rate: how deep below its top layer each weight of a pretrained encoder lies."""

from __future__ import annotations

import re
from collections.abc import Iterable

_LAYER = re.compile(r"encoder\.model\.(?:.*?\.)?(\d+)\.")
_EMBEDDING = re.compile(r"encoder\.model\.[^.]*embed")


def depths_below_top(names: Iterable[str]) -> dict[str, int]:
    """0 for the top layer and what belongs to none, 1 for the layer below it, …; embeddings lie below all layers.

    Names are those of a labeller's parameters. Layers that share their weights (ALBERT) count as one.

    >>> depths_below_top(["encoder.model.embeddings.w", "encoder.model.layer.0.w", "encoder.model.layer.1.w", "core.w"])
    {'encoder.model.embeddings.w': 2, 'encoder.model.layer.0.w': 1, 'encoder.model.layer.1.w': 0, 'core.w': 0}
    """
    names = list(names)
    layers = {name: int(found[1]) for name in names if (found := _LAYER.match(name)) and not _EMBEDDING.match(name)}
    num_layers = max(layers.values(), default=-1) + 1
    return {
        name: num_layers if _EMBEDDING.match(name) else num_layers - 1 - layers[name] if name in layers else 0
        for name in names
    }
