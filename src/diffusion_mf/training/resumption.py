"""The state of a run and the best model so far: how both are saved and resumed."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import os
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import torch

from diffusion_mf.config import Config, saved_config
from diffusion_mf.config.files import flat
from diffusion_mf.config.sections import AUTO
from diffusion_mf.data.files import try_lock
from diffusion_mf.errors import InputError
from diffusion_mf.evaluation.calibration import UNFITTED, SpanCalibration
from diffusion_mf.model import Labeller
from diffusion_mf.model.storage import StoredModel, load_model, restore, save_model
from diffusion_mf.training.checkpoint import (
    STATE_FILE,
    damaged,
    has_checkpoint,
    read_checkpoint,
    read_state,
    write_checkpoint,
)
from diffusion_mf.training.corpora import TrainingData
from diffusion_mf.training.optimizer import Learner
from diffusion_mf.training.processes import Processes


@dataclasses.dataclass
class TrainingState:
    """Position, selection and early stopping; random numbers are keyed by ``step``, so they need no state."""

    step: int = 0
    """optimizer steps taken"""
    epoch: int = 0
    """epochs finished"""
    position: int = 0
    """steps taken in the current epoch"""
    best_score: float | None = None
    best_epoch: int = 0
    """epochs finished when the best model was saved"""
    best_decoder: str | None = None
    is_stopped: bool = False
    """by early stopping"""
    num_pieces: int = 1
    """number of pieces that a process's share of a batch is split into, see `gradients.StepGradients`"""
    num_shortages: int = 0
    """how often memory ran out"""
    num_skipped: int = 0
    """steps whose gradient was not finite, as far as the host knows"""
    num_returns: int = 0
    """how often the run returned to a checkpoint after too many of them in a row"""
    seconds: float = 0.0
    """of training so far"""

    def to_dict(self) -> dict[str, Any]:
        """As values for JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TrainingState:
        """The inverse of `to_dict`; `ValueError` for anything else."""
        # Checkpoints of earlier versions lack the counts of skipped steps and of shortages.
        values = {"num_skipped": 0, "num_returns": 0, "num_shortages": 0, **values}
        if set(values) != {field.name for field in dataclasses.fields(cls)}:
            raise ValueError("entries are missing or unknown")
        for name in (field.name for field in dataclasses.fields(cls) if field.type == "int"):
            if not isinstance(values[name], int) or values[name] < 0:
                raise ValueError(f"{name} is not a count")
        return cls(**values)


EPOCHS = "training.epochs"
MAX_STEPS = "training.max_steps"
CALLS = "inference.num_calls"
# What may differ: files and modules may have moved (the files' content is compared), and threads are warned about.
_FREE_SETTINGS = {"plugins", "data.train", "data.dev", "data.test", "data.strict", "training.threads"}


class RunFolder:
    """The files of a run."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.checkpoint = root / "checkpoint"
        self.model = root / "model"
        self.log = root / "log.jsonl"
        self.tensorboard = root / "tensorboard"
        # What the process that trains here keeps locked; it also marks the folder as that of a run.
        self.lock = root / ".dmf.lock"

    def check_unused(self) -> None:
        """`InputError` if another run was started here, or the folder holds anything else."""
        if has_checkpoint(self.checkpoint) or self.model.exists():
            raise InputError(
                "another run was started in this folder",
                path=self.root,
                remedy="continue it with --resume, or name another folder",
            )
        self._check_ours()

    def _check_ours(self) -> None:
        """A run replaces files such as ``log.jsonl``, which must not be somebody else's."""
        if self.lock.exists() or has_checkpoint(self.checkpoint) or self.model.exists():
            return
        if self.root.is_dir() and (names := os.listdir(self.root)):
            raise InputError(
                f"the folder is not empty, and not that of a run (it has {min(names)})",
                path=self.root,
                remedy="name a new folder with --output",
            )

    def mark(self) -> None:
        """Create the folder, or take one with other files as that of a run."""
        os.close(self._open_lock())

    def _open_lock(self) -> int:
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            # Its content is replaced, so that it must not be a link to something else.
            flags = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0)
            return os.open(self.lock, os.O_RDWR | os.O_CREAT | flags, 0o666)
        except OSError as error:
            raise InputError(
                f"cannot be written ({error.strerror})", path=self.root, remedy="name another folder with --output"
            ) from None

    def check_free(self, *, resume: bool) -> None:
        """Refuse now what `locked` or `check_unused` would refuse once data are read and a model is built; creates nothing."""
        if self.lock.exists():
            handle = self._open_lock()
            try:
                self._take(handle)
            finally:
                os.close(handle)
        if resume:
            self._check_ours()
        else:
            self.check_unused()

    def _take(self, handle: int) -> bool:
        """Lock the folder; `InputError` if another process has it, False on a file system without locks."""
        is_locked = try_lock(handle)
        if is_locked is False:
            owner = os.pread(handle, 200, 0).decode(errors="replace").strip() or "another process"
            raise InputError(
                f"{owner} is training in this folder",
                path=self.root,
                remedy="wait until it has ended, or name another folder with --output",
            )
        return is_locked is True

    @contextlib.contextmanager
    def locked(self, note: Callable[[str], None]) -> Iterator[None]:
        """Create the folder, and keep other runs out of it during the block; the kernel unlocks it if this process is killed."""
        self._check_ours()
        handle = self._open_lock()
        try:
            if not self._take(handle):
                note(f"{self.root} is on a file system without locks: do not start a second run there")
            # Only messages need the name: a full disk is reported by what has to be written.
            with contextlib.suppress(OSError):
                os.ftruncate(handle, 0)
                os.write(handle, f"process {os.getpid()} on {platform.node()}\n".encode())
            restore(self.model)
            yield
        finally:
            os.close(handle)


