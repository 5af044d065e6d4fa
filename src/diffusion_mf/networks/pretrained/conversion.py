"""Weights published as PyTorch files, as safetensors: read without running code, tensors only."""

from __future__ import annotations

import json
import pickle
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from diffusion_mf.data.files import current_umask
from diffusion_mf.errors import InputError
from diffusion_mf.networks.tensor_files import write_tensors

WEIGHTS = "model.safetensors"
_WEIGHT_SUFFIXES = {".bin", ".pt", ".pth", ".safetensors", ".h5", ".msgpack", ".ot", ".onnx"}
_OLD_NAMES = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}


def convert_encoder(source: Path, target: Path) -> int:
    """Write ``source``, a folder with PyTorch weights, as a new folder with safetensors; returns the number of tensors.

    Weights are read with ``weights_only=True``: a file that wants more than tensors is refused. Everything small beside them
    (configuration, tokenizer) is copied. The new folder appears whole or not at all.
    """
    if not (source / "config.json").is_file():
        raise InputError("no folder of an encoder: it lacks config.json", path=source, remedy="name another folder")
    if target.exists():
        raise InputError("exists already", path=target, remedy="name a new folder")
    tensors: dict[str, Tensor] = {}
    _check_parts(source)
    for path in _weight_files(source):
        tensors |= _read(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}.") as folder:
        written = Path(folder) / "new"
        written.mkdir()
        written.chmod(0o777 & ~current_umask())
        # Tensors that share memory are stored apart: safetensors knows no sharing.
        apart = {name: tensor.contiguous().clone() for name, tensor in tensors.items()}
        write_tensors(written / WEIGHTS, apart, metadata={"format": "pt"})
        for file in sorted(source.iterdir()):
            if file.is_file() and file.suffix not in _WEIGHT_SUFFIXES and not file.name.endswith(".index.json"):
                shutil.copyfile(file, written / file.name)
        written.rename(target)
    return len(tensors)


def _check_parts(source: Path) -> None:
    """`InputError` if a part of the weights that an index names is not there."""
    for index in sorted(source.glob("*.bin.index.json")):
        try:
            names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        except (OSError, ValueError, KeyError, AttributeError, TypeError):
            raise InputError("no index of weights", path=index, remedy="copy the model again") from None
        if missing := sorted(name for name in names if not (source / str(name)).is_file()):
            raise InputError(
                f"{len(missing)} of {len(names)} parts of the weights are missing, such as {missing[0]}",
                path=source,
                remedy="copy the model again",
            )


def _weight_files(source: Path) -> list[Path]:
    parts = sorted(source.glob("pytorch_model*.bin"))
    found = parts or sorted(file for file in source.iterdir() if file.suffix in (".bin", ".pt", ".pth"))
    # A trainer's settings are no weights.
    found = [file for file in found if file.name != "training_args.bin"]
    if not found:
        raise InputError("there are no PyTorch weights in this folder", path=source, remedy="name another folder")
    return found


def _read(path: Path) -> dict[str, Tensor]:
    try:
        content: Any = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        # What torch says is long, and how to run the code after all.
        raise InputError(
            "no file of plain tensors: it is damaged, or holds something that would have to be run",
            path=path,
            remedy="convert it where it comes from, if you trust it",
        ) from None
    except (RuntimeError, EOFError, OSError):
        raise InputError("damaged, or no file of PyTorch", path=path, remedy="copy it again") from None
    if isinstance(content, dict) and isinstance(content.get("state_dict"), dict):
        content = content["state_dict"]
    if not isinstance(content, dict):
        raise InputError("no named tensors", path=path, remedy="name a folder with a model's weights")
    tensors = {_new_name(str(name)): value for name, value in content.items() if isinstance(value, Tensor)}
    if not tensors:
        raise InputError("no named tensors", path=path, remedy="name a folder with a model's weights")
    return tensors


def _new_name(name: str) -> str:
    for old, new in _OLD_NAMES.items():
        name = name.replace(old, new)
    return name
