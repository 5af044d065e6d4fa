from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
import torch

from diffusion_mf.data.label_schemes import LabelError, LabelScheme, check_sequence, is_legal_transition
from diffusion_mf.decoding import Legality
from diffusion_mf.errors import InputError

LABELS = {
    LabelScheme.PLAIN: ["NOUN", "VERB"],
    LabelScheme.IOB1: ["O", "B-X", "I-X", "I-Y"],
    LabelScheme.BIO2: ["O", "B-X", "I-X", "B-Y", "I-Y"],
    LabelScheme.IOBES: ["O", "B-X", "I-X", "E-X", "S-X", "B-Y", "E-Y"],
    LabelScheme.BMES: ["B-NN", "M-NN", "E-NN", "S-NN", "B-VV", "E-VV"],
    LabelScheme.BILOU: ["O", "B-X", "I-X", "L-X", "U-X", "L-Y"],
}


def is_legal(labels: Sequence[str], scheme: LabelScheme) -> bool:
    try:
        check_sequence(labels, scheme)
    except LabelError:
        return False
    return True


@pytest.mark.parametrize("scheme", LabelScheme)
def test_scheme_constraints_permit_what_the_scheme_calls_legal(scheme: LabelScheme) -> None:
    names = LABELS[scheme]
    legality = Legality.of_scheme(names, scheme)
    seen = set()
    for length in (1, 2, 3):
        paths = list(itertools.product(range(len(names)), repeat=length))
        labels = torch.full((len(paths), 4), -100)
        labels[:, :length] = torch.tensor(paths)
        permitted = legality.permits(labels, torch.full((len(paths),), length)).tolist()
        expected = [is_legal([names[label] for label in path], scheme) for path in paths]
        assert permitted == expected
        seen.update(expected)
    assert seen == ({True} if scheme is LabelScheme.PLAIN else {True, False})


@pytest.mark.parametrize("scheme", LabelScheme)
def test_of_many_types_each_pair_is_what_the_scheme_says(scheme: LabelScheme) -> None:
    names = ["O", "B", "I", *(f"{letter}-{kind}" for letter in "BI" for kind in ("X", "Y", "Z-B"))]
    if scheme is LabelScheme.BMES:
        names = [name.replace("I", "M") for name in names]
    legality = Legality.of_scheme(names, scheme)
    for (i, previous), (j, label) in itertools.product(enumerate(names), repeat=2):
        assert bool(legality.transitions[i, j]) == is_legal_transition(previous, label, scheme)


def test_a_number_that_is_no_label_is_not_legal() -> None:
    legality = Legality.everything(3)
    labels = torch.tensor([[0, -1, 2], [0, 1, 3], [0, 1, 3], [2, 2, 2]])
    assert legality.permits(labels, torch.tensor([3, 3, 2, 3])).tolist() == [False, False, True, True]


def test_rules_of_the_user() -> None:
    names = ["a", "b", "c"]
    by_function = Legality.of_rules(
        names, transition=lambda previous, label: previous <= label, start=lambda label: label != "c"
    )
    assert by_function.transitions.tolist() == [[True, True, True], [False, True, True], [False, False, True]]
    assert by_function.starts.tolist() == [True, True, False]
    assert by_function.ends.tolist() == [True, True, True]

    by_list = Legality.of_pairs(names, forbidden=[("b", "a"), ("c", "a"), ("c", "b")], forbidden_starts=["c"])
    assert torch.equal(by_list.transitions, by_function.transitions)
    assert torch.equal(by_list.starts, by_function.starts)

    only = Legality.of_pairs(names, allowed=[("a", "b"), ("b", "c")], forbidden=[("b", "c")], forbidden_ends=["a"])
    assert only.transitions.nonzero().tolist() == [[0, 1]]
    assert only.ends.tolist() == [False, True, True]
    assert Legality.of_pairs(names, allowed=[]).transitions.any().item() is False


def test_constraints_combine() -> None:
    names = LABELS[LabelScheme.BMES]
    scheme = Legality.of_scheme(names, LabelScheme.BMES)
    own = Legality.of_pairs(names, forbidden=[("E-NN", "S-NN")], forbidden_starts=["S-NN"], forbidden_ends=["E-VV"])
    both = scheme & own
    assert torch.equal(both.transitions, scheme.transitions & own.transitions)
    assert torch.equal(both.starts, scheme.starts & own.starts)
    assert torch.equal(both.ends, scheme.ends & own.ends)
    assert not torch.equal(both.transitions, scheme.transitions)
    with pytest.raises(ValueError, match="6 and on 2 labels"):
        both & Legality.everything(2)


def test_constraints_that_are_on_a_device_stay_there() -> None:
    legality = Legality.everything(2)
    assert legality.to("cpu") is legality
    assert legality.num_labels == 2


def test_unknown_names_are_an_error() -> None:
    with pytest.raises(InputError, match=r"do not exist: X, d; check their spelling"):
        Legality.of_pairs(["a", "b"], forbidden=[("a", "d")], forbidden_ends=["X"])
