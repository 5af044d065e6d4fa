"""The generative process: the same for a seed, groups where the knobs ask for them, everything else certain."""

from __future__ import annotations

import hashlib
import itertools
import math
from collections import Counter, defaultdict

import pytest

from diffusion_mf.data.label_schemes import LabelScheme, check_sequence
from diffusion_mf.errors import InputError
from diffusion_mf.lab.synthetic import FLAVOURS, find_groups, generate
from diffusion_mf.lab.synthetic.grammar import Draws

pytestmark = pytest.mark.parametrize("flavour", list(FLAVOURS))


def test_a_seed_and_a_split_name_one_stream(flavour: str) -> None:
    first = list(generate(flavour, 40, 3))
    assert first == list(generate(flavour, 40, 3))
    assert first[:15] == list(generate(flavour, 15, 3))
    others = [list(generate(flavour, 40, 4)), list(generate(flavour, 40, 3, split="dev"))]
    assert all({s.units for s in first}.isdisjoint({s.units for s in other}) for other in others)


def test_the_corpus_is_the_one_the_documentation_describes(flavour: str) -> None:
    # A change here changes everybody's corpus and the table in docs/synthetic-corpus.md.
    text = "\n".join(" ".join(s.units + s.labels) for s in generate(flavour, 100, 0))
    digests = {"pos": "5f8ae41806cfde58", "ner": "67d738f51f0a53f4", "seg-pos": "e24fd686e0bfb66c"}
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == digests[flavour]


@pytest.mark.parametrize(("adjacent", "distant"), [(0, 0), (0, 1), (1, 0), (1, 1), (0.3, 0.7)])
def test_knobs_are_shares_of_sentences_and_independent(flavour: str, adjacent: float, distant: float) -> None:
    sentences = list(generate(flavour, 1500, 1, adjacent=adjacent, distant=distant))
    holds = Counter(kind for s in sentences for kind in {group.kind for group in s.groups})
    both = sum(len(s.groups) == 2 for s in sentences)
    for count, share in ((holds["adjacent"], adjacent), (holds["distant"], distant), (both, adjacent * distant)):
        assert abs(count / 1500 - share) <= 4 * math.sqrt(share * (1 - share) / 1500)


def test_slots_stand_together_or_far_apart_with_certain_labels_around(flavour: str) -> None:
    for sentence in generate(flavour, 400, 2):
        uncertain = {position for group in sentence.groups for position in group.positions}
        for group in sentence.groups:
            template = FLAVOURS[flavour].templates[group.kind]
            slots = [group.positions[start:end] for start, end in template.slot_bounds]
            assert len(slots) == 1 if group.kind == "adjacent" else len(slots) >= 2
            for slot in slots:
                assert list(slot) == list(range(slot[0], slot[-1] + 1))
                assert slot[0] - 1 not in uncertain
                assert slot[-1] + 1 < len(sentence.units)
                assert slot[-1] + 1 not in uncertain
            for left, right in itertools.pairwise(slots):
                between = set(range(left[-1] + 1, right[0]))
                assert len(between - uncertain) >= 3


def test_labels_outside_groups_follow_from_the_units_around_them(flavour: str) -> None:
    reach = 2 if flavour == "seg-pos" else 1
    labels_of: dict[tuple[str, ...], set[str]] = defaultdict(set)
    occurrences: Counter[tuple[str, ...]] = Counter()
    for sentence in generate(flavour, 4000, 5):
        uncertain = {position for group in sentence.groups for position in group.positions}
        padded = ("",) * reach + sentence.units + ("",) * reach
        for index, label in enumerate(sentence.labels):
            if index not in uncertain:
                window = padded[index : index + 2 * reach + 1]
                labels_of[window].add(label)
                occurrences[window] += 1
    assert sum(count > 1 for count in occurrences.values()) > 1000
    assert all(len(labels) == 1 for labels in labels_of.values())


def test_some_words_need_their_neighbours(flavour: str) -> None:
    labels_of: dict[str, set[str]] = defaultdict(set)
    for sentence in generate(flavour, 2000, 5, adjacent=0, distant=0):
        for unit, label in zip(sentence.units, sentence.labels, strict=True):
            labels_of[unit].add(label)
    assert 10 <= sum(len(labels) > 1 for labels in labels_of.values()) < len(labels_of)


def test_units_do_not_tell_the_pattern(flavour: str) -> None:
    drawn: dict[tuple[str, str, int], Counter[tuple[str, ...]]] = defaultdict(Counter)
    for sentence in generate(flavour, 4000, 6):
        for group in sentence.groups:
            labels = tuple(sentence.labels[position] for position in group.positions)
            for key in ("", *(sentence.units[position] for position in group.positions)):
                drawn[group.kind, key, len(sentence.units) // 10 if not key else 0][labels] += 1
    for (kind, _, _), counts in drawn.items():
        patterns = FLAVOURS[flavour].templates[kind].patterns
        assert set(counts) <= {pattern.labels for pattern in patterns}
        for pattern in patterns:
            deviation = math.sqrt(pattern.probability * (1 - pattern.probability) / counts.total())
            assert abs(counts[pattern.labels] / counts.total() - pattern.probability) < 4.5 * deviation


def test_every_sequence_is_legal_and_of_moderate_length(flavour: str) -> None:
    scheme = FLAVOURS[flavour].scheme
    seen = set()
    for sentence in generate(flavour, 1000, 7):
        assert len(sentence.units) == len(sentence.labels)
        assert 8 <= len(sentence.units) <= 30
        check_sequence(sentence.labels, scheme)
        assert not any(character.isspace() for unit in sentence.units for character in unit)
        assert flavour != "seg-pos" or ("O" not in sentence.labels and all(len(unit) == 1 for unit in sentence.units))
        seen |= set(sentence.labels)
    if flavour == "ner":
        assert scheme is LabelScheme.BMES
        assert seen == {"O"} | {f"{b}-{t}" for b in "BMES" for t in ("PER", "LOC", "ORG", "MISC")}


def test_groups_are_recognised_from_the_units_alone(flavour: str) -> None:
    for sentence in generate(flavour, 500, 8):
        assert find_groups(sentence.units, flavour=flavour) == sentence.groups


def test_settings_that_make_no_sense_are_refused_before_the_first_sentence(flavour: str) -> None:
    with pytest.raises(InputError, match="cannot be negative, found -1"):
        generate(flavour, -1)
    for value in (-0.1, 1.5, math.nan):
        with pytest.raises(InputError, match="distant must be a share of sentences"):
            generate(flavour, 1, distant=value)
    with pytest.raises(InputError, match="no flavour is called 'morse'"):
        generate("morse", 1)


def test_draws_reach_all_and_only_what_they_should(flavour: str) -> None:
    draws = Draws(flavour, "test")
    assert {draws.integer(2, 4) for _ in range(200)} == {2, 3, 4}
    assert {draws.pick("abc") for _ in range(200)} == set("abc")
    assert {draws.weighted("abc", (0.5, 0.5, 1.0)) for _ in range(200)} == {"a", "c"}
    assert not any(draws.chance(0) for _ in range(200))
    assert all(draws.chance(1) for _ in range(200))
