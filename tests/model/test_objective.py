from __future__ import annotations

import math

import pytest
import torch

from diffusion_mf.diffusion import CategoricalDiffusion
from diffusion_mf.model.core import NoisyLabels, structured_terms
from diffusion_mf.structures import Unigram
from diffusion_mf.systems import ObjectiveWeights

LENGTHS = torch.tensor([2, 1])
IS_UNIT = torch.tensor([[True, True], [True, False]])
LABELS = torch.tensor([[0, 1], [1, 0]])
# Probabilities .75/.25, .5/.5 and .2/.8; the last position is padding.
SCORES = torch.tensor([[[0.75, 0.25], [0.5, 0.5]], [[0.2, 0.8], [0.9, 0.1]]]).log()


def terms(**weights):
    process = CategoricalDiffusion(2, 10)
    noisy = NoisyLabels(process, LABELS, torch.tensor([1, 1]))
    found = structured_terms(Unigram(SCORES, LENGTHS), LABELS, IS_UNIT, ObjectiveWeights(**weights), noisy=noisy)
    return {name: value.item() for name, value in found.items()}


def test_terms_are_sums_over_units_with_padding_left_out() -> None:
    expected = -math.log(0.75) - math.log(0.5) - math.log(0.8)
    assert terms(denoising=1) == pytest.approx({"denoising": expected})
    assert terms(marginal=0.5) == pytest.approx({"marginal": expected})
    assert terms(sequence=2) == pytest.approx({"sequence": expected})


def test_only_terms_with_weight_are_computed() -> None:
    assert terms() == {}
    assert terms(denoising=1, posterior=1).keys() == {"denoising", "posterior"}


def test_the_posterior_term_at_step_one_is_reconstruction() -> None:
    """−log of ŷ⁰(y⁰)·q(y¹ | y⁰), normalised over y⁰; here y¹ = y⁰ everywhere."""
    keep = CategoricalDiffusion(2, 10).forward(torch.tensor(0), 1)[0].item()
    expected = 0.0
    for probability in (0.75, 0.5, 0.8):
        kept = probability * keep
        expected -= math.log(kept / (kept + (1 - probability) * (1 - keep)))
    assert terms(posterior=1) == pytest.approx({"posterior": expected}, rel=1e-5)


def test_without_noisy_labels_there_is_no_posterior_term() -> None:
    weights = ObjectiveWeights(denoising=1, posterior=1)
    assert structured_terms(Unigram(SCORES, LENGTHS), LABELS, IS_UNIT, weights).keys() == {"denoising"}
