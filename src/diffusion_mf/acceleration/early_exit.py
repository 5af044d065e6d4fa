"""Early exit for packed batches: sentences whose marginals no longer change leave the batch, which is packed anew without them.

From the second call on, the host learns after every call how much the marginals ρ₀ of each sentence have changed. Those that
changed by less than the tolerance keep theirs; the others go on in the smallest form that holds them, a part of the
batch's. When all have settled, or the schedule ends, the updates that a sentence missed are made in closed form, for all
sentences at once. Every sentence fares as in `diffusion.reverse_diffusion` with the same ``exit_tolerance``.

The three kinds of work (first calls, a call, the end) are recorded per form (`acceleration.recording`) and hand over to each
other in a `Store`, at addresses that do not change. Timesteps are numbers on the device: one recording serves all calls.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Generator
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from diffusion_mf.acceleration.flat_batch import FlatBatch, Form, flatten, unflatten
from diffusion_mf.acceleration.half_weights import HalfWeights
from diffusion_mf.acceleration.host_copies import Pending, to_host
from diffusion_mf.acceleration.precision import autocast_for, uses_bfloat16
from diffusion_mf.acceleration.recording import Recorder
from diffusion_mf.acceleration.unit_store import Store, Units
from diffusion_mf.config_sections import InferenceConfig
from diffusion_mf.data.batching import Batch
from diffusion_mf.data.packing import packed_layout, rows_for, stepped_tokens
from diffusion_mf.denoisers import Conditions
from diffusion_mf.diffusion import ReverseResult
from diffusion_mf.layouts import PackedLayout
from diffusion_mf.model import Labeller, Prediction
from diffusion_mf.model.categorical import CategoricalCore, prediction_of
from diffusion_mf.ops.chain_scores import unit_mask
from diffusion_mf.structures import Potentials

FIRST_CALLS = 2
"""made for every sentence: a change takes two"""
PARTS = (1 / 8, 1 / 4, 1 / 2, 3 / 4)
"""of a batch's units: the sizes that what is left of it is packed into"""

Schedule = tuple[int, ...]
Result = TypeVar("Result")


class _Carrier(nn.Module):
    """Calls anything inside `torch.func.functional_call`."""

    def __init__(self, labeller: Labeller) -> None:
        super().__init__()
        self.labeller = labeller

    def forward(self, work: Callable[[], Result]) -> Result:
        return work()


