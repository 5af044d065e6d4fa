"""Weights on disk: safetensors files that others may read, as the user's umask says."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import safetensors.torch
from torch import Tensor


def write_tensors(path: Path, tensors: Mapping[str, Tensor], *, metadata: dict[str, str] | None = None) -> None:
    """Write ``tensors`` to ``path``, with the permissions of any other new file.

    An empty file comes first, for its permissions: safetensors alone would keep everybody else from reading the weights.
    """
    path.touch()
    mode = path.stat().st_mode
    safetensors.torch.save_file(dict(tensors), path, metadata=metadata)
    path.chmod(mode)
