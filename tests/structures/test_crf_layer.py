"""The CRF layer beside pytorch-crf, and what it has beyond that."""

from __future__ import annotations

import doctest
import pathlib

import pytest
import torch
import torchcrf
from torch import Tensor

from diffusion_mf.data.label_schemes import LabelScheme
from diffusion_mf.decoding import Legality
from diffusion_mf.errors import NoLegalSequenceError
from diffusion_mf.structures import CRF

K = 5
LENGTHS = [7, 1, 4, 7, 3]
DOCUMENTS = pathlib.Path(__file__).parents[2] / "docs"


def problem(batch_first: bool, *, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Emissions, tags and mask."""
    generator = torch.Generator().manual_seed(seed)
    emissions = 2 * torch.randn(len(LENGTHS), max(LENGTHS), K, generator=generator)
    tags = torch.randint(K, emissions.shape[:2], generator=generator)
    mask = torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]
    return (emissions, tags, mask) if batch_first else (emissions.transpose(0, 1), tags.T, mask.T)


def both(batch_first: bool, **options: object) -> tuple[CRF, torchcrf.CRF]:
    """The two layers with the same random parameters, by way of a state dict."""
    other = torchcrf.CRF(K, batch_first=batch_first)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.normal_()
    layer = CRF(K, batch_first=batch_first, **options)  # type: ignore[arg-type]
    layer.load_state_dict(other.state_dict(), strict=True)
    return layer, other


@pytest.mark.parametrize("backend", ["torch", "reference"])
@pytest.mark.parametrize("is_masked", [True, False])
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("reduction", ["none", "sum", "mean", "token_mean"])
def test_values_gradients_and_labels_are_those_of_pytorch_crf(
    reduction: str, batch_first: bool, is_masked: bool, backend: str
) -> None:
    layer, other = both(batch_first, backend=backend)
    emissions, tags, mask = problem(batch_first)
    options = {"mask": mask if is_masked else None}
    found_grads, values = [], []
    for crf in (layer, other):
        leaf = emissions.clone().requires_grad_()
        value = crf(leaf, tags, reduction=reduction, **options)
        weights = torch.arange(1.0, value.numel() + 1).view_as(value)
        parameters = dict(crf.named_parameters())
        found_grads.append(
            torch.autograd.grad((weights * value).sum(), [leaf, *map(parameters.get, sorted(parameters))])
        )
        values.append(value)
    torch.testing.assert_close(*values, rtol=1e-5, atol=1e-4)
    for found, expected in zip(*found_grads, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert layer.decode(emissions, **options) == other.decode(emissions, **options)


def test_state_dicts_load_either_way_and_hold_no_constraints() -> None:
    layer = CRF(K, constraints=Legality.everything(K))
    other = torchcrf.CRF(K)
    other.load_state_dict(layer.state_dict(), strict=True)
    assert [name for name, _ in layer.named_parameters()] == [name for name, _ in other.named_parameters()]
    assert all(bool((parameter.abs() <= 0.1).all()) for parameter in layer.parameters())
    assert repr(CRF(3, batch_first=True)) == "CRF(num_tags=3, batch_first=True)"


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.long, torch.float32])
def test_masks_of_any_type_are_lengths(dtype: torch.dtype) -> None:
    layer, _ = both(batch_first=True)
    emissions, tags, mask = problem(batch_first=True)
    expected = layer(emissions, tags, lengths=LENGTHS)
    assert torch.equal(layer(emissions, tags, mask.to(dtype)), expected)
    assert torch.equal(layer(emissions, tags, lengths=torch.tensor(LENGTHS)), expected)
    assert layer.decode(emissions, mask.to(dtype)) == layer.decode(emissions, lengths=LENGTHS)
    assert [len(tags) for tags in layer.decode(emissions, mask)] == LENGTHS


@pytest.mark.parametrize("batch_first", [True, False])
def test_padding_is_never_read(batch_first: bool) -> None:
    layer, _ = both(batch_first)
    emissions, tags, mask = problem(batch_first)
    expected = layer(emissions, tags, mask)
    emissions = emissions.masked_fill(~mask[..., None], torch.nan)
    assert torch.equal(layer(emissions, tags.masked_fill(~mask, -100), mask), expected)


@pytest.mark.parametrize("batch_first", [True, False])
def test_marginals_are_the_gradient_of_the_normaliser(batch_first: bool) -> None:
    layer, other = both(batch_first)
    emissions, tags, mask = problem(batch_first)
    leaf = emissions.clone().requires_grad_()
    score = other(leaf, tags, mask)
    one_hot = torch.nn.functional.one_hot(tags, K) * mask[..., None]
    (slope,) = torch.autograd.grad(score, leaf)
    torch.testing.assert_close(layer.marginals(emissions, mask), one_hot - slope, rtol=1e-4, atol=1e-5)
    layer.marginals(leaf, mask).square().sum().backward()
    assert leaf.grad is not None
    assert bool(leaf.grad.any())


@pytest.mark.parametrize("batch_first", [True, False])
def test_a_mask_with_holes_is_refused(batch_first: bool) -> None:
    layer, _ = both(batch_first)
    emissions, tags, _ = problem(batch_first=True)
    for row, message in (
        ([1, 1, 0, 1, 0, 0, 0], "mask of sentence 2 of the batch is off at position 2 but on after it; move what is"),
        ([0, 1, 1, 1, 1, 1, 1], "mask of sentence 2 of the batch is off at position 0 but on after it"),
        ([0] * 7, "mask leaves sentence 2 of the batch no unit; leave that sentence out"),
    ):
        mask = torch.ones(emissions.shape[:2], dtype=torch.bool)
        mask[2] = torch.tensor(row, dtype=torch.bool)
        inputs = (emissions, tags, mask) if batch_first else (emissions.transpose(0, 1), tags.T, mask.T)
        with pytest.raises(ValueError, match=message):
            layer(*inputs)
        with pytest.raises(ValueError, match=message):
            layer.decode(inputs[0], inputs[2])


def test_constraints_hold_in_likelihood_and_decoding() -> None:
    names = ["B-X", "I-X", "O", "B-Y", "I-Y"]
    legality = Legality.of_scheme(names, LabelScheme.BIO2)
    layer, other = both(batch_first=True, constraints=legality)
    emissions, _, mask = problem(batch_first=True)
    decoded = layer.decode(emissions, mask)
    assert decoded != other.decode(emissions, mask)
    padded = torch.tensor([row + [0] * (7 - len(row)) for row in decoded])
    lengths = torch.tensor(LENGTHS)
    assert bool(legality.permits(padded, lengths).all())
    # The same as scores of −10⁴, which are as good as impossible here.
    with torch.no_grad():
        other.transitions.masked_fill_(~legality.transitions, -1e4)
        other.start_transitions.masked_fill_(~legality.starts, -1e4)
    torch.testing.assert_close(layer(emissions, padded, mask), other(emissions, padded, mask), rtol=1e-4, atol=1e-3)
    layer(emissions, padded, mask).backward()
    assert layer.transitions.grad is not None
    assert bool(torch.isfinite(layer.transitions.grad).all())
    assert not layer.transitions.grad[~legality.transitions].any()
    illegal = torch.full_like(padded, names.index("I-X"))
    assert layer(emissions, illegal, mask).item() == -torch.inf


def test_sentences_without_a_legal_sequence_are_named() -> None:
    nothing = Legality.of_pairs(["A", "B"], forbidden_starts=["A", "B"])
    with pytest.raises(NoLegalSequenceError, match="sentence 0 of the batch has no legal label sequence"):
        CRF(2, batch_first=True, constraints=nothing).decode(torch.zeros(1, 3, 2))


def test_without_checks_nothing_is_looked_at() -> None:
    layer, _ = both(batch_first=True, check=False)
    emissions, tags, mask = problem(batch_first=True)
    mask[2] = torch.tensor([1, 0, 1, 0, 0, 0, 0])
    layer(emissions, tags, mask)


@pytest.mark.usefixtures("without_annotations")
@pytest.mark.parametrize(
    ("emissions", "tags", "options", "message"),
    [
        ((2, 3), (2, 3), {}, r"emissions must have 3 dimensions, the last of size 5, found \(2, 3\)"),
        ((2, 3, 4), (2, 3), {}, r"the last of size 5, found \(2, 3, 4\)"),
        ((2, 3, 5), (3, 2), {}, r"tags must be \(2, 3\) beside emissions \(2, 3, 5\), found \(3, 2\)"),
        ((2, 3, 5), (2, 3), {"mask": torch.ones(2, 4)}, r"mask must be \(2, 3\) .*found \(2, 4\)"),
        ((2, 3, 5), (2, 3), {"mask": torch.ones(2, 3), "lengths": [3, 3]}, "mask and lengths are both given"),
        ((2, 3, 5), (2, 3), {"lengths": [3, 4]}, "lengths must be in 1…3, found 4 for sentence 1"),
        ((2, 3, 5), (2, 3), {"reduction": "average"}, "reduction must be none, sum, mean or token_mean"),
    ],
)
def test_what_does_not_fit_is_said(
    emissions: tuple[int, ...], tags: tuple[int, ...], options: dict[str, object], message: str
) -> None:
    layer = CRF(5, batch_first=True)
    with pytest.raises(ValueError, match=message):
        layer(torch.zeros(emissions), torch.zeros(tags, dtype=torch.long), **options)


def test_wrong_sizes_of_the_layer_are_said() -> None:
    with pytest.raises(ValueError, match="num_tags must be at least 1, found 0"):
        CRF(0)
    with pytest.raises(ValueError, match="constraints are on 4 labels, but num_tags is 5"):
        CRF(5, constraints=Legality.everything(4))


@pytest.mark.parametrize(("document", "least"), [("crf-layer.md", 12), ("crf-migration.md", 8)])
def test_the_examples_of_the_documents_hold(document: str, least: int) -> None:
    result = doctest.testfile(str(DOCUMENTS / document), module_relative=False, encoding="utf-8")
    assert result.failed == 0
    assert result.attempted >= least


@pytest.mark.gpu
def test_on_a_gpu_everything_agrees_with_the_cpu() -> None:
    legality = Legality.of_pairs(list("ABCDE"), forbidden=[("A", "B"), ("C", "C")])
    layer, _ = both(batch_first=True, constraints=legality)
    emissions, _, mask = problem(batch_first=True)
    decoded = layer.decode(emissions, mask)
    tags = torch.tensor([row + [0] * (7 - len(row)) for row in decoded])
    expected, marginals = layer(emissions, tags, mask).detach(), layer.marginals(emissions, mask).detach()
    layer, emissions, tags, mask = layer.cuda(), emissions.cuda(), tags.cuda(), mask.cuda()
    assert layer.decode(emissions, mask) == decoded
    torch.testing.assert_close(layer(emissions, tags, mask).cpu(), expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(layer.marginals(emissions, mask).cpu(), marginals, rtol=1e-4, atol=1e-4)
