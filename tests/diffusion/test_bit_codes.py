import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from diffusion_mf.diffusion import NO_LABEL_ID, BitCodes, GaussianDiffusion
from diffusion_mf.errors import InputError
from oracles import gaussian_bits, noise_matrices


@given(num_labels=st.integers(1, 200), scale=st.sampled_from([0.1, 1, 2]))
def test_codes_are_binary_numbers_most_significant_bit_first(num_labels: int, scale: float) -> None:
    codes = BitCodes(num_labels, scale=scale)
    assert 2**codes.num_bits >= num_labels
    assert codes.num_bits == 1 or 2 ** (codes.num_bits - 1) < num_labels
    expected = torch.tensor([gaussian_bits.code(label, codes.num_bits, scale) for label in range(num_labels)])
    assert torch.equal(codes.codes(), expected.float())
    labels = torch.arange(num_labels)
    assert torch.equal(codes.decode_native(codes.codes()), labels)
    assert torch.equal(codes.decode_nearest(codes.codes()), labels)


def test_codes_by_hand() -> None:
    codes = BitCodes(17, scale=2)
    assert codes.num_bits == 5
    labels = torch.tensor([[0, 1, 6, 16]])
    assert codes.encode(labels).tolist() == [
        [[-2, -2, -2, -2, -2], [-2, -2, -2, -2, 2], [-2, -2, 2, 2, -2], [2, -2, -2, -2, -2]]
    ]
    assert [BitCodes(num_labels).num_bits for num_labels in (1, 2, 3, 4, 16, 104)] == [1, 1, 2, 2, 4, 7]


def test_native_decoding_thresholds_at_zero() -> None:
    codes = BitCodes(3)
    bits = torch.tensor([[[-0.1, 3.0], [0.01, -9.0], [0.2, 0.3], [0.0, 0.0]]])
    # 01 is label 1, 10 is label 2, 11 is no label, and zero is not above zero.
    assert codes.decode_native(bits).tolist() == [[1, 2, NO_LABEL_ID, 0]]
    # Among valid labels, 10 is nearer to (.2, .3) moved down than up: distances to 00, 01, 10 are 3.13, 1.93, 2.33.
    assert codes.decode_nearest(bits).tolist() == [[1, 2, 1, 0]]


@given(num_bits=st.integers(1, 6), seed=st.integers(0, 1000))
def test_with_every_pattern_in_use_nearest_is_native(num_bits: int, seed: int) -> None:
    codes = BitCodes(2**num_bits, scale=0.5)
    bits = torch.randn(20, codes.num_bits, generator=torch.Generator().manual_seed(seed))
    assert torch.equal(codes.decode_nearest(bits), codes.decode_native(bits))
    assert codes.decode_native(bits).tolist() == [gaussian_bits.value(row) for row in bits.tolist()]


def test_unary_scores_are_negative_squared_distances() -> None:
    codes = BitCodes(3, scale=2)
    scores = codes.unary_scores(torch.tensor([[[1.0, -2.0]]]), temperature=0.5)
    # To (−2, −2): 9, to (−2, 2): 9 + 16, to (2, −2): 1.
    assert scores.tolist() == [[[-18, -50, -2]]]
    assert codes.unary_scores(torch.zeros(1, 2)).tolist() == [pytest.approx([-160.0] * 3)]
    assert codes.unary_scores(torch.zeros(1, 2).bfloat16()).dtype == torch.float32


def test_restricted_positions_are_held_at_an_allowed_code() -> None:
    codes = BitCodes(3)
    bits = torch.tensor([[[0.2, 0.3], [-0.4, -0.5], [0.9, 0.9], [0.9, 0.9]]])
    allowed = torch.tensor([[[True, True, True], [False, True, True], [False, False, True], [False, False, False]]])
    held = codes.restrict(bits, allowed)
    assert torch.equal(held, torch.tensor([[[0.2, 0.3], [1.0, -1.0], [1.0, -1.0], [0.9, 0.9]]]))
    assert codes.decode_nearest(bits, allowed=allowed)[0, :3].tolist() == [1, 2, 2]