class ExitLoop:
    """The reverse process of one packed batch at a time, given categorical diffusion."""

    def __init__(self, labeller: Labeller, device: torch.device, settings: InferenceConfig) -> None:
        assert isinstance(labeller.core, CategoricalCore)
        assert settings.exit_tolerance is not None
        precision = settings.precision
        self._labeller, self._core = labeller, labeller.core
        self._device = device
        self._tolerance = settings.exit_tolerance
        self._reading = settings.posterior
        self._autocast = autocast_for(device, precision, is_training=False)
        self._reports_first = settings.scores_from == "first"
        self._carrier = _Carrier(labeller)
        # Autocast forgets its casts between pieces of work, and would cast all weights anew for every call.
        self._half_weights: HalfWeights | None = None
        if uses_bfloat16(device, precision):
            self._half_weights = HalfWeights(self._carrier, dict(self._carrier.named_parameters()))
        self._begin = Recorder(self._recorded_beginning, device)
        self._call = Recorder(self._recorded_call, device)
        self._end = Recorder(self._recorded_end, device)
        self._stores: dict[int, Store] = {}
        self._schedule: Schedule = ()
        self._num_tokens = 0
        self.num_sentences = 0
        self.num_sentence_calls = 0
        """denoiser calls, summed over sentences"""

    @property
    def num_recordings(self) -> int:
        """How many pieces of work can be replayed by now."""
        return sum(recorder.num_recordings for recorder in (self._begin, self._call, self._end))

    def run(self, batch: Batch, schedule: Schedule) -> Generator[Pending, None, Prediction]:
        """The prediction for a packed batch of the host; yields what it is about to wait for.

        It lies in memory that the next batch overwrites.
        """
        assert batch.packing is not None
        num_calls = len(schedule) - 1
        lengths, starts = batch.lengths.numpy(), batch.packing.boundaries.numpy()
        self._schedule, self._num_tokens = schedule, len(batch.packing.places)
        change = self._begin(flatten(batch), schedule)
        calls = min(FIRST_CALLS, num_calls)
        active = np.flatnonzero(lengths)
        done = np.full(len(lengths), num_calls)
        done[active] = calls
        rows, following = active, None
        while calls < num_calls:
            pending = to_host([change])
            yield pending
            # Written so that NaN is a change.
            is_moving = ~(pending.wait()[0].numpy()[rows] < self._tolerance)
            if not is_moving.any():
                break
            steps = schedule[calls : calls + 2]
            if following is None or not is_moving.all():
                active = active[is_moving]
                rows = np.arange(len(active))
                following = self._packed_anew(lengths[active], starts[active], batch.packing.longest, steps)
            else:
                # The device is done with the numbers: it has answered.
                following.numbers[-2:] = torch.tensor(steps)
            change = self._call(following, self._num_tokens)
            calls += 1
            done[active] = calls
        self.num_sentences += int((lengths > 0).sum())
        self.num_sentence_calls += int(done[lengths > 0].sum())
        prediction = self._end(flatten(_without_words(batch.lengths, batch.packing), done), schedule)
        return dataclasses.replace(prediction, num_calls=calls)

    def _packed_anew(
        self, lengths: np.ndarray, starts: np.ndarray, num_units: int, steps: tuple[int, ...]
    ) -> FlatBatch:
        """Sentences that begin at ``starts`` in the batch as a smaller one, the places of their units there, and t and s."""
        size = int(lengths.sum())
        sizes = (stepped_tokens(int(part * self._num_tokens)) for part in PARTS)
        num_tokens = min((tokens for tokens in sizes if tokens >= size), default=self._num_tokens)
        num_rows = rows_for(len(lengths), num_filling=num_tokens - size, num_units=num_units)
        filled = torch.zeros(num_rows, dtype=torch.int64)
        filled[: len(lengths)] = torch.from_numpy(lengths)
        layout = packed_layout(filled, num_units=num_units, num_tokens=num_tokens)
        # Sentences come first, filling after them; it has the row that nobody reads.
        places = np.full(num_tokens, self._num_tokens)
        places[:size] = np.repeat(starts, lengths) + layout.positions.numpy()[:size]
        return flatten(_without_words(filled, layout), np.concatenate([places, steps]))

    def _recorded_beginning(self, form: Form, numbers: Tensor) -> Tensor:
        batch, _ = unflatten(form, numbers)
        if self._half_weights is not None:
            self._half_weights.refresh()
        return self._computed(lambda: self._first_calls(batch))

    def _first_calls(self, batch: Batch) -> Tensor:
        """Encoder and the first calls; returns how much the marginals of each sentence changed in the last of them."""
        layout = _packing(batch)
        conditions = self._core.denoiser.prepare(self._labeller.encoder(batch, layout))
        beliefs = self._core.process.uniform((len(layout.places),), device=batch.lengths.device)
        units: Units | None = None
        change = beliefs.new_full(batch.lengths.shape, torch.inf)
        for t, s in itertools.islice(itertools.pairwise(self._schedule), FIRST_CALLS):
            steps = [torch.full((1,), step, device=beliefs.device) for step in (t, s)]
            before, units = units, self._denoised(beliefs, batch.lengths, layout, conditions, steps[0], steps[1])
            beliefs = units.beliefs
            if self._reports_first:
                units = units._replace(first_marginals=units.marginals if before is None else before.first_marginals)
            if before is not None:
                change = _largest_change(before.marginals, units.marginals, batch.lengths, layout)
        assert units is not None
        if self._num_tokens not in self._stores:
            self._stores[self._num_tokens] = Store.of_size(conditions, units)
        self._stores[self._num_tokens].begin(conditions, units)
        return change

    def _recorded_call(self, form: Form, numbers: Tensor) -> Tensor:
        batch, extras = unflatten(form, numbers)
        places, t, s = extras[:-2], extras[-2:-1], extras[-1:]
        store, layout = self._stores[self._num_tokens], _packing(batch)

        def call() -> Tensor:
            beliefs, before = (tensor.index_select(0, places) for tensor in store.units[:2])
            units = self._denoised(beliefs, batch.lengths, layout, store.conditions_of(places), t, s)
            store.update(places, units)
            return _largest_change(before, units.marginals, batch.lengths, layout)

        return self._computed(call)

    def _denoised(
        self, beliefs: Tensor, lengths: Tensor, layout: PackedLayout, conditions: Conditions, t: Tensor, s: Tensor
    ) -> Units:
        """One call, and the update from t to s."""
        potentials = self._core.potentials(layout.unpack(beliefs), t, conditions, layout)
        marginals = layout.pack(self._core.distribution(potentials, lengths).marginals())
        transitions = potentials.transition_scores
        is_local = transitions is not None and transitions.ndim == 4
        return Units(
            beliefs=self._core.process.posterior(beliefs, marginals, t, s, reading=self._reading),
            marginals=marginals,
            unary_scores=layout.pack(potentials.unary_scores),
            transition_scores=transitions.flatten(0, 1).index_select(0, layout.pair_places)
            if transitions is not None and is_local
            else None,
        )

    def _recorded_end(self, form: Form, numbers: Tensor) -> Prediction:
        """The updates that sentences missed, given how many they had, and what decoders need."""
        batch, num_updates = unflatten(form, numbers)
        layout = _packing(batch)
        units = Units(*(None if own is None else own[:-1] for own in self._stores[self._num_tokens].units))  # type: ignore[arg-type]
        beliefs = units.beliefs
        updates_of_units = num_updates[layout.sentences][:, None]
        for index, (t, s) in enumerate(itertools.pairwise(self._schedule)):
            if index >= FIRST_CALLS:
                updated = self._core.process.posterior(beliefs, units.marginals, t, s, reading=self._reading)
                beliefs = torch.where(updates_of_units <= index, updated, beliefs)
        transitions: Tensor | None = self._core.scorer.global_transitions
        if units.transition_scores is not None:
            transitions = layout.unpack_pairs(units.transition_scores)
        result = ReverseResult(
            beliefs=layout.unpack(beliefs),
            marginals=layout.unpack(units.marginals),
            potentials=Potentials(layout.unpack(units.unary_scores), transitions),
            num_calls=len(self._schedule) - 1,
            first_marginals=None if units.first_marginals is None else layout.unpack(units.first_marginals),
        )
        is_unit = unit_mask(batch.lengths, layout.units.shape[1])
        return prediction_of(
            result, lengths=batch.lengths.clamp(min=1), is_unit=is_unit, legality=self._labeller.legality
        )

    def _computed(self, work: Callable[[], Tensor]) -> Tensor:
        with torch.no_grad(), self._autocast():
            if self._half_weights is None:
                return work()
            found = torch.func.functional_call(self._carrier, self._half_weights.copies, (work,))
            assert isinstance(found, Tensor)
            return found


def _packing(batch: Batch) -> PackedLayout:
    assert batch.packing is not None
    return batch.packing


def _without_words(lengths: Tensor, layout: PackedLayout) -> Batch:
    """A batch whose words the encoder has read already."""
    none = torch.empty((0, 0), dtype=torch.int64)
    return Batch(
        form_ids=none,
        word_rows=none,
        character_ids=none,
        character_lengths=none[0:0].flatten(),
        lengths=lengths,
        label_ids=None,
        packing=layout,
    )


def _largest_change(before: Tensor, after: Tensor, lengths: Tensor, layout: PackedLayout) -> Tensor:
    """The largest change of a probability in each sentence, (B,); 0 in rows without units."""
    change = layout.unpack((after - before).abs().amax(-1))
    return torch.where(unit_mask(lengths, change.shape[1]), change, 0.0).amax(-1)
