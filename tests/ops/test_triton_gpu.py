"""All Triton cases on a GPU, kernels compiled, and the sizes that are too large for the interpreter."""

from __future__ import annotations

import chain_problems
import invariances
import pytest
import torch
from chain_problems import random_problem

# Collected here as this module's own tests.
from triton_attention_cases import *  # noqa: F403
from triton_checks import check_chain, check_mean_field, check_viterbi
from triton_forward_backward_cases import *  # noqa: F403
from triton_mean_field_cases import *  # noqa: F403
from triton_viterbi_cases import *  # noqa: F403

from diffusion_mf.ops.device_limits import card_of, max_global_labels
from diffusion_mf.ops.forward_backward import forward_backward
from diffusion_mf.ops.viterbi import viterbi

pytestmark = pytest.mark.gpu

KINDS = pytest.mark.parametrize("is_local", [False, True], ids=["global", "local"])
# Batch, units, labels; local transitions in float64 for the reference set the limit. One for each padded number of labels: compiling
# takes longer than everything else.
SIZES = pytest.mark.parametrize("shape", [(256, 64, 17), (2, 40, 64), (16, 64, 104), (2, 33, 256)], ids=str)
# Many terms add up, and none of them exactly.
LOOSE = {"tolerance": 5e-5, "gradient_tolerance": 5e-4}


@SIZES
@KINDS
def test_large_chains(device, shape, is_local):
    """Without constraints and with them, in one test: processes beside each other would compile the same kernels."""
    check_chain(random_problem(1, *shape, is_local=is_local), device, torch.float32, **LOOSE)
    constraints = {"holes": 0.3, "has_start": True, "has_end": True, "scale": 3}
    check_chain(random_problem(2, *shape, is_local=is_local, **constraints), device, torch.float32, **LOOSE)


@SIZES
@KINDS
def test_large_mean_field(device, shape, is_local):
    problem = random_problem(3, *shape, is_local=is_local, scale=0.5)
    has_kernels = is_local or shape[-1] <= max_global_labels(card_of(torch.device(device)))
    backend = "triton" if has_kernels else "auto"
    check_mean_field(problem, device, torch.float32, num_iterations=5, backend=backend, **LOOSE)


@pytest.mark.parametrize(
    "shape", [(256, 64, 17), (2, 40, 64), (2, 40, 65), (16, 64, 104), (2, 40, 128), (3, 40, 129), (2, 33, 256)], ids=str
)
@KINDS
def test_large_viterbi(device, shape, is_local):
    problem = random_problem(4, *shape, is_local=is_local, whole_numbers=True, holes=0.1, scale=3)
    check_viterbi(problem, device, torch.float32)


def test_a_whole_batch_of_104_labels(device):
    """In the type that networks give; `test_large_chains` has what pairs need, and float32."""
    problem = random_problem(5, 128, 64, 104)
    loose = {"tolerance": 5e-5, "gradient_tolerance": 1e-2}
    both = [("log_partition", "marginals")]
    check_chain(problem, device, torch.bfloat16, combinations=both, **loose)
    check_mean_field(problem.map(lambda scores: 0.5 * scores), device, torch.bfloat16, num_iterations=5, **loose)


@KINDS
def test_chains_of_4096_units(device, is_local):
    problem = random_problem(6, 3, 4096, 17, is_local=is_local, lengths=[4096, 4095, 1000], scale=2)
    check_chain(problem, device, torch.float32, tolerance=1e-4, gradient_tolerance=1e-3)


@KINDS
def test_viterbi_of_4096_units(device, is_local):
    problem = random_problem(7, 3, 4096, 17, is_local=is_local, lengths=[4096, 4095, 1000], whole_numbers=True)
    check_viterbi(problem, device, torch.float32)


@KINDS
def test_mean_field_of_4096_units(device, is_local):
    problem = random_problem(8, 3, 4096, 17, is_local=is_local, lengths=[4096, 4095, 1000], scale=0.5)
    check_mean_field(problem, device, torch.float32, num_iterations=5, **LOOSE)


@KINDS
@pytest.mark.parametrize(
    "operation", [invariances.chain_results, invariances.mean_field_results, invariances.viterbi_results]
)
@pytest.mark.parametrize("shape", [(64, 64, 17), (8, 64, 104)], ids=str)
def test_results_repeat_bit_for_bit(device, operation, shape, is_local):
    problem = random_problem(9, *shape, is_local=is_local).to(torch.float32).to(device)
    first = invariances.values_and_gradients(operation, problem, "triton")
    for _ in range(5):
        again = invariances.values_and_gradients(operation, problem, "triton")
        assert all(torch.equal(first[name], again[name]) for name in first)


def test_auto_is_triton(device):
    problem = random_problem(10, 4, 9, 17).to(torch.float32).to(device)
    for operation in (forward_backward, viterbi):
        found, expected = (operation(*problem.folded, backend=backend) for backend in ("auto", "triton"))
        # The first two results: what messages hold past a length is nobody's business.
        assert all(torch.equal(one, other) for one, other in zip(found[:2], expected[:2], strict=True))


@pytest.mark.parametrize("backend", ["torch", "auto"])
def test_plain_paths_run_on_a_gpu(device, backend):
    """More labels than Triton takes: the plain path does the work on the device."""
    problem = random_problem(11, 2, 5, 300).to(device)
    expected = chain_problems.computed(problem, "reference")
    chain_problems.assert_close(chain_problems.computed(problem, backend), expected, tolerance=1e-9)
    assert torch.equal(viterbi(*problem.folded, backend=backend).labels, viterbi(*problem.folded).labels)
