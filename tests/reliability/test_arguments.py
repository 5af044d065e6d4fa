"""Arguments of the wrong kind are understood or refused with a sentence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from small_models import small_tagger

from diffusion_mf import structures
from diffusion_mf.data.sentence import Sentence
from diffusion_mf.decoding.k_best import k_best
from diffusion_mf.errors import InputError
from diffusion_mf.tagger import Tagger

WORDS = [["Ada", "sings"]]


@pytest.fixture(scope="module")
def tagger() -> Tagger:
    return small_tagger("diffusion-mf")


@pytest.mark.parametrize(
    ("sentences", "message"),
    [
        (None, "sentences must be given as a list"),
        (5, "sentences must be given as a list"),
        (b"ab", "sentences must be given as a list"),
        ("Ada sings", "sentences must be given as a list"),
        ([["Ada"], "Ada sings"], "sentence 2 is a string; split it into words"),
        ([["Ada", ""]], "unit 1 of sentence 1 is ''"),
        ([[7]], "unit 0 of sentence 1 is 7"),
        ({"a": 1}, "sentences must be given as a list"),
        ([None], "sentence 1 is None"),
        ([5], "sentence 1 is 5"),
        ([b"ab"], "sentence 1 is b'ab'"),
        ([{"a"}], "sentence 1 is {'a'}"),
        ([Sentence((1, 2))], "unit 0 of sentence 1 is 1"),  # type: ignore[arg-type]
        ([Sentence(None)], "sentence 1 is None"),  # type: ignore[arg-type]
        ([Sentence(("",))], "unit 0 of sentence 1 is ''"),
        ([["a", "\ud800"]], "unit 1 of sentence 1 is '.ud800'"),
        ([["a", "x" * 70_000 + "\ud800"]], "unit 1 of sentence 1 is 'x"),
        (torch.tensor(2), "sentences must be given as a list"),
        ([np.array("a")], "sentence 1 is array"),
        ([Sentence(("a",), document=10**30)], "the document of sentence 1 is 10"),
    ],
)
def test_what_is_no_sentence_is_refused(tagger: Tagger, sentences: Any, message: str) -> None:
    with pytest.raises(InputError, match=message) as found:
        tagger.tag(sentences)
    assert len(str(found.value)) < 300


@pytest.mark.parametrize(
    "options",
    [
        {"calls": 0},
        {"calls": 1.5},
        {"calls": "3"},
        {"calls": True},
        {"calls": float("nan")},
        {"batch_tokens": 0},
        {"batch_tokens": 1.5},
        {"batch_tokens": "x"},
        {"batch_tokens": True},
        {"decoder": []},
        {"scheme": np.array(["a", "b"])},
        {"trajectory": np.array([0, 1])},
        {"marginals": "no"},
        {"k_best": 10**30},
        {"clamp": 5},
        {"clamp": "ab"},
        {"clamp": [0]},
        {"clamp": [""]},
        {"clamp": [{0: None}]},
        {"clamp": [{0.0: "O"}]},
        {"clamp": [{True: "O"}]},
        {"clamp": [{"units": np.array([0, 3]), "type": "PER"}]},
    ],
)
def test_options_of_the_wrong_kind_are_refused(tagger: Tagger, options: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        tagger.tag(WORDS, **options)


@pytest.mark.parametrize("value", [None, 1, b"model", {}, np.array([0, 1])])
def test_what_is_no_model_is_refused(tagger: Tagger, value: Any) -> None:
    for call in (Tagger.load, Tagger.from_pretrained, Tagger.from_bytes, tagger.set_on_long, tagger.set_posterior):
        with pytest.raises(InputError):
            call(value)


@pytest.mark.parametrize("name", ["\ud800", "x" * 5000, "a\0b"])
def test_names_that_no_folder_can_have_are_refused(name: str) -> None:
    with pytest.raises(InputError, match="no such model folder"):
        Tagger.load(name)


def test_a_text_that_is_none_is_refused(tagger: Tagger) -> None:
    with pytest.raises(InputError, match="the text is None"):
        tagger.tag_text(None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "same"),
    [
        ({"calls": np.int64(3)}, {"calls": 3}),
        ({"batch_tokens": np.int32(3)}, {"batch_tokens": 3}),
        ({"clamp": [{np.int64(0): "O"}]}, {"clamp": [{0: "O"}]}),
        (
            {"clamp": [{"units": np.array([0, 2]), "type": "PER"}]},
            {"clamp": [{"units": [0, 2], "type": "PER"}]},
        ),
        ({"clamp": [[]]}, {}),
        ({"clamp": [{}]}, {}),
    ],
)
def test_numpys_numbers_are_numbers(tagger: Tagger, given: dict[str, Any], same: dict[str, Any]) -> None:
    assert tagger.tag(WORDS, **given)[0].labels == tagger.tag(WORDS, **same)[0].labels


def test_a_documents_number_may_be_numpys(tagger: Tagger) -> None:
    assert tagger.tag([Sentence(("Ada",), document=np.int64(1))])[0].labels == tagger.tag([["Ada"]])[0].labels


def _chain(unary: torch.Tensor, lengths: Any, **options: Any) -> structures.LinearChain:
    return structures.LinearChain(unary, torch.zeros(unary.shape[2], unary.shape[2]), lengths, **options)


def _mean_field(unary: torch.Tensor, lengths: Any, **options: Any) -> structures.MeanField:
    transitions = torch.zeros(unary.shape[2], unary.shape[2])
    return structures.MeanField(unary, transitions, lengths, num_iterations=2, **options)


STRUCTURES = [structures.Unigram, _chain, _mean_field]


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("lengths", [[2, -1], [2, 4], np.array([2, 4]), torch.tensor([2, -1]), torch.tensor([2, 4])])
@pytest.mark.parametrize("check", [True, False])
def test_lengths_outside_the_scores_are_refused(structure: Callable, lengths: Any, check: bool) -> None:
    with pytest.raises(ValueError, match=r"lengths must be in 1…3, found (-1|4) for sentence 1 of the batch"):
        structure(torch.zeros(2, 3, 2), lengths, check=check).marginals()


@pytest.mark.parametrize("structure", STRUCTURES)
def test_lengths_may_be_lists_and_arrays(structure: Callable) -> None:
    unary = torch.randn(2, 3, 2)
    expected = structure(unary, torch.tensor([3, 1])).marginals()
    for lengths in ([3, 1], (3, 1), np.array([3, 1]), np.array([3, 1], dtype=np.int32)):
        assert torch.equal(structure(unary, lengths).marginals(), expected)
    with pytest.raises(ValueError, match=r"lengths must be in 1…3, found 0"):
        structure(unary, [3, 0])


@pytest.mark.parametrize("structure", STRUCTURES)
def test_a_row_of_length_0_changes_nothing_in_the_others(structure: Callable) -> None:
    unary = torch.randn(2, 3, 2)
    found = structure(unary, torch.tensor([3, 0]), check=False).marginals()
    torch.testing.assert_close(found[:1], structure(unary[:1], torch.tensor([3])).marginals())
    assert found.isfinite().all()


@pytest.mark.parametrize("structure", STRUCTURES)
def test_scores_whose_sums_overflow_are_refused(structure: Callable) -> None:
    unary = torch.full((2, 3, 2), 3e38)
    unary[0] = 1
    with pytest.raises(ValueError, match="the scores of sentence 1 of the batch are so large that their sums overflow"):
        structure(unary, [3, 3])
    unary[1, :, 0] = -torch.inf
    unary[1, :, 1] = 1e30
    assert structure(unary, [3, 3]).marginals().isfinite().all()


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_k_best_refuses_nan(value: float) -> None:
    unary, transitions = torch.zeros(2, 3, 2), torch.zeros(2, 2)
    unary[1, 2, 0] = value
    with pytest.raises(ValueError, match="the scores of sentence 1 of the batch contain NaN"):
        k_best(unary, transitions, [3, 3], 2)
    assert k_best(unary, transitions, [3, 2], 2).labels.shape == (2, 2, 3)
    with pytest.raises(ValueError, match="transition_scores contain NaN"):
        k_best(unary, torch.full((2, 2), value), [3, 2], 2)