class BegunRun(NamedTuple):
    """What a run was started with."""

    config: Config
    overrides: list[str]
    """given in addition to the configuration, as for ``--set``"""


def begun_run(output: Path) -> BegunRun | None:
    """What the run in a folder was started with; None without a checkpoint, `InputError` for a damaged one."""
    folder = RunFolder(output).checkpoint
    path = folder / STATE_FILE
    try:
        saved = read_state(folder)
        if saved is None:
            return None
        overrides = [str(override) for override in saved.get("overrides", ())]
        return BegunRun(saved_config(saved["config"], path=path), overrides)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise damaged(path, f"{error} among its entries") from None


class Resumed(NamedTuple):
    """A resumed run."""

    state: TrainingState
    log_bytes: int


class Checkpoints:
    """Writes the checkpoints of a run, and restores the last one if it fits the run."""

    def __init__(
        self,
        folder: RunFolder,
        config: Config,
        data: TrainingData,
        learner: Learner,
        processes: Processes,
        *,
        is_packed: bool,
        encoder_digest: str,
        overrides: Sequence[str],
    ) -> None:
        self._folder, self._config, self._data = folder, config, data
        self._learner, self._processes = learner, processes
        self._is_packed, self._encoder_digest, self._overrides = is_packed, encoder_digest, overrides

    def save(self, state: TrainingState, *, log_bytes: int) -> None:
        """Write a checkpoint."""
        values = {
            "config": self._config.model_dump(mode="json"),
            "overrides": list(self._overrides),
            "data": self._data.fingerprint,
            "encoder": self._encoder_digest,
            "conditions": self._conditions(),
            "log_bytes": log_bytes,
            "training": state.to_dict(),
        }
        write_checkpoint(self._folder.checkpoint, values, self._learner.tensors())

    def load(self, note: Callable[[str], None]) -> Resumed | None:
        """Restore the learner from the checkpoint; None if there is none, `InputError` if it does not fit this run."""
        checkpoint = read_checkpoint(self._folder.checkpoint)
        if checkpoint is None:
            return None
        path = self._folder.checkpoint / STATE_FILE
        try:
            saved = checkpoint.state
            state = TrainingState.from_dict(saved["training"])
            before = flat(saved_config(saved["config"], path=path).model_dump(mode="json"))
            conditions = dict(saved["conditions"])
            log_bytes, fingerprint = int(saved["log_bytes"]), saved["data"]
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise damaged(path, f"{error} among its entries") from None
        is_same_data = fingerprint == self._data.fingerprint
        # Its weights are in the checkpoint; its tokenizer, which the data do not show, must be the same as before.
        is_same_encoder = saved.get("encoder") == self._encoder_digest
        free = _FREE_SETTINGS | {"encoder.model"} if is_same_encoder or not is_same_data else _FREE_SETTINGS
        now = flat(self._config.model_dump(mode="json"))
        if {now[CALLS], before.get(CALLS)} == {AUTO, None}:
            # Training is the same.
            free = free | {CALLS}
        # None is no limit.
        limits = {name: (before.get(name), now[name]) for name in (EPOCHS, MAX_STEPS)}
        prolonged = {name for name, (old, new) in limits.items() if old is not None and (new is None or new > old)}
        if prolonged:
            free = free | prolonged
            if state.best_score is None:
                # Without dev data the model is the last one, and training continues to another one.
                state.best_decoder = None
        _compare_config(now, before, path, free)
        if not is_same_data:
            remedy = "name the same files as before"
            if self._config.data.dev is None and self._config.data.held_out:
                remedy += ", or train into another folder if an earlier version held out the dev sentences"
            raise InputError("the run was started with other training or dev data", path=path, remedy=remedy)
        if "encoder" in saved and not is_same_encoder:
            raise InputError(
                "the run was started with another tokenizer", path=path, remedy="name the encoder it was started with"
            )
        self._learner.load_tensors(checkpoint.tensors, path=self._folder.checkpoint)
        for name, now in self._conditions().items():
            if name in conditions and conditions[name] != now:
                effect = "its weights will differ in their last bits"
                if name == "layout":
                    # The position counts batches that will not exist.
                    state.position = 0
                    effect = "its batches will differ, and the current epoch starts again"
                note(f"the run was started with {name} {conditions[name]} and continues with {now}: {effect}")
        return Resumed(state, log_bytes)

    def _conditions(self) -> dict[str, Any]:
        """What affects the last bits of a result, in addition to configuration and data."""
        return {
            "layout": "packed" if self._is_packed else "padded",
            "threads": torch.get_num_threads(),
            "processes": self._processes.world_size,
            "device": self._processes.device.type,
            "torch": torch.__version__,
        }


