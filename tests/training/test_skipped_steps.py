"""Gradients that are not finite: such steps change nothing, many in a row lead back to a checkpoint, and a model is left."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import small_runs
import torch
from torch import nn

from diffusion_mf.config import TrainingConfig
from diffusion_mf.errors import DivergenceError
from diffusion_mf.tagger import Tagger
from diffusion_mf.training import loop
from diffusion_mf.training.checkpoint import read_checkpoint
from diffusion_mf.training.gradients import StepGradients
from diffusion_mf.training.loop import train
from diffusion_mf.training.optimizer import Learner
from diffusion_mf.training.progress import Progress

DAMAGED = "encoder.characters.from_left.weight_ih_l0"


class Notes:
    """A display that remembers."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.updates: list[Progress] = []

    def note(self, message: str) -> None:
        self.notes.append(message)

    def update(self, progress: Progress, *, at_once: bool = False) -> None:
        self.updates.append(progress)


@pytest.fixture
def damage(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[int], bool]], None]:
    """Make the gradient of one parameter infinite in the steps that are chosen."""

    def install(is_damaged: Callable[[int], bool]) -> None:
        original = StepGradients.compute

        def compute(self: StepGradients, prepared: Any, *, step: int, **options: int) -> Any:
            found = original(self, prepared, step=step, **options)
            if is_damaged(step):
                gradient = self._optimizer.parameters[DAMAGED].grad
                assert gradient is not None
                gradient[0, 0] = torch.inf
            return found

        monkeypatch.setattr(StepGradients, "compute", compute)

    return install


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
def test_such_a_step_changes_neither_weights_nor_the_optimizers_memory(value: float, optimizer: Any) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    settings = TrainingConfig(optimizer=optimizer, warmup_steps=0, decay="none", ema_decay=0.0, learning_rate=0.1)
    learner = Learner(model, settings, total_steps=10)
    inputs = torch.randn(5, 3)

    def update(step: int, damaged: bool) -> Any:
        model(inputs).square().sum().backward()
        if damaged:
            assert model[1].bias.grad is not None
            model[1].bias.grad[0] = value
        return learner.update(step)

    assert not update(0, damaged=False).is_skipped
    before = {name: tensor.clone() for name, tensor in learner.tensors().items()}
    skipped = update(1, damaged=True)
    assert skipped.is_skipped
    assert skipped.is_damaged.tolist() == [name == "1.bias" for name, _ in model.named_parameters()]
    assert all(torch.equal(before[name], tensor) for name, tensor in learner.tensors().items())
    assert not update(2, damaged=False).is_skipped
    assert not torch.equal(before["weights/0.weight"], model[0].weight)


def test_a_parameter_without_a_gradient_is_no_fault() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    learner = Learner(model, TrainingConfig(), total_steps=10)
    model[0](torch.randn(5, 3)).sum().backward()
    gradients = torch.cat([model[0].weight.grad.flatten(), model[0].bias.grad])
    found = learner.update(0)
    torch.testing.assert_close(found.norm, gradients.norm())
    assert not found.is_skipped
    assert found.is_damaged.tolist() == [False] * 4


def test_single_steps_are_skipped_counted_and_told(
    corpus: Path, tmp_path: Path, damage: Callable[[Callable[[int], bool]], None]
) -> None:
    damage(lambda step: step in (1, 3))
    display = Notes()
    train(small_runs.small_config(corpus), output=tmp_path, device="cpu", display=display)
    (note,) = [note for note in display.notes if "not finite" in note]
    assert DAMAGED in note
    assert display.updates[-1].num_skipped == 2
    assert "2 steps skipped" in display.updates[-1].details()
    entries = small_runs.read_log(tmp_path, "step")
    assert [entry.get("skipped_steps", 0) for entry in entries[:5]] == [0, 1, 0, 1, 0]
    saved = read_checkpoint(tmp_path / "checkpoint")
    assert saved is not None
    assert saved.state["training"]["num_skipped"] == 2
    assert all(bool(tensor.isfinite().all()) for tensor in saved.tensors.values())


