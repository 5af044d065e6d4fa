"""Label a list of sentences: batches of similar length, two in flight on a GPU, smaller ones when memory runs out."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

import torch
from jaxtyping import Bool
from torch import Tensor

from diffusion_mf.batches.batching import Batch, SentenceRows, collate, evaluation_batches
from diffusion_mf.batches.packing import packed_evaluation_batches
from diffusion_mf.batches.vocabulary import Vocabulary
from diffusion_mf.data.sentence import Sentence, grouped
from diffusion_mf.model import Prediction
from diffusion_mf.prediction.memory import DoesNotFitError, MemoryGuard, release_memory
from diffusion_mf.prediction.precision import leaves_out_padding
from diffusion_mf.prediction.predictor import BATCHES_IN_FLIGHT, Pending, Predictor


class Finish(Protocol):
    """Selects what of a batch's prediction is copied to the host."""

    def __call__(
        self, prediction: Prediction, *, members: Sequence[int], allowed: Bool[Tensor, "B N K"] | None
    ) -> Sequence[Tensor]:
        """Tensors of the prediction of ``members``; ``allowed`` are the labels that clamps leave for its units, None for all."""
        ...


class PredictedBatch(NamedTuple):
    """Sentences that were predicted together."""

    members: list[int]
    """their indices in the list"""
    results: Sequence[Tensor]
    """the result of `Finish`, on the host: one row per member, in order, possibly with more rows and positions than needed"""


def predict_sentences(
    predictor: Predictor,
    sentences: Sequence[Sentence],
    vocabulary: Vocabulary,
    finish: Finish,
    *,
    budget: int,
    num_calls: int | None = None,
    allowed: Sequence[Bool[Tensor, "_ K"] | None] | None = None,
    keep_trajectory: bool = False,
    rows: SentenceRows | None = None,
) -> Iterator[PredictedBatch]:
    """Predict ``sentences`` in batches of at most ``budget`` units; longest first, empty sentences skipped.

    Padding counts against the budget unless batches are packed, which leaves none. Packed batches hold sentences of one length
    class each: what is recorded for one batch of a class is replayed for the next within the same list. With recall, the sentences
    of a document are in one batch. While a GPU computes some batches, the host builds the next one and uses the results of an
    earlier one. If memory runs out, the rest is retried in batches of half the size. ``allowed`` are the clamps of each sentence;
    ``rows`` are the sentences if they have already been looked up.
    """
    sizes = predictor.labeller.encoder.sizes(sentences)
    documents = [sentence.document for sentence in sentences] if predictor.recall else None
    has_clamps = allowed is not None and any(clamps is not None for clamps in allowed)
    is_packed = predictor.is_packed and documents is None and not has_clamps and not keep_trajectory

    def cut(members: Sequence[int], most_units: int) -> deque[list[int]]:
        own = [sizes[index] for index in members]
        if is_packed:
            found = packed_evaluation_batches(own, budget=most_units)
        else:
            together = None if documents is None else [documents[index] for index in members]
            found = evaluation_batches(own, budget=most_units, documents=together).batches
        return deque([members[place] for place in batch] for batch in found)

    waiting = cut([index for index, size in enumerate(sizes) if size], budget)
    most_units = budget
    num_ahead = BATCHES_IN_FLIGHT if predictor.device.type == "cuda" else 0
    in_flight: deque[tuple[list[int], Pending]] = deque()
    # Counted from 0 for every list: the same list again finds its recordings where it made them.
    streams = itertools.count()
    while waiting:
        members = waiting.popleft()
        with MemoryGuard() as guard:
            batch = _collated(predictor, sentences, members, vocabulary) if rows is None else rows.batch(members)
            clamps = None if allowed is None else stack_allowed([allowed[index] for index in members], batch)
            if clamps is not None:
                clamps = clamps.to(predictor.device)
            pending = predictor.predict(
                batch,
                functools.partial(finish, members=members, allowed=clamps),
                budget=budget,
                stream=next(streams),
                num_calls=num_calls,
                allowed=clamps,
                keep_trajectory=keep_trajectory,
            )
            in_flight.append((members, pending))
        if guard.ran_out:
            release_memory(predictor.device, predictor.recorders)
            if len(members) == 1 or (documents and len(grouped([documents[index] for index in members])) == 1):
                raise DoesNotFitError(
                    sum(len(sentences[index].units) for index in members),
                    is_document=len(members) > 1,
                    advice="split it, or choose a smaller model",
                )
            own = [sizes[index] for index in members]
            most_units = min(most_units, sum(own) if is_packed else len(own) * max(own)) // 2
            waiting = cut([*members, *itertools.chain.from_iterable(waiting)], most_units)
        while len(in_flight) > (num_ahead if waiting else 0):
            done, pending = in_flight.popleft()
            yield PredictedBatch(done, pending.wait())


def _collated(
    predictor: Predictor, sentences: Sequence[Sentence], members: Sequence[int], vocabulary: Vocabulary
) -> Batch:
    # Without labels: those of a test file need not be in the vocabulary.
    chosen = [sentences[index]._replace(labels=None) for index in members]
    prepare_input = predictor.labeller.prepare_input
    batch = collate(chosen, vocabulary, prepare_input=prepare_input, recall=predictor.recall)
    is_compact = predictor.recall > 0 and leaves_out_padding(predictor.device, prepare_input)
    return dataclasses.replace(batch, is_compact=True) if is_compact else batch


def stack_allowed(clamps: Sequence[Bool[Tensor, "_ K"] | None], batch: Batch) -> Bool[Tensor, "B N K"] | None:
    """The clamps of a batch, with everything allowed for sentences without clamps and at padding; None without any clamp."""
    num_labels = next((clamp.shape[1] for clamp in clamps if clamp is not None), None)
    if num_labels is None:
        return None
    allowed = torch.ones(*batch.form_ids.shape, num_labels, dtype=torch.bool)
    for row, clamp in zip(allowed, clamps, strict=True):
        if clamp is not None:
            row[: len(clamp)] = clamp
    return allowed
