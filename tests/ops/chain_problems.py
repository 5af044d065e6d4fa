"""Chain problems for the tests of `diffusion_mf.ops`: random ones of every kind, and what each implementation says of them."""

from __future__ import annotations

import dataclasses

import torch
from hypothesis import strategies as st

from diffusion_mf.ops.chain_scores import fold_scores
from diffusion_mf.ops.forward_backward import forward_backward, pair_marginals
from oracles.chain_enumeration import Enumerated

RESULTS = ("log_partition", "marginals", "pairs")


@dataclasses.dataclass(frozen=True)
class Problem:
    """Scores of a batch; what stands past a sentence's length is NaN, so that every test sees it read."""

    unary: torch.Tensor
    transition: torch.Tensor
    lengths: torch.Tensor
    start: torch.Tensor | None = None
    end: torch.Tensor | None = None
    allowed: torch.Tensor | None = None

    def map(self, change):
        """The same problem with every score tensor changed."""
        changed = {name: change(tensor) for name, tensor in self.scores.items()}
        return dataclasses.replace(self, **changed)

    def to(self, place):
        """The same problem on another device or in another type."""
        moved = self.map(lambda tensor: tensor.to(place))
        if not isinstance(place, torch.dtype):
            allowed = None if self.allowed is None else self.allowed.to(place)
            moved = dataclasses.replace(moved, lengths=self.lengths.to(place), allowed=allowed)
        return moved

    def with_gradients(self):
        return self.map(lambda tensor: tensor.detach().clone().requires_grad_())

    @property
    def scores(self):
        named = {"unary": self.unary, "transition": self.transition, "start": self.start, "end": self.end}
        return {name: tensor for name, tensor in named.items() if tensor is not None}

    @property
    def folded(self):
        """The arguments of the operations."""
        unary = fold_scores(
            self.unary, self.lengths, start_scores=self.start, end_scores=self.end, allowed=self.allowed
        )
        return unary, self.transition, self.lengths

    @property
    def is_unit(self):
        return torch.arange(self.unary.shape[1], device=self.lengths.device) < self.lengths[:, None]

    def sentences(self):
        """Each sentence as the arguments of `Enumerated`."""
        for sentence, length in enumerate(self.lengths.tolist()):
            is_global = self.transition.dim() == 2
            yield (
                self.unary[sentence],
                self.transition if is_global else self.transition[sentence],
                length,
                self.start,
                self.end,
                None if self.allowed is None else self.allowed[sentence],
            )


def random_problem(
    seed,
    num_sentences,
    num_units,
    num_labels,
    *,
    is_local=False,
    lengths=None,
    scale=1.0,
    holes=0.0,
    lines=False,
    has_start=False,
    has_end=False,
    clamps=0.0,
    whole_numbers=False,
):
    """A problem in float64. ``holes``: share of −∞ scores; ``lines``: a row and a column of −∞ too; ``clamps``: share of positions with a few labels (or none) allowed."""
    generator = torch.Generator().manual_seed(seed)
    B, N, K = num_sentences, num_units, num_labels

    def scores(*shape):
        values = scale * torch.randn(shape, generator=generator, dtype=torch.float64)
        if whole_numbers:
            values = values.round()
        is_hole = torch.rand(shape, generator=generator) < holes
        return values.masked_fill(is_hole, -torch.inf)

    def below(limit):
        return int(torch.randint(limit, (), generator=generator))

    unary = scores(B, N, K)
    transition = scores(B, N - 1, K, K) if is_local else scores(K, K)
    if lines:
        transition[..., below(K), :] = -torch.inf
        transition[..., :, below(K)] = -torch.inf
        unary[below(B), below(N)] = -torch.inf
    if lengths is None:
        lengths = torch.randint(1, N + 1, (B,), generator=generator)
        lengths[below(B)] = N
    else:
        lengths = torch.tensor(lengths)
    allowed = None
    if clamps:
        is_clamped = torch.rand((B, N, 1), generator=generator) < clamps
        allowed = (torch.rand((B, N, K), generator=generator) < 0.4) | ~is_clamped
    start = scores(K) if has_start else None
    end = scores(K) if has_end else None
    problem = Problem(unary, transition, lengths, start, end, allowed)
    return poisoned(problem, torch.nan)


