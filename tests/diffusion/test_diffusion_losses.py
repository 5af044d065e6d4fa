import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from diffusion_mf.diffusion import (
    CategoricalDiffusion,
    posterior_kl,
    squared_bit_error,
    sum_over_units,
    token_cross_entropy,
)
from oracles import noise_matrices


def random_case(num_labels: int, num_steps: int, seed: int) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(3, 2, num_labels, generator=generator, dtype=torch.float64)
    y0 = torch.randint(num_labels, (3, 2), generator=generator)
    y_t = torch.randint(num_labels, (3, 2), generator=generator)
    t = torch.randint(1, num_steps + 1, (3,), generator=generator)
    t[0] = 1
    return logits, y0, y_t, t


@given(num_labels=st.integers(1, 4), num_steps=st.integers(2, 20), seed=st.integers(0, 1000))
def test_posterior_kl_equals_brute_force(num_labels: int, num_steps: int, seed: int) -> None:
    logits, y0, y_t, t = random_case(num_labels, num_steps, seed)
    process = CategoricalDiffusion(num_labels, num_steps)
    log_rho_0 = logits.log_softmax(-1)
    loss = posterior_kl(process, log_rho_0, y0, y_t, t)
    betas = noise_matrices.cosine_betas(num_steps)
    products = noise_matrices.products(betas, num_labels)
    eye = np.eye(num_labels)
    for b in range(3):
        step = int(t[b])
        matrices = products[step - 1], noise_matrices.step_matrix(betas[step], num_labels)
        np.testing.assert_allclose(posterior_kl(process, log_rho_0[b], y0[b], y_t[b], step), loss[b], atol=1e-12)
        for n in range(2):
            observed = eye[y_t[b, n]]
            gold = noise_matrices.posterior(observed, eye[y0[b, n]], *matrices)
            predicted = noise_matrices.posterior(observed, log_rho_0[b, n].exp().numpy(), *matrices)
            assert loss[b, n].item() == pytest.approx(noise_matrices.kl(gold, predicted), abs=1e-9)


def test_at_the_first_step_the_variational_term_is_reconstruction() -> None:
    process = CategoricalDiffusion(3, 10)
    rho_0 = torch.tensor([[[0.2, 0.5, 0.3]]], dtype=torch.float64)
    for y0 in range(3):
        for y_1 in range(3):
            likelihood = noise_matrices.step_matrix(noise_matrices.cosine_betas(10)[1], 3)[:, y_1]
            product = rho_0[0, 0].numpy() * likelihood
            loss = posterior_kl(process, rho_0.log(), torch.tensor([[y0]]), torch.tensor([[y_1]]), torch.tensor([1]))
            assert loss.item() == pytest.approx(-math.log(product[y0] / product.sum()), abs=1e-10)


def test_posterior_kl_by_hand() -> None:
    # K = 2 and ᾱ = (1, 1/3, 0). From t = 2 to 1, y² tells nothing: the gold posterior is ᾱ₁[y⁰] + (1 − ᾱ₁)/2 = (2/3, 1/3),
    # the predicted one (1/5 + 1/3, 2/15 + 1/3) = (8/15, 7/15) for ρ₀ = (.6, .4).
    process = CategoricalDiffusion(2, 2, cosine_power=2, cosine_offset=0.5)
    rho_0 = torch.tensor([[[0.6, 0.4]]])
    zero = torch.tensor([[0]])
    loss = posterior_kl(process, rho_0.log(), zero, zero, 2)
    assert loss.item() == pytest.approx(2 / 3 * math.log(5 / 4) + 1 / 3 * math.log(5 / 7), abs=1e-6)
    # From 1 to 0 with y¹ = y⁰: a = 1/3, likelihoods (2/3, 1/3), so −log(.4/(.4 + .4/3)) = log(4/3).
    assert posterior_kl(process, rho_0.log(), zero, zero, 1).item() == pytest.approx(math.log(4 / 3), abs=1e-6)


