"""CUDA graphs: the work on a batch is recorded once per signature and replayed for other batches, each copied as one vector."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from jaxtyping import Int64
from torch import Tensor

from diffusion_mf.batches.batching import Batch
from diffusion_mf.batches.layouts import PackedLayout

_FIELDS = (
    *("form_ids", "word_rows", "character_ids", "character_lengths"),
    *("lengths", "label_ids", "others", "document_rows"),
)


class BatchSignature(NamedTuple):
    """The shapes of a packed batch: batches with the same signature can replace each other."""

    shapes: tuple[tuple[int, ...] | None, ...]
    """of the batch's tensors; None for absent ones"""
    layout_shapes: tuple[tuple[int, ...], ...]
    longest: int
    num_extras: int


class FlatBatch(NamedTuple):
    """A signature and the numbers of a batch, on the host; pinned if there is a GPU to copy them to."""

    signature: BatchSignature
    numbers: Int64[Tensor, " total"]


def flatten(batch: Batch, extras: Sequence[int] = ()) -> FlatBatch:
    """A packed batch and some more integers as one vector; int32 tensors are widened."""
    if batch.packing is None or batch.encoder_input is not None:
        raise ValueError("only packed batches without encoder input can be flattened")
    tensors = [getattr(batch, name) for name in _FIELDS]
    layout = batch.packing.tensors
    signature = BatchSignature(
        tuple(None if tensor is None else tuple(tensor.shape) for tensor in tensors),
        tuple(tuple(tensor.shape) for tensor in layout),
        batch.packing.longest,
        len(extras),
    )
    parts = [tensor.flatten().long() for tensor in (*tensors, *layout) if tensor is not None]
    numbers = torch.cat([*parts, torch.as_tensor(extras, dtype=torch.int64)])
    return FlatBatch(signature, numbers.pin_memory() if torch.cuda.is_available() else numbers)


def unflatten(signature: BatchSignature, numbers: Int64[Tensor, " total"]) -> tuple[Batch, Int64[Tensor, " extras"]]:
    """The batch and the extra integers as views of ``numbers``; boundaries become int32 again, a small copy."""
    offset = 0

    def take(shape: tuple[int, ...]) -> Tensor:
        nonlocal offset
        size = torch.Size(shape).numel()
        offset += size
        return numbers[offset - size : offset].view(shape)

    fields: Any = {
        name: None if shape is None else take(shape) for name, shape in zip(_FIELDS, signature.shapes, strict=True)
    }
    *indices, boundaries = (take(shape) for shape in signature.layout_shapes)
    packing = PackedLayout.of_tensors([*indices, boundaries.int()], longest=signature.longest)
    return Batch(**fields, packing=packing), numbers[offset : offset + signature.num_extras]


Result = TypeVar("Result")

MOST_RECORDINGS = 64
"""per kind of work; further signatures are computed directly"""


class Recording(NamedTuple, Generic[Result]):
    """A graph, the memory from which it reads its batch, and its result."""

    graph: torch.cuda.CUDAGraph
    numbers: Tensor
    result: Result


class Recorder(Generic[Result]):
    """Runs ``work(signature, numbers)`` on the device; replays it if signature and ``kind`` have been seen before.

    The next replay, of any signature, may overwrite the result of a replay. ``work`` must not wait for the device, and must be
    the same for all batches with a given kind and signature, whatever other state of the host it uses.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._recordings: dict[Hashable, Recording[Result]] = {}
        self._seen: set[Hashable] = set()
        self._pool: Any = None
        self._stream: torch.cuda.Stream | None = None

    @property
    def num_recordings(self) -> int:
        """How many graphs have been recorded."""
        return len(self._recordings)

    def __call__(
        self, batch: FlatBatch, work: Callable[[BatchSignature, Tensor], Result], kind: Hashable = None
    ) -> Result:
        """The result for one batch."""
        key = (batch.signature, kind)
        if key not in self._recordings:
            if not self._is_worth_recording(key):
                self._seen.add(key)
                return work(batch.signature, batch.numbers.to(self._device, non_blocking=True))
            self._recordings[key] = self._record(batch, work)
        recording = self._recordings[key]
        recording.numbers.copy_(batch.numbers, non_blocking=True)
        recording.graph.replay()
        return recording.result

    def forget(self) -> None:
        """Drop all recordings and their memory; work that is needed again is recorded again."""
        if self._recordings:
            torch.cuda.synchronize(self._device)
        self._recordings.clear()
        self._seen.clear()
        self._pool = None

    def _is_worth_recording(self, key: Hashable) -> bool:
        return self._device.type == "cuda" and key in self._seen and len(self._recordings) < MOST_RECORDINGS

    def _record(self, batch: FlatBatch, work: Callable[[BatchSignature, Tensor], Result]) -> Recording[Result]:
        # Kernels are compiled and tables copied: the first batch with this signature was computed directly.
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        # A separate stream: libraries keep workspaces per stream, which concurrent recorders must not share.
        if self._stream is None:
            self._stream = torch.cuda.Stream(self._device)
        numbers = batch.numbers.to(self._device)
        graph = torch.cuda.CUDAGraph()
        # Other threads (collation) may call CUDA meanwhile, pinning memory: only this thread's calls are recorded.
        capture = torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local")
        try:
            # If ending the recording fails, `capture` does not restore the stream.
            with torch.cuda.stream(torch.cuda.current_stream(self._device)), _no_collection(), capture:
                result = work(batch.signature, numbers)
        except torch.AcceleratorError as error:
            # Work that fails while it uses several streams leaves them apart, and the recording cannot be ended: the first error counts.
            raise (error.__context__ or error) from None
        return Recording(graph, numbers, result)


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Disable Python's garbage collector, which may free an unused graph and so break the recording in progress."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
