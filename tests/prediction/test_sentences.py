"""Lists of sentences: which are computed together, in which order, and what happens when memory runs out."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from stand_in import NoEncoder
from tiny_models import SENTENCES, VOCABULARY, small_labeller
from torch import Tensor

from diffusion_mf.batches.batching import Batch, EncodedSentences
from diffusion_mf.batches.packing import PackedShape, length_class, shape_for
from diffusion_mf.data.sentence import Sentence
from diffusion_mf.errors import DiffusionMFError
from diffusion_mf.model import Prediction
from diffusion_mf.prediction.predictor import Pending, Predictor
from diffusion_mf.prediction.sentences import predict_sentences, stack_allowed


class _Labeller:
    encoder, prepare_input = NoEncoder(), None


class _Recorder:
    num_dropped = 0

    def forget(self) -> None:
        self.num_dropped += 1


class _Pending(Pending):
    def __init__(self, tensors: Sequence[Tensor], note: Callable[[], None]) -> None:
        super().__init__(tensors)
        self._note = note

    def wait(self) -> Sequence[Tensor]:
        self._note()
        return super().wait()


class _StandIn:
    """A predictor that computes nothing; ``room`` is the number of units that fit in its memory, with padding unless it packs."""

    def __init__(self, device: str = "cpu", *, recall: int = 0, room: int = 10**6, is_packed: bool = False) -> None:
        self.device, self.recall, self.room, self.is_packed = torch.device(device), recall, room, is_packed
        self.labeller = _Labeller()
        self.recorders = [_Recorder(), _Recorder()]
        self.events: list[str] = []
        self.shapes: list[tuple[int, ...]] = []
        self.forms: list[PackedShape] = []
        self.streams: list[int] = []

    def predict(self, batch: Batch, finish: Any, **options: Any) -> Pending:
        size = int(batch.lengths.sum()) if self.is_packed else batch.form_ids.numel()
        if size > self.room:
            raise torch.OutOfMemoryError("out of memory")
        number = len(self.shapes)
        self.shapes.append(tuple(batch.form_ids.shape))
        self.forms.append(shape_for(batch, budget=options["budget"], max_characters=20))
        self.streams.append(options["stream"])
        self.events.append(f"b{number}")
        return _Pending([batch.lengths], lambda: self.events.append(f"a{number}"))


def _lengths(prediction: Prediction, *, allowed: Tensor | None) -> list[Tensor]:
    raise AssertionError("the stand-in gives lengths itself")


def _predict(
    predictor: _StandIn, sizes: Sequence[int], *, budget: int, documents: Sequence[int] = ()
) -> list[list[int]]:
    """The members of all batches; every sentence must have been given its own result."""
    sentences = [
        Sentence(("a",) * size, document=documents[index] if documents else 0) for index, size in enumerate(sizes)
    ]
    found: list[list[int]] = []
    for members, (lengths,) in predict_sentences(predictor, sentences, VOCABULARY, _lengths, budget=budget):  # type: ignore[arg-type]
        assert [sizes[index] for index in members] == lengths.tolist()
        found.append(members)
    assert sorted(itertools.chain.from_iterable(found)) == [index for index, size in enumerate(sizes) if size]
    return found


@pytest.mark.parametrize(
    ("device", "expected"),
    [("cpu", "b0 a0 b1 a1 b2 a2 b3 a3"), ("cuda", "b0 b1 b2 a0 b3 a1 a2 a3")],
)
def test_batches_are_begun_ahead_on_a_gpu(device: str, expected: str) -> None:
    predictor = _StandIn(device)
    assert _predict(predictor, [3, 1, 0, 2, 1, 2, 4, 1], budget=4) == [[6], [0], [3, 5], [1, 4, 7]]
    assert " ".join(predictor.events) == expected


def test_documents_are_kept_whole_where_the_model_recalls() -> None:
    sizes, documents = [2, 9, 1, 1, 1], [1, 1, 2, 0, 2]
    assert _predict(_StandIn(recall=2), sizes, budget=10, documents=documents) == [[0, 1], [2, 3, 4]]
    assert _predict(_StandIn(), sizes, budget=10, documents=documents) == [[1], [0, 2, 3, 4]]


def test_when_memory_runs_out_recordings_are_dropped_and_batches_halved() -> None:
    predictor = _StandIn(room=5)
    assert _predict(predictor, [1] * 20, budget=20)[0] == [0, 1, 2, 3, 4]
    # Found out once, not by every batch again.
    assert [recorder.num_dropped for recorder in predictor.recorders] == [2, 2]
    assert predictor.shapes == [(5, 1)] * 4


def test_packed_batches_hold_sentences_of_one_length_class() -> None:
    """Padding does not count, the longest class comes first, and a class is in the order given."""
    predictor = _StandIn(is_packed=True)
    sizes = [3, 40, 5, 0, 8, 40, 2, 14, 20]
    assert _predict(predictor, sizes, budget=40) == [[5], [1], [8], [0, 2, 4, 6, 7]]
    # What is left of a class goes with the next longer one.
    assert _predict(predictor, sizes, budget=60) == [[5], [1], [0, 2, 4, 6, 7, 8]]


def test_many_packed_batches_have_few_forms() -> None:
    predictor = _StandIn(is_packed=True)
    sizes = [1 + index * 7 % 60 for index in range(2000)]
    batches = _predict(predictor, sizes, budget=1000)
    classes = [{length_class(sizes[index]) for index in members} for members in batches]
    assert sum(len(each) == 1 for each in classes) >= len(batches) - 3
    longest = [max(each) for each in classes]
    assert longest == sorted(longest, reverse=True)
    # A form is recorded when it comes again, so that nearly all batches of the first pass are replayed.
    assert len(predictor.forms) > 50
    assert len(set(predictor.forms)) < 10
    assert batches == _predict(predictor, sizes, budget=1000)


def test_packed_batches_are_halved_when_memory_runs_out() -> None:
    predictor = _StandIn(room=60, is_packed=True)
    # Units of the batch that failed count, not its places: 240 become 120 and then 60.
    assert _predict(predictor, [30] * 2 + [10] * 18, budget=240)[0] == [0, 1]
    assert [recorder.num_dropped for recorder in predictor.recorders] == [2, 2]


@pytest.mark.parametrize("options", [{"keep_trajectory": True}, {"allowed": "clamps"}, {"allowed": "none"}], ids=str)
def test_what_is_not_computed_packed_is_not_batched_so(options: dict[str, Any]) -> None:
    """Clamps and trajectories are computed padded: there padding counts, and the longest sentences come first."""
    sentences = [Sentence(("a",) * size) for size in (3, 4, 3)]
    clamp = torch.ones(3, 2, dtype=torch.bool)
    if "allowed" in options:
        options = {"allowed": [clamp if options["allowed"] == "clamps" else None, None, None]}
    predictor: Any = _StandIn(is_packed=True)
    batches = predict_sentences(predictor, sentences, VOCABULARY, _lengths, budget=10, **options)  # type: ignore[arg-type]
    is_packed = options.get("allowed") == [None] * 3
    assert [batch.members for batch in batches] == ([[0, 1, 2]] if is_packed else [[1, 0], [2]])


def test_packed_lists_are_labelled_like_padded_ones() -> None:
    labeller = small_labeller("mean-field").eval()

    def finish(prediction: Prediction, *, members: Sequence[int], allowed: Tensor | None) -> list[Tensor]:
        return [prediction.marginals]

    found = {}
    for layout in ("padded", "packed"):
        inference = labeller.config.inference.model_copy(update={"layout": layout})
        config = labeller.config.model_copy(update={"inference": inference})
        predictor = Predictor(labeller, config, torch.device("cpu"))
        assert predictor.is_packed == (layout == "packed")
        with torch.inference_mode():
            batches = [*predict_sentences(predictor, SENTENCES * 3, VOCABULARY, finish, budget=8)]
        found[layout] = {
            index: row[: len((SENTENCES * 3)[index].units)]
            for members, (marginals,) in batches
            for index, row in zip(members, marginals, strict=False)
        }
    assert len(found["packed"]) == 3 * len(SENTENCES)
    for index, expected in found["padded"].items():
        torch.testing.assert_close(found["packed"][index], expected)


def test_documents_are_not_parted_when_memory_runs_out() -> None:
    documents = [1, 1, 1, 2, 2, 0, 3, 3]
    assert _predict(_StandIn(recall=2, room=6), [2] * 8, budget=100, documents=documents) == [
        [0, 1, 2],
        [3, 4, 5],
        [6, 7],
    ]


@pytest.mark.parametrize(
    ("recall", "sentence"),
    [
        (0, r"^a sentence of 9 units does not fit in memory; split it, or choose a smaller model\.$"),
        (2, r"^a document of 11 units does not fit in memory; split it, or choose a smaller model\.$"),
    ],
)
def test_what_does_not_fit_by_itself_is_named(recall: int, sentence: str) -> None:
    with pytest.raises(DiffusionMFError, match=sentence):
        _predict(_StandIn(recall=recall, room=8), [2, 9, 1, 1], budget=100, documents=[1, 1, 2, 2])


def test_sentences_may_have_been_looked_up_before() -> None:
    labeller = small_labeller("mean-field").eval()
    predictor = Predictor(labeller, labeller.config, torch.device("cpu"))

    def finish(prediction: Prediction, *, members: Sequence[int], allowed: Tensor | None) -> list[Tensor]:
        assert allowed is None
        return [prediction.marginals]

    rows = EncodedSentences(SENTENCES, VOCABULARY, has_labels=False)
    options: dict[str, Any] = {"budget": 8}
    each = predict_sentences(predictor, SENTENCES, VOCABULARY, finish, **options)
    once = predict_sentences(predictor, SENTENCES, VOCABULARY, finish, rows=rows, **options)
    for (members, (expected,)), (others, (found,)) in zip(each, once, strict=True):
        assert members == others
        torch.testing.assert_close(found, expected)


def test_clamps_of_a_batch() -> None:
    batch = EncodedSentences(SENTENCES, VOCABULARY).batch([0, 1])
    assert stack_allowed([None, None], batch) is None
    clamp = torch.zeros(int(batch.lengths[0]), 3, dtype=torch.bool)
    found = stack_allowed([clamp, None], batch)
    assert found is not None
    assert found.shape == (*batch.form_ids.shape, 3)
    assert not found[0, : len(clamp)].any()
    assert found[0, len(clamp) :].all()
    assert found[1].all()


def test_a_list_given_again_uses_the_same_streams() -> None:
    predictor = _StandIn()
    for _ in range(2):
        _predict(predictor, [5, 4, 3], budget=5)
    assert predictor.streams == [0, 1, 2, 0, 1, 2]
