"""Whole runs: what they write, select, refuse and take up again."""

from __future__ import annotations

import dataclasses
import errno
import json
import logging
import math
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import small_runs
import torch

from diffusion_mf.data.formats import read_task
from diffusion_mf.data.label_schemes import LabelledSpan, LabelScheme, extract_spans
from diffusion_mf.errors import InputError, TerminatedError
from diffusion_mf.evaluation import score_sentences
from diffusion_mf.evaluation.calibration import FEWEST_SPANS, UNFITTED, fit_span_calibration
from diffusion_mf.model import Labeller
from diffusion_mf.tagger import Tagger, load_model
from diffusion_mf.training import checkpoint, loop
from diffusion_mf.training.corpora import read_training_data
from diffusion_mf.training.evaluation import _score_quality
from diffusion_mf.training.loop import train
from diffusion_mf.training.progress import Progress


def test_the_log_tells_what_happened(finished_run: Path) -> None:
    steps = small_runs.read_log(finished_run, "step")
    assert [entry["step"] for entry in steps] == list(range(1, len(steps) + 1))
    assert all(entry["loss"] > 0 and entry["gradient_norm"] > 0 for entry in steps)
    # Both terms of the system's objective, each with weight 1.
    for entry in steps:
        assert set(entry["losses"]) == {"denoising", "posterior"}
        assert entry["loss"] == pytest.approx(sum(entry["losses"].values()))
    assert steps[0]["learning_rate"] == pytest.approx(3e-3 / 4)
    assert [entry["epoch"] for entry in small_runs.read_log(finished_run, "evaluation")] == [1, 2]
    assert len(small_runs.read_log(finished_run, "test")) == 1


def test_all_decoders_are_tried_and_the_best_is_recorded(finished_run: Path) -> None:
    evaluations = small_runs.read_log(finished_run, "evaluation")
    for entry in evaluations:
        assert set(entry["scores"]) == {"argmax", "mask-viterbi"}
        assert entry["score"] == max(scores["f1"] for scores in entry["scores"].values())
        assert entry["score"] == entry["scores"][entry["decoder"]]["f1"]
    best = max(evaluations, key=lambda entry: entry["score"])
    assert best["is_best"]
    model = load_model(finished_run / "model")
    assert model.decoder == best["decoder"]
    assert model.metrics["dev"] == best["scores"][best["decoder"]]
    assert set(model.metrics["decoders"]) == {"argmax", "mask-viterbi"}


def test_the_saved_model_has_the_recorded_scores(finished_run: Path, corpus: Path) -> None:
    """Averaged weights, vocabulary and decoder reach the folder: tagging from it gives the score that was logged."""
    tagger = Tagger.load(finished_run / "model", device="cpu")
    for split in ("dev", "test"):
        gold = read_task(corpus / f"{split}.txt", tagger.task)
        results = tagger.tag([sentence.units for sentence in gold])
        scores = score_sentences(
            tagger.task, tagger.scheme, [s.labels or () for s in gold], [result.labels for result in results]
        )
        assert scores == pytest.approx(tagger.metrics[split])
    assert load_model(finished_run / "model").temperature != 1.0


