"""A packed batch as one vector of integers: one copy takes it to the device, into memory that replayed work reads from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Int64
from torch import Tensor

from diffusion_mf.data.batching import Batch
from diffusion_mf.layouts import PackedLayout

_FIELDS = ("form_ids", "word_rows", "character_ids", "character_lengths", "lengths", "label_ids", "others")


class Form(NamedTuple):
    """The shapes of a packed batch: batches of one form can take each other's place."""

    shapes: tuple[tuple[int, ...] | None, ...]
    """of the batch's tensors; None where there is none"""
    layout_shapes: tuple[tuple[int, ...], ...]
    longest: int
    num_extras: int


class FlatBatch(NamedTuple):
    """A form, and the numbers that fill it, on the host; pinned where there is a GPU to copy them."""

    form: Form
    numbers: Int64[Tensor, "total"]


def flatten(batch: Batch, extras: Sequence[int] = ()) -> FlatBatch:
    """A packed batch, and some more integers, as one vector; int32 tensors are widened."""
    if batch.packing is None or batch.encoder_input is not None:
        raise ValueError("only packed batches without an encoder's own input can be flattened")
    tensors = [getattr(batch, name) for name in _FIELDS]
    layout = batch.packing.tensors
    form = Form(
        tuple(None if tensor is None else tuple(tensor.shape) for tensor in tensors),
        tuple(tuple(tensor.shape) for tensor in layout),
        batch.packing.longest,
        len(extras),
    )
    parts = [tensor.flatten().long() for tensor in (*tensors, *layout) if tensor is not None]
    numbers = torch.cat([*parts, torch.as_tensor(extras, dtype=torch.int64)])
    return FlatBatch(form, numbers.pin_memory() if torch.cuda.is_available() else numbers)


def unflatten(form: Form, numbers: Int64[Tensor, "total"]) -> tuple[Batch, Int64[Tensor, "extras"]]:
    """The batch and the extra integers again, as views of ``numbers``; boundaries become int32 again, a small copy."""
    offset = 0

    def take(shape: tuple[int, ...]) -> Tensor:
        nonlocal offset
        size = torch.Size(shape).numel()
        offset += size
        return numbers[offset - size : offset].view(shape)

    fields: Any = {
        name: None if shape is None else take(shape) for name, shape in zip(_FIELDS, form.shapes, strict=True)
    }
    *indices, boundaries = (take(shape) for shape in form.layout_shapes)
    packing = PackedLayout.of_tensors([*indices, boundaries.int()], longest=form.longest)
    return Batch(**fields, packing=packing), numbers[offset : offset + form.num_extras]
