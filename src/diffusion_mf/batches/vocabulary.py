"""What a training corpus determines for a model: forms and characters with their counts, and the labels."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from diffusion_mf.data.corpus import Corpus
from diffusion_mf.data.label_schemes import LabelScheme, translate_label
from diffusion_mf.data.sentence import Sentence
from diffusion_mf.errors import shortened

PADDING_ID = 0
UNKNOWN_ID = 1
NUM_SPECIAL_IDS = 2


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """Case-sensitive forms and characters, most frequent first, and labels in sorted order.

    Ids follow that order; those of forms and characters start after padding (0) and unknown (1), those of labels at 0.
    """

    form_counts: Mapping[str, int]
    character_counts: Mapping[str, int]
    labels: tuple[str, ...]
    pairs: tuple[tuple[int, int], ...] = ()
    """ids of neighbouring forms, with padding for the ends of a sentence; only for encoders that use pairs"""

    @classmethod
    def build(
        cls, sentences: Iterable[Sentence], *, min_count: int = 1, min_pair_count: int | None = None
    ) -> Vocabulary:
        """Count labelled ``sentences``; forms and characters seen fewer than ``min_count`` times are unknown.

        With ``min_pair_count``, pairs of neighbouring forms with at least that count are kept, too.
        """
        sentences = list(sentences)
        forms: Counter[str] = Counter()
        labels: set[str] = set()
        for sentence in sentences:
            if sentence.labels is None:
                raise ValueError("a vocabulary is built from labelled sentences")
            forms.update(sentence.units)
            labels.update(sentence.labels)
        characters: Counter[str] = Counter()
        for form, count in forms.items():
            for character in form:
                characters[character] += count
        found = cls(
            form_counts=_ordered(forms, min_count),
            character_counts=_ordered(characters, min_count),
            labels=tuple(sorted(labels)),
        )
        if min_pair_count is None:
            return found
        return dataclasses.replace(found, pairs=_frequent_pairs(sentences, found.form_ids, min_pair_count))

    @functools.cached_property
    def form_ids(self) -> dict[str, int]:
        """Form to id, without padding and unknown."""
        return {form: index for index, form in enumerate(self.form_counts, NUM_SPECIAL_IDS)}

    @functools.cached_property
    def character_ids(self) -> dict[str, int]:
        """Character to id, without padding and unknown."""
        return {character: index for index, character in enumerate(self.character_counts, NUM_SPECIAL_IDS)}

    @functools.cached_property
    def label_ids(self) -> dict[str, int]:
        """Label to id."""
        return {label: index for index, label in enumerate(self.labels)}

    @property
    def num_form_ids(self) -> int:
        """Rows a table of form embeddings needs, padding and unknown included."""
        return len(self.form_counts) + NUM_SPECIAL_IDS

    @property
    def num_character_ids(self) -> int:
        """Rows a table of character embeddings needs, padding and unknown included."""
        return len(self.character_counts) + NUM_SPECIAL_IDS

    def extended(self, other: Vocabulary) -> Vocabulary:
        """With the forms, characters and pairs of ``other`` added; the labels stay the same."""
        forms = _ordered(Counter(self.form_counts) + Counter(other.form_counts), 1)
        characters = _ordered(Counter(self.character_counts) + Counter(other.character_counts), 1)
        found = Vocabulary(form_counts=forms, character_counts=characters, labels=self.labels)
        pairs = set()
        for vocabulary in (self, other):
            new_ids = {index: found.form_ids[form] for form, index in vocabulary.form_ids.items()}
            pairs |= {(new_ids.get(first, first), new_ids.get(second, second)) for first, second in vocabulary.pairs}
        return dataclasses.replace(found, pairs=tuple(sorted(pairs)))

    def to_dict(self) -> dict[str, Any]:
        """As values for JSON; lists of pairs keep the order even if a reader of objects does not."""
        return {
            "forms": [[form, count] for form, count in self.form_counts.items()],
            "characters": [[character, count] for character, count in self.character_counts.items()],
            "labels": list(self.labels),
            **({"pairs": [list(pair) for pair in self.pairs]} if self.pairs else {}),
        }

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Vocabulary:
        """The inverse of `to_dict`."""
        return cls(
            form_counts=dict(value["forms"]),
            character_counts=dict(value["characters"]),
            labels=tuple(value["labels"]),
            pairs=tuple((first, second) for first, second in value.get("pairs", ())),
        )


def describe_unknown_labels(corpus: Corpus, known: Iterable[str], *, owner: str) -> str | None:
    """A message about labels of ``corpus`` that are not among the ``known`` ones; None if there are none.

    ``owner`` completes “labels that …”, as in “the model does not know”.
    """
    known = frozenset(known)
    counts = Counter(label for sentence in corpus for label in sentence.labels or ())
    unknown = sorted(counts.keys() - known)
    if not unknown:
        return None
    line = next(
        corpus.unit_line(sentence, index)
        for sentence in corpus
        for index, label in enumerate(sentence.labels or ())
        if label not in known
    )
    # In the file's own scheme: that is where a user will look for them.
    has_other_scheme = corpus.scheme is not LabelScheme.PLAIN and corpus.source_scheme is not LabelScheme.PLAIN
    shown = [
        translate_label(label, corpus.scheme, corpus.source_scheme) if has_other_scheme else label for label in unknown
    ]
    shown = [*dict.fromkeys(shown)]
    share = f"{sum(counts[label] for label in unknown):,} of {counts.total():,}"
    more = f" and {len(shown) - 3} more" if len(shown) > 3 else ""
    return (
        f"{corpus.path}: {share} units have labels that {owner} ({', '.join(map(shortened, shown[:3]))}{more}), "
        f"first on line {line}: they count as wrong"
    )


def _ordered(counts: Counter[str], min_count: int) -> dict[str, int]:
    kept = ((text, count) for text, count in counts.items() if count >= min_count)
    return dict(sorted(kept, key=lambda item: (-item[1], item[0])))


def _frequent_pairs(
    sentences: Iterable[Sentence], form_ids: Mapping[str, int], min_count: int
) -> tuple[tuple[int, int], ...]:
    counts: Counter[tuple[int, int]] = Counter()
    for sentence in sentences:
        ids = [PADDING_ID, *(form_ids.get(form, UNKNOWN_ID) for form in sentence.units), PADDING_ID]
        counts.update(itertools.pairwise(ids))
    return tuple(sorted(pair for pair, count in counts.items() if count >= min_count))
