from __future__ import annotations

import torch
from random_chains import make_problem
from torch import Tensor

from diffusion_mf.structures import LabelDistribution, LinearChain, MeanField, Unigram

NUM_SAMPLES = 20_000


def assert_frequencies(found: Tensor, probabilities: Tensor) -> None:
    """Every frequency within five standard deviations of its probability; what is impossible never happens."""
    deviation = (probabilities * (1 - probabilities) / NUM_SAMPLES).sqrt()
    assert bool(((found - probabilities).abs() <= 5 * deviation + 1e-9).all())


def one_hot(labels: Tensor, num_labels: int) -> Tensor:
    return torch.nn.functional.one_hot(labels, num_labels).double()


def draw(distribution: LabelDistribution, seed: int) -> Tensor:
    return distribution.sample_many(torch.Generator().manual_seed(seed), NUM_SAMPLES)


def test_chain_samples_follow_marginals_and_pair_marginals() -> None:
    for is_local in (False, True):
        problem = make_problem([4, 1, 3], 3, seed=21, is_local=is_local, has_ends=True, is_clamped=True, impossible=0.2)
        chain = LinearChain(*problem.scores, **problem.options)
        samples = draw(chain, seed=1)
        is_unit = problem.is_unit()
        assert not samples[:, ~is_unit].any()
        assert_frequencies(one_hot(samples, 3).mean(0)[is_unit], chain.marginals()[is_unit])
        together = one_hot(samples[..., :-1] * 3 + samples[..., 1:], 9).mean(0).unflatten(-1, (3, 3))
        is_pair = is_unit[:, 1:]
        assert_frequencies(together[is_pair], chain.pair_marginals()[is_pair])
        # Not only neighbours: whole sequences have their probabilities.
        oracle = problem.enumerated()[0]
        codes = (samples[:, 0] * torch.tensor([27, 9, 3, 1])).sum(-1)
        expected = torch.zeros(81, dtype=torch.float64)
        for path, probability in zip(oracle.paths, oracle.probabilities(), strict=True):
            expected[int(torch.tensor(path) @ torch.tensor([27, 9, 3, 1]))] = probability
        assert_frequencies(one_hot(codes, 81).mean(0), expected)


def test_factorised_samples_follow_marginals() -> None:
    problem = make_problem([3, 2], 3, seed=22, is_clamped=True)
    for distribution in (
        Unigram(problem.unary, problem.lengths, allowed=problem.allowed),
        MeanField(*problem.scores, **problem.options),
    ):
        samples = draw(distribution, seed=2)
        is_unit = problem.is_unit()
        assert not samples[:, ~is_unit].any()
        assert_frequencies(one_hot(samples, 3).mean(0)[is_unit], distribution.marginals()[is_unit])


def test_the_same_generator_gives_the_same_sample_on_every_backend() -> None:
    problem = make_problem([40, 7, 23], 6, seed=23, is_local=True, dtype=torch.float32)
    for structure in (LinearChain, MeanField):
        samples = [
            structure(*problem.scores, backend=backend).sample(torch.Generator().manual_seed(5))
            for backend in ("reference", "torch", "auto")
        ]
        assert torch.equal(samples[0], samples[1])
        assert torch.equal(samples[0], samples[2])
        other = structure(*problem.scores).sample(torch.Generator().manual_seed(6))
        assert not torch.equal(samples[0], other)


def test_without_a_generator_the_global_one_is_used() -> None:
    problem = make_problem([9], 4, seed=24)
    chain = LinearChain(*problem.scores)
    torch.manual_seed(3)
    first = chain.sample()
    second = chain.sample()
    torch.manual_seed(3)
    assert torch.equal(chain.sample(), first)
    assert not torch.equal(first, second)
