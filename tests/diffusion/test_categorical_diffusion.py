import math
from typing import get_args

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from diffusion_mf.diffusion import CategoricalDiffusion, Reading, one_hot, restrict
from oracles import noise_matrices


def random_beliefs(*shape: int, seed: int = 0, zeros: float = 0.0) -> torch.Tensor:
    """Soft beliefs in float64; a share of the labels gets no mass at all."""
    generator = torch.Generator().manual_seed(seed)
    masses = torch.rand(shape, generator=generator, dtype=torch.float64)
    is_kept = torch.rand(shape, generator=generator) >= zeros
    is_kept[..., 0] |= ~is_kept.any(dim=-1)
    masses = masses * is_kept
    return masses / masses.sum(dim=-1, keepdim=True)


@pytest.mark.parametrize("power", [1, 2])
@pytest.mark.parametrize(("num_steps", "num_labels"), [(1, 3), (2, 1), (9, 4), (1000, 5)])
def test_closed_form_noise_equals_matrix_products_for_every_t(num_steps: int, num_labels: int, power: int) -> None:
    process = CategoricalDiffusion(num_labels, num_steps, cosine_power=power)
    products = noise_matrices.products(noise_matrices.cosine_betas(num_steps, power), num_labels)
    expected = np.stack([products[t] for t in range(num_steps + 1)])
    steps = torch.arange(num_steps + 1)
    eye = torch.eye(num_labels, dtype=torch.float64).expand(num_steps + 1, -1, -1)
    np.testing.assert_allclose(process.diffuse(eye, steps), expected, rtol=0, atol=1e-12)
    labels = torch.arange(num_labels).expand(num_steps + 1, -1)
    forward = process.forward(labels, steps)
    assert forward.dtype == torch.get_default_dtype()
    np.testing.assert_allclose(forward, expected, rtol=0, atol=1e-6)
    for t in {0, 1, num_steps // 2, num_steps}:
        torch.testing.assert_close(process.forward(labels[0], t), forward[t], rtol=0, atol=1e-7)


def test_noise_between_two_steps_equals_matrix_products() -> None:
    process = CategoricalDiffusion(4, 50)
    eye = torch.eye(4, dtype=torch.float64)
    betas = noise_matrices.cosine_betas(50)
    for s in range(50):
        products = noise_matrices.products(betas, 4, start=s)
        for t in range(s, 51):
            np.testing.assert_allclose(process.diffuse(eye, t, s), products[t], rtol=0, atol=1e-12)


@pytest.mark.parametrize("num_labels", [2, 17, 104])
def test_the_stationary_limit_is_uniform(num_labels: int) -> None:
    process = CategoricalDiffusion(num_labels)
    labels = torch.arange(num_labels)
    torch.testing.assert_close(process.forward(labels, 1000), process.uniform((num_labels,)), rtol=0, atol=1e-8)
    torch.testing.assert_close(process.forward(labels, 0), torch.eye(num_labels), rtol=0, atol=0)


@given(
    num_labels=st.integers(1, 4),
    num_steps=st.integers(1, 30),
    data=st.data(),
    seed=st.integers(0, 1000),
    zeros=st.sampled_from([0.0, 0.5, 1.0]),  # 1.0 leaves a single label: one-hot
)
def test_posterior_equals_bayes_by_enumeration(num_labels, num_steps, data, seed, zeros) -> None:
    process = CategoricalDiffusion(num_labels, num_steps)
    betas = noise_matrices.cosine_betas(num_steps)
    t = torch.tensor([data.draw(st.integers(1, num_steps)) for _ in range(2)])
    s = torch.tensor([data.draw(st.integers(0, int(step) - 1)) for step in t])
    pi_t = random_beliefs(2, 3, num_labels, seed=seed, zeros=zeros)
    rho_0 = random_beliefs(2, 3, num_labels, seed=seed + 1, zeros=zeros).flip(-1)
    beliefs = process.posterior(pi_t, rho_0, t, s)
    mixture = process.posterior(pi_t, rho_0, t, s, reading="mixture")
    log_beliefs = process.log_posterior(pi_t.log(), rho_0.log(), t, s)
    for b in range(2):
        from_0_to_s = noise_matrices.products(betas, num_labels)[int(s[b])]
        from_s_to_t = noise_matrices.products(betas, num_labels, start=int(s[b]))[int(t[b])]
        alone = process.posterior(pi_t[b], rho_0[b], int(t[b]), int(s[b]))
        log_alone = process.log_posterior(pi_t[b].log(), rho_0[b].log(), int(t[b]), int(s[b]))
        for n in range(3):
            expected = noise_matrices.posterior(pi_t[b, n].numpy(), rho_0[b, n].numpy(), from_0_to_s, from_s_to_t)
            for result in (beliefs[b, n], log_beliefs[b, n].exp(), alone[n], log_alone[n].exp()):
                np.testing.assert_allclose(result, expected, rtol=1e-9, atol=1e-12)
            of_labels = noise_matrices.posterior_mixture(
                pi_t[b, n].numpy(), rho_0[b, n].numpy(), from_0_to_s, from_s_to_t
            )
            one = process.posterior(pi_t[b], rho_0[b], int(t[b]), int(s[b]), reading="mixture")[n]
            for result in (mixture[b, n], one):
                np.testing.assert_allclose(result, of_labels, rtol=1e-9, atol=1e-12)


def test_one_hot_inputs_give_the_exact_posterior() -> None:
    """q(y^{t−1} | y^t, y^0) = q(y^t | y^{t−1}) q(y^{t−1} | y^0) / q(y^t | y^0), the paper's three distributions."""
    process = CategoricalDiffusion(3, 20)
    betas = noise_matrices.cosine_betas(20)
    products = noise_matrices.products(betas, 3)
    eye = torch.eye(3, dtype=torch.float64)
    for t in range(1, 21):
        step = noise_matrices.step_matrix(betas[t], 3)
        for y_t in range(3):
            for y_0 in range(3):
                expected = step[:, y_t] * products[t - 1][y_0] / products[t][y_0, y_t]
                for reading in get_args(Reading):
                    found = process.posterior(eye[y_t], eye[y_0], t, t - 1, reading=reading)
                    np.testing.assert_allclose(found, expected, atol=1e-10)


def test_posterior_by_hand() -> None:
    # T = 2 with ᾱ = (1, 1/3, 0): from t = 2 back to s = 1, a = 0, so y² tells nothing and π₁ = ᾱ₁ρ₀ + (1 − ᾱ₁)/K.
    process = CategoricalDiffusion(2, 2, cosine_power=2, cosine_offset=0.5)
    pi, rho = torch.tensor([0.9, 0.1]), torch.tensor([0.6, 0.4])
    torch.testing.assert_close(process.posterior(pi, rho, 2, 1), torch.tensor([0.2 + 1 / 3, 0.4 / 3 + 1 / 3]))
    # From 1 to 0: a = 1/3, so π₀ ∝ (0.3 + 1/3, 0.1/3 + 1/3) · (0.6, 0.4) = (0.38, 0.11/0.75).
    expected = torch.tensor([0.38, 0.44 / 3])
    torch.testing.assert_close(process.posterior(pi, rho, 1, 0), expected / expected.sum())


@given(num_labels=st.integers(1, 104), t=st.integers(1, 1000), seed=st.integers(0, 1000), data=st.data())
def test_beliefs_sum_to_one(num_labels, t, seed, data) -> None:
    s = data.draw(st.integers(0, t - 1))
    process = CategoricalDiffusion(num_labels)
    pi_t = random_beliefs(2, 2, num_labels, seed=seed, zeros=0.5).float()
    rho_0 = random_beliefs(2, 2, num_labels, seed=seed + 1, zeros=0.5).float()
    for result in (
        process.posterior(pi_t, rho_0, t, s),
        process.posterior(pi_t, rho_0, t, s, reading="mixture"),
        process.log_posterior(pi_t.log(), rho_0.log(), t, s).exp(),
        process.diffuse(pi_t, t, s),
    ):
        assert (result >= 0).all()
        torch.testing.assert_close(result.sum(dim=-1), torch.ones(2, 2), rtol=0, atol=1e-5)


@pytest.mark.parametrize("reading", ["product", "mixture"])
@pytest.mark.parametrize("s", [0, 3])
@pytest.mark.parametrize("as_tensor", [False, True])
def test_zeros_give_no_nan_in_value_or_gradient(s: int, as_tensor: bool, reading: Reading) -> None:
    process = CategoricalDiffusion(3, 10)
    steps = (torch.tensor([4]), torch.tensor([s])) if as_tensor else (4, s)
    pi_t = torch.tensor([[[1.0, 0.0, 0.0], [0.0, 0.0, 0.0]]], requires_grad=True)
    rho_0 = torch.tensor([[[0.0, 1.0, 0.0], [0.0, 0.0, 0.0]]], requires_grad=True)
    result = process.posterior(pi_t, rho_0, *steps, reading=reading)
    torch.testing.assert_close(result.sum(-1), torch.ones(1, 2))
    result[..., 1].sum().backward()
    assert torch.isfinite(pi_t.grad).all()
    assert torch.isfinite(rho_0.grad).all()
    log_pi_t = pi_t.detach().log().requires_grad_()
    log_rho_0 = rho_0.detach().log().requires_grad_()
    log_result = process.log_posterior(log_pi_t, log_rho_0, *steps)
    assert not log_result.isnan().any()
    torch.testing.assert_close(log_result.exp(), result.detach())
    log_result[..., 1].sum().backward()
    assert torch.isfinite(log_pi_t.grad).all()
    assert torch.isfinite(log_rho_0.grad).all()


def test_rows_without_mass_become_uniform() -> None:
    process = CategoricalDiffusion(4)
    empty = torch.zeros(1, 1, 4)
    torch.testing.assert_close(process.posterior(process.uniform((1, 1)), empty, 1, 0), process.uniform((1, 1)))
    log_result = process.log_posterior(process.uniform((1, 1)).log(), empty.log(), 1, 0)
    torch.testing.assert_close(log_result, torch.full((1, 1, 4), -math.log(4)))


def test_gradients_of_the_posterior() -> None:
    process = CategoricalDiffusion(3, 10)
    pi_t = random_beliefs(2, 2, 3).requires_grad_()
    rho_0 = random_beliefs(2, 2, 3, seed=1).requires_grad_()
    t, s = torch.tensor([1, 7]), torch.tensor([0, 3])
    assert torch.autograd.gradcheck(lambda p, r: process.posterior(p, r, t, s), (pi_t, rho_0))
    assert torch.autograd.gradcheck(lambda p, r: process.log_posterior(p.log(), r.log(), t, s), (pi_t, rho_0))


def test_float_types() -> None:
    process = CategoricalDiffusion(3)
    pi_t, rho_0 = random_beliefs(2, 2, 3), random_beliefs(2, 2, 3, seed=1)
    exact = process.posterior(pi_t, rho_0, 31, 15)
    assert exact.dtype == torch.float64
    half = process.posterior(pi_t.bfloat16(), rho_0.bfloat16(), 31, 15)
    assert half.dtype == torch.float32
    # The inputs are rounded to eight bits, the arithmetic is not.
    torch.testing.assert_close(half.double(), exact, rtol=0, atol=0.01)
    torch.testing.assert_close(
        half, process.posterior(pi_t.bfloat16().float(), rho_0.bfloat16().float(), 31, 15), rtol=0, atol=0
    )
    assert process.log_posterior(pi_t.log().bfloat16(), rho_0.log().bfloat16(), 31, 15).dtype == torch.float32
    # Near t = 1 the share of noise is 2e-5: in float32 the difference 1 − ᾱ would be off in the third digit.
    torch.testing.assert_close(
        process.diffuse(torch.zeros(1, 1, 3), torch.tensor([1])).double(),
        process.diffuse(torch.zeros(1, 1, 3, dtype=torch.float64), 1),
        rtol=1e-6,
        atol=0,
    )


def test_time_runs_backwards_in_posteriors() -> None:
    process = CategoricalDiffusion(2)
    beliefs = process.uniform((1, 1))
    with pytest.raises(ValueError, match="back in time"):
        process.posterior(beliefs, beliefs, 5, 5)
    with pytest.raises(ValueError, match="0…1000"):
        process.posterior(beliefs, beliefs, 1001, 5)


def test_sampling_follows_the_forward_process() -> None:
    process = CategoricalDiffusion(5)
    num_draws = 40_000
    labels = torch.tensor([[1], [3], [4]]).expand(-1, num_draws)
    t = torch.tensor([100, 500, 900])
    draws = process.sample(labels, t, torch.Generator().manual_seed(3))
    assert draws.dtype == labels.dtype
    expected = process.forward(labels[:, :1], t)[:, 0]
    frequencies = one_hot(draws, 5).mean(dim=1)
    deviation = (expected * (1 - expected) / num_draws).sqrt()
    assert ((frequencies - expected).abs() < 5 * deviation).all()
    again = process.sample(labels, t, torch.Generator().manual_seed(3))
    assert torch.equal(draws, again)
    assert torch.equal(process.sample(labels, 0), labels)


def test_given_uniforms_decide_what_is_kept_and_drawn() -> None:
    # ᾱ₁ = 1/3: 0.3 keeps and 0.34 does not; 0.49 of four labels is number 1, 0.99999999 number 3.
    process = CategoricalDiffusion(4, 2, cosine_power=2, cosine_offset=0.5)
    uniforms = torch.tensor([[[0.3, 0.34, 0.34]], [[0.49, 0.49, 1.0]]])
    assert process.sample(torch.tensor([[0, 0, 0]]), 1, uniforms=uniforms).tolist() == [[0, 1, 3]]


def test_timesteps_are_uniform_between_one_and_the_last_but_one() -> None:
    process = CategoricalDiffusion(2, 4)
    steps = process.sample_timesteps(3000, torch.Generator().manual_seed(0))
    counts = torch.bincount(steps, minlength=5)
    assert counts[0] == counts[4] == 0
    assert counts[1:4].min() > 900
    assert CategoricalDiffusion(2, 1).sample_timesteps(3).tolist() == [1, 1, 1]


def test_processes_are_frozen_and_comparable() -> None:
    process = CategoricalDiffusion(num_labels=17, num_steps=1000)
    assert process == CategoricalDiffusion(17)
    assert process != CategoricalDiffusion(17, cosine_power=2)
    with pytest.raises(AttributeError):
        process.num_labels = 3  # type: ignore[misc]


def test_restricting_renormalises_over_the_allowed_labels() -> None:
    beliefs = torch.tensor([[[0.5, 0.3, 0.2], [1.0, 0.0, 0.0], [0.5, 0.3, 0.2]]], requires_grad=True)
    allowed = torch.tensor([[[False, True, True], [False, True, True], [False, False, False]]])
    result = restrict(beliefs, allowed)
    torch.testing.assert_close(result.detach(), torch.tensor([[[0.0, 0.6, 0.4], [0.0, 0.5, 0.5], [0.5, 0.3, 0.2]]]))
    result[..., 1].sum().backward()
    assert torch.isfinite(beliefs.grad).all()
    assert restrict(beliefs.detach().bfloat16(), allowed).dtype == torch.float32
