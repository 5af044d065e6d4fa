"""Where batches are packed."""

from __future__ import annotations

import pickle

import pytest
import torch
from small_models import small_tagger

from diffusion_mf.prediction.precision import uses_packing


@pytest.mark.parametrize(
    ("device", "encoder", "layout", "precision", "expected"),
    [
        ("cuda", "scratch", "auto", "bfloat16", True), ("cuda", "window", "auto", "bfloat16", True),
        ("cuda", "pretrained", "auto", "bfloat16", False), ("cuda", "of a plugin", "auto", "bfloat16", False),
        ("cuda", "window", "auto", "float32", False), ("cpu", "window", "auto", "bfloat16", False),
        ("cuda", "window", "padded", "bfloat16", False), ("cpu", "of a plugin", "packed", "float32", True),
    ],
)  # fmt: skip
def test_our_encoders_are_packed_on_a_gpu_unless_told_otherwise(
    device: str, encoder: str, layout: str, precision: str, expected: bool
) -> None:
    assert uses_packing(torch.device(device), encoder, layout=layout, precision=precision) is expected  # type: ignore[arg-type]


def test_a_tagger_in_half_precision_can_be_pickled() -> None:
    tagger = small_tagger(settings={"inference": {"precision": "bfloat16"}})
    sentences = [["Ada", "sings"]]
    copy = pickle.loads(pickle.dumps(tagger))
    assert copy._predictor._autocast().fast_dtype is torch.bfloat16
    assert copy.tag(sentences) == tagger.tag(sentences)
