"""Categorical noise the slow way: explicit K × K matrices, products and enumeration in float64."""

import itertools
import math

import numpy as np


def cosine_betas(num_steps, power=1, offset=0.008):
    """β_1…β_T of the cosine schedule (index 0 is unused)."""

    def f(t):
        return math.cos((t / num_steps + offset) / (1 + offset) * math.pi / 2) ** power

    return [0.0] + [1 - f(t) / f(t - 1) for t in range(1, num_steps + 1)]


def step_matrix(beta, num_labels):
    """Q[previous, next]: copy with weight 1 − β, draw uniformly with weight β."""
    matrix = np.full((num_labels, num_labels), beta / num_labels)
    for label in range(num_labels):
        matrix[label, label] = 1 - beta + beta / num_labels
    return matrix


def products(betas, num_labels, start=0):
    """{t: Q_{start+1} ⋯ Q_t} for t from start to T."""
    product = np.eye(num_labels)
    result = {start: product}
    for t in range(start + 1, len(betas)):
        product = product @ step_matrix(betas[t], num_labels)
        result[t] = product
    return result


def posterior(pi_t, rho_0, from_0_to_s, from_s_to_t):
    """p(y^s = k) by summing π_t(j)·ρ₀(m)·q(k | m)·q(j | k) over every j, k and m."""
    num_labels = len(pi_t)
    masses = np.zeros(num_labels)
    for m, k, j in itertools.product(range(num_labels), repeat=3):
        masses[k] += rho_0[m] * from_0_to_s[m, k] * from_s_to_t[k, j] * pi_t[j]
    return masses / masses.sum()


def posterior_mixture(pi_t, rho_0, from_0_to_s, from_s_to_t):
    """Σ_j π_t(j)·p(y^s = k | y^t = j, ρ₀): the posterior of every single label j, weighed by how probable j is."""
    num_labels = len(pi_t)
    return sum(pi_t[j] * posterior(np.eye(num_labels)[j], rho_0, from_0_to_s, from_s_to_t) for j in range(num_labels))


def kl(p, q):
    """Σ p log p/q with 0 log 0 = 0."""
    return sum(a * (math.log(a) - math.log(b)) for a, b in zip(p, q, strict=True) if a > 0)