@pytest.mark.parametrize("noise", ["linear", "cosine"])
def test_gaussian_forward_has_the_moments_of_single_steps(noise: str) -> None:
    process = GaussianDiffusion(50, noise=noise)
    signal = process.signal.values
    betas = [0.0] + [1 - after / before for before, after in itertools.pairwise(signal)]
    if noise == "linear":
        assert betas == pytest.approx(gaussian_bits.linear_betas(50, 1e-4, 0.02), rel=1e-9)
    else:
        assert betas[1:] == pytest.approx(noise_matrices.cosine_betas(50, power=2)[1:], rel=1e-9)
    one, zero = torch.ones(51, 1, 1, dtype=torch.float64), torch.zeros(51, 1, 1, dtype=torch.float64)
    steps = torch.arange(51)
    coefficients, deviations = process.forward(one, steps, zero), process.forward(zero, steps, one)
    for t, (coefficient, variance) in enumerate(gaussian_bits.marginal_moments(betas)):
        assert coefficients[t].item() == pytest.approx(coefficient, rel=1e-9, abs=1e-12)
        assert deviations[t].item() ** 2 == pytest.approx(variance, rel=1e-9, abs=1e-12)
        assert process.forward(one[0], t, one[0]).item() == pytest.approx(coefficient + math.sqrt(variance))


def test_the_first_step_has_hardly_any_noise_and_the_last_hardly_any_signal() -> None:
    process, codes = GaussianDiffusion(), BitCodes(4, scale=2)
    x0 = codes.encode(torch.tensor([[0, 3]] * 2))
    t = torch.tensor([1, 1000])
    noise = torch.randn(x0.shape, generator=torch.Generator().manual_seed(1))
    noisy = process.forward(x0, t, noise)
    torch.testing.assert_close(noisy[0], x0[0], rtol=0, atol=0.05)
    torch.testing.assert_close(noisy[1], noise[1], rtol=0, atol=0.05)


def test_ddim_steps_by_hand() -> None:
    # β = (.36, .75): ᾱ = (1, .64, .16). With x_2 = 2 and x̂_0 = 1, ε̂ = (2 − .4)/√.84 = 1.745743.
    process = GaussianDiffusion(2, first_beta=0.36, last_beta=0.75)
    assert process.signal.values == pytest.approx((1, 0.64, 0.16))
    x_2, x_0, noise = torch.tensor([[2.0]]), torch.tensor([[1.0]]), torch.tensor([[-1.0]])
    # η = 0: .8 + .6 ε̂ = 1.847446.
    assert process.ddim_step(x_2, x_0, 2, 1).item() == pytest.approx(1.847446, abs=1e-6)
    # η = 1: σ² = .36/.84 · (1 − .25) = .321429, so .8 + √(.36 − .321429) ε̂ − .566947 = .575910.
    assert process.ddim_step(x_2, x_0, 2, 1, eta=1, noise=noise).item() == pytest.approx(0.575910, abs=1e-6)
    # η = .5: σ² = .080357, so .8 + √.279643 ε̂ − .283473 = 1.439698.
    assert process.ddim_step(x_2, x_0, 2, 1, eta=0.5, noise=noise).item() == pytest.approx(1.439698, abs=1e-6)
    # The last step answers with the prediction itself, whatever η.
    assert process.ddim_step(x_2, x_0, 2, 0, eta=1, noise=noise).item() == pytest.approx(1.0, abs=1e-6)


@given(t=st.integers(2, 30), x_t=st.floats(-3, 3), x_0=st.floats(-2, 2))
def test_with_eta_one_a_single_ddim_step_is_the_gaussian_posterior(t: int, x_t: float, x_0: float) -> None:
    process = GaussianDiffusion(30)
    mean, variance = gaussian_bits.one_step_posterior(x_t, x_0, t, gaussian_bits.linear_betas(30, 1e-4, 0.02))
    tensors = torch.tensor([[x_t]], dtype=torch.float64), torch.tensor([[x_0]], dtype=torch.float64)
    zero, one = torch.zeros(1, 1, dtype=torch.float64), torch.ones(1, 1, dtype=torch.float64)
    centre = process.ddim_step(*tensors, t, t - 1, eta=1, noise=zero).item()
    assert centre == pytest.approx(mean, abs=1e-9)
    spread = process.ddim_step(*tensors, t, t - 1, eta=1, noise=one).item() - centre
    assert spread**2 == pytest.approx(variance, rel=1e-6)


def test_impossible_bit_settings() -> None:
    for call in (lambda: BitCodes(0), lambda: BitCodes(3, scale=0), lambda: GaussianDiffusion(0)):
        with pytest.raises(InputError):
            call()
    process = GaussianDiffusion(10)
    x = torch.zeros(1, 1)
    with pytest.raises(ValueError, match="back in time"):
        process.ddim_step(x, x, 3, 3)
    with pytest.raises(ValueError, match="needs noise"):
        process.ddim_step(x, x, 3, 2, eta=1)
