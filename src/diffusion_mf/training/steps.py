"""The work of each training step: which sentences, in which pieces, collated ahead of time.

A step has ``accumulation`` batches of the token budget. Each process works on its share of every batch; if memory is
short, a share is split into pieces that are computed one after the other. Neither changes which sentences make up a step.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import torch
from torch import Tensor

from diffusion_mf.batches.batching import Batch, EncodedSentences, PrepareInput, document_batches, training_batches
from diffusion_mf.batches.layouts import is_attended_whole
from diffusion_mf.batches.packing import pack, packed_batches, shape_for
from diffusion_mf.batches.vocabulary import Vocabulary
from diffusion_mf.config import TrainingConfig
from diffusion_mf.data.sentence import Sentence, grouped
from diffusion_mf.prediction.precision import leaves_out_padding
from diffusion_mf.prediction.recording import FlatBatch, flatten
from diffusion_mf.training.processes import Processes

StepPlan = list[list[int]]
"""the batches of a step, each a list of sentence indices"""


def plan_epoch(
    lengths: Sequence[int],
    settings: TrainingConfig,
    *,
    seed: int,
    epoch: int,
    is_packed: bool = False,
    documents: Sequence[int] | None = None,
    has_padding: bool = True,
) -> list[StepPlan]:
    """The steps of an epoch, determined by the arguments alone, whatever the number of processes.

    ``documents`` are for recall, and ``has_padding`` tells whether padding counts in their batches.
    """
    cut: Callable[..., list[list[int]]] = packed_batches if is_packed else training_batches
    if documents is not None:
        cut = functools.partial(document_batches, documents=documents, has_padding=has_padding and not is_packed)
    batches = cut(lengths, budget=settings.budget, max_sentences=settings.max_sentences, seed=seed, epoch=epoch)
    size = settings.accumulation
    return [batches[start : start + size] for start in range(0, len(batches), size)]


class Piece(NamedTuple):
    """Sentences computed together, and their indices in the training corpus, which key their random numbers."""

    batch: Batch
    keys: Tensor
    flat: FlatBatch | None
    """a packed batch, its keys, and slots for step and units, ready for the device; None for batches that are not replayed"""
    num_groups: int
    """number of sentences, or of documents where they must stay together"""


class PreparedStep(NamedTuple):
    """The work of a step for this process."""

    plan: StepPlan
    num_pieces: int
    """number of pieces that each share was split into"""
    pieces: list[Piece]


class PackingSettings(NamedTuple):
    """How batches are packed."""

    budget: int
    max_characters: int
    is_flat: bool
    """whether to flatten them to one vector, for replay"""


class StepPreparer:
    """Collates steps, one ahead of the current one."""

    def __init__(
        self,
        sentences: Sequence[Sentence],
        vocabulary: Vocabulary,
        processes: Processes,
        *,
        prepare_input: PrepareInput | None = None,
        packing: PackingSettings | None = None,
        recall: int = 0,
    ) -> None:
        self._sentences = sentences
        self._processes = processes
        self._prepare_input = prepare_input
        self._packing = packing
        self._encoded = EncodedSentences(sentences, vocabulary, recall=recall)
        self._has_recall = recall > 0

    def plan_epoch(self, sizes: Sequence[int], settings: TrainingConfig, *, seed: int, epoch: int) -> list[StepPlan]:
        """`plan_epoch` for sentences of these sizes."""
        return plan_epoch(
            sizes,
            settings,
            seed=seed,
            epoch=epoch,
            is_packed=self._packing is not None,
            documents=[sentence.document for sentence in self._sentences] if self._has_recall else None,
            has_padding=not leaves_out_padding(self._processes.device, self._prepare_input),
        )

    def prepare(self, plan: StepPlan, num_pieces: int) -> PreparedStep:
        """The pieces of ``plan`` for this process: each share split into ``num_pieces`` of equal size, as far as possible."""
        pieces = []
        for batch in plan:
            share = self._processes.share(self._groups(batch))
            size = -(-len(share) // num_pieces)
            for start in range(0, len(share), max(1, size)):
                pieces.append(self._piece(share[start : start + size], num_pieces))
        return PreparedStep(plan, num_pieces, pieces)

    def _groups(self, batch: Sequence[int]) -> list[list[int]]:
        """What must stay together: with recall, the sentences of a document."""
        if not self._has_recall:
            return [[index] for index in batch]
        found = grouped([self._sentences[index].document for index in batch])
        return [[batch[place] for place in group] for group in found]

    def _piece(self, groups: Sequence[Sequence[int]], num_pieces: int) -> Piece:
        members = list(itertools.chain.from_iterable(groups))
        batch = self._encoded.batch(members)
        if self._prepare_input is not None:
            encoder_input = self._prepare_input([self._sentences[index] for index in members])
            batch = dataclasses.replace(batch, encoder_input=encoder_input)
        keys = torch.tensor(members)
        if self._packing is None or not is_attended_whole(batch.lengths):
            is_compact = self._has_recall and leaves_out_padding(self._processes.device, self._prepare_input)
            return Piece(dataclasses.replace(batch, is_compact=is_compact), keys, None, len(groups))
        budget = self._packing.budget // (num_pieces * self._processes.world_size)
        batch = pack(batch, shape_for(batch, budget=budget, max_characters=self._packing.max_characters))
        keys = torch.nn.functional.pad(keys, (0, len(batch.lengths) - len(keys)))
        flat = flatten(batch, [*keys.tolist(), 0, 0]) if self._packing.is_flat else None
        return Piece(batch, keys, flat, len(groups))

    def stream(self, plans: Sequence[StepPlan], num_pieces: int | Callable[[], int]) -> Iterator[PreparedStep]:
        """`prepare` for every plan in order, with a thread working on the next one.

        A function is asked for the number of pieces before every step: it grows when memory runs out.
        """

        def submit(index: int) -> Future[PreparedStep]:
            return pool.submit(self.prepare, plans[index], num_pieces() if callable(num_pieces) else num_pieces)

        with ThreadPoolExecutor(max_workers=1, thread_name_prefix="collate") as pool:
            following = None
            for index, _ in enumerate(plans):
                current = following or submit(index)
                following = submit(index + 1) if index + 1 < len(plans) else None
                yield current.result()
