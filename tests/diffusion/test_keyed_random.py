import itertools
import math

import pytest
import torch

from diffusion_mf.diffusion import CategoricalDiffusion, keyed_normals, keyed_uniforms
from diffusion_mf.diffusion.keyed_random import _mixed, _signed

MASK = 2**64 - 1


def split_mix(state: int) -> int:
    """SplitMix64's output function on unsigned integers."""
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & MASK
    return state ^ (state >> 31)


def test_the_hash_is_split_mix() -> None:
    # The generator's widely published first outputs for the seed 1234567.
    expected = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    states = [(1234567 + index * 0x9E3779B97F4A7C15) & MASK for index in (1, 2, 3)]
    assert [split_mix(state) for state in states] == expected
    mixed = _mixed(torch.tensor([_signed(state) for state in states]))
    assert [int(value) & MASK for value in mixed] == expected


def test_numbers_follow_the_sentence_through_any_batch_and_padding() -> None:
    keys = torch.tensor([7, 3, 11])
    for draw in (keyed_uniforms, keyed_normals):
        together = draw(keys, (9, 2), seed=1, step=5)
        alone = draw(keys[1:2], (4, 2), seed=1, step=5)
        assert torch.equal(together[1, :4], alone[0])


def test_uniforms_look_uniform() -> None:
    numbers = keyed_uniforms(torch.arange(100), (1000,), seed=0)
    assert numbers.dtype == torch.float32
    assert numbers.min() >= 0
    assert numbers.max() < 1
    counts = torch.histc(numbers.double().flatten(), bins=100, min=0, max=1)
    chi_square = ((counts - 1000) ** 2 / 1000).sum().item()
    assert 50 < chi_square < 160  # 99 degrees of freedom
    # Neither neighbouring positions nor neighbouring sentences go together.
    centred = numbers.double() - 0.5
    for products in (centred[:, 1:] * centred[:, :-1], centred[1:] * centred[:-1]):
        assert abs(products.mean().item() * 12) < 0.02


def test_normals_look_normal() -> None:
    numbers = keyed_normals(torch.arange(100), (1000,), seed=0).double()
    assert abs(numbers.mean().item()) < 0.02
    assert abs(numbers.var().item() - 1) < 0.02
    for threshold in (-2.0, -1.0, 0.5, 2.5):
        share = (numbers < threshold).double().mean().item()
        assert share == pytest.approx(0.5 * (1 + math.erf(threshold / math.sqrt(2))), abs=0.006)


def test_every_part_of_the_key_matters() -> None:
    settings = [{"seed": a, "step": b, "stream": c} for a, b, c in itertools.product((0, 1), repeat=3)]
    numbers = [tuple(keyed_uniforms(torch.tensor([key]), (3,), **s)[0].tolist()) for s in settings for key in (0, 1)]
    assert len(set(numbers)) == 16


def test_noise_and_timesteps_from_keys() -> None:
    process = CategoricalDiffusion(5)
    keys = torch.arange(2000)
    t = process.sample_timesteps(2000, uniforms=keyed_uniforms(keys, (), seed=1))
    assert t.dtype == torch.long
    assert 1 <= t.min() < 10
    assert 990 < t.max() <= 999
    assert process.sample_timesteps(2, uniforms=torch.tensor([0.0, 1 - 2**-24])).tolist() == [1, 999]
    labels = torch.zeros(2000, 3, dtype=torch.long)
    uniforms = keyed_uniforms(keys, (3, 2), seed=1, stream=1).movedim(-1, 0)
    noisy = process.sample(labels, t, uniforms=uniforms)
    # A label changes with probability (1 − ᾱ_t)·4/5, on average over t.
    expected = 1 - process.forward(labels, t)[..., 0].mean().item()
    assert (noisy != 0).float().mean().item() == pytest.approx(expected, abs=0.025)
    assert torch.equal(noisy[70:75], process.sample(labels[70:75], t[70:75], uniforms=uniforms[:, 70:75]))
