"""Kernels compile for a Hopper GPU (and one of them for an earlier one), on any machine, and fit its shared memory: what the interpreter cannot tell."""

from __future__ import annotations

import pytest

triton = pytest.importorskip("triton")

import torch  # noqa: E402
import triton.language as tl  # noqa: E402
from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

from diffusion_mf.ops.attention import triton as triton_attention  # noqa: E402
from diffusion_mf.ops.device_limits import Card, global_shared_memory  # noqa: E402
from diffusion_mf.ops.forward_backward import triton_gradient, triton_messages, triton_tangents  # noqa: E402
from diffusion_mf.ops.forward_backward.triton import gradient_tiles  # noqa: E402
from diffusion_mf.ops.mean_field import triton_global, triton_local  # noqa: E402
from diffusion_mf.ops.triton_launch import triton_type  # noqa: E402
from diffusion_mf.ops.viterbi import triton as triton_viterbi  # noqa: E402

SHARED_MEMORY = 232_448  # bytes a program may have on an H100 or H200

CONSTANTS = {
    "DTYPE": tl.float32,
    "PRECISION": "tf32x3",
    "HAS_LOG_PARTITION": True,
    "HAS_MOVES": False,
    "HAS_DIRECTION": False,
    "HAS_PAIR_DIRECTION": False,
    "USE_PRODUCTS": True,
    "FLOOR": -1e4,
    "USE_HALVES": True,
    "IS_ONE_TILE": True,
    "SQUARES": 8,
    "HALF": 32,
    "half": 20,
    "IS_LOG": True,
    "KEEP_ALL": True,
    "KEEP_GRADS": True,
    "IS_COARSE": False,
    "num_heads": 16,
}
DERIVATIVES = {"HAS_MOVES": True, "HAS_DIRECTION": True}
PAIRS = {
    "HAS_MOVES": True,
    "HAS_PAIR_DIRECTION": True,
    "USE_PRODUCTS": False,
    "HAS_LOG_PARTITION": False,
    "COLUMNS": 256,
}

CASES = [
    (triton_messages.messages_kernel, 17, {"IS_LOCAL": False}, 1),
    (triton_messages.messages_kernel, 104, {"IS_LOCAL": False}, 8),
    pytest.param(triton_messages.messages_kernel, 200, {"IS_LOCAL": False}, 16, marks=pytest.mark.slow),
    (triton_messages.messages_kernel, 17, {"IS_LOCAL": True}, 4),
    pytest.param(
        triton_tangents.tangents_kernel,
        200,
        {"IS_LOCAL": False, "HAS_PAIR_DIRECTION": True},
        16,
        marks=pytest.mark.slow,
    ),
    (triton_gradient.gradient_kernel, 104, {"IS_LOCAL": False, "ROWS": 64, "COLUMNS": 64, **DERIVATIVES}, 8),
    pytest.param(
        triton_gradient.gradient_kernel, 200, {"IS_LOCAL": False, "ROWS": 16, **PAIRS}, 16, marks=pytest.mark.slow
    ),
    (triton_gradient.gradient_kernel, 17, {"IS_LOCAL": True, "USE_PRODUCTS": False, "ROWS": 8, "COLUMNS": 32}, 4),
    (triton_viterbi._viterbi_kernel, 104, {"IS_LOCAL": False}, 8),
    (triton_global.iterate_kernel, 104, {"ROWS": 64}, 8),
    (triton_global.gradient_kernel, 104, {"ROWS": 64}, 8),
    (triton_local.iterate_kernel, 17, {"ROWS": 64}, 8),
    (triton_local.gradient_kernel, 17, {"ROWS": 64}, 8),
    (triton_attention.forward_kernel, 0, {"UNITS": 16, "PRECISION": "tf32"}, 1),
    (triton_attention.backward_kernel, 0, {"UNITS": 128, "PRECISION": "tf32"}, 8),
]


def _type(name: str) -> str:
    types = {"lengths_pointer": "*i64", "labels_pointer": "*i64", "came_from_pointer": "*u8"}
    types |= {"boundaries_pointer": "*i32", "scale": "fp32"}
    if name in ("high_pointer", "low_pointer"):
        return "*fp16"
    if name in ("inputs_pointer", "output_pointer", "grad_output_pointer", "grad_inputs_pointer"):
        return "*bf16"
    return types.get(name, "*fp32" if name.endswith("_pointer") else "i32")


@pytest.mark.parametrize(
    ("kernel", "num_labels", "settings", "num_warps"),
    CASES,
    ids=lambda value: getattr(value, "__name__", None) or (str(value) if isinstance(value, int) else ""),
)
def test_kernel_compiles(kernel, num_labels, settings, num_warps):
    compiled = _compiled(kernel, num_labels, settings, num_warps)
    assert compiled.metadata.shared <= SHARED_MEMORY
    if kernel in (triton_global.iterate_kernel, triton_global.gradient_kernel):
        assert compiled.metadata.shared <= global_shared_memory(triton.next_power_of_2(num_labels))
    assert len(compiled.asm["cubin"]) > 0


@pytest.mark.parametrize(
    ("capability", "num_labels", "num_warps", "dtype"),
    [
        (80, 104, 8, torch.float32),
        (90, 104, 8, torch.float64),
        pytest.param(80, 200, 16, torch.float32, marks=pytest.mark.slow),
    ],
)
def test_gradient_of_a_chain_compiles_where_products_do_not(capability, num_labels, num_warps, dtype):
    card = Card(capability // 10, 99 * 1024)
    options = {"num_units": 64, "dtype": dtype, "is_local": False, "has_pairs": False}
    tiles = gradient_tiles(card, triton.next_power_of_2(num_labels), **options)
    assert not tiles["USE_PRODUCTS"]
    settings = {"IS_LOCAL": False, **DERIVATIVES, **tiles, "DTYPE": triton_type(dtype)}
    compiled = _compiled(triton_gradient.gradient_kernel, num_labels, settings, num_warps, capability=capability)
    assert compiled.metadata.shared <= card.shared_memory


def _compiled(kernel, num_labels, settings, num_warps, *, capability=90):
    names = kernel.arg_names
    constants = {**CONSTANTS, "BLOCK": triton.next_power_of_2(num_labels), **settings}
    constants = {name: value for name, value in constants.items() if name in names}
    signature = {name: "constexpr" if name in constants else _type(name) for name in names}
    aligned = {
        (index,): [["tt.divisibility", 16]]
        for index, name in enumerate(names)
        if name.endswith(("_pointer", "_stride"))
    }
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=aligned)
    target = GPUTarget("cuda", capability, 32)
    return triton.compile(source, target=target, options={"num_warps": num_warps, "num_stages": 1})
