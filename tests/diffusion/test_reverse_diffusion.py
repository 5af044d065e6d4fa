import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from diffusion_mf.diffusion import CategoricalDiffusion, Denoised, draw, one_hot, restrict, reverse_diffusion


def random_allowed(shape: tuple[int, int, int], generator: torch.Generator) -> torch.Tensor:
    allowed = torch.rand(shape, generator=generator) < 0.5
    return allowed | ~allowed.any(dim=-1, keepdim=True)


def test_constant_marginals_sharpen_from_six_tenths_to_ninety_eight_hundredths() -> None:
    process = CategoricalDiffusion(2)
    rho_0 = torch.tensor([[[0.6, 0.4]]])
    result = reverse_diffusion(process, lambda beliefs, t: rho_0, batch_shape=(1, 1), schedule=process.schedule())
    assert result.num_calls == 10
    assert result.beliefs[0, 0, 0].item() == pytest.approx(0.98, abs=0.005)
    assert torch.equal(result.marginals, rho_0)


def test_a_mixture_keeps_constant_marginals() -> None:
    process = CategoricalDiffusion(2)
    rho_0 = torch.tensor([[[0.6, 0.4]]])
    result = reverse_diffusion(
        process, lambda beliefs, t: rho_0, batch_shape=(1, 1), schedule=process.schedule(), reading="mixture"
    )
    torch.testing.assert_close(result.beliefs, rho_0, rtol=0, atol=1e-4)


def test_samples_follow_the_posterior_and_end_in_a_distribution() -> None:
    # Constant marginals: whatever was drawn before, y^s is distributed as the mixture says.
    process = CategoricalDiffusion(3)
    rho_0 = torch.tensor([0.5, 0.3, 0.2]).expand(1, 20_000, 3)
    schedule = [1000, 500, 100, 0]
    uniforms = torch.rand(1, 20_000, 3, generator=torch.Generator().manual_seed(0))
    settings = {"batch_shape": (1, 20_000), "schedule": schedule, "keep_trajectory": True}
    seen: list[torch.Tensor] = []

    def denoise(beliefs: torch.Tensor, t: int) -> torch.Tensor:
        seen.append(beliefs)
        return rho_0

    drawn = reverse_diffusion(process, denoise, **settings, reading="sampled", uniforms=uniforms)
    mixed = reverse_diffusion(process, lambda beliefs, t: rho_0, **settings, reading="mixture")
    for beliefs in seen:
        assert ((beliefs == 0) | (beliefs == 1)).all()
        assert (beliefs.sum(-1) == 1).all()
    torch.testing.assert_close(seen[0].mean(1), torch.full((1, 3), 1 / 3), rtol=0, atol=0.015)
    for one, other in zip(drawn.trajectory, mixed.trajectory, strict=True):
        torch.testing.assert_close(one.beliefs.mean(1), other.beliefs.mean(1), rtol=0, atol=0.015)
    assert ((drawn.beliefs > 0) & (drawn.beliefs < 1)).all()
    assert torch.equal(drawn.beliefs, process.posterior(seen[-1], rho_0, 100, 0))
    # Every draw has a number of its own.
    assert torch.equal(seen[0], draw(process.uniform((1, 20_000)), uniforms[..., 0]))
    for call, (t, s) in enumerate(((1000, 500), (500, 100)), start=1):
        posterior = process.posterior(seen[call - 1], rho_0, t, s, reading="sampled")
        assert torch.equal(seen[call], draw(posterior, uniforms[..., call]))
    # The same numbers give the same labels, and without numbers there is nothing to draw with.
    again = reverse_diffusion(process, lambda beliefs, t: rho_0, **settings, reading="sampled", uniforms=uniforms)
    assert torch.equal(again.beliefs, drawn.beliefs)
    with pytest.raises(ValueError, match="the reading sampled needs uniforms"):
        reverse_diffusion(process, denoise, **settings, reading="sampled")


def test_labels_without_mass_are_never_drawn() -> None:
    beliefs = torch.tensor([0.0, 0.3, 0.0, 0.7, 0.0])
    uniforms = torch.tensor([0.0, 0.2999, 0.3001, 1 - 2**-24])
    drawn = draw(beliefs.expand(4, 5), uniforms)
    assert drawn.argmax(-1).tolist() == [1, 1, 3, 3]
    # Rounding may make the sum differ from one.
    assert draw(beliefs * 1.01, uniforms[3]).argmax().item() == 3
    assert draw(beliefs * 0.99, uniforms[3]).argmax().item() == 3


