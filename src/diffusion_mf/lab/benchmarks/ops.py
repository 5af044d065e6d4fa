"""Speed and memory of the operations compared with other libraries."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from diffusion_mf.errors import InputError
from diffusion_mf.lab.benchmarks.timing import (
    ChainProblem,
    ProblemShape,
    Workload,
    as_graph,
    median_milliseconds,
    peak_memory_mb,
    random_problem,
)
from diffusion_mf.ops.forward_backward import forward_backward, log_partition
from diffusion_mf.ops.mean_field import mean_field
from diffusion_mf.ops.viterbi import viterbi
from diffusion_mf.structures import LinearChain

# Distribution and module of each.
PEERS = {"pytorch-crf": "torchcrf", "torch-struct": "torch_struct"}


def import_peers() -> dict[str, Any]:
    """The peers' modules by library; an error if any is missing."""
    modules, missing = {}, []
    for library, module in PEERS.items():
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                modules[library] = importlib.import_module(module)
        except ImportError:
            missing.append(library)
    if missing:
        raise InputError(
            f"the benchmark compares with {' and '.join(missing)}, which cannot be imported",
            remedy="pip install 'diffusion-mf[benchmarks]'",
        )
    return modules


class PytorchCRF:
    """pytorch-crf: global transitions only. Its start and end scores, which cannot be left out, are zero."""

    library = "pytorch-crf"

    def __init__(self, problem: ChainProblem, module: Any) -> None:
        self._problem = problem
        self._crf = module.CRF(problem.unary.shape[-1], batch_first=True).to(problem.device)
        with torch.no_grad():
            self._crf.start_transitions.zero_()
            self._crf.end_transitions.zero_()
            self._crf.transitions.copy_(problem.transition)

    @property
    def parameters(self) -> tuple[Tensor, ...]:
        """The tensors that gradients are taken with respect to."""
        return (self._problem.unary, *self._crf.parameters())

    def log_partition(self) -> Tensor:
        """Only log Z, for which the library has no public name."""
        return self._crf._compute_normalizer(self._problem.unary.transpose(0, 1), self._problem.is_unit.T)

    def negative_log_likelihood(self) -> Tensor:
        """The loss that its users train with."""
        return -self._crf(self._problem.unary, self._problem.labels, self._problem.is_unit, reduction="none")

    def best_labels(self) -> list[list[int]]:
        """Viterbi, as lists on the host."""
        return self._crf.decode(self._problem.unary, self._problem.is_unit)


class TorchStruct:
    """torch-struct: scores of pairs (B, N − 1, next, previous), which its users build from unary and transition scores."""

    library = "torch-struct"

    def __init__(self, problem: ChainProblem, module: Any) -> None:
        self._problem = problem
        self._distribution: Callable[..., Any] = module.LinearChainCRF

    @property
    def parameters(self) -> tuple[Tensor, ...]:
        """The tensors that gradients are taken with respect to."""
        return self._problem.scores

    def _chain(self) -> Any:
        unary, transition = self._problem.scores
        pairs = transition.transpose(-1, -2) + unary[:, 1:, :, None]
        first = pairs[:, :1] + unary[:, :1, None, :]
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore"
            )  # it leaves PyTorch's argument checks on, but defines no constraints to check
            return self._distribution(torch.cat([first, pairs[:, 1:]], 1), lengths=self._problem.lengths)

    def log_partition(self) -> Tensor:
        """Its ``partition`` is a logarithm."""
        return self._chain().partition


_WIDTH, _LAYERS, _HEADS = 768, 11, 12


