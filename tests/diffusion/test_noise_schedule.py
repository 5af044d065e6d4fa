import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from diffusion_mf.diffusion import CategoricalDiffusion
from diffusion_mf.diffusion.schedule import (
    SignalTable,
    check_schedule,
    cosine_signal,
    evenly_spaced_schedule,
    linear_signal,
    schedule_by_base,
    schedule_by_calls,
)
from diffusion_mf.errors import InputError
from oracles import gaussian_bits, noise_matrices

HALVING = [1000, 500, 250, 125, 62, 31, 15, 7, 3, 1, 0]


@pytest.mark.parametrize("power", [1, 2])
@pytest.mark.parametrize("num_steps", [1, 2, 7, 1000])
def test_cosine_signal_is_the_product_of_one_minus_beta(num_steps: int, power: int) -> None:
    signal = cosine_signal(num_steps, power=power)
    product = 1.0
    for t, beta in enumerate(noise_matrices.cosine_betas(num_steps, power)):
        product *= 1 - beta
        assert signal[t].item() == pytest.approx(product, rel=1e-9, abs=1e-15)
    assert signal.dtype == torch.float64
    assert signal[0] == 1
    assert signal[-1] == 0
    assert (signal.diff() < 0).all()


def test_cosine_signal_by_hand() -> None:
    # T = 2, s = 1/2, t = 1: the angle is (1/2 + 1/2)/(3/2)·π/2 = π/3, and at t = 0 it is π/6.
    assert cosine_signal(2, offset=0.5)[1].item() == pytest.approx(0.5 / (math.sqrt(3) / 2))
    assert cosine_signal(2, offset=0.5, power=2)[1].item() == pytest.approx(1 / 3)


@pytest.mark.parametrize("num_steps", [1, 2, 1000])
def test_linear_signal_follows_single_steps(num_steps: int) -> None:
    signal = linear_signal(num_steps)
    moments = gaussian_bits.marginal_moments(gaussian_bits.linear_betas(num_steps, 1e-4, 0.02))
    assert len(signal) == num_steps + 1
    for t, (coefficient, variance) in enumerate(moments):
        assert math.sqrt(signal[t]) == pytest.approx(coefficient, rel=1e-10)
        assert 1 - signal[t].item() == pytest.approx(variance, rel=1e-9, abs=1e-15)
    if num_steps == 1000:
        assert signal[-1] < 1e-4


def test_halving_and_calls_as_designed() -> None:
    process = CategoricalDiffusion(17)
    assert process.schedule() == process.schedule(base=2) == process.schedule(num_calls=10) == HALVING
    assert process.schedule(num_calls=5) == process.schedule(base=4) == [1000, 250, 62, 15, 3, 0]
    assert process.schedule(num_calls=20) == [
        *(1000, 707, 500, 353, 250, 176, 125, 88, 62, 44, 31, 22, 15, 11, 7, 5, 4, 3, 2, 1),
        0,
    ]
    assert process.schedule(base=3) == [1000, 333, 111, 37, 12, 4, 1, 0]
    assert process.schedule(base=1.5) == [1000, 666, 444, 296, 197, 131, 87, 58, 38, 25, 16, 10, 6, 4, 2, 1, 0]
    assert process.schedule(num_calls=1) == [1000, 0]


@given(num_steps=st.integers(1, 20000), share=st.floats(0, 1))
def test_schedules_by_calls_make_exactly_that_many_distinct_steps(num_steps: int, share: float) -> None:
    num_calls = max(1, round(num_steps * share))
    for schedule in (schedule_by_calls(num_steps, num_calls), evenly_spaced_schedule(num_steps, num_calls)):
        assert len(schedule) == num_calls + 1
        assert schedule[0] == num_steps
        assert schedule[-1] == 0
        check_schedule(schedule, num_steps)


def test_the_highest_call_counts_still_start_at_the_last_step() -> None:
    # Here the plain formula would ask for t_0 = T + 8.
    assert schedule_by_calls(10000, 10000) == list(range(10000, -1, -1))


@given(num_steps=st.integers(1, 20000), base=st.floats(1.01, 100))
def test_schedules_by_base_divide_and_floor(num_steps: int, base: float) -> None:
    schedule = schedule_by_base(num_steps, base)
    check_schedule(schedule, num_steps)
    assert schedule[0] == num_steps
    assert schedule[-1] == 0
    assert all(later == int(earlier / base) for earlier, later in itertools.pairwise(schedule))


def test_a_base_next_to_one_still_ends() -> None:
    assert schedule_by_base(5, math.nextafter(1.0, 2.0)) == [5, 4, 3, 2, 1, 0]


def test_ddim_steps_are_evenly_spaced() -> None:
    assert evenly_spaced_schedule(1000, 10) == [1000, 900, 800, 700, 600, 500, 400, 300, 200, 100, 0]
    assert evenly_spaced_schedule(10, 3) == [10, 6, 3, 0]


@pytest.mark.parametrize(
    "call",
    [
        lambda: schedule_by_base(1000, 1),
        lambda: schedule_by_base(1000, math.nan),
        lambda: schedule_by_calls(1000, 0),
        lambda: schedule_by_calls(10, 11),
        lambda: evenly_spaced_schedule(10, 11),
        lambda: cosine_signal(0),
        lambda: cosine_signal(10, power=0),
        lambda: cosine_signal(10, offset=-0.1),
        lambda: linear_signal(10, last_beta=1.0),
        lambda: CategoricalDiffusion(3).schedule(base=2, num_calls=10),
        lambda: CategoricalDiffusion(0),
    ],
)
def test_impossible_settings_are_input_errors(call) -> None:
    with pytest.raises(InputError):
        call()


@pytest.mark.parametrize("schedule", [[], [1000], [1000, 1000, 0], [0, 1000], [1001, 0], [10, -1]])
def test_impossible_schedules_are_refused(schedule: list[int]) -> None:
    with pytest.raises(ValueError, match="reverse schedule"):
        check_schedule(schedule, 1000)


def test_table_looks_up_integers_and_tensors_alike() -> None:
    table = SignalTable(cosine_signal(1000))
    steps = torch.tensor([[0, 1], [999, 1000]], dtype=torch.int32)
    looked_up = table.at(steps)
    assert isinstance(looked_up, torch.Tensor)
    assert looked_up.dtype == torch.float64
    assert looked_up.tolist() == [[table.at(int(t)) for t in row] for row in steps]
    for outside in (-1, 1001):
        with pytest.raises(ValueError, match="0…1000"):
            table.at(outside)
        with pytest.raises(RuntimeError):
            table.at(torch.tensor([outside]))
