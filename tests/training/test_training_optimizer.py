"""Learning rates, Adam and the moving average against values by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from diffusion_mf.config import StructureConfig, TrainingConfig
from diffusion_mf.networks.scorers import Scorer
from diffusion_mf.structures import LinearChain
from diffusion_mf.training.optimizer import LearningRate, MovingAverage, Optimizer


@pytest.mark.parametrize(
    ("decay", "expected"),
    [
        ("none", [0.25, 0.5, 0.75, 1, 1, 1, 1, 1]),
        ("linear", [0.25, 0.5, 0.75, 1, 1, 0.75, 0.5, 0.25]),
        ("cosine", [0.25, 0.5, 0.75, 1, 1, (1 + math.sqrt(0.5)) / 2, 0.5, (1 - math.sqrt(0.5)) / 2]),
    ],
)
def test_learning_rate(decay: str, expected: list[float]) -> None:
    schedule = LearningRate(4, 8, decay)
    assert [schedule.factor(step) for step in range(8)] == pytest.approx(expected)


def test_learning_rate_without_warm_up_begins_in_full() -> None:
    assert LearningRate(0, 10, "cosine").factor(0) == 1


def test_learning_rate_past_the_end_is_zero_and_never_negative() -> None:
    assert LearningRate(0, 10, "linear").factor(12) == 0


def _parameters() -> dict[str, nn.Parameter]:
    return {
        "encoder.weight": nn.Parameter(torch.full((2, 2), 2.0)),
        "encoder.bias": nn.Parameter(torch.full((2,), 2.0)),
        "core.weight": nn.Parameter(torch.full((2, 2), 2.0)),
    }


def test_first_adamw_step_by_hand() -> None:
    parameters = _parameters()
    settings = TrainingConfig(learning_rate=0.1, encoder_learning_rate=0.01, weight_decay=0.5, beta2=0.98)
    optimizer = Optimizer(parameters, settings)
    for parameter in parameters.values():
        parameter.grad = torch.full_like(parameter, -3.0)
    optimizer.step(0.5)
    # The first step of Adam is the sign of the gradient; decay takes rate × 0.5 off matrices, not off vectors.
    assert parameters["core.weight"][0, 0].item() == pytest.approx(2 * (1 - 0.05 * 0.5) + 0.05)
    assert parameters["encoder.weight"][0, 0].item() == pytest.approx(2 * (1 - 0.005 * 0.5) + 0.005)
    assert parameters["encoder.bias"][0].item() == pytest.approx(2 + 0.005)
    assert all(parameter.grad is None for parameter in parameters.values())


def test_global_transitions_have_a_rate_of_their_own() -> None:
    scorer = Scorer(8, 3, StructureConfig(transitions="global"), LinearChain)
    parameters = dict(scorer.named_parameters(prefix="core.scorer"))
    before = {name: parameter.detach().clone() for name, parameter in parameters.items()}
    settings = TrainingConfig(learning_rate=0.001, transition_learning_rate=0.1, weight_decay=0.0)
    optimizer = Optimizer(parameters, settings)
    for parameter in parameters.values():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step(1.0)
    moved = {name: (before[name] - parameter).abs().max().item() for name, parameter in parameters.items()}
    assert moved.pop("core.scorer.global_transitions") == pytest.approx(0.1)
    assert all(distance == pytest.approx(0.001, rel=1e-3) for distance in moved.values())


def test_adam_mixes_decay_into_the_gradient() -> None:
    parameters = {"core.weight": nn.Parameter(torch.full((1, 1), 2.0))}
    optimizer = Optimizer(parameters, TrainingConfig(optimizer="adam", learning_rate=0.1, weight_decay=1.0))
    parameters["core.weight"].grad = torch.full((1, 1), -1.0)
    optimizer.step(1.0)
    # The gradient is −1 + 1·2 = 1, so the step goes down; decoupled decay would have gone up.
    assert parameters["core.weight"].item() == pytest.approx(2 - 0.1)


def test_optimizer_continues_from_its_tensors() -> None:
    torch.manual_seed(0)
    gradients = [torch.randn(2, 2) for _ in range(4)]

    def run(parameters: dict[str, nn.Parameter], optimizer: Optimizer, part: list[torch.Tensor]) -> None:
        for gradient in part:
            for parameter in parameters.values():
                parameter.grad = gradient.expand_as(parameter).clone() if parameter.ndim > 1 else gradient[0].clone()
            optimizer.step(1.0)

    whole, first = _parameters(), _parameters()
    run(whole, Optimizer(whole, TrainingConfig()), gradients)
    before = Optimizer(first, TrainingConfig())
    run(first, before, gradients[:2])
    second = {name: nn.Parameter(parameter.detach().clone()) for name, parameter in first.items()}
    after = Optimizer(second, TrainingConfig())
    after.load_tensors({name: tensor.clone() for name, tensor in before.tensors().items()})
    run(second, after, gradients[2:])
    assert all(torch.equal(whole[name], second[name]) for name in whole)


def test_optimizer_refuses_tensors_of_another_model() -> None:
    optimizer = Optimizer(_parameters(), TrainingConfig())
    with pytest.raises(KeyError):
        optimizer.load_tensors({"exp_avg/other.weight": torch.zeros(2, 2)})
    with pytest.raises(ValueError, match="shape"):
        optimizer.load_tensors({"exp_avg/core.weight": torch.zeros(3, 2)})


def test_moving_average_by_hand() -> None:
    parameter = nn.Parameter(torch.tensor([1.0, 10.0]))
    average = MovingAverage({"weight": parameter}, 0.4)
    with torch.no_grad():
        parameter.copy_(torch.tensor([2.0, 20.0]))
    average.update(1)  # decay 2/11, below 0.4
    first = [1 * 2 / 11 + 2 * 9 / 11, 10 * 2 / 11 + 20 * 9 / 11]
    assert average.tensors()["weight"].tolist() == pytest.approx(first)
    with torch.no_grad():
        parameter.copy_(torch.tensor([0.0, 0.0]))
    average.update(1000)  # the ramp is over: decay 0.4
    second = [0.4 * value for value in first]
    with average.in_place():
        assert parameter.tolist() == pytest.approx(second)
    assert parameter.tolist() == [0.0, 0.0]
    assert average.tensors()["weight"].tolist() == pytest.approx(second)


def test_weights_come_back_after_an_error_in_the_block() -> None:
    parameter = nn.Parameter(torch.tensor([1.0]))
    average = MovingAverage({"weight": parameter}, 0.5)
    with torch.no_grad():
        parameter.fill_(3.0)

    def fail() -> None:
        with average.in_place():
            assert parameter.item() == 1.0
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert parameter.item() == 3.0
