from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from diffusion_mf.data.label_schemes import LabelScheme, check_sequence
from diffusion_mf.decoding import DECODERS, DecoderInput, Legality
from diffusion_mf.decoding.decoders import ZERO_PROBABILITY_COST
from diffusion_mf.diffusion import NO_LABEL_ID, BitCodes
from diffusion_mf.errors import InputError, NoLegalSequenceError
from diffusion_mf.structures import LinearChain, Potentials
from oracles.chain_enumeration import Enumerated

ALL_LABELS = {
    LabelScheme.PLAIN: ["a", "b", "c"],
    LabelScheme.IOB1: ["B-X", "B-Y", "I-X", "I-Y", "O"],
    LabelScheme.BIO2: ["B-X", "B-Y", "I-X", "I-Y", "O"],
    LabelScheme.IOBES: ["B-X", "E-X", "I-X", "O", "S-Y"],
    LabelScheme.BMES: ["B-X", "B-Y", "E-X", "E-Y", "M-X", "S-Y"],
    LabelScheme.BILOU: ["B-X", "I-X", "L-X", "O", "U-X"],
}


@st.composite
def unary_problems(draw: st.DrawFn) -> tuple[LabelScheme, list[str], Tensor, Tensor]:
    """A scheme, some of its labels, scores (some −∞, NaN past each length) and lengths."""
    scheme = draw(st.sampled_from(list(LabelScheme)))
    names = sorted(draw(st.sets(st.sampled_from(ALL_LABELS[scheme]), min_size=1)))
    lengths = torch.tensor(draw(st.lists(st.integers(1, 4), min_size=1, max_size=3)))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10**6)))
    shape = (len(lengths), 4, len(names))
    scores = torch.randn(shape, generator=generator, dtype=torch.float64) * draw(st.sampled_from([1.0, 1e4]))
    scores[torch.rand(shape, generator=generator) < draw(st.sampled_from([0.0, 0.5, 1.0]))] = -math.inf
    scores[torch.arange(4) >= lengths[:, None]] = math.nan
    return scheme, names, scores, lengths


def brute_force(scheme: LabelScheme, names: list[str], scores: list[list[float]]) -> list[int] | None:
    """The best legal sequence under the documented rule for scores of −∞; ties to the smaller label from the end."""
    least = min([0.0, *(score for row in scores for score in row if score > -math.inf)])
    floored = [[least - ZERO_PROBABILITY_COST if score == -math.inf else score for score in row] for row in scores]
    found = []
    for path in itertools.product(range(len(names)), repeat=len(scores)):
        try:
            check_sequence([names[label] for label in path], scheme)
        except ValueError:
            continue
        total = sum(row[label] for row, label in zip(floored, path, strict=True))
        found.append((-round(total, 6), path[::-1]))
    return list(min(found)[1][::-1]) if found else None


def bits_input(
    bits: Tensor, codes: BitCodes, lengths: Tensor, *, temperature: float = 0.05, **options: object
) -> DecoderInput:
    unary = codes.unary_scores(bits, temperature=temperature)
    return DecoderInput(lengths=lengths, unary_scores=unary, bits=bits, codes=codes, **options)  # type: ignore[arg-type]


@given(problem=unary_problems())
def test_mask_viterbi_is_always_legal_and_equals_brute_force(
    problem: tuple[LabelScheme, list[str], Tensor, Tensor],
) -> None:
    scheme, names, scores, lengths = problem
    decoder_input = DecoderInput(lengths=lengths, unary_scores=scores, legality=Legality.of_scheme(names, scheme))
    expected = [
        brute_force(scheme, names, scores[sentence, :length].tolist())
        for sentence, length in enumerate(lengths.tolist())
    ]
    if None in expected:
        with pytest.raises(NoLegalSequenceError, match=f"sentence {expected.index(None)} of the batch"):
            DECODERS["mask-viterbi"](decoder_input)
        return
    labels = DECODERS["mask-viterbi"](decoder_input)
    for sentence, length in enumerate(lengths.tolist()):
        check_sequence([names[label] for label in labels[sentence, :length].tolist()], scheme)
        assert labels[sentence, :length].tolist() == expected[sentence]
        assert not labels[sentence, length:].any()


