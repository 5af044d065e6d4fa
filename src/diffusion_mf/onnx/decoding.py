"""Decoders in NumPy, and the labels that users see with their scores (see `decoding` for both)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from diffusion_mf.data.label_schemes import (
    Boundary,
    LabelScheme,
    begins_after_its_type,
    format_label,
    is_legal_end,
    is_legal_start,
    is_legal_transition,
    parse_label,
    translate_label,
)
from diffusion_mf.onnx.folder import Manifest

NO_LABEL_ID = -1


def viterbi(unary: np.ndarray, transition: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """The best labels (B, N) of scores (B, N, K) and (K, K) or (B, N − 1, K, K), in float64; ties to the smaller label.

    bestᵢ(k) = maxⱼ (bestᵢ₋₁(j) + transitionᵢ₋₁(j, k)) + unaryᵢ(k); the way back repeats the sum for the chosen labels only.
    """
    B, N, _ = unary.shape
    best = unary.astype(np.float64).swapaxes(0, 1).copy()  # (N, B, K)
    moves = transition.astype(np.float64)
    is_global = moves.ndim == 2
    for position in range(1, N):
        step = moves if is_global else moves[:, position - 1]
        best[position] += (best[position - 1, :, :, None] + step).max(1)
    sentences = np.arange(B)
    labels = np.zeros((N, B), dtype=np.int64)
    for position in range(N - 1, -1, -1):
        scores = best[position]
        if position < N - 1:
            after = labels[position + 1]
            step = moves[:, after].T if is_global else moves[sentences, position, :, after]
            scores = np.where((position < lengths - 1)[:, None], scores + step, scores)
        labels[position] = np.where(position < lengths, scores.argmax(-1), 0)
    return labels.T


class SequenceDecoder:
    """Turns scores into label ids (B, N)."""

    def __init__(self, manifest: Manifest) -> None:
        self._name = manifest["decoder"]
        labels, scheme = manifest["labels"], LabelScheme(manifest["scheme"])
        self._is_constrained = scheme is not LabelScheme.PLAIN
        if self._is_constrained:
            self._starts, self._ends = (
                np.array([is_legal(label, scheme) for label in labels]) for is_legal in (is_legal_start, is_legal_end)
            )
            self._transitions = np.array([[is_legal_transition(a, b, scheme) for b in labels] for a in labels])

    def __call__(self, unary: np.ndarray, transition: np.ndarray | None, lengths: np.ndarray) -> np.ndarray:
        """By the scores of a structure for Viterbi, and by those of single labels for the others."""
        if self._name == "argmax" or (transition is None and not self._is_constrained):
            return unary.argmax(-1)
        if transition is None:
            transition = np.zeros((unary.shape[-1],) * 2)
        if self._is_constrained:
            unary = unary.astype(np.float64)
            unary[:, 0, ~self._starts] = -np.inf
            last = unary[np.arange(len(unary)), lengths - 1]
            unary[np.arange(len(unary)), lengths - 1] = np.where(self._ends, last, -np.inf)
            transition = np.where(self._transitions, transition, -np.inf)
        return viterbi(unary, transition, lengths)


class PrintedLabels(NamedTuple):
    """Of a batch, (B, N): indices of names, and the probability of each."""

    names: np.ndarray
    scores: np.ndarray


class LabelPrinter:
    """`decoding.OutputLabels` in NumPy: the model's labels in the scheme that users read, which may print several as one."""

    def __init__(self, manifest: Manifest) -> None:
        labels = manifest["labels"]
        source, target = LabelScheme(manifest["scheme"]), LabelScheme(manifest["output_scheme"])
        alone = [translate_label(label, source, target) for label in labels]
        following = list(alone)
        self._is_following = np.zeros((len(labels), len(labels)), dtype=bool)
        if target is LabelScheme.IOB1 and source is not target:
            for index, label in enumerate(labels):
                boundary, kind = parse_label(label, source)
                if boundary in (Boundary.BEGIN, Boundary.SINGLE):
                    following[index] = format_label(Boundary.BEGIN, kind, target)
            self._is_following[:] = [[begins_after_its_type(a, b, source) for b in labels] for a in labels]
        names = sorted({*alone, *following})
        self.names = [*names, manifest["no_label"]]
        """the last stands for a code of bits without a label"""
        self._alone, self._following = (np.array([names.index(name) for name in each]) for each in (alone, following))
        self._of_alone, self._of_following = (
            (each[:, None] == np.arange(len(names))).astype(np.float32) for each in (self._alone, self._following)
        )

    def __call__(self, label_ids: np.ndarray, probabilities: np.ndarray) -> PrintedLabels:
        """What is printed for ``label_ids`` (B, N), given the probabilities (B, N, K) of the model's labels.

        For IOB1, units are assumed to be independent, as in `decoding.output_labels`.
        """
        known = np.maximum(label_ids, 0)
        is_following = np.zeros(label_ids.shape, dtype=bool)
        is_following[:, 1:] = self._is_following[known[:, :-1], known[:, 1:]] & (label_ids[:, :-1] >= 0)
        names = np.where(is_following, self._following[known], self._alone[known])
        following = np.zeros_like(probabilities)
        following[:, 1:] = probabilities[:, 1:] * (probabilities[:, :-1] @ self._is_following.astype(np.float32))
        of_names = (probabilities - following) @ self._of_alone + following @ self._of_following
        scores = np.take_along_axis(of_names, names[..., None], axis=-1)[..., 0].clip(0, 1)
        is_label = label_ids != NO_LABEL_ID
        return PrintedLabels(np.where(is_label, names, len(self.names) - 1), np.where(is_label, scores, 0))
