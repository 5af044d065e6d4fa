"""The models that come with the package, by name."""

from __future__ import annotations

import os
from pathlib import Path

from diffusion_mf.data.files import StrPath
from diffusion_mf.model.storage import CONFIG, HUB_PREFIX

FOLDER = Path(__file__).parent.parent / "shipped"
DEFAULT_MODEL = "en-pos"


def shipped_models() -> dict[str, Path]:
    """The folders of the models that come with the package, by name."""
    if not FOLDER.is_dir():
        return {}
    return {path.name: path for path in sorted(FOLDER.iterdir()) if (path / CONFIG).is_file()}


def is_shipped(name: StrPath) -> bool:
    """Whether a name is that of a model of the package; a model folder of that name, or that of a run, comes first."""
    is_own = os.path.isfile(os.path.join(name, CONFIG)) or os.path.isdir(os.path.join(name, "model"))
    return os.fspath(name) in shipped_models() and not is_own


def is_model(name: str) -> bool:
    """Whether a name is a model: a folder with a configuration, a model of the package, or one of the hub."""
    return name.startswith(HUB_PREFIX) or os.path.isfile(os.path.join(name, CONFIG)) or is_shipped(name)


def model_folder(name: StrPath) -> StrPath:
    """The folder of a model of the package; any other name as it is."""
    return shipped_models()[os.fspath(name)] if is_shipped(name) else name
