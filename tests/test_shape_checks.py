"""The tests check shapes in every room that computes with tensors: a tensor of another shape is refused."""

from __future__ import annotations

from collections.abc import Callable
from unittest import mock

import pytest
import torch
from jaxtyping import TypeCheckError
from shape_checks import SHAPES_CHECKED, TYPES_CHECKED
from stand_in import stand_in_tagger

from diffusion_mf.batches.layouts import CompactLayout
from diffusion_mf.batches.packing import packed_layout
from diffusion_mf.decoding.k_best import k_best
from diffusion_mf.diffusion.losses import sum_over_units
from diffusion_mf.evaluation.calibration import fit_temperature
from diffusion_mf.model import Prediction
from diffusion_mf.networks.denoisers import TimeEmbedding
from diffusion_mf.networks.words import CharacterLSTM
from diffusion_mf.ops.mean_field import mean_field
from diffusion_mf.ops.viterbi import viterbi
from diffusion_mf.prediction.recording import BatchSignature, unflatten
from diffusion_mf.structures import MeanField

MATRIX, SCORES, TRANSITIONS = torch.zeros(3, 4), torch.zeros(1, 3, 4), torch.zeros(4, 4)
NUMBERS = torch.zeros(3, 4, dtype=torch.int64)

CALLS: list[tuple[str, Callable[[], object]]] = [
    ("batches", lambda: packed_layout(NUMBERS, num_units=3, num_tokens=8)),
    ("batches", lambda: CompactLayout.of_units(SCORES > 0)),
    ("ops", lambda: mean_field(SCORES, TRANSITIONS[:3], [3], 1)),
    ("ops", lambda: viterbi(MATRIX, TRANSITIONS, [3])),
    ("networks", lambda: TimeEmbedding(8)(NUMBERS)),
    ("networks", lambda: CharacterLSTM(9, width=4, hidden=4, max_characters=5)(NUMBERS, NUMBERS[0])),
    ("prediction", lambda: unflatten(BatchSignature((), (), 1, 0), NUMBERS)),
    ("evaluation", lambda: fit_temperature(MATRIX, NUMBERS[0])),
    ("tagger", lambda: stand_in_tagger({"a": {"O": 1.0}})._probabilities(MATRIX, None)),
    ("structures", lambda: MeanField(MATRIX, TRANSITIONS, torch.tensor([3]))),
    ("decoding", lambda: k_best(SCORES, TRANSITIONS[:3], torch.tensor([3]), 2)),
    ("diffusion", lambda: sum_over_units(MATRIX, MATRIX[0] > 0)),
    ("model", lambda: Prediction(decoder_input=mock.Mock(), marginals=MATRIX, num_calls=1)),
]


@pytest.mark.parametrize(("room", "call"), CALLS)
def test_a_wrong_shape_is_refused(room: str, call: Callable[[], object]) -> None:
    with pytest.raises(TypeCheckError, match=rf"checking the parameters of diffusion_mf\.{room}\."):
        call()


def test_every_checked_room_has_a_case() -> None:
    assert {room for room, _ in CALLS} == {*SHAPES_CHECKED, *TYPES_CHECKED}
