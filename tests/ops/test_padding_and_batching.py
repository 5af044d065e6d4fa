"""Padding carries no information and a batch is a set: for the reference and the torch path."""

from __future__ import annotations

import hypothesis
import invariances
import pytest
import torch
from chain_problems import random_problem
from hypothesis import strategies as st

BACKENDS = ("reference", "torch")
OPERATIONS = (invariances.chain_results, invariances.mean_field_results, invariances.viterbi_results)


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@hypothesis.settings(max_examples=8)
@hypothesis.given(
    seed=st.integers(0, 10**6),
    is_local=st.booleans(),
    is_folded=st.booleans(),
    scale=st.sampled_from([1.0, 1e3]),
    holes=st.sampled_from([0.0, 0.2]),
)
def test_what_stands_in_the_padding_changes_no_bit(operation, backend, dtype, seed, is_local, is_folded, scale, holes):
    problem = random_problem(
        seed,
        4,
        5,
        3,
        is_local=is_local,
        lengths=[5, 1, 3, 2],
        scale=scale,
        holes=holes,
        has_start=is_folded,
        has_end=is_folded,
        clamps=0.4 * is_folded,
    )
    invariances.check_garbage(operation, problem.to(dtype), backend)


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("backend", BACKENDS)
@hypothesis.settings(max_examples=8)
@hypothesis.given(
    seed=st.integers(0, 10**6), is_local=st.booleans(), is_folded=st.booleans(), holes=st.sampled_from([0.0, 0.1])
)
def test_company_order_and_padded_length_change_nothing(operation, backend, seed, is_local, is_folded, holes):
    problem = random_problem(
        seed,
        4,
        6,
        4,
        is_local=is_local,
        holes=holes,
        has_start=is_folded,
        has_end=is_folded,
        clamps=0.4 * is_folded,
    ).to(torch.float32)
    invariances.check_batching(operation, problem, backend, tolerance=1e-5)


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_results_repeat_bit_for_bit(operation, backend):
    problem = random_problem(2, 6, 9, 5).to(torch.float32)
    first, second = (invariances.values_and_gradients(operation, problem, backend) for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)
