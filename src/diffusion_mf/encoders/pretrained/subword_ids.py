"""Units to subword ids: every distinct unit is given to the tokenizer once."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterable
from typing import Any

import numpy as np

from diffusion_mf.encoders.pretrained.windows import Integers

MAX_KNOWN_UNITS = 1_000_000
"""distinct units kept; memory must be bounded, whatever is streamed through a tagger"""

_HALF_PAIR = re.compile("[\ud800-\udfff]")


class SubwordIds:
    """The ids of each unit, as the tokenizer cuts it in the middle of a text.

    Byte-level tokenizers tell words from parts of words by the space before them, so that every unit is given one
    (``add_prefix_space``). A unit that becomes no subword (blanks, control characters) becomes the unknown token; where the
    tokenizer has none, it stays without. What looks like a special token in a text is text. Halves of surrogate pairs, which
    tokenizers refuse, are replacement characters.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.padding_id: int = 0 if tokenizer.pad_token_id is None else int(tokenizer.pad_token_id)
        self.unknown_id: int | None = None if tokenizer.unk_token_id is None else int(tokenizer.unk_token_id)
        self._space = " " if _is_byte_level(tokenizer) else ""
        self._known: dict[str, tuple[int, ...]] = {}
        # A tokenizer of Hugging Face must not be used by two threads at once.
        self._lock = threading.Lock()
        self.before, self.after = self._special_ids()

    def learn(self, units: Iterable[str]) -> None:
        """Cut the distinct ``units`` that are not known yet, all at once."""
        with self._lock:
            distinct = dict.fromkeys(units)
            new = [unit for unit in distinct if unit not in self._known]
            if not new:
                return
            if len(self._known) + len(new) > MAX_KNOWN_UNITS:
                self._known = {}
                new = list(distinct)
            fallback = () if self.unknown_id is None else (self.unknown_id,)
            texts = [self._space + _HALF_PAIR.sub("\ufffd", unit) for unit in new]
            for unit, ids in zip(new, self._cut(texts), strict=True):
                self._known[unit] = tuple(ids) or fallback

    def of_units(self, units: tuple[str, ...]) -> tuple[Integers, Integers]:
        """The ids of all subwords, and how many of them each unit has."""
        known = self._known
        try:
            parts = [known[unit] for unit in units]
        except KeyError:
            self.learn(units)
            return self.of_units(units)
        counts = np.fromiter(map(len, parts), np.int64, len(parts))
        ids = np.fromiter((index for part in parts for index in part), np.int64, int(counts.sum()))
        return ids, counts

    def _cut(self, texts: list[str], *, special: bool = False) -> list[list[int]]:
        encoded = self.tokenizer(
            texts,
            add_special_tokens=special,
            split_special_tokens=True,
            return_attention_mask=False,
            return_token_type_ids=False,
            verbose=False,
        )
        return encoded["input_ids"]

    def _special_ids(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """What stands before and after a sentence, found by encoding one with and without."""
        for sample in ("a", "1", "."):
            (plain,), (framed,) = self._cut([sample]), self._cut([sample], special=True)
            for start in range(len(framed) - len(plain) + 1):
                if plain and framed[start : start + len(plain)] == plain:
                    return tuple(framed[:start]), tuple(framed[start + len(plain) :])
        return (), ()


def _is_byte_level(tokenizer: Any) -> bool:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return False
    return '"ByteLevel"' in json.dumps(json.loads(backend.to_str()).get("pre_tokenizer"))
