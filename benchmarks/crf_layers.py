"""The CRF layer beside pytorch-crf, TorchCRF and torch-struct: a training step, decoding and marginals, as their users call them.

    pip install pytorch-crf torch-struct TorchCRF
    python benchmarks/crf_layers.py [--device cpu] [--shapes 32x32x17,8x128x17] [--output results/crf_layers.json]

All layers have the same scores, and sentences of different lengths; what they find is compared before anything is timed. They take
turns in one process, on a CPU in one thread, and each gets its median.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
import torch_struct
import TorchCRF
import torchcrf
from torch import Tensor

from diffusion_mf.lab.benchmarks.timing import median_milliseconds
from diffusion_mf.lab.results import provenance, write_rows
from diffusion_mf.structures import CRF

PACKAGES = ("pytorch-crf", "TorchCRF", "torch-struct")
OURS = "diffusion_mf"


class Problem:
    """Scores, tags and lengths from a fixed seed; the longest sentence has N units, the shortest about half as many."""

    def __init__(self, B: int, N: int, K: int, device: torch.device) -> None:
        generator = torch.Generator().manual_seed(0)
        self.emissions = torch.randn(B, N, K, generator=generator).to(device).requires_grad_()
        self.transitions = (0.1 * torch.randn(K, K, generator=generator)).to(device)
        self.tags = torch.randint(K, (B, N), generator=generator).to(device)
        self.lengths = torch.linspace(N // 2, N, B).round().long().to(device)
        self.mask = torch.arange(N, device=device) < self.lengths[:, None]
        self.num_tags = K


def _with_scores(layer: torch.nn.Module, problem: Problem) -> torch.nn.Module:
    """The layer with the problem's transitions and no start and end scores, which torch-struct does not have."""
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(problem.transitions) if parameter.dim() == 2 else parameter.zero_()
    return layer.to(problem.emissions.device)


Workloads = dict[str, Callable[[], object]]


def training(problem: Problem) -> Workloads:
    """The negative log-likelihood of all sentences and its gradients."""
    ours = _with_scores(CRF(problem.num_tags, batch_first=True, check=False), problem)
    first = _with_scores(torchcrf.CRF(problem.num_tags, batch_first=True), problem)
    second = _with_scores(TorchCRF.CRF(problem.num_tags), problem)
    transitions = problem.transitions.clone().requires_grad_()
    parts = torch_struct.LinearChainCRF.struct.to_parts(problem.tags, problem.num_tags, lengths=problem.lengths)
    emissions, tags, mask = problem.emissions, problem.tags, problem.mask

    def step(loss: Callable[[], Tensor], leaves: list[Tensor]) -> Callable[[], tuple[Tensor, Tensor]]:
        def run() -> tuple[Tensor, Tensor]:
            value = loss()
            return value.detach(), torch.autograd.grad(value, leaves)[0]

        return run

    return {
        OURS: step(lambda: -ours(emissions, tags, mask), [emissions, *ours.parameters()]),
        "pytorch-crf": step(lambda: -first(emissions, tags, mask), [emissions, *first.parameters()]),
        "TorchCRF": step(lambda: -second(emissions, tags, mask).sum(), [emissions, *second.parameters()]),
        "torch-struct": step(
            lambda: -chain(problem, transitions).log_prob(parts.type_as(emissions)).sum(), [emissions, transitions]
        ),
    }


def decoding(problem: Problem) -> Workloads:
    """The best tags of every sentence, as lists."""
    ours = _with_scores(CRF(problem.num_tags, batch_first=True, check=False), problem)
    first = _with_scores(torchcrf.CRF(problem.num_tags, batch_first=True), problem)
    second = _with_scores(TorchCRF.CRF(problem.num_tags), problem)
    emissions, mask, lengths = problem.emissions.detach(), problem.mask, problem.lengths.tolist()

    def by_parts() -> list[list[int]]:
        tags, _ = torch_struct.LinearChainCRF.struct.from_parts(chain(problem, problem.transitions).argmax)
        return [row[:length] for row, length in zip(tags.tolist(), lengths, strict=True)]

    return {
        OURS: lambda: ours.decode(emissions, mask),
        "pytorch-crf": lambda: first.decode(emissions, mask),
        "TorchCRF": lambda: second.viterbi_decode(emissions, mask),
        "torch-struct": by_parts,
    }


def marginals(problem: Problem) -> Workloads:
    """P(tag) at every position, which the other two layers do not have."""
    ours = _with_scores(CRF(problem.num_tags, batch_first=True, check=False), problem)
    emissions, mask = problem.emissions, problem.mask

    def by_pairs() -> Tensor:
        pairs = chain(problem, problem.transitions).marginals  # (B, N - 1, next, previous)
        return torch.cat([pairs[:, :1].sum(2), pairs.sum(3)], 1)

    def without_graph() -> Tensor:
        with torch.no_grad():
            return ours.marginals(emissions, mask)

    return {OURS: without_graph, "torch-struct": by_pairs}


def chain(problem: Problem, transitions: Tensor) -> torch_struct.LinearChainCRF:
    """torch-struct's distribution: scores of pairs (B, N − 1, next, previous), built from unary and transition scores."""
    emissions = problem.emissions
    pairs = transitions.T + emissions[:, 1:, :, None]
    first = pairs[:, :1] + emissions[:, :1, None, :]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch_struct.LinearChainCRF(torch.cat([first, pairs[:, 1:]], 1), lengths=problem.lengths)


OPERATIONS = {"training step": training, "decoding": decoding, "marginals": marginals}


def check(operation: str, problem: Problem, workloads: Workloads) -> None:
    """Stop if any library finds something else than ours."""
    expected = workloads[OURS]()
    for library, run in workloads.items():
        found = run()
        if operation == "decoding":
            assert found == expected, f"{library}: other tags"
        elif operation == "training step":
            torch.testing.assert_close(
                found, expected, rtol=1e-4, atol=1e-4, msg=f"{library}: another loss or gradient"
            )
        else:
            is_unit = problem.mask[..., None]
            torch.testing.assert_close(found * is_unit, expected * is_unit, rtol=1e-4, atol=1e-4)  # type: ignore[operator]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--shapes", default="32x32x17,8x128x17", help="sentences × units × labels")
    parser.add_argument("--output", default="results/crf_layers.json")
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    torch.set_num_threads(1)
    command = shlex.join(["python", *sys.argv])
    origin = provenance(command, packages=PACKAGES, measured=["structures", "ops", Path(__file__).resolve()])
    rows = []
    for shape in ([int(number) for number in part.split("x")] for part in arguments.shapes.split(",")):
        problem = Problem(*shape, device=device)
        for operation, prepare in OPERATIONS.items():
            workloads = prepare(problem)
            check(operation, problem, workloads)
            # Many turns: beside other work on the cores, few would not average it out.
            times = median_milliseconds(workloads, device, blocks=21)
            for library, milliseconds in times.items():
                place = {"op": operation, "shape": shape, "library": library, "device": device.type, "threads": 1}
                rows.append({**place, "milliseconds": round(milliseconds, 4), **origin})
                print(f"{operation}, {shape}: {library} {milliseconds:.2f} ms", file=sys.stderr)
    write_rows(arguments.output, rows, replace_by=("op", "shape", "library", "device", "hardware"))


if __name__ == "__main__":
    main()
