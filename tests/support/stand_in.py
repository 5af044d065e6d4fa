"""A labeller without a network: every form has a fixed distribution over labels, refined by the real reverse process."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from diffusion_mf.batches.batching import Batch
from diffusion_mf.batches.vocabulary import UNKNOWN_ID, Vocabulary
from diffusion_mf.config import Config
from diffusion_mf.data.corpus import Task
from diffusion_mf.data.label_schemes import LabelScheme
from diffusion_mf.data.sentence import Sentence
from diffusion_mf.decoding import DecoderInput, Legality
from diffusion_mf.diffusion import CategoricalDiffusion, reverse_diffusion
from diffusion_mf.tagger import StoredModel, Tagger

NER_LABELS = ("B-PER", "E-PER", "M-PER", "O", "S-LOC", "S-PER")


@dataclasses.dataclass(frozen=True)
class StandInPrediction:
    decoder_input: DecoderInput
    marginals: Tensor
    trajectory: list[tuple[int, Tensor]] | None
    num_calls: int


class NoEncoder(nn.Module):
    """All that is asked of it is how large sentences are."""

    def sizes(self, sentences: Sequence[Sentence]) -> list[int]:
        return [len(sentence.units) for sentence in sentences]


class StandIn(nn.Module):
    """ρ₀ of a unit is ``table[form id]``, whatever the beliefs and the step."""

    prepare_input = None

    def __init__(self, vocabulary: Vocabulary, scheme: LabelScheme, table: Tensor) -> None:
        super().__init__()
        self.encoder = NoEncoder()
        self.table = nn.Parameter(table)
        self.process = CategoricalDiffusion(len(vocabulary.labels))
        self.legality = Legality.of_scheme(vocabulary.labels, scheme)
        self.batches: list[tuple[int, int]] = []
        """the shapes of the batches it was asked about"""

    def predict(
        self,
        batch: Batch,
        *,
        num_calls: int | None = None,
        base: float | None = None,
        allowed: Tensor | None = None,
        keep_trajectory: bool = False,
        settings: object = None,
    ) -> StandInPrediction:
        self.batches.append(tuple(batch.form_ids.shape))
        marginals = self.table[batch.form_ids]
        result = reverse_diffusion(
            self.process,
            lambda beliefs, t: marginals,
            batch_shape=tuple(batch.form_ids.shape),
            schedule=self.process.schedule(num_calls=num_calls or 10),
            allowed=allowed,
            keep_trajectory=keep_trajectory,
        )
        return StandInPrediction(
            DecoderInput(
                lengths=batch.lengths,
                unary_scores=result.log_beliefs(),
                legality=self.legality,
                allowed=allowed,
            ),
            result.marginals,
            None if result.trajectory is None else [(step.t, step.beliefs) for step in result.trajectory],
            result.num_calls,
        )


def stand_in_tagger(
    distributions: dict[str, dict[str, float]],
    *,
    labels: Sequence[str] = NER_LABELS,
    task: Task = Task.NER,
    decoder: str = "mask-viterbi",
    temperature: float = 1.0,
    settings: dict[str, Any] | None = None,
) -> Tagger:
    """A tagger that gives every form the distribution named, and unknown forms the uniform one."""
    vocabulary = Vocabulary.build([Sentence((form,), (labels[0],)) for form in distributions])
    vocabulary = dataclasses.replace(vocabulary, labels=tuple(sorted(labels)))
    table = torch.full((vocabulary.num_form_ids, len(labels)), 1 / len(labels))
    for form, distribution in distributions.items():
        row = [distribution.get(label, 0.0) for label in vocabulary.labels]
        table[vocabulary.form_ids[form]] = torch.tensor(row)
    table[UNKNOWN_ID] = 1 / len(labels)
    scheme = task.scheme
    config = Config.model_validate({"task": str(task), "system": "diffusion-uni", **(settings or {})})
    model = StoredModel(
        labeller=StandIn(vocabulary, scheme, table),  # type: ignore[arg-type]
        config=config,
        vocabulary=vocabulary,
        scheme=scheme,
        decoder=decoder,
        temperature=temperature,
        metrics={},
    )
    return Tagger(model, device="cpu")
