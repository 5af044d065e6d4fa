"""Beginning a run in a folder, and taking up one that was begun there before."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pydantic
import torch

from diffusion_mf.config import Config
from diffusion_mf.data.label_schemes import LabelScheme, complete_labels
from diffusion_mf.errors import InputError
from diffusion_mf.training.checkpoint import STATE_FILE, damaged, has_checkpoint, read_checkpoint, write_checkpoint
from diffusion_mf.training.corpora import TrainingData
from diffusion_mf.training.distributed import Processes
from diffusion_mf.training.learner import Learner
from diffusion_mf.training.state import TrainingState

# What may differ: files may have moved (their content is compared), and threads are warned about.
_FREE_SETTINGS = {"data.train", "data.dev", "data.test", "data.strict", "training.threads"}


class RunFolder(NamedTuple):
    """The files of a run."""

    root: Path

    @property
    def checkpoint(self) -> Path:
        """Where the run stands."""
        return self.root / "checkpoint"

    @property
    def model(self) -> Path:
        """The best model so far."""
        return self.root / "model"

    @property
    def log(self) -> Path:
        """What happened."""
        return self.root / "log.jsonl"

    @property
    def tensorboard(self) -> Path:
        """What happened, as pictures."""
        return self.root / "tensorboard"

    def check_unused(self) -> None:
        """`InputError` if another run was begun here."""
        if has_checkpoint(self.checkpoint) or self.model.exists():
            raise InputError(
                "another run was begun in this folder",
                path=self.root,
                remedy="continue it with --resume, or name another folder",
            )

    def make(self) -> None:
        """Make the folder, and clear away what a kill in the middle of saving a model may have left."""
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            for leftover in self.root.glob(f".{self.model.name}.*.tmp"):
                if (leftover / "old").is_dir() and not self.model.exists():
                    (leftover / "old").rename(self.model)
                shutil.rmtree(leftover, ignore_errors=True)
        except OSError as error:
            raise InputError(
                f"cannot be written ({error.strerror})", path=self.root, remedy="name another folder with --output"
            ) from None


class Resumed(NamedTuple):
    """A run taken up again."""

    state: TrainingState
    log_bytes: int


def save_run(
    folder: RunFolder,
    *,
    config: Config,
    data: TrainingData,
    state: TrainingState,
    learner: Learner,
    processes: Processes,
    log_bytes: int,
    is_packed: bool = False,
    encoder_digest: str = "",
) -> None:
    """Write a checkpoint."""
    values = {
        "config": config.model_dump(mode="json"),
        "data": data.fingerprint,
        "labels": list(data.vocabulary.labels),
        "encoder": encoder_digest,
        "conditions": _conditions(processes, is_packed=is_packed),
        "log_bytes": log_bytes,
        "training": state.to_dict(),
    }
    write_checkpoint(folder.checkpoint, values, learner.tensors())


def load_run(
    folder: RunFolder,
    *,
    config: Config,
    data: TrainingData,
    learner: Learner,
    processes: Processes,
    note: Callable[[str], None],
    is_packed: bool = False,
    encoder_digest: str = "",
) -> Resumed | None:
    """Put ``learner`` where the checkpoint says; None if there is none, `InputError` if it does not fit this run."""
    checkpoint = read_checkpoint(folder.checkpoint)
    if checkpoint is None:
        return None
    path = folder.checkpoint / STATE_FILE
    try:
        saved = checkpoint.state
        state = TrainingState.from_dict(saved["training"])
        saved_config, conditions = _flat(_with_newer_settings(saved["config"])), dict(saved["conditions"])
        log_bytes, fingerprint = int(saved["log_bytes"]), saved["data"]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise damaged(path, f"{error} among its entries") from None
    is_same_data = fingerprint == data.fingerprint
    # Its weights are in the checkpoint; how it cuts words, which other data cannot tell, must be as before.
    is_same_encoder = saved.get("encoder") == encoder_digest
    free = _FREE_SETTINGS | {"encoder.model"} if is_same_encoder or not is_same_data else _FREE_SETTINGS
    _compare_config(_flat(config.model_dump(mode="json")), saved_config, path, free)
    if not is_same_data:
        raise InputError(
            "the run was begun with other training or dev data", path=path, remedy="name the same files as before"
        )
    if "encoder" in saved and not is_same_encoder:
        raise InputError(
            "the run was begun with another tokenizer", path=path, remedy="name the encoder it was begun with"
        )
    learner.load_tensors(checkpoint.tensors, path=folder.checkpoint)
    for name, now in _conditions(processes, is_packed=is_packed).items():
        if name in conditions and conditions[name] != now:
            effect = "its weights will differ in their last bits"
            if name == "layout":
                # The position counts batches that there will not be.
                state.position = 0
                effect = "its batches will be others, and the present epoch begins anew"
            note(f"the run was begun with {name} {conditions[name]} and goes on with {now}: {effect}")
    return Resumed(state, log_bytes)


def has_complete_labels(folder: RunFolder) -> bool:
    """Whether the run was begun with every boundary label of every type: older runs had those that occur in training."""
    try:
        labels = json.loads((folder.checkpoint / STATE_FILE).read_bytes())["state"].get("labels", ())
        return bool(labels) and labels == complete_labels(labels, LabelScheme.BMES)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        # Labels of another task, or no checkpoint; of a damaged one `load_run` says what is wrong with it.
        return True


def _conditions(processes: Processes, *, is_packed: bool) -> dict[str, Any]:
    """What decides about the last bits of a result, beside configuration and data."""
    return {
        "layout": "packed" if is_packed else "padded",
        "threads": torch.get_num_threads(),
        "processes": processes.world_size,
        "device": processes.device.type,
        "torch": torch.__version__,
    }


def _with_newer_settings(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """A saved configuration with the defaults of settings that did not exist when it was saved."""
    try:
        return Config.model_validate(values).model_dump(mode="json")
    except pydantic.ValidationError:
        return values  # the comparison says which setting is at fault


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in values.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return flat


def _compare_config(now: Mapping[str, Any], before: Mapping[str, Any], path: Path, free: set[str]) -> None:
    for name in [*now, *(name for name in before if name not in now)]:
        if name not in free and now.get(name) != before.get(name):
            raise InputError(
                f"the run was begun with {name} = {before.get(name)}, not {now.get(name)}",
                path=path,
                remedy="resume with the same configuration, or train into another folder",
            )
