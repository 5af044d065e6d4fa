from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pytest
from stand_in import stand_in_tagger

from diffusion_mf.data.corpus import Task
from diffusion_mf.data.sentence import Sentence
from diffusion_mf.errors import InputError, NoLegalSequenceError
from diffusion_mf.tagger import Span, Tagger
from diffusion_mf.tagger.tagger import MAX_WINDOW_ITEMS, WINDOW_BATCHES

DISTRIBUTIONS = {
    "Ada": {"B-PER": 0.6, "S-PER": 0.4},
    "Byron": {"E-PER": 0.7, "O": 0.3},
    "sings": {"O": 1.0},
    "Oslo": {"S-LOC": 0.9, "O": 0.1},
}


@pytest.fixture
def tagger() -> Tagger:
    return stand_in_tagger(DISTRIBUTIONS)


def test_labels_scores_and_spans(tagger: Tagger) -> None:
    result = tagger.tag([["Ada", "Byron", "sings", "Oslo"]])[0]
    assert result.units == ("Ada", "Byron", "sings", "Oslo")
    assert result.labels == ["B-PER", "E-PER", "O", "S-LOC"]
    assert result.scores == pytest.approx([0.6, 0.7, 1.0, 0.9])
    assert [span[:3] for span in result.spans] == [(0, 2, "PER"), (3, 4, "LOC")]
    assert [span.confidence for span in result.spans] == pytest.approx([0.6, 0.9])
    assert isinstance(result.spans[0], Span)
    assert result.trajectory is None


def test_scores_are_the_marginals_whatever_the_number_of_calls(tagger: Tagger) -> None:
    beliefs = {}
    for calls in (1, 5, 10, 20):
        result = tagger.tag([["Ada", "Byron"]], calls=calls, trajectory=True)[0]
        assert result.scores == pytest.approx([0.6, 0.7]), calls
        assert len(result.trajectory) == calls
        beliefs[calls] = result.trajectory[-1].beliefs[0].max()
    # The beliefs that decide grow surer with every call although nothing is learnt: they are no scores.
    assert beliefs[1] == pytest.approx(0.6, abs=0.01)
    assert beliefs[10] > 0.9


def test_temperature_changes_scores_but_no_label() -> None:
    warm = stand_in_tagger(DISTRIBUTIONS, temperature=2.0).tag([["Ada", "Byron"]])[0]
    assert warm.labels == ["B-PER", "E-PER"]
    # .6 and .4 become √.6 and √.4, normalised.
    assert warm.scores == pytest.approx([0.6**0.5 / (0.6**0.5 + 0.4**0.5), 0.7**0.5 / (0.7**0.5 + 0.3**0.5)])


def test_a_decoder_may_be_chosen(tagger: Tagger) -> None:
    # A lone Ada cannot be B-PER in a legal sequence.
    assert tagger.tag([["Ada"]])[0].labels == ["S-PER"]
    assert tagger.tag([["Ada"]])[0].scores == pytest.approx([0.4])
    result = tagger.tag([["Ada"]], decoder="argmax")[0]
    assert (result.labels, result.spans) == (["B-PER"], [])
    with pytest.raises(InputError, match="no decoder is called 'beam'; choose one of argmax"):
        tagger.tag([["Ada"]], decoder="beam")
    with pytest.raises(InputError, match="the decoder viterbi needs learned transitions"):
        tagger.tag([["Ada"]], decoder="viterbi")


def test_trajectory_has_one_entry_per_call_and_beliefs_sum_to_one(tagger: Tagger) -> None:
    results = tagger.tag([["Ada", "Byron", "sings"], ["Oslo"]], trajectory=True)
    for result in results:
        assert [step.t for step in result.trajectory] == [500, 250, 125, 62, 31, 15, 7, 3, 1, 0]
        for step in result.trajectory:
            assert step.beliefs.shape == (len(result.units), len(tagger.labels))
            np.testing.assert_allclose(step.beliefs.sum(-1), 1, atol=1e-5)
    first, last = results[1].trajectory[0].beliefs[0], results[1].trajectory[-1].beliefs[0]
    column = tagger.labels.index("S-LOC")
    assert first[column] < last[column]


def test_empty_input_empty_sentences_and_unknown_words(tagger: Tagger) -> None:
    assert tagger.tag([]) == []
    results = tagger.tag([[], ["Oslo"], [], ["\U0001f600", "नमस्ते", "\u200b"]])
    assert [result.labels for result in results[:3]] == [[], ["S-LOC"], []]
    assert (results[0].scores, results[0].spans, results[0].trajectory) == ([], [], None)
    assert len(results[3].labels) == 3
    assert results[3].scores == pytest.approx([1 / 6] * 3)
    assert tagger.tag([[]], trajectory=True)[0].trajectory == ()


