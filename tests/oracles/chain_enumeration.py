"""Linear chains by enumeration of every label sequence: float64, plain loops, nothing from the package."""

from __future__ import annotations

import itertools
import math

import torch


def sequences(length, num_labels):
    return list(itertools.product(range(num_labels), repeat=length))


def sequence_score(unary, transition, start, end, labels):
    """Score of one sequence of one sentence: unary (N, K), transition (K, K) or (N − 1, K, K)."""
    total = start[labels[0]] + end[labels[-1]]
    for position, label in enumerate(labels):
        total = total + unary[position, label]
        if position + 1 < len(labels):
            matrix = transition if transition.dim() == 2 else transition[position]
            total = total + matrix[label, labels[position + 1]]
    return total


class Enumerated:
    """Everything about one sentence, from the list of all its sequences."""

    def __init__(self, unary, transition, length, start=None, end=None, allowed=None):
        num_labels = unary.shape[-1]
        zeros = torch.zeros(num_labels, dtype=torch.float64)
        start = zeros if start is None else start
        end = zeros if end is None else end
        self.length, self.num_labels = length, num_labels
        self.paths = [
            path
            for path in sequences(length, num_labels)
            if allowed is None or all(allowed[i, k] for i, k in enumerate(path))
        ]
        self.scores = [sequence_score(unary, transition, start, end, path) for path in self.paths]
        finite = [i for i, score in enumerate(self.scores) if float(score.detach()) != -math.inf]
        self.paths = [self.paths[i] for i in finite]
        self.scores = torch.stack([self.scores[i] for i in finite]) if finite else torch.empty(0, dtype=torch.float64)

    @property
    def log_partition(self):
        return torch.logsumexp(self.scores, 0) if self.paths else torch.tensor(-math.inf, dtype=torch.float64)

    def probabilities(self):
        return torch.softmax(self.scores, 0)

    def marginals(self):
        """Each path gives its probability to the labels it passes."""
        passed = torch.zeros(len(self.paths), self.length, self.num_labels, dtype=torch.float64)
        for index, path in enumerate(self.paths):
            for position, label in enumerate(path):
                passed[index, position, label] = 1.0
        return torch.tensordot(self.probabilities(), passed, 1)

    def pairs(self):
        """Each path gives its probability to the pairs of neighbouring labels it passes."""
        passed = torch.zeros(len(self.paths), self.length - 1, self.num_labels, self.num_labels, dtype=torch.float64)
        for index, path in enumerate(self.paths):
            for position, (label, following) in enumerate(itertools.pairwise(path)):
                passed[index, position, label, following] = 1.0
        return torch.tensordot(self.probabilities(), passed, 1)

    def entropy(self):
        probabilities = self.probabilities()
        return -(probabilities * torch.log_softmax(self.scores, 0)).sum()

    def best(self, count=1):
        """The best sequences with their scores, best first; ties to the sequence that is smaller from its end."""
        order = sorted(range(len(self.paths)), key=lambda i: (-float(self.scores[i]), self.paths[i][::-1]))
        return [(self.paths[i], float(self.scores[i])) for i in order[:count]]