def test_legality_beats_any_score_and_a_probability_of_zero() -> None:
    names = ["B-X", "E-X", "S-X"]
    legality = Legality.of_scheme(names, LabelScheme.BMES)
    large = torch.tensor([[[1e30, 0.0, 0.0], [1e30, 0.0, 0.0]]])
    certain = torch.tensor([[[0.0, -math.inf, -math.inf], [0.0, -math.inf, -math.inf]]])
    for scores in (large, certain):
        decoder_input = DecoderInput(lengths=torch.tensor([2]), unary_scores=scores, legality=legality)
        assert DECODERS["argmax"](decoder_input).tolist() == [[0, 0]]
        assert DECODERS["mask-viterbi"](decoder_input).tolist() == [[0, 1]]


def test_clamps_are_honoured_even_against_a_probability_of_zero() -> None:
    names = ["B-X", "E-X", "S-X"]
    legality = Legality.of_scheme(names, LabelScheme.BMES)
    scores = torch.full((1, 2, 3), -math.inf)
    scores[..., 2] = 0.0
    allowed = torch.tensor([[[True, True, True], [False, True, False]]])
    decoder_input = DecoderInput(lengths=torch.tensor([2]), unary_scores=scores, legality=legality, allowed=allowed)
    assert DECODERS["argmax"](decoder_input).tolist() == [[2, 1]]
    assert DECODERS["mask-viterbi"](decoder_input).tolist() == [[0, 1]]


@pytest.mark.parametrize("name", ["mask-viterbi", "viterbi"])
def test_impossible_clamps_are_an_error(name: str) -> None:
    names = ["B-X", "E-X", "S-X"]
    allowed = torch.ones(2, 2, 3, dtype=torch.bool)
    allowed[1, 0] = torch.tensor([True, False, False])
    allowed[1, 1] = torch.tensor([False, False, True])
    decoder_input = DecoderInput(
        lengths=torch.tensor([2, 2]),
        unary_scores=torch.zeros(2, 2, 3),
        potentials=Potentials(torch.zeros(2, 2, 3), torch.zeros(3, 3)),
        legality=Legality.of_scheme(names, LabelScheme.BMES),
        allowed=allowed,
    )
    with pytest.raises(NoLegalSequenceError, match="sentence 1 of the batch has no legal label sequence"):
        DECODERS[name](decoder_input)


@pytest.mark.parametrize("name", ["argmax", "mask-viterbi", "native"])
def test_a_position_without_any_label_is_an_error(name: str) -> None:
    codes = BitCodes(3)
    allowed = torch.ones(2, 2, 3, dtype=torch.bool)
    allowed[1, 1] = False
    bits = torch.zeros(2, 2, 2)
    with pytest.raises(NoLegalSequenceError, match="sentence 1 of the batch has no label left at position 1"):
        DECODERS[name](bits_input(bits, codes, torch.tensor([2, 2]), allowed=allowed))
    # Past the length nothing is asked for.
    assert DECODERS[name](bits_input(bits, codes, torch.tensor([2, 1]), allowed=allowed)).shape == (2, 2)


@given(seed=st.integers(0, 10**6), is_local=st.booleans(), is_constrained=st.booleans(), has_ends=st.booleans())
def test_viterbi_equals_enumeration_of_legal_sequences(
    seed: int, is_local: bool, is_constrained: bool, has_ends: bool
) -> None:
    names = ["B-X", "E-X", "M-X", "S-X"]
    K, N = len(names), 3
    generator = torch.Generator().manual_seed(seed)
    unary = torch.randn(2, N, K, generator=generator, dtype=torch.float64)
    transition = torch.randn(*((2, N - 1) if is_local else ()), K, K, generator=generator, dtype=torch.float64)
    start, end = torch.randn(2, K, generator=generator, dtype=torch.float64) if has_ends else (None, None)
    lengths = torch.randint(1, N + 1, (2,), generator=generator)
    legality = Legality.of_scheme(names, LabelScheme.BMES) if is_constrained else None
    decoder_input = DecoderInput(
        lengths=lengths, potentials=Potentials(unary, transition, start, end), legality=legality
    )
    labels = DECODERS["viterbi"](decoder_input)
    if legality is None:
        chain = LinearChain(unary, transition, lengths, start_scores=start, end_scores=end)
        assert torch.equal(labels, chain.mode())
    for sentence, length in enumerate(lengths.tolist()):
        own = transition[sentence, : length - 1] if is_local else transition
        ranked = Enumerated(unary[sentence, :length], own, length, start, end).best(10**6)
        if legality is not None:
            ranked = [pair for pair in ranked if _is_legal([names[label] for label in pair[0]])]
        assert labels[sentence, :length].tolist() == list(ranked[0][0])


