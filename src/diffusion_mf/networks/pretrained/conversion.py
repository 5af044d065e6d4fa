"""Conversion of PyTorch weight files to safetensors: tensors only, without running any code."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from torch import Tensor

from diffusion_mf.errors import InputError
from diffusion_mf.networks.tensor_files import write_tensors

WEIGHTS = "model.safetensors"
_WEIGHT_SUFFIXES = {".bin", ".pt", ".pth", ".safetensors", ".h5", ".msgpack", ".ot", ".onnx"}
_OLD_NAMES = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}


def convert_encoder(source: Path, target: Path) -> int:
    """Convert ``source``, a folder with PyTorch weights, to a new folder with safetensors; returns the number of tensors.

    Weights are read with ``weights_only=True``: a file that contains more than tensors is refused. Small files in the same folder
    (configuration, tokenizer) are copied. The new folder is written completely or not at all.
    """
    if not (source / "config.json").is_file():
        raise InputError("not the folder of an encoder: config.json is missing", path=source, remedy="check the path")
    if target.exists():
        raise InputError("already exists", path=target, remedy="choose a new folder")
    tensors: dict[str, Tensor] = {}
    _check_parts(source)
    for path in _weight_files(source):
        tensors |= _read(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}.") as folder:
        written = Path(folder) / "new"
        written.mkdir()
        # Tensors that share memory are stored separately: safetensors does not support sharing.
        apart = {name: tensor.contiguous().clone() for name, tensor in tensors.items()}
        write_tensors(written / WEIGHTS, apart, metadata={"format": "pt"})
        for file in sorted(source.iterdir()):
            if file.is_file() and file.suffix not in _WEIGHT_SUFFIXES and not file.name.endswith(".index.json"):
                shutil.copyfile(file, written / file.name)
        written.rename(target)
    return len(tensors)


def _check_parts(source: Path) -> None:
    """`InputError` if a part of the weights that the index lists is missing."""
    for index in sorted(source.glob("*.bin.index.json")):
        try:
            names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        except (OSError, ValueError, KeyError, AttributeError, TypeError):
            raise InputError("not an index of weights", path=index, remedy="copy the model again") from None
        if missing := sorted(name for name in names if not (source / str(name)).is_file()):
            raise InputError(
                f"{len(missing)} of {len(names)} parts of the weights are missing, such as {missing[0]}",
                path=source,
                remedy="copy the model again",
            )


def _weight_files(source: Path) -> list[Path]:
    parts = sorted(source.glob("pytorch_model*.bin"))
    found = parts or sorted(file for file in source.iterdir() if file.suffix in (".bin", ".pt", ".pth"))
    # The settings of a trainer are not weights.
    found = [file for file in found if file.name != "training_args.bin"]
    if not found:
        raise InputError("there are no PyTorch weights in this folder", path=source, remedy="check the path")
    return found


def _read(path: Path) -> dict[str, Tensor]:
    try:
        content: Any = torch.load(path, map_location="cpu", weights_only=True)
    except UnpicklingError:
        # PyTorch's message is long, and explains how to run the code after all.
        raise InputError(
            "not a file of plain tensors: it is damaged, or contains code that would have to be run",
            path=path,
            remedy="convert it at its source, if you trust it",
        ) from None
    except (RuntimeError, EOFError, OSError):
        raise InputError("damaged, or not a PyTorch file", path=path, remedy="copy it again") from None
    if isinstance(content, dict) and isinstance(content.get("state_dict"), dict):
        content = content["state_dict"]
    if not isinstance(content, dict):
        raise InputError("contains no named tensors", path=path, remedy="use a folder with a model's weights")
    tensors = {_new_name(str(name)): value for name, value in content.items() if isinstance(value, Tensor)}
    if not tensors:
        raise InputError("contains no named tensors", path=path, remedy="use a folder with a model's weights")
    return tensors


def _new_name(name: str) -> str:
    for old, new in _OLD_NAMES.items():
        name = name.replace(old, new)
    return name