@given(
    num_labels=st.integers(1, 20),
    num_calls=st.integers(1, 20),
    num_units=st.integers(1, 5),
    is_clamped=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_a_perfect_denoiser_recovers_the_labels(num_labels, num_calls, num_units, is_clamped, seed) -> None:
    generator = torch.Generator().manual_seed(seed)
    process = CategoricalDiffusion(num_labels)
    labels = torch.randint(num_labels, (2, num_units), generator=generator)
    allowed = random_allowed((2, num_units, num_labels), generator) | (one_hot(labels, num_labels) > 0)
    visited = []

    def denoise(beliefs: torch.Tensor, t: int) -> torch.Tensor:
        visited.append(t)
        if is_clamped:
            assert (beliefs[~allowed] == 0).all()
        torch.testing.assert_close(beliefs.sum(-1), torch.ones(2, num_units))
        return one_hot(labels, num_labels)

    schedule = process.schedule(num_calls=num_calls)
    result = reverse_diffusion(
        process, denoise, batch_shape=(2, num_units), schedule=schedule, allowed=allowed if is_clamped else None
    )
    assert visited == schedule[:-1]
    assert torch.equal(result.beliefs.argmax(-1), labels)
    torch.testing.assert_close(result.beliefs, one_hot(labels, num_labels))


def test_the_loop_is_the_posterior_along_the_schedule() -> None:
    process = CategoricalDiffusion(3)
    generator = torch.Generator().manual_seed(0)
    answers = torch.rand(4, 2, 5, 3, generator=generator, dtype=torch.float64).softmax(-1)
    seen = []

    def denoise(beliefs: torch.Tensor, t: int) -> Denoised:
        seen.append(beliefs)
        return Denoised(answers[len(seen) - 1], potentials=f"potentials at {t}")

    schedule = [1000, 300, 299, 40, 0]
    result = reverse_diffusion(
        process, denoise, batch_shape=(2, 5), schedule=schedule, dtype=torch.float64, keep_trajectory=True
    )
    assert torch.equal(seen[0], process.uniform((2, 5), dtype=torch.float64))
    beliefs = seen[0]
    for index, step in enumerate(result.trajectory):
        beliefs = process.posterior(beliefs, answers[index], schedule[index], schedule[index + 1])
        assert step.t == schedule[index + 1]
        assert torch.equal(step.beliefs, beliefs)
        assert torch.equal(step.marginals, answers[index])
    assert len(result.trajectory) == result.num_calls == 4
    assert torch.equal(result.beliefs, beliefs)
    assert torch.equal(result.marginals, answers[-1])
    assert result.potentials == "potentials at 40"


def test_the_first_marginals_are_kept_where_asked_for() -> None:
    process = CategoricalDiffusion(3)
    answers = torch.rand(4, 1, 2, 3, generator=torch.Generator().manual_seed(0)).softmax(-1)
    settings = {"batch_shape": (1, 2), "schedule": [1000, 500, 250, 100, 0]}
    for keeps_first in (False, True):
        remaining = iter(answers)
        result = reverse_diffusion(
            process, lambda beliefs, t, calls=remaining: next(calls), **settings, keep_first_marginals=keeps_first
        )
        assert torch.equal(result.marginals, answers[3])
        assert (result.first_marginals is not None) == keeps_first
    assert torch.equal(result.first_marginals, answers[0])


def test_without_trajectory_none_is_kept_and_schedules_may_end_early() -> None:
    process = CategoricalDiffusion(3)
    rho_0 = torch.tensor([[[0.7, 0.2, 0.1]]])
    result = reverse_diffusion(process, lambda beliefs, t: rho_0, batch_shape=(1, 1), schedule=[1000, 500])
    assert result.trajectory is None
    torch.testing.assert_close(result.beliefs, process.posterior(process.uniform((1, 1)), rho_0, 1000, 500))


@given(seed=st.integers(0, 1000))
def test_clamps_are_honoured_in_every_step_even_against_the_denoiser(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    process = CategoricalDiffusion(4)
    allowed = random_allowed((2, 3, 4), generator)
    # The denoiser is certain of one label everywhere, forbidden in many places.
    certain = one_hot(torch.randint(4, (2, 3), generator=generator), 4)

    def denoise(beliefs: torch.Tensor, t: int) -> torch.Tensor:
        assert (beliefs[~allowed] == 0).all()
        return certain

    result = reverse_diffusion(
        process, denoise, batch_shape=(2, 3), schedule=process.schedule(), allowed=allowed, keep_trajectory=True
    )
    for beliefs in (result.beliefs, result.marginals, *(step.beliefs for step in result.trajectory)):
        assert (beliefs[~allowed] == 0).all()
        torch.testing.assert_close(beliefs.sum(-1), torch.ones(2, 3))
    assert torch.equal(torch.isneginf(result.log_beliefs()), ~allowed)


def test_log_beliefs_are_finite_unless_forbidden() -> None:
    process = CategoricalDiffusion(3)
    rho_0 = torch.tensor([[[1.0, 0.0, 0.0], [0.0, 0.0, 1.0], [0.0, 0.0, 0.0]]])
    allowed = torch.tensor([[[True, True, True], [False, True, True], [False, False, False]]])
    free = reverse_diffusion(process, lambda beliefs, t: rho_0, batch_shape=(1, 3), schedule=process.schedule())
    assert torch.isfinite(free.log_beliefs()).all()
    torch.testing.assert_close(free.log_beliefs()[0, 0, 0], torch.tensor(0.0))
    clamped = reverse_diffusion(
        process, lambda beliefs, t: rho_0, batch_shape=(1, 3), schedule=process.schedule(), allowed=allowed
    )
    assert clamped.log_beliefs().isneginf().tolist() == [[[False] * 3, [True, False, False], [False] * 3]]


def test_a_denoiser_may_answer_in_the_same_memory_every_time() -> None:
    process = CategoricalDiffusion(2)
    buffer = torch.empty(1, 1, 2)

    def denoise(beliefs: torch.Tensor, t: int) -> torch.Tensor:
        buffer[0, 0] = torch.tensor([1 / t, 1 - 1 / t])
        return buffer

    result = reverse_diffusion(
        process,
        denoise,
        batch_shape=(1, 1),
        schedule=[1000, 100, 10, 0],
        keep_trajectory=True,
        keep_first_marginals=True,
    )
    assert [step.marginals[0, 0, 0].item() for step in result.trajectory] == pytest.approx([0.001, 0.01, 0.1])
    assert result.first_marginals[0, 0, 0].item() == pytest.approx(0.001)


def test_half_precision_marginals_are_raised() -> None:
    process = CategoricalDiffusion(2)
    rho_0 = torch.tensor([[[0.6, 0.4]]]).bfloat16()
    result = reverse_diffusion(process, lambda beliefs, t: rho_0, batch_shape=(1, 1), schedule=process.schedule())
    assert result.beliefs.dtype == result.marginals.dtype == torch.float32


def test_beliefs_carry_gradients_if_asked() -> None:
    process = CategoricalDiffusion(3)
    scores = torch.zeros(1, 2, 3, requires_grad=True)
    result = reverse_diffusion(
        process, lambda beliefs, t: scores.softmax(-1), batch_shape=(1, 2), schedule=process.schedule()
    )
    result.beliefs[..., 0].sum().backward()
    assert (scores.grad[..., 0] > 0).all()
    assert (scores.grad[..., 1:] < 0).all()


def test_impossible_schedules_are_refused() -> None:
    process = CategoricalDiffusion(3)
    with pytest.raises(ValueError, match="reverse schedule"):
        reverse_diffusion(process, lambda beliefs, t: beliefs, batch_shape=(1, 1), schedule=[1000, 1000, 0])


@pytest.mark.gpu
def test_nothing_waits_for_the_device() -> None:
    from diffusion_mf.diffusion import BitCodes, GaussianDiffusion, ddim, posterior_kl

    process = CategoricalDiffusion(17)
    process.signal.prepare("cuda")
    gaussian, codes = GaussianDiffusion(), BitCodes(17, scale=2)
    gaussian.signal.prepare("cuda")
    generator = torch.Generator("cuda").manual_seed(0)
    rho_0 = torch.rand(8, 9, 17, device="cuda").softmax(-1)
    allowed = rho_0 > 0.05
    labels = torch.zeros(8, 9, dtype=torch.long, device="cuda")
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        result = reverse_diffusion(
            process,
            lambda beliefs, t: rho_0,
            batch_shape=(8, 9),
            schedule=process.schedule(),
            device="cuda",
            allowed=allowed,
            keep_trajectory=True,
        )
        t = process.sample_timesteps(8, generator, device="cuda")
        y_t = process.sample(labels, t, generator)
        loss = posterior_kl(process, rho_0.log(), labels, y_t, t)
        gaussian.forward(codes.encode(labels), t, torch.randn(8, 9, codes.num_bits, device="cuda"))
        bits = ddim(
            gaussian,
            codes,
            lambda x, t, previous: x,
            schedule=gaussian.schedule(),
            draw_noise=lambda sample, call: torch.randn(8, 9, codes.num_bits, generator=generator, device="cuda"),
            eta=1,
            allowed=allowed,
        )
        decoded = codes.decode_nearest(bits.bits, allowed=allowed)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert loss.isfinite().all()
    assert decoded.shape == (8, 9)
    on_cpu = reverse_diffusion(
        CategoricalDiffusion(17),
        lambda beliefs, t: rho_0.cpu(),
        batch_shape=(8, 9),
        schedule=process.schedule(),
        allowed=allowed.cpu(),
    )
    torch.testing.assert_close(result.beliefs.cpu(), on_cpu.beliefs)


def test_the_starting_point_is_uniform_over_what_is_allowed() -> None:
    process = CategoricalDiffusion(4)
    allowed = torch.tensor([[[True, False, True, False]]])
    seen = []

    def denoise(beliefs: torch.Tensor, t: int) -> torch.Tensor:
        seen.append(beliefs)
        return process.uniform((1, 1))

    result = reverse_diffusion(process, denoise, batch_shape=(1, 1), schedule=[1000, 0], allowed=allowed)
    assert seen[0].tolist() == [[[0.5, 0, 0.5, 0]]]
    torch.testing.assert_close(result.beliefs, restrict(process.uniform((1, 1)), allowed))
    assert math.isclose(result.beliefs.sum().item(), 1, abs_tol=1e-6)
