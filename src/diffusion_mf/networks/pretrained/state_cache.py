"""Cached states of a frozen encoder on disk: computed once, read in every epoch and by later runs with the same encoder.

A file holds the states of one corpus. Its name is a digest of everything they depend on, so that a cache never has to be
cleared to stay correct, only to save space: 4 bytes × width per unit.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import safetensors
import safetensors.torch
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from diffusion_mf.batches.batching import evaluation_batches
from diffusion_mf.data.sentence import Sentence
from diffusion_mf.errors import InputError
from diffusion_mf.networks.tensor_files import write_tensors

UNITS_AT_ONCE = 4096
Encode = Callable[[Sequence[Sentence]], "CachedStates"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class CachedStates:
    """The pooled states of a batch; ``has_state`` is false at padding and at units that the encoder does not see."""

    states: Float[Tensor, "B N D"]
    has_state: Bool[Tensor, "B N"]

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> CachedStates:
        """The same on another device."""
        return CachedStates(
            states=self.states.to(device, non_blocking=non_blocking),
            has_state=self.has_state.to(device, non_blocking=non_blocking),
        )


class StateCache:
    """States by sentence; copies of a model share it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: dict[tuple[str, ...], CachedStates] = {}

    def __deepcopy__(self, memo: object) -> StateCache:
        return self

    def add(self, sentences: Sequence[Sentence], encode: Encode, *, digest: str) -> bool:
        """Add the states of ``sentences`` to the cache; True if they had to be computed.

        ``digest`` covers everything that they depend on, including the order of sentences.
        """
        distinct = list(dict.fromkeys(sentence.units for sentence in sentences))
        path = self._folder / f"{digest}.safetensors"
        num_units = sum(map(len, distinct))
        stored = _read(path, num_units)
        is_new = stored is None
        if stored is None:
            stored = _compute(distinct, encode)
            self._write(path, stored)
        start = 0
        for units in distinct:
            rows = slice(start, start + len(units))
            self._known[units] = CachedStates(
                states=stored["states"][None, rows], has_state=stored["has_state"][None, rows]
            )
            start += len(units)
        return is_new

    def of_batch(self, sentences: Sequence[Sentence]) -> CachedStates | None:
        """The states of a batch, padded; None unless all sentences are cached."""
        found = [self._known.get(sentence.units) for sentence in sentences]
        known = [states for states in found if states is not None]
        if len(known) < len(found):
            return None
        longest = max(states.has_state.shape[1] for states in known)
        states = torch.zeros(len(known), longest, known[0].states.shape[2])
        has_state = torch.zeros(len(known), longest, dtype=torch.bool)
        for row, each in enumerate(known):
            size = each.has_state.shape[1]
            states[row, :size] = each.states[0]
            has_state[row, :size] = each.has_state[0]
        return CachedStates(states=states, has_state=has_state)

    def _write(self, path: Path, tensors: Mapping[str, Tensor]) -> None:
        temporary = path.with_suffix(f".{os.getpid()}.tmp")
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            write_tensors(temporary, tensors)
            temporary.replace(path)
        except (OSError, safetensors.SafetensorError) as error:
            temporary.unlink(missing_ok=True)
            raise InputError(
                f"the states cannot be written ({error})",
                path=self._folder,
                remedy="set encoder.cache to another folder",
            ) from error


def digest_of(*parts: object, weights: Mapping[str, Tensor] | None = None) -> str:
    """A digest of all arguments: equal parts and weights give an equal digest."""
    digest = hashlib.sha256()
    for name, tensor in (weights or {}).items():
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    for part in parts:
        digest.update(f"{part!r}\n".encode())
    return digest.hexdigest()


def _read(path: Path, num_units: int) -> dict[str, Tensor] | None:
    """What `_write` wrote; None if the file is missing or incomplete. Pages are read from disk when needed."""
    try:
        tensors = safetensors.torch.load_file(path)
    except (OSError, safetensors.SafetensorError):
        return None
    is_whole = {"states", "has_state"} <= set(tensors) and len(tensors["states"]) == num_units
    return tensors if is_whole else None


def _compute(distinct: Sequence[tuple[str, ...]], encode: Encode) -> dict[str, Tensor]:
    lengths = [len(units) for units in distinct]
    batches, positions = evaluation_batches(lengths, budget=UNITS_AT_ONCE)
    states: list[Tensor] = []
    has_state: list[Tensor] = []
    for batch in batches:
        found = encode([Sentence(distinct[index]) for index in batch]).to("cpu")
        for row, index in enumerate(batch):
            states.append(found.states[row, : lengths[index]].float())
            has_state.append(found.has_state[row, : lengths[index]])
    return {
        "states": torch.cat([states[position] for position in positions]),
        "has_state": torch.cat([has_state[position] for position in positions]),
    }
