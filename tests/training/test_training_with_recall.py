"""Runs whose denoiser recalls other occurrences in a document: documents stay whole in every step and every evaluation."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import small_runs
import torch

from diffusion_mf.data.formats import read_task
from diffusion_mf.errors import DiffusionMFError, InputError
from diffusion_mf.model import Labeller
from diffusion_mf.tagger import Tagger, load_model
from diffusion_mf.tagger.files import TaggingOptions, evaluate_corpus
from diffusion_mf.training.corpora import read_training_data
from diffusion_mf.training.loop import train
from diffusion_mf.training.processes import Processes
from diffusion_mf.training.steps import StepPreparer, plan_epoch

RECALL = {"denoiser": {"recall": 3}, "diffusion": {"own_trajectory_share": 0.5}, "training": {"budget": 120}}


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small corpus, five sentences a document."""
    return small_runs.write_small_documents(tmp_path_factory.mktemp("documents"), size=5)


@pytest.fixture(scope="module")
def run(documents: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recall") / "run"
    train(small_runs.small_config(documents, RECALL), output=folder, device="cpu")
    return folder


@pytest.mark.parametrize("num_pieces", [1, 2])
def test_shares_of_a_step_hold_whole_documents(documents: Path, num_pieces: int) -> None:
    config = small_runs.small_config(documents, RECALL)
    data = read_training_data(config)
    numbers = [sentence.document for sentence in data.train]
    assert len(set(numbers)) == 10
    lengths = [len(sentence.units) for sentence in data.train]
    plans = plan_epoch(lengths, config.training, seed=1, epoch=0, documents=numbers)
    seen: list[int] = []
    for rank, plan in itertools.product((0, 1), plans):
        preparer = StepPreparer(data.train, data.vocabulary, Processes(rank, 2, torch.device("cpu")), recall=3)
        for piece in preparer.prepare(plan, num_pieces).pieces:
            members = piece.keys.tolist()
            inside = {numbers[index] for index in members}
            assert members == [index for index in members if numbers[index] in inside]
            assert len(members) == sum(numbers.count(number) for number in inside)
            assert piece.batch.others is not None
            seen += members
    assert sorted(seen) == list(range(len(data.train)))


def test_evaluation_gives_the_same_whoever_does_it(run: Path) -> None:
    model = load_model(run / "model")
    labels, marginals = small_runs.share_of_evaluation(model, 0, 1, 500, ["argmax"])
    shares = [
        small_runs.share_of_evaluation(model, rank, 2, budget, ["argmax"]) for rank, budget in enumerate((500, 7))
    ]
    assert torch.equal(sum(share[0] for share in shares), labels)
    torch.testing.assert_close(sum(share[1] for share in shares), marginals, rtol=1e-4, atol=1e-5)


def test_a_tagger_scores_what_training_measured(run: Path, documents: Path) -> None:
    tagger = Tagger.load(run / "model", device="cpu")
    corpus = read_task(documents / "dev.txt", tagger.task)
    logged = max(small_runs.read_log(run, "evaluation"), key=lambda entry: entry["score"])
    for options in (None, TaggingOptions(batch_tokens=1), TaggingOptions(batch_tokens=40)):
        found = evaluate_corpus(tagger, corpus, options=options).report
        assert found.metrics["f1"] == pytest.approx(logged["score"], abs=1e-6)


@pytest.mark.parametrize(
    ("system", "encoder"),
    [
        ("unigram", {"recall": 3}),
        ("lcrf", {"recall": 3, "recall_of": "flag"}),
        ("diffusion-uni", {"recall": 3, "recall_layers": 1}),
    ],
)
def test_models_whose_states_recall_are_trained_and_used(
    system: str, encoder: dict[str, object], documents: Path, tmp_path: Path
) -> None:
    settings = {"system": system, "encoder": encoder, "training": {"budget": 120, "epochs": 1}}
    train(small_runs.small_config(documents, settings), output=tmp_path / "run", device="cpu")
    tagger = Tagger.load(tmp_path / "run/model", device="cpu")
    assert tagger.model.labeller.recall.recalled.weight.any()
    (logged,) = small_runs.read_log(tmp_path / "run", "evaluation")
    for options in (None, TaggingOptions(batch_tokens=1)):
        found = evaluate_corpus(tagger, read_task(documents / "dev.txt", tagger.task), options=options).report
        assert found.metrics["f1"] == pytest.approx(logged["score"], abs=1e-6)


def test_other_documents_are_other_data(run: Path, documents: Path, tmp_path: Path) -> None:
    config = small_runs.small_config(documents, RECALL)
    moved = tmp_path / "train.txt"
    moved.write_text((documents / "train.txt").read_text().replace("-DOCSTART- O\n\n", "", 2))
    changed = small_runs.small_config(documents, RECALL, {"data": {"train": str(moved)}})
    with pytest.raises(InputError, match="data"):
        train(changed, output=run, device="cpu", resume=True)
    train(config, output=run, device="cpu", resume=True)


def test_a_document_beyond_memory_ends_training_with_a_message(
    documents: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses = Labeller.loss_sums

    def limited(labeller, batch, **options):
        if len(batch.lengths) > 3:
            raise torch.OutOfMemoryError("out of memory")
        return losses(labeller, batch, **options)

    monkeypatch.setattr(Labeller, "loss_sums", limited)
    monkeypatch.setattr(Labeller, "forward", limited)
    with pytest.raises(DiffusionMFError, match=r"a document of \d+ units does not fit in memory; .*, or leave it out"):
        train(small_runs.small_config(documents, RECALL), output=tmp_path / "run", device="cpu")


def test_a_corpus_without_marks_is_refused(corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no documents are marked, so recall has no effect"):
        train(small_runs.small_config(corpus, RECALL), output=tmp_path / "run", device="cpu")


def test_a_model_that_recalls_can_go_on_without_marks(
    run: Path, corpus: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    changes = {"data": {"start": str(run / "model")}, "training": {"epochs": 1}}
    train(small_runs.small_config(corpus, RECALL, changes), output=tmp_path / "run", device="cpu")
    assert "train.txt marks no documents, so there is nothing to recall" in caplog.text
