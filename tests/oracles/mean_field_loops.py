"""Mean-Field by loops over positions and labels, one sentence at a time: Python floats, nothing from the package."""

from __future__ import annotations

import math


def softmax(scores):
    top = max(scores)
    weights = [math.exp(score - top) for score in scores]
    return [weight / sum(weights) for weight in weights]


def beliefs(unary, transition, num_iterations, illegal=-1e4):
    """unary: n lists of K scores; transition(i, j, k): score of label j at i before label k at i + 1."""
    length, num_labels = len(unary), len(unary[0])

    def pair_score(position, before, after):
        score = transition(position, before, after)
        return illegal if score == -math.inf else score

    current = [softmax(scores) for scores in unary]
    for _ in range(num_iterations):
        updated = []
        for position in range(length):
            scores = []
            for label in range(num_labels):
                score = unary[position][label]
                for other in range(num_labels):
                    if position > 0:
                        score += current[position - 1][other] * pair_score(position - 1, other, label)
                    if position + 1 < length:
                        score += current[position + 1][other] * pair_score(position, label, other)
                scores.append(score)
            updated.append(softmax(scores))
        current = updated
    return current


def lower_bound(unary, transition, current):
    """E_q[score] + H(q) with 0·(−∞) = 0 and 0·log 0 = 0."""
    total = 0.0
    for position, belief in enumerate(current):
        for label, probability in enumerate(belief):
            if probability > 0:
                total += probability * (unary[position][label] - math.log(probability))
            if position + 1 < len(current):
                for following, next_probability in enumerate(current[position + 1]):
                    if probability * next_probability > 0:
                        total += probability * next_probability * transition(position, label, following)
    return total
