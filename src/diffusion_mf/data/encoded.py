"""A corpus as integers: batches are cut out of arrays, without a look at any string."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from diffusion_mf.data.batching import Batch
from diffusion_mf.data.occurrences import document_rows, other_places
from diffusion_mf.data.sentence import Sentence
from diffusion_mf.data.vocabulary import UNKNOWN_ID, Vocabulary


class EncodedSentences:
    """Sentences looked up in a vocabulary once; `batch` is `collate` of some of them, up to the order of distinct words.

    With ``has_labels`` off, labels (those of a test file need not be in the vocabulary) are left out. ``recall`` is the model's.
    """

    def __init__(
        self, sentences: Sequence[Sentence], vocabulary: Vocabulary, *, has_labels: bool = True, recall: int = 0
    ) -> None:
        words: dict[str, int] = {}
        flat = [words.setdefault(unit, len(words)) for sentence in sentences for unit in sentence.units]
        self.lengths = np.array([len(sentence.units) for sentence in sentences], dtype=np.int64)
        self._starts = np.concatenate([[0], np.cumsum(self.lengths)])
        self._recall = recall
        self._documents = np.array([sentence.document for sentence in sentences], dtype=np.int64)
        self._words = np.array(flat, dtype=np.int64)
        self._forms = np.array([vocabulary.form_ids.get(word, UNKNOWN_ID) for word in words], dtype=np.int64)
        self._spelling_lengths = np.array([len(word) for word in words], dtype=np.int64)
        spelling = [vocabulary.character_ids.get(character, UNKNOWN_ID) for word in words for character in word]
        self._spellings = np.zeros((len(words), max(map(len, words), default=1)), dtype=np.int64)
        self._spellings[_mask(self._spelling_lengths, self._spellings.shape[1])] = spelling
        self._labels: np.ndarray | None = None
        if has_labels:
            labels = [vocabulary.label_ids[label] for sentence in sentences for label in sentence.labels or ()]
            if len(labels) != len(flat):
                raise ValueError("every sentence must have labels")
            self._labels = np.array(labels, dtype=np.int64)

    def __len__(self) -> int:
        return len(self.lengths)

    def batch(self, indices: Sequence[int]) -> Batch:
        """The tensors of some sentences."""
        lengths = self.lengths[indices]
        mask = _mask(lengths, int(lengths.max()))
        units = np.concatenate([np.arange(self._starts[index], self._starts[index + 1]) for index in indices])
        words = self._words[units]
        distinct, rows = np.unique(words, return_inverse=True)
        spelling_lengths = np.concatenate([[0], self._spelling_lengths[distinct]])
        spellings = np.zeros((len(distinct) + 1, spelling_lengths.max()), dtype=np.int64)
        spellings[1:] = self._spellings[distinct, : spellings.shape[1]]
        return Batch(
            form_ids=_filled(mask, self._forms[words]),
            word_rows=_filled(mask, rows + 1),
            character_ids=torch.from_numpy(spellings),
            character_lengths=torch.from_numpy(spelling_lengths),
            lengths=torch.from_numpy(lengths),
            label_ids=None if self._labels is None else _filled(mask, self._labels[units]),
            others=other_places(words, self._documents[indices], lengths, most=self._recall) if self._recall else None,
            document_rows=document_rows(self._documents[indices]) if self._recall else None,
        )


def _mask(lengths: np.ndarray, width: int) -> np.ndarray:
    return np.arange(width) < lengths[:, None]


def _filled(mask: np.ndarray, values: np.ndarray) -> torch.Tensor:
    """A rectangle of zeros with ``values`` in reading order where ``mask`` is set."""
    filled = np.zeros(mask.shape, dtype=np.int64)
    filled[mask] = values
    return torch.from_numpy(filled)
