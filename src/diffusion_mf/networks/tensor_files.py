"""Weights on disk: safetensors files with the permissions of the user's umask."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import safetensors.torch
from torch import Tensor


def write_tensors(path: Path, tensors: Mapping[str, Tensor], *, metadata: dict[str, str] | None = None) -> None:
    """Write ``tensors`` to ``path``, with the permissions of any other new file.

    The file is created empty first, for its permissions: safetensors would make it readable by its owner only.
    """
    path.touch()
    mode = path.stat().st_mode
    safetensors.torch.save_file(dict(tensors), path, metadata=metadata)
    path.chmod(mode)