def test_many_in_a_row_lead_back_to_the_last_good_checkpoint_at_a_lower_rate(
    corpus: Path, tmp_path: Path, damage: Callable[[Callable[[int], bool]], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "MOST_SKIPPED_IN_A_ROW", 2)
    bad = {3, 4}
    # Once only: what was bad at the full rate is good at the lower one.
    damage(lambda step: step in bad and not bad.discard(step))
    display = Notes()
    train(small_runs.small_config(corpus), output=tmp_path, device="cpu", display=display, checkpoint_every=0)
    (note,) = [note for note in display.notes if "returning" in note]
    assert f"the gradient of {DAMAGED} was not finite in 2 steps in a row: returning to step 3," in note
    assert len(small_runs.read_log(tmp_path, "return")) == 1
    rates = {entry["step"]: entry["learning_rate"] for entry in small_runs.read_log(tmp_path, "step")}
    plain = tmp_path / "plain"
    bad.clear()
    train(small_runs.small_config(corpus), output=plain, device="cpu")
    expected = {entry["step"]: entry["learning_rate"] for entry in small_runs.read_log(plain, "step")}
    assert set(rates) == set(expected)
    assert all(rates[step] == expected[step] * (0.5 if step > 3 else 1) for step in rates)


def test_a_run_that_gets_nowhere_ends_with_a_sentence_and_its_best_model(
    corpus: Path, tmp_path: Path, damage: Callable[[Callable[[int], bool]], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "MOST_SKIPPED_IN_A_ROW", 3)
    config = small_runs.small_config(corpus, {"training": {"epochs": 8}})
    steps_per_epoch = train_steps(config, tmp_path / "plain")
    damage(lambda step: step >= 2 * steps_per_epoch)
    # No checkpoint but the first: what is on disk was written when it was found.
    with pytest.raises(DivergenceError) as caught:
        train(config, output=tmp_path / "run", device="cpu", checkpoint_every=1e9)
    message = str(caught.value)
    assert DAMAGED in message
    assert "training.learning_rate" in message
    assert f"is in {tmp_path / 'run' / 'model'} and can be used" in message
    evaluations = small_runs.read_log(tmp_path / "run", "evaluation")
    best = max(evaluations, key=lambda entry: entry["score"])
    assert f"{best['score']:.2f}" in message
    tagger = Tagger.load(tmp_path / "run" / "model", device="cpu")
    assert tagger.metrics["dev"]["f1"] == best["score"]
    assert tagger.tag([["a", "b"]])[0].labels


def test_a_run_without_a_single_good_step_leaves_a_usable_model(
    corpus: Path, tmp_path: Path, damage: Callable[[Callable[[int], bool]], None]
) -> None:
    damage(lambda step: True)
    config = small_runs.small_config(corpus)
    with pytest.raises(DivergenceError, match=r"the model of the last good step is in .* and can be used"):
        train(config, output=tmp_path, device="cpu")
    assert Tagger.load(tmp_path / "model", device="cpu").tag([["a", "b"]])[0].labels


def test_the_best_model_is_on_disk_before_the_run_ends(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = StepGradients.compute

    def compute(self: StepGradients, prepared: Any, **options: int) -> Any:
        if small_runs.read_log(tmp_path, "evaluation"):
            raise RuntimeError("an error of any kind")
        return original(self, prepared, **options)

    monkeypatch.setattr(StepGradients, "compute", compute)
    with pytest.raises(RuntimeError, match="of any kind"):
        train(small_runs.small_config(corpus), output=tmp_path, device="cpu", checkpoint_every=1e9)
    (evaluation,) = small_runs.read_log(tmp_path, "evaluation")
    assert Tagger.load(tmp_path / "model", device="cpu").metrics["dev"]["f1"] == evaluation["score"]


def train_steps(config: Any, folder: Path) -> int:
    """The steps of the first epoch."""
    train(config.model_copy(update={"training": config.training.model_copy(update={"epochs": 1})}), output=folder)
    return small_runs.read_log(folder, "step")[-1]["step"]
