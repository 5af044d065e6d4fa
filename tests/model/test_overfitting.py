"""Every system can learn one batch by heart, and its decoders give the labels back exactly."""

from __future__ import annotations

import pytest
import torch
from tiny_models import small_config

from diffusion_mf.batches.batching import Batch, collate
from diffusion_mf.batches.vocabulary import Vocabulary
from diffusion_mf.data.label_schemes import LabelScheme
from diffusion_mf.data.sentence import Sentence
from diffusion_mf.decoding import DECODERS
from diffusion_mf.lab.synthetic import generate
from diffusion_mf.model import Labeller
from diffusion_mf.systems import SYSTEMS


def invented_problem(system, num_sentences, **sections) -> tuple[Labeller, Batch]:
    sentences = [Sentence(drawn.units, drawn.labels) for drawn in generate("ner", num_sentences, seed=1)]
    vocabulary = Vocabulary.build(sentences)
    torch.manual_seed(0)
    return Labeller(small_config(system, **sections), vocabulary, LabelScheme.BMES), collate(sentences, vocabulary)


def learn(labeller: Labeller, batch: Batch, *, max_steps: int) -> list[str]:
    """Train until every decoder is right, and say which are not in the end."""
    optimizer = torch.optim.Adam(labeller.parameters(), lr=1e-2)
    keys = torch.arange(len(batch.lengths))
    wrong = list(labeller.decoders)
    for step in range(max_steps):
        losses = labeller.train().loss_sums(batch, seed=0, step=step, sentence_keys=keys)
        (losses["total"] / batch.lengths.sum()).backward()
        torch.nn.utils.clip_grad_norm_(labeller.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step % 20 == 19:
            decoder_input = labeller.eval().predict(batch).decoder_input
            wrong = [
                name for name in labeller.decoders if not torch.equal(DECODERS[name](decoder_input), batch.label_ids)
            ]
            if not wrong:
                break
    return wrong


@pytest.mark.parametrize("system", SYSTEMS)
def test_one_batch_is_learnt_by_heart(system) -> None:
    labeller, batch = invented_problem(system, 4)
    assert not learn(labeller, batch, max_steps=300)


@pytest.mark.parametrize("system", ["diffusion-mf", "diffusion-lcrf"])
def test_the_models_own_trajectory_teaches_too(system) -> None:
    """With every step on the model's own beliefs, no noisy gold label is ever seen."""
    labeller, batch = invented_problem(system, 3, diffusion={"own_trajectory_share": 1.0}, objective={"posterior": 1.0})
    steps_seen = set()
    labeller.core.denoiser.register_forward_pre_hook(
        lambda module, args: steps_seen.add(int(args[1][0])) if module.training else None
    )
    losses = labeller.loss_sums(batch, seed=0, step=0, sentence_keys=torch.arange(3))
    assert "posterior" not in losses
    assert not learn(labeller, batch, max_steps=300)
    assert {1000, 500} <= steps_seen <= {1000, 500, 250, 125}
