"""The gradient of a step does not depend on how its work is cut up, and memory that runs out changes nothing else."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import small_runs
import torch
from torch import Tensor, nn

from diffusion_mf.batches import layouts
from diffusion_mf.batches.batching import Batch
from diffusion_mf.config import TrainingConfig
from diffusion_mf.errors import DiffusionMFError
from diffusion_mf.model import Labeller
from diffusion_mf.prediction.precision import HalfWeights, autocast_for
from diffusion_mf.prediction.recording import FlatBatch
from diffusion_mf.training.corpora import TrainingData, read_training_data
from diffusion_mf.training.gradients import PieceResult, StepGradients, dropout_seed
from diffusion_mf.training.optimizer import Learner
from diffusion_mf.training.processes import Processes
from diffusion_mf.training.resumption import TrainingState
from diffusion_mf.training.steps import PackingSettings, StepPreparer, plan_epoch

ALONE = Processes(0, 1, torch.device("cpu"))


@pytest.fixture(scope="module")
def data(corpus: Path) -> TrainingData:
    return read_training_data(small_runs.small_config(corpus))


@pytest.fixture
def labeller(corpus: Path, data: TrainingData) -> Labeller:
    torch.manual_seed(5)
    return Labeller(small_runs.small_config(corpus, small_runs.NO_DROPOUT), data.vocabulary, data.scheme)


def _step_gradients(model: nn.Module, data: TrainingData, *, seed: int = 1) -> StepGradients:
    learner = Learner(model, TrainingConfig(), total_steps=10)
    preparer = StepPreparer(data.train, data.vocabulary, ALONE)
    return StepGradients(
        model,  # type: ignore[arg-type]
        learner.optimizer,
        preparer,
        ALONE,
        seed=seed,
        autocast=contextlib.nullcontext,
    )


def _gradient(model: nn.Module, data: TrainingData, plan: list[list[int]], *, step: int = 4) -> dict[str, Tensor]:
    gradients = _step_gradients(model, data)
    prepared = StepPreparer(data.train, data.vocabulary, ALONE).prepare(plan, 1)
    gradients.compute(prepared, step=step, units=_units(data, plan))
    return _taken(model)


def _taken(model: nn.Module) -> dict[str, Tensor]:
    found = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    return found


def _units(data: TrainingData, plan: Sequence[Sequence[int]]) -> int:
    return sum(len(data.train[index].units) for batch in plan for index in batch)


def _assert_close(first: dict[str, Tensor], second: dict[str, Tensor]) -> None:
    assert set(first) == set(second)
    assert any(value.abs().max() > 1e-3 for value in first.values()), "a gradient of nothing proves nothing"
    for name, value in first.items():
        torch.testing.assert_close(value, second[name], rtol=1e-4, atol=1e-6, msg=name)


def test_accumulation_equals_one_large_batch(labeller: Labeller, data: TrainingData) -> None:
    whole = _gradient(labeller, data, [[0, 1, 2, 3, 4, 5]])
    _assert_close(whole, _gradient(labeller, data, [[0, 1, 2], [3], [4, 5]]))


def test_the_gradient_is_that_of_the_total_over_all_units(labeller: Labeller, data: TrainingData) -> None:
    """Batches of unequal size: the mean of their means would weigh units unequally."""
    plan = [[0], [1, 2, 3, 4]]
    preparer = StepPreparer(data.train, data.vocabulary, ALONE)
    totals = [
        labeller.loss_sums(piece.batch, seed=1, step=4, sentence_keys=piece.keys)["total"]
        for piece in preparer.prepare(plan, 1).pieces
    ]
    (sum(totals) / _units(data, plan)).backward()  # type: ignore[union-attr]
    by_hand = _taken(labeller)
    _assert_close(by_hand, _gradient(labeller, data, plan))


@pytest.mark.parametrize("is_flat", [False, True])
@pytest.mark.parametrize("num_pieces", [1, 3])
def test_packed_batches_give_the_same_gradient(
    labeller: Labeller, data: TrainingData, is_flat: bool, num_pieces: int
) -> None:
    """Also by way of one vector of integers, in which step and units of the moment are written."""
    plan = [[0, 1, 2], [3, 4, 5]]
    expected = _gradient(labeller, data, plan)
    gradients = _step_gradients(labeller, data)
    packing = PackingSettings(64, 32, is_flat=is_flat)
    prepared = StepPreparer(data.train, data.vocabulary, ALONE, packing=packing).prepare(plan, num_pieces)
    assert all((piece.flat is not None) == is_flat for piece in prepared.pieces)
    gradients.compute(prepared, step=4, units=_units(data, plan), num_pieces=num_pieces)
    _assert_close(_taken(labeller), expected)


def test_pieces_add_up_where_results_lie_in_memory_that_is_used_again(labeller: Labeller, data: TrainingData) -> None:
    """As those of replayed work do: what the first piece found must not be taken as it lies."""
    plan = [[0, 1, 2], [3, 4, 5]]
    expected = _gradient(labeller, data, plan)
    gradients = _step_gradients(labeller, data)
    memory: dict[str, PieceResult] = {}

    def replay(flat: FlatBatch, work: Callable[..., PieceResult], kind: object) -> PieceResult:
        result = work(flat.signature, flat.numbers)
        kept = memory.setdefault("result", result)
        for old, new in zip((kept.sums, *kept.gradients), (result.sums, *result.gradients), strict=True):
            if old is not None and new is not None:
                old.copy_(new)
        return kept

    gradients._recorder = replay  # type: ignore[assignment]
    packing = PackingSettings(64, 32, is_flat=True)
    prepared = StepPreparer(data.train, data.vocabulary, ALONE, packing=packing).prepare(plan, 1)
    sums, _ = gradients.compute(prepared, step=4, units=_units(data, plan))
    _assert_close(_taken(labeller), expected)
    assert sums["total"] > 0


def test_recordings_share_the_memory_of_their_gradients(corpus: Path, data: TrainingData) -> None:
    """Batches of two shapes, in half precision: the gradients are those of steps computed directly, always in the same place."""
    labeller = Labeller(small_runs.small_config(corpus, small_runs.NO_DROPOUT), data.vocabulary, data.scheme)
    gradients, directly = _step_gradients(labeller, data), _step_gradients(labeller, data)
    for each in (gradients, directly):
        each._half_weights = HalfWeights(labeller, dict(labeller.named_parameters()))
        each._autocast = autocast_for(torch.device("cpu"), "bfloat16")
    preparers = [
        StepPreparer(data.train, data.vocabulary, ALONE, packing=PackingSettings(64, 32, is_flat=is_flat))
        for is_flat in (True, False)
    ]
    places, signatures = [], set()
    for plan in ([[0]], [[1, 2, 3, 4, 5]], [[0]]):
        flat, usual = (preparer.prepare(plan, 1) for preparer in preparers)
        signatures.update(piece.flat.signature for piece in flat.pieces if piece.flat is not None)
        directly.compute(usual, step=4, units=10)
        expected = _taken(labeller)
        gradients.compute(flat, step=4, units=10)
        places.append([None if p.grad is None else p.grad.data_ptr() for p in labeller.parameters()])
        assert all(p.grad is None or p.grad.dtype == torch.float32 for p in labeller.parameters())
        _assert_close(_taken(labeller), expected)
    assert len(signatures) == 2
    assert places[0] == places[1] == places[2]


def test_weights_learn_from_steps_on_the_models_own_trajectory(corpus: Path, data: TrainingData) -> None:
    """In bfloat16, where calls without gradients come first: what they cast must not be kept for those with."""
    own = {"diffusion": {"own_trajectory_share": 1.0, "own_trajectory_calls": 3}}
    labeller = Labeller(small_runs.small_config(corpus, small_runs.NO_DROPOUT, own), data.vocabulary, data.scheme)
    step = next(step for step in range(20) if labeller.choice(seed=1, step=step)[0] == 3)
    gradients = _step_gradients(labeller, data)
    gradients._autocast = autocast_for(torch.device("cpu"), "bfloat16")
    prepared = StepPreparer(data.train, data.vocabulary, ALONE).prepare([[0, 1, 2]], 1)
    gradients.compute(prepared, step=step, units=10)
    weight = labeller.get_parameter("core.scorer.unary.0.weight")
    assert weight.grad is not None
    assert weight.grad.abs().max() > 0


@pytest.mark.parametrize("system", ["diffusion-mf", "lcrf", "diffusionsl"])
def test_weights_cast_at_once_give_the_gradient_of_weights_cast_where_used(
    corpus: Path, data: TrainingData, system: str
) -> None:
    torch.manual_seed(5)
    config = small_runs.small_config(corpus, small_runs.NO_DROPOUT, {"system": system})
    labeller = Labeller(config, data.vocabulary, data.scheme)
    prepared = StepPreparer(data.train, data.vocabulary, ALONE).prepare([[0, 1, 2], [3]], 1)
    found = []
    for use_halves in (False, True):
        gradients = _step_gradients(labeller, data)
        gradients._autocast = autocast_for(torch.device("cpu"), "bfloat16")
        if use_halves:
            gradients._half_weights = HalfWeights(labeller, dict(labeller.named_parameters()))
        gradients.compute(prepared, step=4, units=40)
        found.append(_taken(labeller))
    assert all(gradient.dtype == torch.float32 for gradient in found[1].values())
    _assert_close(*found)


def test_dropout_is_the_same_whenever_a_step_is_computed(corpus: Path, data: TrainingData) -> None:
    torch.manual_seed(5)
    labeller = Labeller(small_runs.small_config(corpus), data.vocabulary, data.scheme).train()
    first = _gradient(labeller, data, [[0, 1, 2]])
    torch.rand(17)
    again = _gradient(labeller, data, [[0, 1, 2]])
    other = _gradient(labeller, data, [[0, 1, 2]], step=5)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert any(not torch.equal(first[name], other[name]) for name in first)


def test_dropout_seeds_differ() -> None:
    seeds = {dropout_seed(seed, step, rank) for seed in range(5) for step in range(50) for rank in range(4)}
    assert len(seeds) == 5 * 50 * 4
    assert all(0 <= seed < 2**63 for seed in seeds)


class _Forgetful(nn.Module):
    """A stand-in whose memory holds so many sentences; with ``in_backward`` it runs out half-way through backward."""

    def __init__(self, limit: int, *, error: Exception, in_backward: bool = False) -> None:
        super().__init__()
        self.first, self.second = nn.Parameter(torch.tensor([0.5])), nn.Parameter(torch.tensor([2.0]))
        self.limit, self.error, self.in_backward = limit, error, in_backward
        self.sizes: list[int] = []

    def choice(self, *, seed: int, step: int) -> None:
        return None

    def loss_sums(
        self, batch: Batch, *, seed: int, step: int, sentence_keys: Tensor, device_step: Tensor | None = None
    ) -> dict[str, Tensor]:
        self.sizes.append(len(batch.lengths))
        is_too_large = len(batch.lengths) > self.limit
        if is_too_large and not self.in_backward:
            raise self.error
        hidden = self.first * batch.lengths.float() * (1 + sentence_keys)
        if is_too_large:
            hidden.register_hook(self._fail)
        return {"total": (hidden * self.second).sum()}

    def _fail(self, gradient: Tensor) -> None:
        raise self.error


_GPU_ERROR = torch.cuda.OutOfMemoryError("CUDA out of memory.")
_CPU_ERROR = RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory: 4096 bytes")


@pytest.mark.parametrize("in_backward", [False, True])
@pytest.mark.parametrize("error", [_GPU_ERROR, _CPU_ERROR, MemoryError()])
def test_less_memory_gives_the_same_gradient(data: TrainingData, error: Exception, in_backward: bool) -> None:
    plan = [[0, 1, 2, 3, 4, 5, 6], [7, 8, 9]]
    expected = _gradient(_Forgetful(100, error=error), data, plan)
    model = _Forgetful(2, error=error, in_backward=in_backward)
    gradients = _step_gradients(model, data)
    preparer = StepPreparer(data.train, data.vocabulary, ALONE)
    sums, num_pieces = gradients.compute(preparer.prepare(plan, 1), step=0, units=_units(data, plan))
    assert num_pieces == 4
    assert model.sizes == [7, 4, 2, 2, 2, 1, 1, 1, 1], "two failures, then all in pieces"
    # Nothing of the failed attempts is left, neither in the gradient nor in the losses.
    _assert_close(_taken(model), expected)
    weights = [len(data.train[index].units) * (1 + index) for batch in plan for index in batch]
    assert sums["total"].item() == pytest.approx(sum(weights))
    # The next step, prepared before memory ran out, is cut up again and not tried in vain.
    model.sizes.clear()
    gradients.compute(preparer.prepare(plan, 1), step=1, units=_units(data, plan), num_pieces=num_pieces)
    assert max(model.sizes) == 2


def test_a_sentence_that_does_not_fit_is_told(data: TrainingData) -> None:
    gradients = _step_gradients(_Forgetful(0, error=_GPU_ERROR), data)
    prepared = StepPreparer(data.train, data.vocabulary, ALONE).prepare([[0, 1, 2]], 1)
    with pytest.raises(
        DiffusionMFError, match=r"a sentence of \d+ units does not fit in memory; choose a smaller encoder"
    ):
        gradients.compute(prepared, step=0, units=10)


def test_other_errors_are_not_taken_for_memory(data: TrainingData) -> None:
    gradients = _step_gradients(_Forgetful(0, error=RuntimeError("shapes do not match")), data)
    prepared = StepPreparer(data.train, data.vocabulary, ALONE).prepare([[0, 1, 2]], 1)
    with pytest.raises(RuntimeError, match="shapes do not match"):
        gradients.compute(prepared, step=0, units=10)
    assert gradients._model.sizes == [3], "there is no second attempt"  # type: ignore[comparison-overlap]


def test_processes_share_every_batch() -> None:
    batch = [5, 3, 8, 1, 9]
    shares = [Processes(rank, 3, torch.device("cpu")).share(batch) for rank in range(3)]
    assert shares == [[5, 1], [3, 9], [8]]
    assert Processes(2, 3, torch.device("cpu")).share([4]) == []


def test_a_process_without_sentences_prepares_nothing(data: TrainingData) -> None:
    preparer = StepPreparer(data.train, data.vocabulary, Processes(1, 2, torch.device("cpu")))
    assert preparer.prepare([[4]], 2).pieces == []


def test_steps_are_prepared_in_order_with_all_their_sentences(data: TrainingData) -> None:
    settings = TrainingConfig(budget=80, accumulation=3, max_sentences=4)
    lengths = [len(sentence.units) for sentence in data.train]
    plans = plan_epoch(lengths, settings, seed=1, epoch=0)
    assert sorted(index for plan in plans for batch in plan for index in batch) == list(range(len(lengths)))
    assert {len(plan) for plan in plans[:-1]} == {3}
    assert all(len(batch) <= 4 for plan in plans for batch in plan)
    preparer = StepPreparer(data.train, data.vocabulary, ALONE)
    prepared = list(preparer.stream(plans, 1))
    assert [step.plan for step in prepared] == plans
    assert [[piece.keys.tolist() for piece in step.pieces] for step in prepared] == plans


def test_batches_with_sentences_that_need_windows_are_not_packed(
    data: TrainingData, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans = [[[0, 1]], [[2, 3]]]
    longest = [max(len(data.train[index].units) for index in plan[0]) for plan in plans]
    assert longest[0] != longest[1]
    monkeypatch.setattr(layouts, "LONGEST_WHOLE", min(longest))
    preparer = StepPreparer(data.train, data.vocabulary, ALONE, packing=PackingSettings(100, 32, is_flat=True))
    pieces = [preparer.prepare(plan, 1).pieces[0] for plan in plans]
    for piece, length, (members,) in zip(pieces, longest, plans, strict=True):
        is_packed = length == min(longest)
        assert (piece.batch.packing is not None) == (piece.flat is not None) == is_packed
        assert is_packed or piece.keys.tolist() == members


def test_steps_after_a_lack_of_memory_are_cut_up_once(data: TrainingData, monkeypatch: pytest.MonkeyPatch) -> None:
    cut: list[int] = []
    preparer = StepPreparer(data.train, data.vocabulary, ALONE)
    monkeypatch.setattr(preparer, "prepare", lambda plan, num_pieces: cut.append(num_pieces))
    state = TrainingState()
    for number, _ in enumerate(preparer.stream([[[index]] for index in range(6)], lambda: state.num_pieces)):
        if number == 1:
            state.num_pieces = 2
    # The third had begun before.
    assert cut == [1, 1, 1, 2, 2, 2]
