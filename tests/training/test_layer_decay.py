"""Learning rates that fall from layer to layer of a pretrained encoder."""

from __future__ import annotations

import torch
from torch import nn

from diffusion_mf.config import TrainingConfig
from diffusion_mf.training.optimizer import Optimizer, depths_below_top

NAMES = {
    "encoder.missing_state": 0,
    "encoder.model.embeddings.word_embeddings.weight": 3,
    "encoder.model.embeddings.layers.0.weight": 3,
    "encoder.model.encoder.layer.0.attention.self.query.weight": 2,
    "encoder.model.encoder.layer.1.output.dense.weight": 1,
    "encoder.model.encoder.layer.2.output.experts.0.weight": 0,
    "encoder.model.final_norm.weight": 0,
    "core.layers.0.weight": 0,
}


def test_depths() -> None:
    assert depths_below_top(NAMES) == NAMES


def test_shared_layers_are_one() -> None:
    name = "encoder.model.encoder.albert_layer_groups.0.albert_layers.0.ffn.weight"
    assert depths_below_top([name, "encoder.model.embeddings.weight"]) == {
        name: 0,
        "encoder.model.embeddings.weight": 1,
    }


def test_each_layer_moves_by_its_own_rate() -> None:
    # With a constant gradient Adam's first step is the learning rate itself.
    parameters = {name: nn.Parameter(torch.zeros(2, 2)) for name in NAMES}
    settings = TrainingConfig(
        learning_rate=1.0, encoder_learning_rate=0.1, encoder_layer_decay=0.5, weight_decay=0.0, warmup_steps=0
    )
    optimizer = Optimizer(parameters, settings)
    for parameter in parameters.values():
        parameter.grad = torch.ones(2, 2)
    optimizer.step(1.0)
    for name, parameter in parameters.items():
        rate = 1.0 if name.startswith("core") else 0.1 * 0.5 ** NAMES[name]
        torch.testing.assert_close(parameter.detach(), torch.full((2, 2), -rate), rtol=1e-4, atol=0)
