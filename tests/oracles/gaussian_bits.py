"""Bit codes and Gaussian diffusion the slow way: strings of digits, and recursions over single steps."""

import math


def code(label, num_bits, scale):
    """±scale by the digits of the label written in base two."""
    return [scale if digit == "1" else -scale for digit in format(label, f"0{num_bits}b")]


def value(bits):
    """The integer whose digits are the signs of the bits."""
    return int("".join("1" if bit > 0 else "0" for bit in bits), 2)


def linear_betas(num_steps, first, last):
    """β_1…β_T (index 0 is unused)."""
    if num_steps == 1:
        return [0.0, first]
    return [0.0] + [first + (last - first) * index / (num_steps - 1) for index in range(num_steps)]


def marginal_moments(betas):
    """(coefficient of x_0, variance) of x_t for every t, by x_t = √(1 − β_t) x_{t−1} + √β_t ε step by step."""
    coefficient, variance = 1.0, 0.0
    result = [(coefficient, variance)]
    for beta in betas[1:]:
        coefficient *= math.sqrt(1 - beta)
        variance = (1 - beta) * variance + beta
        result.append((coefficient, variance))
    return result


def one_step_posterior(x_t, x_0, t, betas):
    """Mean and variance of q(x_{t−1} | x_t, x_0): a product of two Gaussians in x_{t−1}, by precisions."""
    coefficient, variance = marginal_moments(betas)[t - 1]
    # N(x_{t−1}; coefficient·x_0, variance) · N(x_t; √(1−β)·x_{t−1}, β)
    precision = 1 / variance + (1 - betas[t]) / betas[t]
    mean = (coefficient * x_0 / variance + math.sqrt(1 - betas[t]) * x_t / betas[t]) / precision
    return mean, 1 / precision