def test_weights_are_scored_as_they_are_stored(
    finished_run: Path, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What dev scores is what the folder has, and training goes on with weights that are not rounded."""
    scored: list[dict[str, torch.Tensor]] = []
    real = loop.evaluate

    def evaluate(predictor: Any, sentences: Any, **options: Any) -> Any:
        scored.append({name: tensor.clone() for name, tensor in predictor.labeller.state_dict().items()})
        return real(predictor, sentences, **options)

    monkeypatch.setattr(loop, "evaluate", evaluate)
    config = small_runs.small_config(corpus, {"training": {"storage": "int8", "threads": 2}})
    train(config, output=tmp_path / "run", device="cpu")
    stored = load_model(tmp_path / "run" / "model").labeller.state_dict()
    is_best = [entry["is_best"] for entry in small_runs.read_log(tmp_path / "run", "evaluation")]
    # The first is the trial before training.
    for name, tensor in scored[1 + max(index for index, best in enumerate(is_best) if best)].items():
        torch.testing.assert_close(tensor, stored[name], rtol=1e-6, atol=0)
    expected, found = small_runs.final_tensors(finished_run), small_runs.final_tensors(tmp_path / "run")
    in_training = [name for name in expected if not name.startswith("model/")]
    assert all(torch.equal(found[name], expected[name]) for name in in_training)


def test_the_confidence_of_spans_is_fitted_to_dev(finished_run: Path, corpus: Path) -> None:
    model = load_model(finished_run / "model")
    plain = Tagger(model._replace(span_calibration=tuple(UNFITTED)), device="cpu")
    lowest: list[float] = []
    is_right: list[bool] = []
    for sentence in read_task(corpus / "dev.txt", plain.task):
        right = set(extract_spans(sentence.labels or (), LabelScheme.BMES))
        for span in plain.tag([sentence.units], scheme="bmes")[0].spans:
            lowest.append(span.confidence)
            is_right.append(LabelledSpan(*span[:3]) in right)
    expected = fit_span_calibration(torch.tensor(lowest, dtype=torch.float64), torch.tensor(is_right))
    assert model.span_calibration == pytest.approx(expected, abs=1e-2)
    assert (len(lowest) < FEWEST_SPANS) == (expected == UNFITTED)


def test_reported_scores_are_scored_by_hand() -> None:
    marginals = torch.tensor([[0.9, 0.1], [0.9, 0.1], [0.4, 0.6], [0.5, 0.5]])
    chosen, gold = torch.tensor([0, 0, 1, -1]), torch.tensor([0, 1, 1, 0])
    found = _score_quality(marginals, chosen, gold, 1.0)
    expected = -(math.log(0.9) + math.log(0.1) + math.log(0.6) + math.log(0.5)) / 4
    assert found["negative_log_likelihood"] == pytest.approx(expected)
    # Bins: .9 twice, one of them right; .6, right; no label, score 0 and wrong.
    assert found["calibration_error"] == pytest.approx(100 * (abs(1.8 - 1) + 0.4) / 4, abs=1e-4)
    # A temperature of 2 takes square roots.
    assert _score_quality(marginals[:1], chosen[:1], gold[:1], 2.0)["negative_log_likelihood"] == pytest.approx(
        -math.log(3 / 4)
    )


def test_only_encoders_that_look_at_pairs_have_them_counted(finished_run: Path, corpus: Path) -> None:
    assert Tagger.load(finished_run / "model", device="cpu").model.vocabulary.pairs
    pretrained = small_runs.small_config(corpus, {"encoder": {"kind": "pretrained", "model": "any"}})
    assert read_training_data(pretrained).vocabulary.pairs == ()


def test_training_helps(corpus: Path, tmp_path: Path) -> None:
    optimisation = {"epochs": 6, "budget": 100, "accumulation": 1, "learning_rate": 1e-2, "warmup_steps": 0}
    changes = {"system": "unigram", "training": optimisation}
    train(small_runs.small_config(corpus, small_runs.NO_DROPOUT, changes), output=tmp_path, device="cpu")
    steps = small_runs.read_log(tmp_path, "step")
    assert steps[-1]["loss"] < 0.5 * steps[0]["loss"]
    evaluations = small_runs.read_log(tmp_path, "evaluation")
    accuracies = [entry["scores"]["argmax"]["accuracy"] for entry in evaluations]
    assert accuracies[-1] > accuracies[0] + 10


def _scripted(monkeypatch: pytest.MonkeyPatch, scores: list[float]) -> None:
    """Dev scores by a script instead of a model."""
    real, remaining = loop.evaluate, list(scores)

    def evaluate(predictor: Any, sentences: Any, **options: Any) -> Any:
        found = real(predictor, sentences, **options)
        if len(sentences) == 1:
            return found  # the trial before training
        return dataclasses.replace(found, score=remaining.pop(0))

    monkeypatch.setattr(loop, "evaluate", evaluate)


def test_early_stopping(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _scripted(monkeypatch, [1.0, 3.0, 2.0, 3.0, 9.0])
    config = small_runs.small_config(corpus, {"training": {"epochs": 9, "patience": 2, "budget": 2000}})
    train(config, output=tmp_path, device="cpu")
    evaluations = small_runs.read_log(tmp_path, "evaluation")
    # The second epoch was the best (an equal score is no better one), two epochs without a gain end the run.
    assert [entry["is_best"] for entry in evaluations] == [True, True, False, False]
    assert load_model(tmp_path / "model").metrics["epoch"] == 2
    state = json.loads((tmp_path / "checkpoint/state.json").read_text())["state"]["training"]
    assert state["is_stopped"]
    assert (state["epoch"], state["best_epoch"], state["best_score"]) == (4, 2, 3.0)
    # A run that has stopped stays so.
    display = small_runs.RememberingDisplay()
    train(config, output=tmp_path, device="cpu", resume=True, display=display)
    assert display.notes == ["the run is complete: there is nothing left to train"]


def test_a_run_that_continues_says_where(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = small_runs.small_config(corpus, {"training": {"epochs": 2, "budget": 2000}})
    with monkeypatch.context() as patch:
        patch.setattr(loop, "evaluate", lambda predictor, sentences, **options: 1 / (len(sentences) == 1))
        with pytest.raises(ZeroDivisionError):
            train(config, output=tmp_path, device="cpu", checkpoint_every=0)
    display = small_runs.RememberingDisplay()
    train(config, output=tmp_path, device="cpu", resume=True, display=display)
    steps = json.loads((tmp_path / "checkpoint/state.json").read_text())["state"]["training"]["step"]
    assert display.notes[:1] in ([f"continuing after step {step}, in epoch 1"] for step in range(steps))


def test_evaluations_can_be_rarer_than_epochs(corpus: Path, tmp_path: Path) -> None:
    changes = {"training": {"epochs": 3, "evaluate_every": 2, "budget": 2000}}
    train(small_runs.small_config(corpus, changes), output=tmp_path, device="cpu")
    assert [entry["epoch"] for entry in small_runs.read_log(tmp_path, "evaluation")] == [2, 3]


def test_without_dev_the_last_weights_are_the_model(corpus: Path, tmp_path: Path) -> None:
    changes = {"data": {"dev": None}, "training": {"ema_decay": 0.0, "budget": 2000}}
    config = small_runs.small_config(corpus, changes)
    folder = train(config, output=tmp_path, device="cpu")
    assert load_model(folder).decoder == "mask-viterbi"
    tensors = small_runs.final_tensors(tmp_path)
    names = [name.removeprefix("model/") for name in tensors if name.startswith("model/")]
    assert names
    assert all(torch.equal(tensors[f"model/{name}"], tensors[f"weights/{name}"]) for name in names)


def test_a_decoder_that_does_not_suit_is_refused_before_training(corpus: Path, tmp_path: Path) -> None:
    config = small_runs.small_config(corpus, {"inference": {"decoder": "native"}})
    with pytest.raises(InputError, match="the decoder native needs bits"):
        train(config, output=tmp_path, device="cpu")
    assert not (tmp_path / "checkpoint").exists()


def test_memory_that_runs_out_is_noted_and_remembered(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = Labeller.loss_sums

    def loss_sums(self: Labeller, batch: Any, **options: Any) -> Any:
        if len(batch.lengths) > 5:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory.")
        return original(self, batch, **options)

    monkeypatch.setattr(Labeller, "loss_sums", loss_sums)
    display = small_runs.RememberingDisplay()
    config = small_runs.small_config(corpus, small_runs.NO_DROPOUT, {"training": {"epochs": 1, "budget": 150}})
    train(config, output=tmp_path / "little", device="cpu", display=display)
    monkeypatch.undo()
    train(config, output=tmp_path / "enough", device="cpu")
    assert any("memory ran out in step" in message for message in display.notes)
    state = json.loads((tmp_path / "little/checkpoint/state.json").read_text())["state"]["training"]
    assert state["num_pieces"] > 1
    losses = [
        [entry["loss"] for entry in small_runs.read_log(tmp_path / name, "step")] for name in ("little", "enough")
    ]
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)


@pytest.mark.parametrize(
    ("last_short_step", "expected"),
    [
        # Once others have freed their memory, pieces grow from epoch to epoch.
        (0, [(0, 4), (1, 2), (2, 1)]),
        # Where it stays short, larger pieces are tried before the epochs 1, 2, 4, 8 ...
        (math.inf, [(0, 4), (1, 2), (1, 4), (2, 2), (2, 4), (4, 2), (4, 4), (8, 2), (8, 4)]),
    ],
)
def test_when_memory_is_free_again_batches_are_split_less(
    corpus: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    last_short_step: float,
    expected: list[tuple[int, int]],
) -> None:
    original = Labeller.loss_sums
    config = small_runs.small_config(corpus, small_runs.NO_DROPOUT, {"training": {"epochs": 9, "budget": 150}})

    def loss_sums(self: Labeller, batch: Any, **options: Any) -> Any:
        if options["step"] <= last_short_step and len(batch.lengths) > 3:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory.")
        return original(self, batch, **options)

    monkeypatch.setattr(Labeller, "loss_sums", loss_sums)
    train(config, output=tmp_path / "run", device="cpu")
    entries = small_runs.read_log(tmp_path / "run", "memory")
    assert [(entry["epoch"], entry["num_pieces"]) for entry in entries] == expected


def test_prediction_gets_smaller_batches_when_memory_runs_out(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = Labeller.predict
    sizes = []

    def predict(self: Labeller, batch: Any, **options: Any) -> Any:
        sizes.append(batch.form_ids.numel())
        if batch.form_ids.numel() > 100:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory.")
        return original(self, batch, **options)

    monkeypatch.setattr(Labeller, "predict", predict)
    train(small_runs.small_config(corpus, {"training": {"epochs": 1, "budget": 2000}}), output=tmp_path, device="cpu")
    assert max(sizes) > 100
    assert len(small_runs.read_log(tmp_path, "evaluation")) == 1


def test_progress_is_shown(corpus: Path, tmp_path: Path) -> None:
    display = small_runs.RememberingDisplay()
    config = small_runs.small_config(corpus, {"training": {"budget": 300, "log_every": 1000}})
    train(config, output=tmp_path, device="cpu", display=display)
    # Each evaluation is shown at once, with the loss until then.
    assert [entry["step"] for entry in small_runs.read_log(tmp_path, "step")] == [one.step for one in display.at_once]
    first, last = display.at_once
    assert (first.epoch, first.step) == (1, last.step // 2)
    assert (last.epoch, last.num_epochs) == (2, 2)
    assert last.step == last.num_steps == len(display.updates)
    assert last.loss is not None
    assert last.dev_score is not None
    assert last.dev_score.startswith("f1 ")
    assert last.sentences_per_second is not None
    assert last.sentences_per_second > 0
    assert last.seconds_left == 0


def test_the_conditions_of_the_caller_are_restored(finished_run: Path, corpus: Path, tmp_path: Path) -> None:
    state = torch.get_rng_state()
    threads = torch.get_num_threads()
    changes = {"training": {"threads": 3 - min(threads, 2), "epochs": 1, "budget": 2000}}
    train(small_runs.small_config(corpus, changes), output=tmp_path, device="cpu")
    assert torch.get_num_threads() == threads
    assert not torch.are_deterministic_algorithms_enabled()
    assert torch.equal(torch.get_rng_state(), state)


# Taking up a run.


@pytest.fixture
def begun(finished_run: Path, tmp_path: Path) -> Path:
    """A copy of the finished run, to be tampered with."""
    shutil.copytree(finished_run, tmp_path / "begun")
    return tmp_path / "begun"


def _config(corpus: Path, *changes: dict[str, Any]) -> Any:
    own = {"training": {"threads": 2}, "data": {"test": str(corpus / "test.txt")}}
    return small_runs.small_config(corpus, own, *changes)


def test_another_run_is_not_overwritten(begun: Path, corpus: Path) -> None:
    before = small_runs.final_tensors(begun)
    with pytest.raises(InputError, match="another run was started in this folder; continue it with --resume"):
        train(_config(corpus), output=begun, device="cpu")
    after = small_runs.final_tensors(begun)
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"training": {"learning_rate": 0.5}}, r"started with training\.learning_rate = 0\.003, not 0\.5"),
        ({"system": "unigram"}, r"started with system = diffusion-mf, not unigram"),
        ({"encoder": {"width": 32}}, r"started with encoder\.width = 16, not 32"),
        ({"encoder": {"pair_width": 8}}, r"started with encoder\.pair_width = 4, not 8"),
        ({"seed": 2}, r"started with seed = 1, not 2"),
    ],
)
def test_another_configuration_is_refused(begun: Path, corpus: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        train(_config(corpus, change), output=begun, device="cpu", resume=True)


@pytest.mark.parametrize("has_dev", [True, False])
def test_more_epochs_give_the_same_weights_each_time(has_dev: bool, corpus: Path, tmp_path: Path) -> None:
    change = {"training": {"epochs": 2, "decay": "cosine"}, "data": {} if has_dev else {"dev": None}}
    more = {**change, "training": {"epochs": 4, "decay": "cosine"}}
    train(_config(corpus, change), output=tmp_path / "first", device="cpu")
    before = small_runs.final_tensors(tmp_path / "first")
    shutil.copytree(tmp_path / "first", tmp_path / "second")
    for name in ("first", "second"):
        train(_config(corpus, more), output=tmp_path / name, device="cpu", resume=True)
    small_runs.assert_same_outcome(tmp_path / "first", tmp_path / "second")
    after = small_runs.final_tensors(tmp_path / "first")
    assert any(not torch.equal(before[name], after[name]) for name in before if name.startswith("weights/"))
    if not has_dev:
        assert any(not torch.equal(before[name], after[name]) for name in before if name.startswith("model/"))
    rates = [entry["learning_rate"] for entry in small_runs.read_log(tmp_path / "first", "step")]
    half = len(rates) // 2
    assert rates[half - 1] < rates[half] / 2
    assert rates[half:] == sorted(rates[half:], reverse=True)


def test_settings_that_are_newer_than_a_run_have_their_defaults_in_it(begun: Path, corpus: Path) -> None:
    with small_runs.changed_state(begun) as state:
        del state["config"]["encoder"]["lora_rank"]
    with pytest.raises(InputError, match=r"started with encoder\.lora_rank = 0, not 4"):
        train(_config(corpus, {"encoder": {"lora_rank": 4}}), output=begun, device="cpu", resume=True)
    train(_config(corpus), output=begun, device="cpu", resume=True)


def test_settings_that_exist_no_longer_are_told(begun: Path, corpus: Path) -> None:
    with small_runs.changed_state(begun) as state:
        state["config"]["encoder"]["gone"] = 3
    with pytest.raises(
        InputError, match=r"has the setting encoder\.gone, which diffusion-mf \S+ does not have; use the"
    ):
        train(_config(corpus), output=begun, device="cpu", resume=True)


def test_a_run_begun_with_a_setting_that_was_removed(begun: Path, corpus: Path) -> None:
    with small_runs.changed_state(begun) as state:
        state["config"]["denoiser"]["state_dropout"] = 0.2
    with pytest.raises(
        InputError, match=r"state\.json: was made with denoiser\.state_dropout = 0\.2, which was removed"
    ):
        train(_config(corpus), output=begun, device="cpu", resume=True)
    with small_runs.changed_state(begun) as state:
        state["config"]["denoiser"]["state_dropout"] = 0.0
    train(_config(corpus), output=begun, device="cpu", resume=True)


def test_moved_data_are_the_same_and_changed_data_are_not(begun: Path, corpus: Path, tmp_path: Path) -> None:
    moved = tmp_path / "moved"
    shutil.copytree(corpus, moved)
    config = _config(moved)
    train(config, output=begun, device="cpu", resume=True)
    lines = (moved / "train.txt").read_text().splitlines(keepends=True)
    (moved / "train.txt").write_text("".join(["changed" + lines[0], *lines[1:]]))
    with pytest.raises(InputError, match="started with other training or dev data"):
        train(config, output=begun, device="cpu", resume=True)


def test_another_number_of_threads_is_warned_about(begun: Path, corpus: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "diffusion_mf"):
        train(_config(corpus), output=begun, device="cpu", resume=True)
        assert not any("threads" in message for message in caplog.messages)
        train(_config(corpus, {"training": {"threads": 1}}), output=begun, device="cpu", resume=True)
    assert any("started with threads 2 and continues with 1" in message for message in caplog.messages)


def test_resuming_nothing_begins_at_the_beginning(corpus: Path, tmp_path: Path) -> None:
    display = small_runs.RememberingDisplay()
    config = small_runs.small_config(corpus, {"training": {"epochs": 1, "budget": 2000}})
    train(config, output=tmp_path / "new", device="cpu", resume=True, display=display)
    assert any("has no checkpoint" in message for message in display.notes)
    assert (tmp_path / "new/model/config.json").is_file()


@pytest.mark.parametrize("entry", ["training", "config", "conditions", "log_bytes", "data"])
def test_a_checkpoint_with_missing_entries_is_told(begun: Path, corpus: Path, entry: str) -> None:
    with small_runs.changed_state(begun) as state:
        del state[entry]
    with pytest.raises(InputError, match="the checkpoint is damaged"):
        train(_config(corpus), output=begun, device="cpu", resume=True)


def test_weights_of_another_model_are_told(begun: Path, corpus: Path) -> None:
    found = checkpoint.read_checkpoint(begun / "checkpoint")
    assert found is not None
    missing = {name: tensor for name, tensor in found.tensors.items() if name != next(iter(found.tensors))}
    checkpoint.write_checkpoint(begun / "checkpoint", found.state, missing)
    with pytest.raises(InputError, match="the checkpoint is damaged"):
        train(_config(corpus), output=begun, device="cpu", resume=True)


def test_a_disk_that_fills_up_leaves_what_was_there(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, finished_run: Path
) -> None:
    original, calls = checkpoint.write_tensors, 0

    def write(path: Path, tensors: dict[str, torch.Tensor]) -> None:
        nonlocal calls
        calls += 1
        if calls > 4:
            raise OSError(errno.ENOSPC, "No space left on device")
        original(path, tensors)

    monkeypatch.setattr(checkpoint, "write_tensors", write)
    with pytest.raises(InputError, match=r"cannot be written \(No space left on device\)"):
        train(_config(corpus), output=tmp_path / "run", device="cpu", checkpoint_every=0)
    monkeypatch.undo()
    found = checkpoint.read_checkpoint(tmp_path / "run/checkpoint")
    assert found is not None
    assert found.state["training"]["step"] == found.state["training"]["position"] == 3, "in the middle of an epoch"
    # With space again, the run ends as if nothing had happened.
    train(_config(corpus), output=tmp_path / "run", device="cpu", resume=True)
    small_runs.assert_same_outcome(finished_run, tmp_path / "run")


def test_a_signal_ends_the_run_after_a_checkpoint(corpus: Path, tmp_path: Path, finished_run: Path) -> None:
    class Signalling(small_runs.RememberingDisplay):
        def update(self, progress: Progress, *, at_once: bool = False) -> None:
            if progress.step == 4:
                os.kill(os.getpid(), signal.SIGTERM)

    handler = signal.getsignal(signal.SIGTERM)
    with pytest.raises(TerminatedError):
        train(_config(corpus), output=tmp_path, device="cpu", display=Signalling())
    assert signal.getsignal(signal.SIGTERM) is handler
    found = checkpoint.read_checkpoint(tmp_path / "checkpoint")
    assert found is not None
    assert found.state["training"]["step"] == 4
    train(_config(corpus), output=tmp_path, device="cpu", resume=True)
    small_runs.assert_same_outcome(finished_run, tmp_path)


def test_what_a_kill_left_of_a_model_is_put_right(begun: Path, corpus: Path) -> None:
    """A kill between the two renames of saving: the older model lies in the temporary folder."""
    leftover = begun / ".model.abcd_123.tmp"
    leftover.mkdir()
    (begun / "model").rename(leftover / "old")
    train(_config(corpus), output=begun, device="cpu", resume=True)
    assert load_model(begun / "model").decoder
    assert not leftover.exists()
