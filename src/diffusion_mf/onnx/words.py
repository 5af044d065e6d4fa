"""From words to rows of a table of word vectors: ids, spellings, affixes, pairs of neighbours.

What PyTorch's side computes in `networks.words`, `networks.known_words` and `batches.batching`, in NumPy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from diffusion_mf.onnx.folder import ExportedModel

UNKNOWN_ID = 1
LONGEST_AFFIX = 4
NUM_KINDS = 5
NEAR_FEATURES, FAR_FEATURES = [1, 2, 2 + LONGEST_AFFIX + 3], [1]
"""of a neighbour, and of words further away: see `networks.words.WordFeatures.columns`"""
MOST_WORDS = 50_000
"""kept at a time: memory must stay bounded, whatever is tagged"""
_WORDS_AT_ONCE = 4096

Graph = Callable[..., dict[str, np.ndarray]]


class WordTable:
    """A growing table of word vectors; row 0, padding, is zero."""

    def __init__(self, model: ExportedModel, graph: Graph) -> None:
        self._graph = graph
        self._form_ids, self._character_ids = model.form_ids, model.character_ids
        self._max_characters = model.manifest["max_characters"]
        self._arrays = model.arrays
        self._width = model.manifest["vector_width"]
        self._forget()

    def _forget(self) -> None:
        self._rows: dict[str, int] = {}
        self.vectors = np.zeros((1, self._width), dtype=np.float32)
        self.form_ids = np.zeros(1, dtype=np.int64)

    def look_up(self, words: Sequence[str]) -> np.ndarray:
        """The rows of ``words``, of which new ones are computed; valid for the present `vectors` and `form_ids`."""
        if len(self._rows) > MOST_WORDS:
            self._forget()
        # Words of about the same length together: the LSTM runs to the end of the longest.
        new = sorted({word for word in words if word not in self._rows}, key=lambda word: (len(word), word))
        for start in range(0, len(new), _WORDS_AT_ONCE):
            self._learn(new[start : start + _WORDS_AT_ONCE])
        return np.array([self._rows[word] for word in words], dtype=np.int64)

    def pair_rows(self, form_ids: np.ndarray) -> np.ndarray:
        """The rows of the pairs that end and begin at every unit, (B, N, 2), of ids (B, N) with 0 for padding."""
        keys = self._arrays.get("pair_keys")
        if keys is None:
            return np.zeros((*form_ids.shape, 2), dtype=np.int64)
        bordered = np.pad(form_ids, ((0, 0), (1, 1)))
        rows = _places(keys, bordered[:, :-1] * (len(self._form_ids) + 2) + bordered[:, 1:])
        return np.stack([rows[:, :-1], rows[:, 1:]], axis=-1)

    def _learn(self, words: Sequence[str]) -> None:
        most = self._max_characters
        # The first and the last half of a long word.
        spellings = [
            word if len(word) <= most else word[: most - most // 2] + word[len(word) - most // 2 :] for word in words
        ]
        lengths = np.array([*map(len, spellings)], dtype=np.int64)
        character_ids = np.zeros((len(words), lengths.max()), dtype=np.int64)
        character_ids[np.arange(character_ids.shape[1]) < lengths[:, None]] = [
            self._character_ids.get(character, UNKNOWN_ID) for spelling in spellings for character in spelling
        ]
        form_ids = np.array([self._form_ids.get(word, UNKNOWN_ID) for word in words], dtype=np.int64)
        vectors = self._graph(
            form_ids=form_ids,
            character_ids=character_ids,
            lengths=lengths,
            affix_rows=self._affix_rows(character_ids, lengths),
            feature_rows=self._feature_rows(character_ids, lengths),
        )["vectors"]
        first = len(self.form_ids)
        # New arrays: another thread may be reading the old ones.
        if first + len(words) > len(self.vectors):
            grown = np.zeros((first + len(words) + first // 2, self._width), dtype=np.float32)
            grown[:first] = self.vectors[:first]
            self.vectors = grown
        self.vectors[first : first + len(words)] = vectors
        self.form_ids = np.concatenate([self.form_ids, form_ids])
        self._rows.update(zip(words, range(first, first + len(words)), strict=True))

    def _affix_rows(self, character_ids: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """The rows of every word's shape, prefixes and suffixes, from short to long, (W, F); see `networks.words.Affixes`."""
        keys = self._arrays.get("affix_keys")
        if keys is None:
            return np.zeros((len(lengths), 1 + 2 * LONGEST_AFFIX), dtype=np.int64)
        return _places(keys, self._affix_codes(character_ids, lengths))

    def _feature_rows(self, character_ids: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """The rows of every word's features, (W, G); see `networks.words.WordFeatures`."""
        parts = [np.zeros((len(lengths), 0), dtype=np.int64)]
        distance = 0
        while (keys := self._arrays.get(f"feature_keys{distance}")) is not None:
            if distance == 0:
                codes = np.concatenate(
                    [self._word_codes(character_ids, lengths), self._affix_codes(character_ids, lengths)], axis=-1
                )
            columns = NEAR_FEATURES if distance == 1 else FAR_FEATURES if distance else slice(None)
            parts.append(_places(keys, codes[:, columns]))
            distance += 1
        return np.concatenate(parts, axis=-1)

    def _word_codes(self, character_ids: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """Of whole words, as they are written and in lower case, (W, 2)."""
        found = []
        for side, values in enumerate((self._arrays["code_points"], self._arrays["lowered"]), 3):
            code = np.full_like(lengths, side)
            for index, characters in enumerate(values[character_ids].T):
                code = np.where(lengths > index, _extended(code, characters), code)
            found.append(code)
        return np.stack(found, axis=-1)

    def _affix_codes(self, character_ids: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """Of shape, prefixes and suffixes, (W, F)."""
        character_ids = np.pad(character_ids, ((0, 0), (0, LONGEST_AFFIX)))
        found = [self._shapes(character_ids, lengths)]
        characters = self._arrays["lowered"][character_ids]
        backwards = np.maximum(lengths[:, None] - 1 - np.arange(LONGEST_AFFIX), 0)
        for side, ordered in enumerate((characters, np.take_along_axis(characters, backwards, axis=1)), 1):
            code = np.full_like(lengths, side)
            for index in range(LONGEST_AFFIX):
                code = _extended(code, ordered[:, index])
                found.append(np.where(lengths > index, code, 0))
        return np.stack(found, axis=-1)

    def _shapes(self, character_ids: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        kinds = self._arrays["kinds"][character_ids]
        is_there = np.arange(character_ids.shape[1]) < lengths[:, None]
        code = kinds[:, 0] + 1
        for kind in range(1, NUM_KINDS):
            is_kind = kinds == kind
            code = code * 3 + (is_kind & is_there).any(1) + (is_kind | ~is_there).all(1)
        return code


def _extended(code: np.ndarray, characters: np.ndarray) -> np.ndarray:
    return (code * 5_000_011 + characters) & 0xFFFFFFFFFF


def _places(keys: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """The positions of ``wanted`` among the ascending ``keys``, counted from 1; 0 for those not among them."""
    if not len(keys):
        return np.zeros_like(wanted)
    places = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[places] == wanted, places + 1, 0)