def _compare_config(now: Mapping[str, Any], before: Mapping[str, Any], path: Path, free: set[str]) -> None:
    for name in [*now, *(name for name in before if name not in now)]:
        if name not in free and now.get(name) != before.get(name):
            raise InputError(
                f"the run was started with {name} = {before.get(name)}, not {now.get(name)}",
                path=path,
                remedy="resume with the same configuration, or train into another folder",
            )


class BestModel:
    """A copy of the best model so far.

    It is written as soon as it is found, by a thread, so that short epochs stay short. A run that is killed after that returns
    to its checkpoint, which may be older, and finds the same model again.
    """

    def __init__(self, folder: RunFolder, config: Config, data: TrainingData, *, is_writer: bool) -> None:
        self._folder = folder
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="best model") if is_writer else None
        self._writing: Future[None] | None = None
        self._config = config
        self._data = data
        self._is_saved = True
        self._model: StoredModel | None = None

    @torch.no_grad()
    def take(
        self,
        labeller: Labeller,
        *,
        decoder: str,
        legal_decoder: str,
        temperature: float,
        metrics: Mapping[str, Any],
        span_calibration: SpanCalibration = UNFITTED,
    ) -> None:
        """Keep ``labeller`` as it is now, and start writing it."""
        self.wait()
        kept = copy.deepcopy(labeller) if self._model is None else self._model.labeller
        kept.load_state_dict(labeller.state_dict())
        self._model = StoredModel(
            kept,
            self._config,
            self._data.vocabulary,
            self._data.scheme,
            decoder,
            temperature,
            metrics,
            self._data.source_scheme,
            legal_decoder,
            source_columns=self._data.source_columns,
            span_calibration=span_calibration,
        )
        self._is_saved = False
        self.save()

    def model(self, device: torch.device) -> StoredModel:
        """The model; read from the folder if this session has not seen it itself."""
        if self._model is None:
            stored = load_model(self._folder.model)
            # What is stored has a number of calls even where the run is to choose one.
            self._model = stored._replace(labeller=stored.labeller.to(device), config=self._config)
        return self._model

    def change(self, model: StoredModel) -> None:
        """Describe the model differently from now on; it is written by the next `save`."""
        self._model, self._is_saved = model, False

    def save(self) -> None:
        """Start writing the model folder if it is not up to date."""
        if self._is_saved or self._model is None or self._writer is None:
            return
        self.wait()
        self._writing = self._writer.submit(save_model, self._folder.model, self._model)
        self._is_saved = True

    def wait(self) -> None:
        """Wait until the model is on disk; errors in writing are raised here."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()
