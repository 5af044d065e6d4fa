"""Labels in the scheme that users read: what is printed, and how probable it is, against the enumeration of all sequences."""

from __future__ import annotations

import itertools
import math
import random

import pytest
import torch

from diffusion_mf.data.label_schemes import LabelledSpan, LabelScheme, check_sequence, complete_labels, encode_spans
from diffusion_mf.decoding import OutputLabels

BMES = complete_labels(["S-X", "S-Y"], LabelScheme.BMES)
SCHEMES = [scheme for scheme in LabelScheme if scheme is not LabelScheme.PLAIN]


def random_spans(generator: random.Random, length: int) -> list[LabelledSpan]:
    spans, start = [], 0
    while start < length:
        end = min(length, start + generator.randint(1, 3))
        if generator.random() < 0.6:
            spans.append(LabelledSpan(start, end, generator.choice("XY")))
        start = end
    return spans


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_legal_sequence_prints_as_its_spans_in_the_scheme(scheme: LabelScheme) -> None:
    output = OutputLabels(BMES, LabelScheme.BMES, scheme)
    generator = random.Random(4)
    for _ in range(200):
        length = generator.randint(1, 8)
        spans = random_spans(generator, length)
        printed = output.printed(encode_spans(spans, length, LabelScheme.BMES))
        assert printed == encode_spans(spans, length, scheme)
        check_sequence(printed, scheme)
        assert set(printed) <= set(output.names)


def test_what_is_malformed_or_no_label_is_printed_unit_by_unit() -> None:
    labels = ["M-X", "O", "_", "B-Y", "S-Y", "_", "S-Y"]
    for scheme, expected in {
        "bmes": "M-X O _ B-Y S-Y _ S-Y", "iobes": "I-X O _ B-Y S-Y _ S-Y", "bilou": "I-X O _ B-Y U-Y _ U-Y",
        "bio2": "I-X O _ B-Y B-Y _ B-Y", "iob1": "I-X O _ I-Y B-Y _ I-Y",
    }.items():  # fmt: skip
        assert OutputLabels(BMES, LabelScheme.BMES, LabelScheme(scheme)).printed(labels) == expected.split()


def test_labels_without_types() -> None:
    output = OutputLabels(["B", "E", "M", "O", "S"], LabelScheme.BMES, LabelScheme.IOB1)
    assert output.names == ("B", "I", "O")
    assert output.printed(["S", "S", "B", "E"]) == ["I", "B", "B", "I"]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_probabilities_are_those_of_all_sequences_that_print_so(scheme: LabelScheme) -> None:
    labels = complete_labels(["S-X", "S-Y"], LabelScheme.BMES)
    output = OutputLabels(labels, LabelScheme.BMES, scheme)
    values = torch.rand(2, 3, len(labels), dtype=torch.float64, generator=torch.Generator().manual_seed(1)).softmax(-1)
    expected = torch.zeros(2, 3, len(output.names), dtype=torch.float64)
    for ids in itertools.product(range(len(labels)), repeat=3):
        printed = output.printed([labels[index] for index in ids])
        for row in range(2):
            weight = math.prod(float(values[row, place, index]) for place, index in enumerate(ids))
            for place, name in enumerate(printed):
                expected[row, place, output.names.index(name)] += weight
    torch.testing.assert_close(output.probabilities(values), expected)
    chosen = torch.tensor([[0, 3, 8], [8, 8, -1]])
    for row, ids in enumerate(chosen.tolist()):
        printed = output.printed([labels[index] if index >= 0 else "_" for index in ids])
        for place, name in enumerate(printed):
            wanted = 0.0 if name == "_" else float(expected[row, place, output.names.index(name)])
            assert float(output.scores(values, chosen)[row, place]) == pytest.approx(wanted)


def test_pairs_that_a_clamp_leaves_condition_the_probabilities() -> None:
    output = OutputLabels(BMES, LabelScheme.BMES, LabelScheme.IOB1)
    values = torch.zeros(1, 2, len(BMES))
    values[0, :, BMES.index("S-X")] = 1.0
    pairs = output.prints_after({"I-X"})[None, None]
    free = output.probabilities(values)[0, 1]
    held = output.probabilities(values, pairs)[0, 1]
    # Beliefs that speak against the clamp altogether give way.
    assert (float(free[output.names.index("B-X")]), float(held[output.names.index("I-X")])) == (1.0, 1.0)