def _is_legal(names: list[str]) -> bool:
    try:
        check_sequence(names, LabelScheme.BMES)
    except ValueError:
        return False
    return True


def test_ties_go_to_the_smaller_label() -> None:
    decoder_input = DecoderInput(
        lengths=torch.tensor([3]),
        unary_scores=torch.zeros(1, 3, 4),
        potentials=Potentials(torch.zeros(1, 3, 4), torch.zeros(4, 4)),
    )
    for name in ("argmax", "mask-viterbi", "viterbi"):
        assert DECODERS[name](decoder_input).tolist() == [[0, 0, 0]]


def test_native_bits_and_the_distance_based_extension() -> None:
    codes = BitCodes(3, scale=1)
    bits = torch.tensor([[[0.9, 0.8], [-0.5, 0.4], [math.nan, math.nan]]])
    decoder_input = bits_input(bits, codes, torch.tensor([2]))
    assert DECODERS["native"](decoder_input).tolist() == [[NO_LABEL_ID, 1, 0]]
    # 11 is no label: 10 (label 2) is nearest to (.9, .8).
    assert DECODERS["argmax"](decoder_input).tolist() == [[2, 1, 0]]
    assert decoder_input.unary_scores is not None
    assert decoder_input.unary_scores[0, 1].tolist() == pytest.approx(
        [-(0.5**2 + 1.4**2) / 0.05, -(0.5**2 + 0.6**2) / 0.05, -(1.5**2 + 1.4**2) / 0.05]
    )
    assert bits_input(bits, codes, torch.tensor([2]), temperature=0.1).unary_scores[0, 1, 1].item() == pytest.approx(  # type: ignore[index]
        -(0.5**2 + 0.6**2) / 0.1
    )
    allowed = torch.tensor([[[True, True, False], [True, True, True], [False, False, False]]])
    clamped = bits_input(bits, codes, torch.tensor([2]), allowed=allowed)
    assert DECODERS["native"](clamped).tolist() == [[1, 1, 0]]


@given(seed=st.integers(0, 10**6))
def test_mask_viterbi_on_bits_equals_brute_force(seed: int) -> None:
    names = ALL_LABELS[LabelScheme.BMES]
    codes = BitCodes(len(names), scale=0.1)
    bits = torch.randn(2, 3, codes.num_bits, generator=torch.Generator().manual_seed(seed)) * 0.1
    lengths = torch.tensor([3, 2])
    legality = Legality.of_scheme(names, LabelScheme.BMES)
    labels = DECODERS["mask-viterbi"](bits_input(bits, codes, lengths, legality=legality))
    table = [[(1 if label >> shift & 1 else -1) * 0.1 for shift in (2, 1, 0)] for label in range(len(names))]
    for sentence, length in enumerate(lengths.tolist()):
        scores = [[-(math.dist(row, code) ** 2) / 0.05 for code in table] for row in bits[sentence, :length].tolist()]
        assert labels[sentence, :length].tolist() == brute_force(LabelScheme.BMES, names, scores)


def test_decoders_say_what_they_lack() -> None:
    assert list(DECODERS) == ["argmax", "mask-viterbi", "viterbi", "native"]
    assert all(decoder.name == name for name, decoder in DECODERS.items())
    nothing = DecoderInput(lengths=torch.tensor([1]))
    for name, what in [
        ("argmax", "a score for every label"),
        ("mask-viterbi", "a score for every label"),
        ("viterbi", "learned transitions"),
        ("native", "bits"),
    ]:
        with pytest.raises(InputError, match=f"the decoder {name} needs {what}"):
            DECODERS[name](nothing)
    without = DecoderInput(lengths=torch.tensor([1]), potentials=Potentials(torch.zeros(1, 1, 2)))
    with pytest.raises(InputError, match="learned transitions"):
        DECODERS["viterbi"](without)