def test_characters_may_be_given_as_a_string() -> None:
    tagger = stand_in_tagger(
        {"a": {"B-NN": 1.0}, "b": {"E-NN": 1.0}, "c": {"S-VV": 1.0}}, labels=("B-NN", "E-NN", "S-VV"), task=Task.SEG_POS
    )
    result = tagger.tag(["abc"])[0]
    assert result.labels == ["B-NN", "E-NN", "S-VV"]
    assert [span[:3] for span in result.spans] == [(0, 2, "NN"), (2, 3, "VV")]


def test_sentences_are_lowercased_only_for_the_model() -> None:
    tagger = stand_in_tagger({"oslo": {"S-LOC": 1.0}}, settings={"data": {"lowercase": True}})
    result = tagger.tag([["OSLO"]])[0]
    assert (result.units, result.labels) == (("OSLO",), ["S-LOC"])


def test_handles_and_links_are_normalised_only_for_the_model() -> None:
    words = ("@ada", "@", "bob_7", "met", "@", "http://a.org/b", "www.b.org", "//t.co/x", "a@b", "@")
    seen = ["@USER", "@", "@USER", "met", "@", "HTTPURL", "HTTPURL", "HTTPURL", "a@b", "@"]
    known = {"@USER": {"S-PER": 1.0}, "HTTPURL": {"S-LOC": 1.0}, "@": {"O": 1.0}, "met": {"O": 1.0}, "a@b": {"O": 1.0}}
    tagger = stand_in_tagger(known, settings={"data": {"normalise_handles": True}})
    result = tagger.tag([words])[0]
    assert result.units == words
    assert result.labels == [max(known[word], key=known[word].__getitem__) for word in seen]
    both = stand_in_tagger({"@user": {"S-PER": 1.0}}, settings={"data": {"normalise_handles": True, "lowercase": True}})
    assert both.tag([["@Ada"]])[0].labels == ["S-PER"]


def test_batches_and_order_change_nothing(tagger: Tagger) -> None:
    generator = random.Random(3)
    sentences = [tuple(generator.choices([*DISTRIBUTIONS, "unseen"], k=generator.randint(0, 9))) for _ in range(60)]
    expected = tagger.tag(sentences)
    for batch_tokens in (1, 7, 30):
        assert [r.labels for r in tagger.tag(sentences, batch_tokens=batch_tokens)] == [r.labels for r in expected]
    order = generator.sample(range(60), 60)
    shuffled = tagger.tag([sentences[index] for index in order], batch_tokens=20)
    for position, index in enumerate(order):
        assert shuffled[position].units == sentences[index]
        assert shuffled[position].labels == expected[index].labels
        assert shuffled[position].scores == pytest.approx(expected[index].scores, abs=1e-6)


def test_batches_keep_to_their_budget(tagger: Tagger) -> None:
    tagger.tag([["sings"] * size for size in (1, 2, 3, 4, 5, 12)], batch_tokens=10)
    shapes = tagger.model.labeller.batches
    assert sum(rows for rows, _ in shapes) == 6
    assert all(rows * columns <= 10 or rows == 1 for rows, columns in shapes)
    assert len(shapes) < 6


def test_streams_are_lazy_and_in_order(tagger: Tagger) -> None:
    num_read = 0

    def source() -> Iterator[list[str]]:
        nonlocal num_read
        while True:
            num_read += 1
            yield ["Oslo"] * (num_read % 4 + 1)

    stream = tagger.stream(source(), batch_tokens=10)
    assert num_read == 0
    for number in range(1, 200):
        assert len(next(stream).labels) == number % 4 + 1
        assert num_read <= number + 10 * WINDOW_BATCHES
    empty = tagger.stream([] for _ in iter(int, 1))
    assert next(empty).labels == []
    assert MAX_WINDOW_ITEMS < 10_000


def test_arguments_of_a_stream_are_checked_before_it_is_read(tagger: Tagger) -> None:
    with pytest.raises(InputError):
        tagger.stream(iter([]), decoder="beam")


def test_a_direct_system_makes_one_call() -> None:
    tagger = stand_in_tagger(DISTRIBUTIONS, settings={"system": "unigram"})
    assert tagger.tag([["Oslo"]], calls=1)[0].labels == ["S-LOC"]
    with pytest.raises(InputError, match="the system unigram makes one call, not 5"):
        tagger.tag([["Oslo"]], calls=5)


