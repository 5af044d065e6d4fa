"""Mean-Field for one sentence, entry by entry, on scalars: float64, nothing from the package."""

from __future__ import annotations

import math

import torch


def mean_field(unary, transition, length, num_iterations, *, illegal_transition):
    """Beliefs (length, K) after parallel updates from softmax(unary); differentiable.

    Labels of −∞ are left out; transitions of −∞ count as the constant ``illegal_transition``.
    """
    num_labels = unary.shape[-1]

    def is_forbidden(position, label):
        return float(unary[position, label].detach()) == -math.inf

    def score(position, label, following):
        matrix = transition if transition.dim() == 2 else transition[position]
        entry = matrix[label, following]
        return illegal_transition if float(entry.detach()) == -math.inf else entry

    def normalise(position, scores):
        """Shares of exp(score) among the labels that are left."""
        left = [label for label in range(num_labels) if not is_forbidden(position, label)]
        top = max((float(scores[label].detach()) for label in left), default=0.0)
        weights = {label: (scores[label] - top).exp() for label in left}
        total = sum(weights.values())
        zero = torch.zeros((), dtype=torch.float64)
        return [weights[label] / total if label in weights else zero for label in range(num_labels)]

    def updated(beliefs, position):
        scores = []
        for label in range(num_labels):
            value = unary[position, label]
            for other in range(num_labels):
                if position > 0:
                    value = value + beliefs[position - 1][other] * score(position - 1, other, label)
                if position + 1 < length:
                    value = value + beliefs[position + 1][other] * score(position, label, other)
            scores.append(value)
        return normalise(position, scores)

    beliefs = [normalise(position, list(unary[position])) for position in range(length)]
    for _ in range(num_iterations):
        beliefs = [updated(beliefs, position) for position in range(length)]
    return torch.stack([torch.stack(row) for row in beliefs])