def test_bad_values_are_errors() -> None:
    scores = torch.zeros(1, 2, 3)
    scores[0, 1, 0] = math.nan
    potentials = Potentials(scores, torch.zeros(3, 3))
    for name in ("argmax", "mask-viterbi", "viterbi"):
        with pytest.raises(ValueError, match="NaN"):
            DECODERS[name](DecoderInput(lengths=torch.tensor([2]), unary_scores=scores, potentials=potentials))
        with pytest.raises(ValueError, match=r"1…2, found 3"):
            DECODERS[name](DecoderInput(lengths=torch.tensor([3]), unary_scores=scores, potentials=potentials))
    with pytest.raises(ValueError, match=r"1…2, found 0"):
        DECODERS["native"](bits_input(torch.zeros(1, 2, 2), BitCodes(3), torch.tensor([0])))
    with pytest.raises(ValueError, match="constraints on 2 labels do not fit scores of 3"):
        DECODERS["mask-viterbi"](
            DecoderInput(lengths=torch.tensor([1]), unary_scores=scores, legality=Legality.everything(2))
        )


def test_nothing_is_raised_where_checks_are_off() -> None:
    allowed = torch.zeros(1, 2, 3, dtype=torch.bool)
    decoder_input = DecoderInput(
        lengths=torch.tensor([2]),
        unary_scores=torch.zeros(1, 2, 3),
        potentials=Potentials(torch.zeros(1, 2, 3), torch.zeros(3, 3)),
        bits=torch.zeros(1, 2, 2),
        codes=BitCodes(3),
        allowed=allowed,
        check=False,
    )
    for decoder in DECODERS.values():
        assert decoder(decoder_input).shape == (1, 2)


@pytest.mark.parametrize("name", list(DECODERS))
def test_what_stands_past_a_length_changes_no_label(name: str) -> None:
    codes = BitCodes(3)
    names = ["B-X", "E-X", "S-X"]
    found = []
    for value in (0.0, math.nan, math.inf, 1e30):
        generator = torch.Generator().manual_seed(0)
        bits = torch.randn(3, 5, 2, generator=generator)
        unary = torch.randn(3, 5, 3, generator=generator)
        transition = torch.randn(3, 4, 3, 3, generator=generator)
        lengths = torch.tensor([5, 2, 3])
        is_padding = torch.arange(5) >= lengths[:, None]
        for scores in (bits, unary):
            scores[is_padding] = value
        transition[is_padding[:, 1:]] = value
        decoder_input = DecoderInput(
            lengths=lengths,
            unary_scores=unary,
            potentials=Potentials(unary, transition),
            bits=bits,
            codes=codes,
            legality=Legality.of_scheme(names, LabelScheme.BMES),
            allowed=(torch.rand(3, 5, 3, generator=generator) < 2) & ~is_padding[..., None],
        )
        found.append(DECODERS[name](decoder_input))
    assert all(torch.equal(labels, found[0]) for labels in found[1:])
    assert not found[0][is_padding].any()


def test_what_a_probability_of_zero_costs_depends_on_its_own_sentence_only() -> None:
    names = ["B-X", "E-X", "M-X", "S-X"]
    legality = Legality.of_scheme(names, LabelScheme.BMES)
    # B M E costs 1100 + 1000 for its B of probability zero; S B E, the next best, costs 2200.
    sentence = torch.tensor([[-math.inf, 0, 0, -1100], [-1100, 0, 0, -1100], [0, 0, 0, -1100], [-1e30] * 4])
    other = torch.full((4, 4), -5000.0)
    for batch in ([sentence], [other, sentence]):
        decoder_input = DecoderInput(
            lengths=torch.tensor([4, 3][-len(batch) :]), unary_scores=torch.stack(batch), legality=legality
        )
        assert DECODERS["mask-viterbi"](decoder_input)[-1].tolist() == [0, 2, 1, 0]