def test_a_perfect_prediction_costs_nothing_and_any_other_something() -> None:
    process = CategoricalDiffusion(4)
    y0, y_t = torch.tensor([[2, 1, 0]] * 4), torch.tensor([[2, 0, 3]] * 4)
    t = torch.tensor([1, 2, 500, 1000])
    perfect = torch.where(torch.arange(4) == y0.unsqueeze(-1), 0.0, -math.inf)
    torch.testing.assert_close(posterior_kl(process, perfect, y0, y_t, t), torch.zeros(4, 3), rtol=0, atol=1e-6)
    uniform = torch.full((4, 3, 4), -math.log(4))
    assert (posterior_kl(process, uniform, y0, y_t, t)[:3] > 1e-5).all()


def test_gradients_of_the_losses() -> None:
    process = CategoricalDiffusion(3, 6)
    logits, y0, y_t, t = random_case(3, 6, seed=5)
    logits.requires_grad_()
    assert torch.autograd.gradcheck(lambda x: posterior_kl(process, x.log_softmax(-1), y0, y_t, t), (logits,))
    assert torch.autograd.gradcheck(lambda x: posterior_kl(process, x.log_softmax(-1), y0, y_t, 1), (logits,))
    assert torch.autograd.gradcheck(lambda x: token_cross_entropy(x.log_softmax(-1), y0), (logits,))
    codes = torch.ones_like(logits)
    assert torch.autograd.gradcheck(lambda x: squared_bit_error(x, codes), (logits,))


def test_zero_probabilities_give_no_nan() -> None:
    process = CategoricalDiffusion(3)
    log_rho_0 = torch.tensor([[[0.5, 0.5, 0.0]], [[0.5, 0.5, 0.0]], [[1.0, 0.0, 0.0]]]).log().requires_grad_()
    y0, y_t = torch.tensor([[0], [0], [0]]), torch.tensor([[2], [2], [0]])
    loss = posterior_kl(process, log_rho_0, y0, y_t, torch.tensor([1, 300, 1]))
    assert torch.isfinite(loss).all()
    loss.sum().backward()
    assert torch.isfinite(log_rho_0.grad).all()
    # Certain of a wrong label, reconstruction costs infinitely much; the other terms stay finite.
    wrong = torch.tensor([[[0.0, 1.0, 0.0]]]).log().requires_grad_()
    assert posterior_kl(process, wrong, y0[:1], y_t[:1], 1).item() == math.inf
    loss = posterior_kl(process, wrong, y0[:1], y_t[:1], 2)
    assert torch.isfinite(loss).all()
    loss.sum().backward()
    assert torch.isfinite(wrong.grad).all()


def test_losses_are_taken_in_float32_at_least() -> None:
    process = CategoricalDiffusion(5)
    logits, y0, y_t, t = random_case(5, 1000, seed=2)
    log_rho_0 = logits.log_softmax(-1)
    exact = posterior_kl(process, log_rho_0, y0, y_t, t)
    assert exact.dtype == torch.float64
    torch.testing.assert_close(
        posterior_kl(process, log_rho_0.float(), y0, y_t, t).double(), exact, rtol=1e-4, atol=1e-5
    )
    for loss in (
        posterior_kl(process, log_rho_0.bfloat16(), y0, y_t, t),
        token_cross_entropy(log_rho_0.bfloat16(), y0),
        squared_bit_error(log_rho_0.bfloat16(), log_rho_0.bfloat16()),
    ):
        assert loss.dtype == torch.float32


def test_token_cross_entropy_by_hand() -> None:
    log_marginals = torch.tensor([[[0.25, 0.75], [0.5, 0.5]]]).log()
    loss = token_cross_entropy(log_marginals, torch.tensor([[0, -1]]))
    assert loss[0, 0].item() == pytest.approx(math.log(4))
    assert sum_over_units(loss, torch.tensor([[True, False]])).item() == pytest.approx(math.log(4))


def test_squared_bit_error_by_hand() -> None:
    predicted, codes = torch.tensor([[[2.0, -1.0]]]), torch.tensor([[[2.0, -2.0]]])
    assert squared_bit_error(predicted, codes).tolist() == [[0.5]]


def test_padding_plays_no_part_in_sums() -> None:
    values = torch.tensor([[1.0, math.nan], [2.0, math.inf]], requires_grad=True)
    is_unit = torch.tensor([[True, False], [True, False]])
    total = sum_over_units(values, is_unit)
    assert total.item() == 3
    total.backward()
    assert values.grad.tolist() == [[1, 0], [1, 0]]