def test_labelled_sentences_of_a_corpus_may_be_given(tagger: Tagger) -> None:
    # A label the model does not know must not matter.
    assert tagger.tag([Sentence(("Oslo",), ("S-GPE",))])[0].labels == ["S-LOC"]


class TestClamps:
    def test_a_label_is_held_and_its_neighbours_follow(self, tagger: Tagger) -> None:
        free, held = tagger.tag([["Ada", "Byron"]] * 2, clamp=[None, {0: "S-PER"}])
        assert free.labels == ["B-PER", "E-PER"]
        assert held.labels == ["S-PER", "O"]
        assert held.scores == pytest.approx([1.0, 0.3])

    def test_a_set_of_labels(self, tagger: Tagger) -> None:
        result = tagger.tag([["Oslo"]], clamp=[{0: {"O", "S-PER"}}])[0]
        assert result.labels == ["O"]
        # The model's zero for S-PER stays next to nothing.
        assert result.scores == pytest.approx([1.0])

    def test_against_everything_the_model_believes(self, tagger: Tagger) -> None:
        for decoder in ("argmax", "mask-viterbi"):
            result = tagger.tag([["sings", "sings"]], clamp=[{0: "B-PER", 1: "E-PER"}], decoder=decoder)[0]
            assert result.labels == ["B-PER", "E-PER"]
            assert result.scores == [1.0, 1.0]
            assert [span[:3] for span in result.spans] == [(0, 2, "PER")]

    def test_random_sets_are_always_honoured(self, tagger: Tagger) -> None:
        generator = random.Random(0)
        sentences, clamps = [], []
        for _ in range(100):
            size = generator.randint(1, 6)
            sentences.append(generator.choices(list(DISTRIBUTIONS), k=size))
            held = generator.sample(range(size), generator.randint(0, size))
            # A single unit is possible anywhere, so these clamps always are.
            clamps.append({i: {"O", *generator.sample(tagger.labels, 2)} for i in held})
        for decoder in ("argmax", "mask-viterbi"):
            results = tagger.tag(sentences, clamp=clamps, decoder=decoder, batch_tokens=40, trajectory=True)
            for result, clamp in zip(results, clamps, strict=True):
                for position, wanted in clamp.items():
                    assert result.labels[position] in wanted
                    forbidden = [k for k, label in enumerate(tagger.labels) if label not in wanted]
                    assert all((step.beliefs[position, forbidden] == 0).all() for step in result.trajectory)

    def test_impossible_ones_are_refused_in_a_sentence(self, tagger: Tagger) -> None:
        with pytest.raises(NoLegalSequenceError) as caught:
            tagger.tag([["sings"], ["Ada", "Byron"]], clamp=[None, {0: "B-PER", 1: "O"}])
        assert str(caught.value) == (
            "no legal sequence of labels satisfies the clamp of sentence 2 up to position 1; relax the clamp."
        )
        for clamp in ({0: "M-PER"}, {0: "B-PER"}, {0: {"M-PER", "E-PER"}}):
            with pytest.raises(NoLegalSequenceError):
                tagger.tag([["Ada"]], clamp=[clamp])

    def test_unknown_labels_and_positions(self, tagger: Tagger) -> None:
        for clamp, message in [
            (
                {0: "S-PRE"},
                "names the label 'S-PRE', which this model does not have; use one of its labels, such as S-PER",
            ),
            ({0: {"O", 3}}, "names the label 3, which this model does not have"),
            ({0: set()}, "allows no label at position 0; allow a label there"),
            ({2: "O"}, r"names the position 2, but the sentence has 1 unit\(s\); count positions from 0"),
            ({-1: "O"}, "names the position -1"),
            ({"0": "O"}, "names the position '0'"),
        ]:
            with pytest.raises(InputError, match=message):
                tagger.tag([["Ada"]], clamp=[clamp])

    def test_there_is_one_for_each_sentence(self, tagger: Tagger) -> None:
        with pytest.raises(InputError, match="fewer clamps than sentences: none for sentence 2"):
            tagger.tag([["Ada"], ["Ada"]], clamp=[None])
        with pytest.raises(InputError, match=r"more clamps than sentences \(1\)"):
            tagger.tag([["Ada"]], clamp=[None, None])
        with pytest.raises(InputError, match="clamps must be given per sentence"):
            tagger.tag([["Ada"]], clamp={0: "O"})