class _Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention_norm, self.feed_forward_norm = nn.LayerNorm(_WIDTH), nn.LayerNorm(_WIDTH)
        self.query_key_value, self.project = nn.Linear(_WIDTH, 3 * _WIDTH), nn.Linear(_WIDTH, _WIDTH)
        self.feed_forward = nn.Sequential(nn.Linear(_WIDTH, 4 * _WIDTH), nn.GELU(), nn.Linear(4 * _WIDTH, _WIDTH))

    def forward(self, states: Tensor) -> Tensor:
        B, N, D = states.shape
        heads = self.query_key_value(self.attention_norm(states)).view(B, N, 3, _HEADS, D // _HEADS)
        query, key, value = heads.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = functional.scaled_dot_product_attention(query, key, value)
        states = states + self.project(mixed.transpose(1, 2).reshape(B, N, D))
        return states + self.feed_forward(self.feed_forward_norm(states))


def plain_denoiser(num_sentences: int, num_units: int, *, device: torch.device) -> tuple[nn.Module, Tensor]:
    """The model in bfloat16 and states (B, N, width) to run it on."""
    model = nn.Sequential(*(_Block() for _ in range(_LAYERS))).to(device, torch.bfloat16).eval()
    return model, torch.randn((num_sentences, num_units, _WIDTH), device=device, dtype=torch.bfloat16)


OURS = "diffusion_mf"
NUM_ITERATIONS = 15
# No system of the paper has per-position transitions for more labels than this.
MAX_LOCAL_MEAN_FIELD_LABELS = 32

OPERATIONS = (
    "log-partition",
    "log-partition and marginals",
    "log-partition through marginals",
    "negative log-likelihood",
    "viterbi",
    "mean-field",
)

OPS_ROW_KEY = ("op", "shape", "transitions", "library", "direction", "mode", "threads", "hardware")

Note = Callable[[str], None]


class Contest(NamedTuple):
    """One operation and direction, and how each library that has it runs it.

    ``on_device`` is our operation without the copy to the host, which a CUDA graph cannot contain.
    """

    op: str
    direction: str
    runs: dict[str, Workload]
    on_device: Workload | None = None


def default_shapes(device: torch.device) -> list[ProblemShape]:
    """The labels of POS and NER (17) and of Chinese segmentation with XPOS (104)."""
    return (
        [ProblemShape(256, 64, 17), ProblemShape(128, 64, 104)] if device.type == "cuda" else [ProblemShape(32, 32, 17)]
    )


def _forward(function: Callable[[], object]) -> Workload:
    """Only the operation, as in inference."""

    def run() -> object:
        with torch.no_grad():
            return function()

    return run


def _both(function: Callable[[], Tensor], parameters: Sequence[Tensor]) -> Workload:
    """The operation and its gradients, as in training."""
    return lambda: torch.autograd.grad(function().sum(), parameters)


def contests(problem: ChainProblem, peer_modules: dict[str, Any]) -> Iterator[Contest]:
    """All measurements on one problem."""
    unary, transition, lengths, labels, _, weights = problem
    is_local = transition.dim() == 4
    crf = None if is_local else PytorchCRF(problem, peer_modules["pytorch-crf"])
    struct = TorchStruct(problem, peer_modules["torch-struct"])
    peers: list[PytorchCRF | TorchStruct] = [struct] if crf is None else [crf, struct]

    def partition() -> Tensor:
        return log_partition(unary, transition, lengths)

    def through_marginals() -> Tensor:
        found = forward_backward(unary, transition, lengths)
        return found.log_partition.sum() + (found.marginals * weights).sum()

    def negative_log_likelihood() -> Tensor:
        return -LinearChain(unary, transition, lengths, check=False).log_prob(labels)

    def beliefs() -> Tensor:
        return mean_field(unary, transition, lengths, NUM_ITERATIONS)

    yield Contest(
        "log-partition",
        "forward",
        {OURS: _forward(partition), **{peer.library: _forward(peer.log_partition) for peer in peers}},
    )
    yield Contest(
        "log-partition",
        "both",
        {
            OURS: _both(partition, problem.scores),
            **{peer.library: _both(peer.log_partition, peer.parameters) for peer in peers},
        },
    )
    # The values themselves, as a decoder or a diffusion step needs them. Peers find marginals only by autograd, as the
    # gradient of the unary scores; no other gradient is asked of them.
    yield Contest(
        "log-partition and marginals",
        "both",
        {
            OURS: _forward(lambda: forward_backward(unary, transition, lengths)),
            **{peer.library: _both(peer.log_partition, [unary]) for peer in peers},
        },
    )
    yield Contest("log-partition through marginals", "both", {OURS: _both(through_marginals, problem.scores)})
    training = {OURS: _both(negative_log_likelihood, problem.scores)}
    best_labels = _forward(lambda: viterbi(unary, transition, lengths).labels)
    decoding = {OURS: _forward(lambda: viterbi(unary, transition, lengths).labels.cpu())}
    if crf is not None:
        training[crf.library] = _both(crf.negative_log_likelihood, crf.parameters)
        decoding[crf.library] = _forward(crf.best_labels)
    yield Contest("negative log-likelihood", "both", training)
    yield Contest("viterbi", "forward", decoding, on_device=best_labels)
    if is_local == (unary.shape[-1] <= MAX_LOCAL_MEAN_FIELD_LABELS):
        yield Contest("mean-field", "forward", {OURS: _forward(beliefs)})
        yield Contest("mean-field", "both", {OURS: _both(lambda: beliefs() * weights, problem.scores)})


def measure_ops(
    shapes: Sequence[ProblemShape],
    *,
    device: torch.device,
    note: Note,
    only: Collection[str],
) -> Iterator[list[dict[str, Any]]]:
    """Yield the rows of each operation, on each shape with global and with local transitions."""
    peer_modules = import_peers()
    for shape in shapes:
        denoiser = measure_denoiser(shape, device=device, note=note) if device.type == "cuda" else None
        if denoiser is not None:
            yield [denoiser]
        for is_local in (False, True):
            problem = random_problem(shape, is_local=is_local, device=device)
            for contest in contests(problem, peer_modules):
                if contest.op in only:
                    yield _measure_contest(contest, problem, denoiser, note=note)


def _measure_contest(
    contest: Contest, problem: ChainProblem, denoiser: dict[str, Any] | None, *, note: Note
) -> list[dict[str, Any]]:
    device = problem.device
    runs = {(library, "eager"): run for library, run in contest.runs.items()}
    if device.type == "cuda":
        try:
            runs[OURS, "graph"] = as_graph(contest.on_device or contest.runs[OURS])
        except RuntimeError as error:
            note(f"{contest.op}, {contest.direction}: no CUDA graph ({error})")
    memory = {}
    for key, run in list(runs.items()):
        try:
            memory[key] = None if key[1] == "graph" else peak_memory_mb(run, device)
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
            note(f"{contest.op}, {contest.direction}: {key[0]} runs out of memory and has no row")
            del runs[key]
    times = median_milliseconds(runs, device)
    peers = [milliseconds for (library, _), milliseconds in times.items() if library != OURS]
    rows = []
    for (library, mode), milliseconds in times.items():
        is_ours = library == OURS
        share = None
        if contest.op == "mean-field" and denoiser is not None:
            share = milliseconds / denoiser["milliseconds"]
        row = {
            "op": contest.op,
            "shape": list(problem.unary.shape),
            "transitions": "local" if problem.transition.dim() == 4 else "global",
            "library": library,
            "direction": contest.direction,
            "mode": mode,
            "milliseconds": milliseconds,
            "peak_memory_mb": memory[library, mode],
            "speedup_over_fastest_peer": min(peers) / milliseconds if is_ours and peers else None,
            "share_of_denoiser": share,
        }
        rows.append(_finished(row, device))
    return rows


def measure_denoiser(shape: ProblemShape, *, device: torch.device, note: Note) -> dict[str, Any]:
    """The forward pass of a Transformer of about 80 million parameters on the same sentences and units, as a CUDA graph."""
    model, states = plain_denoiser(shape.num_sentences, shape.num_units, device=device)
    run = _forward(lambda: model(states))
    memory = peak_memory_mb(run, device)
    runs = {"eager": as_graph(run)}
    try:
        compiled = torch.compile(model)
        runs["compiled"] = as_graph(_forward(lambda: compiled(states)))
    except Exception as error:  # the model is measured even if the compiler fails
        note(f"the denoiser is measured without torch.compile ({type(error).__name__})")
    times = median_milliseconds(runs, device)
    fastest = min(times, key=times.__getitem__)
    row = {
        "op": "denoiser forward",
        "shape": list(shape),
        "transitions": None,
        "library": "torch",
        "direction": "forward",
        "mode": "graph",
        "milliseconds": times[fastest],
        "peak_memory_mb": memory,
        "speedup_over_fastest_peer": None,
        "share_of_denoiser": None,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "is_compiled": fastest == "compiled",
    }
    return _finished(row, device)


def _finished(row: dict[str, Any], device: torch.device) -> dict[str, Any]:
    """The numbers rounded to meaningful digits, and the threads of a CPU."""
    for name, digits in (
        ("milliseconds", 4),
        ("peak_memory_mb", 2),
        ("speedup_over_fastest_peer", 2),
        ("share_of_denoiser", 4),
    ):
        if row[name] is not None:
            row[name] = round(row[name], digits)
    return {**row, "device": device.type, "threads": torch.get_num_threads() if device.type == "cpu" else None}
