"""The best sequences of a tagger, and requests that are read first and tagged later, together."""

from __future__ import annotations

import itertools
import math

import pytest
from small_models import small_tagger
from stand_in import NER_LABELS, stand_in_tagger

from diffusion_mf.data.corpus import Task
from diffusion_mf.data.label_schemes import LabelScheme, is_legal_end, is_legal_start, is_legal_transition
from diffusion_mf.errors import InputError
from diffusion_mf.tagger import Tagger

DISTRIBUTIONS = {
    "Ada": {"B-PER": 0.5, "S-PER": 0.3, "O": 0.2},
    "Byron": {"E-PER": 0.6, "O": 0.3, "S-LOC": 0.1},
}


def is_legal_pair(first: str, second: str) -> bool:
    bmes = LabelScheme.BMES
    return is_legal_start(first, bmes) and is_legal_transition(first, second, bmes) and is_legal_end(second, bmes)


@pytest.fixture
def tagger() -> Tagger:
    return stand_in_tagger(DISTRIBUTIONS)


def test_alternatives_are_the_best_legal_sequences(tagger: Tagger) -> None:
    result = tagger.tag([["Ada", "Byron"]], calls=1, k_best=4, trajectory=True)[0]
    beliefs = result.trajectory[-1].beliefs
    columns = {label: index for index, label in enumerate(tagger.labels)}
    by_hand = sorted(
        (
            (sum(math.log(beliefs[i, columns[label]]) for i, label in enumerate(labels)), labels)
            for labels in itertools.product(NER_LABELS, repeat=2)
            if is_legal_pair(*labels) and all(beliefs[i, columns[x]] > 0 for i, x in enumerate(labels))
        ),
        reverse=True,
    )[:4]
    assert [each.labels for each in result.alternatives] == [list(labels) for _, labels in by_hand]
    expected = [score - by_hand[0][0] for score, _ in by_hand]
    assert [each.log_ratio for each in result.alternatives] == pytest.approx(expected, abs=1e-4)
    assert result.alternatives[0].labels == result.labels


def test_alternatives_honour_clamps_and_end_where_there_are_no_more(tagger: Tagger) -> None:
    result = tagger.tag([["Ada", "Byron"]], k_best=50, clamp=[{"units": [0, 2], "type": "PER"}])[0]
    assert [each.labels for each in result.alternatives] == [["B-PER", "E-PER"]]
    assert tagger.tag([[]], k_best=2)[0].alternatives == ()
    assert tagger.tag([["Ada"]])[0].alternatives is None
    for wrong in (0, 1.5, "2"):
        with pytest.raises(InputError, match="k_best cannot be"):
            tagger.tag([["Ada"]], k_best=wrong)


@pytest.mark.parametrize("system", ["lcrf", "diffusion-lcrf", "mean-field", "diffusionsl"])
@pytest.mark.parametrize("scheme", ["bmes", "bio2", "iob1"])
def test_the_first_is_what_a_legal_decoder_gives_in_every_scheme(system: str, scheme: str) -> None:
    tagger = small_tagger(system, Task.NER)
    decoder = "viterbi" if "lcrf" in system else "mask-viterbi"
    sentences = [["Ada", "Byron", "sings", "in", "Oslo"], ["Eve"], ["the", "royal", "choir"]]
    clamps = [{4: {"O", "I-LOC" if scheme == "iob1" else "S-LOC"}}, None, None]
    for result in tagger.tag(sentences, decoder=decoder, k_best=3, scheme=scheme, clamp=clamps):
        assert result.alternatives[0] == (result.labels, 0)
        assert len({tuple(each.labels) for each in result.alternatives}) == len(result.alternatives)
        ratios = [each.log_ratio for each in result.alternatives]
        assert ratios == sorted(ratios, reverse=True)


def test_requests_read_apart_are_tagged_together(tagger: Tagger) -> None:
    one = tagger.read_requests([["Ada", "Byron"], ["Ada"]], clamp=[{0: "O"}, None])
    other = tagger.read_requests([["Byron", "Ada"]])
    expected = tagger.tag([["Ada", "Byron"], ["Ada"], ["Byron", "Ada"]], clamp=[{0: "O"}, None, None])
    assert tagger.tag_requests([*one, *other]) == expected
    with pytest.raises(InputError, match="the clamp of sentence 2"):
        tagger.read_requests([["Ada"], ["Ada"]], clamp=[None, {3: "O"}])
