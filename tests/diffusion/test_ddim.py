import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from diffusion_mf.diffusion import BitCodes, GaussianDiffusion, ddim


def noise_from(generator: torch.Generator, *shape: int):
    return lambda sample, call: torch.randn(shape, generator=generator)


@given(
    num_labels=st.integers(1, 110),
    num_calls=st.integers(1, 12),
    eta=st.sampled_from([0, 0.5, 1]),
    num_samples=st.integers(1, 3),
    noise=st.sampled_from(["linear", "cosine"]),
    seed=st.integers(0, 1000),
)
def test_a_perfect_denoiser_recovers_the_labels(num_labels, num_calls, eta, num_samples, noise, seed) -> None:
    generator = torch.Generator().manual_seed(seed)
    process, codes = GaussianDiffusion(noise=noise), BitCodes(num_labels, scale=0.1)
    labels = torch.randint(num_labels, (2, 3), generator=generator)
    visited = []

    def denoise(x_t: torch.Tensor, t: int, previous: torch.Tensor | None) -> torch.Tensor:
        visited.append(t)
        assert previous is None
        assert x_t.shape == (2, 3, codes.num_bits)
        assert x_t.isfinite().all()
        return codes.encode(labels)

    schedule = process.schedule(num_calls)
    result = ddim(
        process,
        codes,
        denoise,
        schedule=schedule,
        eta=eta,
        num_samples=num_samples,
        draw_noise=noise_from(generator, 2, 3, codes.num_bits),
    )
    assert visited == schedule[:-1] * num_samples
    assert result.num_calls == num_samples * num_calls
    torch.testing.assert_close(result.bits, codes.encode(labels))
    assert torch.equal(codes.decode_native(result.bits), labels)


def test_two_steps_by_hand() -> None:
    # ᾱ = (1, .64, .16); the denoiser answers x_t/2, clipped to ±1.
    # x_2 = (2.4, 1): x̂_0 = (1, .5), ε̂ = ((2.4 − .4)/√.84, (1 − .2)/√.84) = (2.182179, .872872),
    # x_1 = (.8 + .6·2.182179, .4 + .6·.872872) = (2.109307, .923723), so z = x̂_0 = (1, .461861).
    process = GaussianDiffusion(2, first_beta=0.36, last_beta=0.75)
    start = torch.tensor([[[2.4, 1.0]]])
    seen = []

    def denoise(x_t: torch.Tensor, t: int, previous: torch.Tensor | None) -> torch.Tensor:
        seen.append(x_t)
        return x_t / 2

    result = ddim(
        process,
        BitCodes(4),
        denoise,
        schedule=[2, 1, 0],
        draw_noise=lambda sample, call: start,
        keep_trajectory=True,
    )
    torch.testing.assert_close(seen[1], torch.tensor([[[2.109307, 0.923723]]]))
    torch.testing.assert_close(result.bits, torch.tensor([[[1.0, 0.461861]]]))
    torch.testing.assert_close(result.trajectory[0], torch.tensor([[[1.0, 0.5]]]))
    torch.testing.assert_close(result.trajectory[1], result.bits)


def test_noise_is_asked_for_by_sample_and_call() -> None:
    process = GaussianDiffusion()
    asked = []

    def draw(sample: int, call: int) -> torch.Tensor:
        asked.append((sample, call))
        return torch.full((1, 1, 2), float(10 * sample + call))

    settings = {"schedule": [1000, 500, 100, 0], "num_samples": 2, "draw_noise": draw}
    ddim(process, BitCodes(4), lambda x_t, t, previous: x_t, **settings)
    assert asked == [(0, 0), (1, 0)]
    asked.clear()
    ddim(process, BitCodes(4), lambda x_t, t, previous: x_t, **settings, eta=0.5)
    # No noise is added on the way to 0.
    assert asked == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]


def test_several_samples_are_averaged() -> None:
    process = GaussianDiffusion()
    starts = torch.tensor([[[[0.5, 0.5]]], [[[-0.25, 1.0]]]])
    result = ddim(
        process,
        BitCodes(4),
        lambda x_t, t, previous: x_t,
        schedule=[1000, 0],
        num_samples=2,
        draw_noise=lambda sample, call: starts[sample],
    )
    torch.testing.assert_close(result.bits, torch.tensor([[[0.125, 0.75]]]))


def test_self_conditioning_hands_on_the_previous_prediction() -> None:
    process, codes = GaussianDiffusion(), BitCodes(2, scale=2)
    received = []

    def denoise(x_t: torch.Tensor, t: int, previous: torch.Tensor | None) -> torch.Tensor:
        received.append(previous.item())
        return torch.full_like(x_t, t / 100)  # 10, 5, 1: the first two are clipped

    ddim(
        process,
        codes,
        denoise,
        schedule=[1000, 500, 100, 0],
        draw_noise=noise_from(torch.Generator(), 1, 1, codes.num_bits),
        use_self_conditioning=True,
        num_samples=2,
    )
    assert received == [0, 2, 2, 0, 2, 2]


@given(seed=st.integers(0, 1000), num_samples=st.integers(1, 3))
def test_clamps_are_honoured(seed: int, num_samples: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    process, codes = GaussianDiffusion(), BitCodes(5)
    allowed = torch.rand(2, 3, 5, generator=generator) < 0.4
    allowed |= ~allowed.any(-1, keepdim=True)
    result = ddim(
        process,
        codes,
        lambda x_t, t, previous: torch.randn(x_t.shape, generator=generator),
        schedule=process.schedule(5),
        num_samples=num_samples,
        allowed=allowed,
        draw_noise=noise_from(generator, 2, 3, codes.num_bits),
        keep_trajectory=True,
    )
    is_restricted = ~allowed.all(-1)
    for bits in (result.bits, *result.trajectory):
        labels = codes.decode_native(bits)
        assert allowed.gather(-1, labels.clamp(min=0).unsqueeze(-1)).squeeze(-1)[is_restricted].all()
        assert (labels[is_restricted] >= 0).all()


def test_impossible_settings_are_refused() -> None:
    process, codes = GaussianDiffusion(), BitCodes(3)
    noise = noise_from(torch.Generator(), 1, 1, codes.num_bits)
    with pytest.raises(ValueError, match="at least one sample"):
        ddim(process, codes, lambda x, t, p: x, draw_noise=noise, schedule=[1000, 0], num_samples=0)
    with pytest.raises(ValueError, match="reverse schedule"):
        ddim(process, codes, lambda x, t, p: x, draw_noise=noise, schedule=[0])
