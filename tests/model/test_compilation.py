"""The network parts that run often compile to one graph each.

In a process of its own: the checks of shapes that the other tests run under cannot be traced.
"""

from __future__ import annotations

import pathlib
import subprocess
import sys

PROGRAM = """
import torch
from tiny_models import small_labeller, whole_batch

labeller, batch = small_labeller("diffusion-mf", structure={"transitions": "local"}).eval(), whole_batch()
layout, K = batch.layout, labeller.num_labels
with torch.no_grad():
    contextualise = torch.compile(labeller.encoder.contextualise, backend="aot_eager", fullgraph=True)
    states = contextualise(labeller.encoder.embed(batch, layout), layout)
    torch.testing.assert_close(states, labeller.encoder(batch, layout))
    conditions = labeller.core.denoiser.prepare(states)
    call = torch.compile(labeller.core.potentials, backend="aot_eager", fullgraph=True)
    arguments = (torch.full((4, 7, K), 1 / K), torch.tensor([40]), conditions, layout)
    for found, expected in zip(call(*arguments)[:2], labeller.core.potentials(*arguments)[:2], strict=True):
        torch.testing.assert_close(found, expected)
"""


def test_encoder_and_denoiser_compile_to_one_graph() -> None:
    folder = pathlib.Path(__file__).parents[1] / "support"
    result = subprocess.run([sys.executable, "-c", PROGRAM], cwd=folder, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
