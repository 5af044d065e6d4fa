"""Replayed work is the work itself: gradients of recorded steps, and labels of batches in flight. Needs a GPU."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import small_runs
import torch

from diffusion_mf.batches.batching import Batch, EncodedSentences
from diffusion_mf.config import Config
from diffusion_mf.model import Labeller, Prediction
from diffusion_mf.ops.chain_scores import unit_mask
from diffusion_mf.prediction.precision import HalfWeights, autocast_for, half_weights_for
from diffusion_mf.prediction.predictor import Predictor
from diffusion_mf.prediction.recording import BatchSignature, FlatBatch, Recorder
from diffusion_mf.prediction.sentences import predict_sentences
from diffusion_mf.training.corpora import TrainingData, read_training_data
from diffusion_mf.training.gradients import StepGradients
from diffusion_mf.training.optimizer import Learner
from diffusion_mf.training.processes import Processes
from diffusion_mf.training.steps import PackingSettings, StepPreparer

pytestmark = pytest.mark.gpu

BUDGET = 64
OWN = {"diffusion": {"own_trajectory_share": 0.5}}
CLAMPS = {"diffusion": {"clamp_share": 0.5}}
RECALL = {"denoiser": {"recall": 3}}
STATES = {"encoder": {"recall": 3, "recall_layers": 1}}
FLAG = {"encoder": {"recall": 3, "recall_of": "flag"}}
SAMPLED = {"inference": {"posterior": "sampled"}}
WINDOW = {"encoder": {"kind": "window", "features": True, "affix_width": 8, "affix_dropout": 0.0, "min_pair_count": 1}}
WINDOW_OF_CHARACTERS = {"encoder": {"kind": "window", "character_hidden": 0, "pair_width": 8, "window": 3}}
LABELS = {"denoiser": {"state_scores": True, "state_input": False}}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = small_runs.write_small_corpus(tmp_path_factory.mktemp("corpus"))
    sentences = (folder / "train.txt").read_text().strip().split("\n\n")
    pieces = ["\n\n".join(sentences[start : start + 3]) for start in range(0, len(sentences), 3)]
    (folder / "train.txt").write_text("".join(f"-DOCSTART- O\n\n{piece}\n\n" for piece in pieces))
    return folder


def _model(corpus: Path, system: str, *changes: dict) -> tuple[Config, TrainingData, Labeller]:  # type: ignore[type-arg]
    changes = (small_runs.NO_DROPOUT, {"system": system}, *changes)
    config = small_runs.small_config(corpus, *changes)
    data = read_training_data(config)
    torch.manual_seed(3)
    return config, data, Labeller(config, data.vocabulary, data.scheme).cuda()


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("system", "changes"),
    [
        ("unigram", ()),
        ("lcrf", ()),
        ("unigram", (STATES,)),
        ("lcrf", (FLAG,)),
        ("lcrf", (WINDOW,)),
        ("unigram", (WINDOW_OF_CHARACTERS,)),
        ("diffusion-mf", (OWN, WINDOW, LABELS)),
        ("diffusion-mf", (OWN,)),
        ("diffusion-mf", (OWN, SAMPLED)),
        ("diffusion-mf", (OWN, CLAMPS)),
        ("diffusion-mf", (OWN, CLAMPS, RECALL)),
        ("diffusion-lcrf", ()),
        ("diffusionsl", ()),
    ],
)
def test_replayed_steps_give_the_gradients_of_steps_computed_directly(
    corpus: Path, system: str, changes: tuple, precision: str
) -> None:
    config, data, labeller = _model(corpus, system, *changes)
    device = torch.device("cuda")
    processes = Processes(0, 1, device)
    packing = PackingSettings(BUDGET, 20, is_flat=True)
    preparer = StepPreparer(data.train, data.vocabulary, processes, packing=packing, recall=config.recall)
    gradients = StepGradients(
        labeller,
        Learner(labeller, config.training, total_steps=10).optimizer,
        preparer,
        processes,
        seed=1,
        autocast=autocast_for(device, precision),  # type: ignore[arg-type]
        half_weights=half_weights_for(labeller, device, precision),  # type: ignore[arg-type]
    )
    plan = [[0, 1, 2], [3, 4]]
    units = sum(len(data.train[index].units) for batch in plan for index in batch)
    # Each kind of step is computed directly at first, recorded at second and replayed at third sight; on a model's own
    # trajectory there are several kinds, which come at random.
    for step in range(24 * (1 + (CLAMPS in changes)) if OWN in changes else 4):
        prepared = preparer.prepare(plan, 1)
        gradients.compute(prepared, step=step, units=units)
        found = [None if p.grad is None else p.grad.clone() for p in labeller.parameters()]
        labeller.zero_grad()
        results = [
            gradients._loss_and_gradients(piece.batch.to(device), piece.keys.to(device), step, units)
            for piece in prepared.pieces
        ]
        expected = [
            None if parts[0] is None else sum(parts)
            for parts in zip(*(HalfWeights.widened(each.gradients) for each in results), strict=True)
        ]
        for one, other in zip(found, expected, strict=True):
            assert (one is None) == (other is None)
            if one is not None:
                torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)
    assert gradients.num_recordings > 0


@pytest.mark.parametrize("posterior", ["product", "mixture", "sampled"])
def test_batches_in_flight_are_labelled_as_batches_by_themselves(corpus: Path, posterior: str) -> None:
    config, data, labeller = _model(corpus, "diffusion-mf", {"inference": {"posterior": posterior}})
    labeller.eval()
    encoded = EncodedSentences(data.train, data.vocabulary, has_labels=False)
    batches = [[index, index + 1, index + 2] for index in range(0, 30, 3)]

    def best(prediction: Prediction) -> list[torch.Tensor]:
        assert prediction.decoder_input.unary_scores is not None
        return [prediction.decoder_input.unary_scores.argmax(-1)]

    alone, flying = (Predictor(labeller, config, torch.device("cuda")) for _ in range(2))
    with torch.inference_mode():
        expected = [
            alone.predict(encoded.batch(members), best, budget=BUDGET).wait()[0].clone() for members in batches * 3
        ]
        pending = [
            flying.predict(encoded.batch(members), best, budget=BUDGET, stream=number)
            for number, members in enumerate(batches * 3)
        ]
        found = [each.wait()[0] for each in pending]
    assert flying.num_recordings > 1
    direct = labeller.predict(encoded.batch(batches[0]).to(torch.device("cuda")))
    rows, columns = encoded.batch(batches[0]).form_ids.shape
    is_unit = unit_mask(encoded.batch(batches[0]).lengths, columns)
    assert torch.equal(expected[-len(batches)][:rows, :columns][is_unit], best(direct)[0].cpu()[is_unit])
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


def test_graphs_that_nobody_needs_do_not_disturb_the_recording_of_others() -> None:
    """They die with a cycle of references: whenever Python's collector finds them."""

    class Owner:
        def __init__(self, device: torch.device) -> None:
            self.recorder: Recorder[torch.Tensor] = Recorder(device)
            self.itself = self  # a cycle
            self.others: list[object] = []

        def work(self, form: object, numbers: torch.Tensor) -> torch.Tensor:
            self.others += [[] for _ in range(1000)]  # enough for the collector to look
            return (numbers.float()[:, None] * numbers).sum(1)

    batch = FlatBatch(BatchSignature((), (), 1, 0), torch.arange(500).pin_memory())
    thresholds = gc.get_threshold()
    gc.set_threshold(100, 1, 1)
    try:
        for _ in range(20):
            owner = Owner(torch.device("cuda"))
            found = [owner.recorder(batch, owner.work).cpu() for _ in range(3)]
            assert owner.recorder.num_recordings == 1
            torch.testing.assert_close(found[2], found[0])
    finally:
        gc.set_threshold(*thresholds)


