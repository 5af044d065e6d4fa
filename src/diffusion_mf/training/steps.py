"""The work of each training step: which sentences, cut into which pieces, collated ahead of time.

A step takes ``accumulation`` batches of the token budget. Each process works on its share of every batch; where memory is
short a share is cut into pieces that are computed one after the other. Neither changes which sentences make up a step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import torch
from torch import Tensor

from diffusion_mf.config import TrainingConfig
from diffusion_mf.data.batching import Batch, PrepareInput, collate, training_batches
from diffusion_mf.data.sentence import Sentence
from diffusion_mf.data.vocabulary import Vocabulary
from diffusion_mf.training.distributed import Processes

StepPlan = list[list[int]]
"""the batches of a step, each a list of indices of sentences"""


def plan_epoch(lengths: Sequence[int], settings: TrainingConfig, *, seed: int, epoch: int) -> list[StepPlan]:
    """The steps of an epoch: a function of the lengths, settings, seed and epoch alone, whatever the processes."""
    batches = training_batches(
        lengths, budget=settings.budget, max_sentences=settings.max_sentences, seed=seed, epoch=epoch
    )
    size = settings.accumulation
    return [batches[start : start + size] for start in range(0, len(batches), size)]


class Piece(NamedTuple):
    """Sentences computed at once, and their indices in the training corpus, which key their random numbers."""

    batch: Batch
    keys: Tensor


class PreparedStep(NamedTuple):
    """A step's work for this process."""

    plan: StepPlan
    num_pieces: int
    """pieces that each share was cut into"""
    pieces: list[Piece]


class StepPreparer:
    """Collates steps, one ahead of the one in hand."""

    def __init__(
        self,
        sentences: Sequence[Sentence],
        vocabulary: Vocabulary,
        processes: Processes,
        *,
        prepare_input: PrepareInput | None = None,
    ) -> None:
        self._sentences = sentences
        self._vocabulary = vocabulary
        self._processes = processes
        self._prepare_input = prepare_input

    def prepare(self, plan: StepPlan, num_pieces: int) -> PreparedStep:
        """The pieces of ``plan`` for this process: each share cut into ``num_pieces`` of equal size, as far as it goes."""
        pieces = []
        for batch in plan:
            share = self._processes.share(batch)
            size = -(-len(share) // num_pieces)
            for start in range(0, len(share), max(1, size)):
                members = share[start : start + size]
                sentences = [self._sentences[index] for index in members]
                batch_piece = collate(sentences, self._vocabulary, prepare_input=self._prepare_input)
                pieces.append(Piece(batch_piece, torch.tensor(members)))
        return PreparedStep(plan, num_pieces, pieces)

    def stream(self, plans: Sequence[StepPlan], num_pieces: int) -> Iterator[PreparedStep]:
        """`prepare` for every plan in order; a thread works on the next one meanwhile."""
        with ThreadPoolExecutor(max_workers=1, thread_name_prefix="collate") as pool:
            following = None
            for index, _ in enumerate(plans):
                current = following or pool.submit(self.prepare, plans[index], num_pieces)
                following = pool.submit(self.prepare, plans[index + 1], num_pieces) if index + 1 < len(plans) else None
                yield current.result()
