"""Random choices that depend on nothing but their key, and the invented words they choose from."""

from __future__ import annotations

import bisect
import itertools
import random
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

Item = TypeVar("Item")


class WordClass(NamedTuple):
    """Invented words (or characters) with cumulative weights, most frequent first."""

    words: tuple[str, ...]
    cumulative: tuple[float, ...]


def word_class(words: Sequence[str], *, exponent: float = 1.0) -> WordClass:
    """Zipfian words: the r-th has a weight of 1 / r^exponent; an exponent of 0 makes them equally likely."""
    weights = [1 / rank**exponent for rank in range(1, len(words) + 1)]
    total = sum(weights)
    return WordClass(tuple(words), tuple(itertools.accumulate(weight / total for weight in weights)))


class Draws:
    """A stream of random choices for a key such as (seed, split).

    Only `random.random` is asked, the one method whose sequence Python promises to keep across versions: a seed gives the
    same corpus everywhere.
    """

    def __init__(self, *key: object) -> None:
        self._random = random.Random("/".join(map(str, key))).random

    def chance(self, probability: float) -> bool:
        """Whether an event of this probability happens."""
        return self._random() < probability

    def integer(self, low: int, high: int) -> int:
        """One of low … high, both included."""
        return low + int(self._random() * (high - low + 1))

    def pick(self, items: Sequence[Item]) -> Item:
        """One of ``items``, each as likely."""
        return items[int(self._random() * len(items))]

    def weighted(self, items: Sequence[Item], cumulative: Sequence[float]) -> Item:
        """One of ``items`` by cumulative weights that end at 1."""
        # Rounding may leave the last weight a hair below 1.
        return items[min(bisect.bisect_right(cumulative, self._random()), len(items) - 1)]

    def word(self, words: WordClass) -> str:
        """A word of its class."""
        return self.weighted(words.words, words.cumulative)


class Inventor:
    """Invents pronounceable words, none of them twice, the same ones in every process.

    The vocabulary is keyed by a name and not by the corpus seed: corpora of different seeds are texts in one language, and
    dependent groups can be recognised in any of them.
    """

    _ONSETS = ("b", "d", "f", "g", "h", "k", "l", "m", "n", "p", "r", "s", "t", "v", "z", "br", "dr", "kl", "st", "tr")
    _VOWELS = ("a", "e", "i", "o", "u", "ai", "ou")
    _CODAS = ("", "", "", "n", "r", "s", "l", "k")

    def __init__(self, language: str) -> None:
        self._draws = Draws("synthetic vocabulary", language)
        self._taken: set[str] = set()

    def words(self, count: int, *, syllables: tuple[int, int] = (2, 3), style: str = "lower") -> list[str]:
        """``count`` new words; ``style`` is lower, title or upper, and no two words differ by case only."""
        invented: list[str] = []
        while len(invented) < count:
            word = "".join(self._syllable() for _ in range(self._draws.integer(*syllables)))
            if len(word) > 1 and word not in self._taken:
                self._taken.add(word)
                invented.append({"lower": word, "title": word.title(), "upper": word.upper()}[style])
        return invented

    def word_class(
        self, count: int, *, syllables: tuple[int, int] = (2, 3), style: str = "lower", exponent: float = 1.0
    ) -> WordClass:
        """A class of ``count`` new words."""
        return word_class(self.words(count, syllables=syllables, style=style), exponent=exponent)

    def _syllable(self) -> str:
        return self._draws.pick(self._ONSETS) + self._draws.pick(self._VOWELS) + self._draws.pick(self._CODAS)