def test_a_list_replays_its_own_recordings(corpus: Path) -> None:
    """Batches of a length class have one form: recorded at second sight, in the first pass over the list."""
    config, data, labeller = _model(corpus, "mean-field", {"inference": {"layout": "packed", "precision": "float32"}})
    labeller.eval()
    predictor = Predictor(labeller, config, torch.device("cuda"))

    def marginals(
        prediction: Prediction, *, members: Sequence[int], allowed: torch.Tensor | None
    ) -> list[torch.Tensor]:
        return [prediction.marginals]

    encoded = EncodedSentences(data.train, data.vocabulary, has_labels=False)
    with torch.inference_mode():
        for members, (found,) in predict_sentences(predictor, data.train, data.vocabulary, marginals, budget=BUDGET):
            batch = encoded.batch(members)
            is_unit = unit_mask(batch.lengths, batch.form_ids.shape[1])
            rows, columns = is_unit.shape
            expected = labeller.predict(batch.to(torch.device("cuda"))).marginals.cpu()
            torch.testing.assert_close(found[:rows, :columns][is_unit], expected[is_unit], rtol=1e-3, atol=1e-4)
    assert predictor.num_recordings > 0


def test_when_memory_runs_out_recordings_are_dropped_and_made_again(
    corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"inference": {"layout": "packed", "precision": "float32"}}
    config, data, labeller = _model(corpus, "diffusion-mf", settings)
    labeller.eval()
    predictor = Predictor(labeller, config, torch.device("cuda"))
    sentences = data.train[:30]

    def best(prediction: Prediction, *, members: Sequence[int], allowed: torch.Tensor | None) -> list[torch.Tensor]:
        assert prediction.decoder_input.unary_scores is not None
        return [prediction.decoder_input.unary_scores.argmax(-1)]

    def labels() -> list[list[int]]:
        found = {}
        for members, (label_ids,) in predict_sentences(predictor, sentences, data.vocabulary, best, budget=200):
            for index, row in zip(members, label_ids.tolist(), strict=False):
                found[index] = row[: len(sentences[index].units)]
        return [found[index] for index in range(len(sentences))]

    with torch.inference_mode():
        expected = [labels() for _ in range(2)][-1]
        assert (num_recordings := predictor.num_recordings) > 0
        assert labels() == expected
        assert predictor.num_recordings == num_recordings, "the same list again makes no new recordings"
        inner = predictor.predict

        def fails(batch: Batch, *arguments: Any, **options: Any) -> Any:
            monkeypatch.setattr(predictor, "predict", tries_again)
            raise torch.cuda.OutOfMemoryError("CUDA out of memory.")

        def tries_again(batch: Batch, *arguments: Any, **options: Any) -> Any:
            assert predictor.num_recordings == 0
            monkeypatch.setattr(predictor, "predict", inner)
            return inner(batch, *arguments, **options)

        monkeypatch.setattr(predictor, "predict", fails)
        assert labels() == expected
        assert [labels() for _ in range(4)][-1] == expected
        assert predictor.num_recordings > 0