def poisoned(problem, garbage):
    """The same problem with ``garbage`` past each length."""
    is_unit = problem.is_unit
    unary = problem.unary.masked_fill(~is_unit[..., None], garbage)
    transition = problem.transition
    if transition.dim() == 4:
        transition = transition.masked_fill(~is_unit[:, 1:, None, None], garbage)
    return dataclasses.replace(problem, unary=unary, transition=transition)


@st.composite
def problems(draw, max_sentences=3, max_units=4, max_labels=3, whole_numbers=False):
    """Small enough to enumerate; every kind of score the operations promise to take."""
    return random_problem(
        draw(st.integers(0, 10**6)),
        draw(st.integers(1, max_sentences)),
        draw(st.integers(1, max_units)),
        draw(st.integers(1, max_labels)),
        is_local=draw(st.booleans()),
        scale=draw(st.sampled_from([1.0, 3.0, 100.0, 1e4])),
        holes=draw(st.sampled_from([0.0, 0.0, 0.3])),
        lines=draw(st.sampled_from([False, False, True])),
        has_start=draw(st.booleans()),
        has_end=draw(st.booleans()),
        clamps=draw(st.sampled_from([0.0, 0.5])),
        whole_numbers=whole_numbers,
    )


def computed(problem, backend):
    """Results of the package by name, log-partition and marginals from one call."""
    both = forward_backward(*problem.folded, backend=backend)
    return {
        "log_partition": both.log_partition,
        "marginals": both.marginals,
        "pairs": pair_marginals(*problem.folded, backend=backend),
    }


def enumerated(problem):
    """The same by enumeration, with zeros past each length."""
    N, K = problem.unary.shape[1:]
    found = {name: [] for name in RESULTS}
    for sentence in problem.sentences():
        table = Enumerated(*sentence)
        padding = N - table.length
        found["log_partition"].append(table.log_partition)
        found["marginals"].append(torch.cat([table.marginals(), torch.zeros(padding, K, dtype=torch.float64)]))
        found["pairs"].append(torch.cat([table.pairs(), torch.zeros(padding, K, K, dtype=torch.float64)]))
    return {name: torch.stack(tensors) for name, tensors in found.items()}


def random_weights(results, seed=0):
    """A weight for every entry of every result: the direction gradients are taken along."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.randn(tensor.shape, generator=generator, dtype=torch.float64).to(tensor)
        for name, tensor in results.items()
    }


def gradients(results, names, problem, weights):
    """Gradients of Σ weight · result over the results named, by score tensor; zero where nothing depends on it."""
    outputs = [(results[name], weights[name]) for name in names if results[name].requires_grad]
    if not outputs:
        return {name: torch.zeros_like(tensor) for name, tensor in problem.scores.items()}
    found = torch.autograd.grad(
        [output for output, _ in outputs],
        list(problem.scores.values()),
        [weight.to(output) for output, weight in outputs],
        retain_graph=True,
        allow_unused=True,
        materialize_grads=True,
    )
    return dict(zip(problem.scores, found, strict=True))


def assert_close(found, expected, *, tolerance, scale=1.0):
    """Equal up to ``tolerance``, relative and (times ``scale``) absolute; NaN is never equal, −∞ only to itself."""
    assert found.keys() == expected.keys()
    for name, tensor in found.items():
        assert not tensor.isnan().any(), f"{name} has NaN"
        torch.testing.assert_close(
            tensor.double(),
            expected[name].double(),
            rtol=tolerance,
            atol=tolerance * scale,
            msg=lambda text, name=name: f"{name}: {text}",
        )


def assert_padding_is_zero(problem, found_gradients):
    """Exactly zero gradients past each length."""
    is_padding = ~problem.is_unit
    assert (found_gradients["unary"][is_padding] == 0).all()
    if problem.transition.dim() == 4:
        assert (found_gradients["transition"][is_padding[:, 1:]] == 0).all()
